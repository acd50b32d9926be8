"""Outages: logged once at their start and once at their end, however many calls fail meanwhile."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from eventonce.backoff import backoff
from eventonce.clock import Clock
from eventonce.errors import EventOnceError, SinkError, SourceError, StoreError, describe
from eventonce.text import counted, one_line

Result = TypeVar("Result")
_CALM = 5000  # milliseconds without a failure that end an outage: occasional failures belong to one
_SERVICES = {StoreError: "the store", SourceError: "the source", SinkError: "the sink"}
_log = logging.getLogger("eventonce.outage")


class Outage:
    """The outages of one service. Threads may share it."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._started_at = 0
        self._failed_at = 0
        self.lasts = False

    def failed(self, error: BaseException | None) -> None:
        """Note a call that was not answered."""
        with self._lock:
            self._failed_at = self._clock.steady()
            if self.lasts:
                return
            self.lasts, self._started_at = True, self._failed_at
        _log.warning("%s does not answer, trying again until it does: %s", self._name, one_line(describe(error)))

    def worked(self) -> None:
        """Note a call that was answered."""
        if not self.lasts:
            return
        with self._lock:
            now = self._clock.steady()
            if not self.lasts or now - self._failed_at < _CALM:
                return
            self.lasts, seconds = False, (now - self._started_at) // 1000
        _log.warning("%s answers again, after %s", self._name, counted(seconds, "second"))


def awaited(
    operation: Callable[[], Result], stop: threading.Event, failed: EventOnceError | None = None, service: str = ""
) -> Result | None:
    """Repeat an operation until it is answered. Return its result, or None if `stop` is set first.

    `failed` is the error of a first attempt. `service` is a name in place of that of the kind of error. Raise
    at once an error that no retry can help, such as a wrong name.
    """
    failures, message, name = 0, "", ""
    while not stop.is_set():
        if failed is None:
            try:
                result = operation()
            except EventOnceError as error:
                if not error.retryable:
                    raise
                failed = error
            else:
                if failures:
                    _log.warning("%s answers now", name)
                return result
        failures += 1
        if message != (message := one_line(describe(failed))):  # another service may be down now
            name = service or _service(failed)
            _log.warning("%s does not answer, trying again until it does: %s", name, message)
        failed = None
        stop.wait(backoff(failures) / 1000)
    return None


def _service(error: EventOnceError) -> str:
    """Return which service did not answer."""
    return next((name for kind, name in _SERVICES.items() if isinstance(error, kind)), "a service")
