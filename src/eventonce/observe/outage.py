"""Outages: said once when they begin and once when they are over, however many calls fail meanwhile."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from eventonce.backoff import backoff
from eventonce.clock import Clock
from eventonce.errors import EventOnceError, describe

Result = TypeVar("Result")
_CALM = 5000  # milliseconds without a failure before it is over: what fails now and then is still one outage
_log = logging.getLogger("eventonce.outage")


class Outage:
    """Whether something answers. Threads may share it."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._began = 0
        self._last = 0
        self.lasts = False

    def failed(self, error: BaseException | None) -> None:
        """A call was not answered."""
        with self._lock:
            self._last = self._clock.steady()
            if self.lasts:
                return
            self.lasts, self._began = True, self._last
        _log.warning("%s does not answer, trying again until it does: %s", self._name, describe(error))

    def worked(self) -> None:
        """A call was answered."""
        if not self.lasts:
            return
        with self._lock:
            now = self._clock.steady()
            if not self.lasts or now - self._last < _CALM:
                return
            self.lasts, seconds = False, (now - self._began) // 1000
        _log.warning("%s answers again, after %d seconds", self._name, seconds)


def awaited(act: Callable[[], Result], stop: threading.Event, failed: EventOnceError | None = None) -> Result | None:
    """What it returns as soon as it is answered; None where it is to stop before that. It may have `failed` already.

    What cannot pass, such as a name or a right that is wrong, is raised at once.
    """
    failures, said = 0, ""
    while not stop.is_set():
        if failed is None:
            try:
                answer = act()
            except EventOnceError as error:
                if not error.retryable:
                    raise
                failed = error
            else:
                if failures:
                    _log.warning("what is needed to start answers now")
                return answer
        failures += 1
        if said != (said := describe(failed)):  # it may be another that is away now
            _log.warning("what is needed to start does not answer, trying again until it does: %s", said)
        failed = None
        stop.wait(backoff(failures) / 1000)
    return None
