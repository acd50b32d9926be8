"""Outages: said once when they begin and once when they are over, however many calls fail meanwhile."""

import logging
import threading

from eventonce.clock import Clock
from eventonce.errors import describe

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
