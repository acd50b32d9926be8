"""Refusals of requests, and their log."""

import logging

from eventonce.clock import Clock
from eventonce.text import counted, one_line

RETRY_AFTER = "5"  # seconds
_EVERY = 60_000  # milliseconds
_log = logging.getLogger("eventonce.requests")


class RequestRefused(Exception):
    """A refused request: its status, the reason, and further headers of the response."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if status == 503:
            self.headers["retry-after"] = RETRY_AFTER


class Refusals:
    """A log of refusals, once a minute for each status: a sender can neither fill the log nor hide in it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: dict[int, int] = {}
        self._unlogged: dict[int, int] = {}

    def add(self, refusal: RequestRefused) -> None:
        """Count a refusal, and log it if its status was not logged within a minute."""
        status, now = refusal.status, self._clock.steady()
        if now - self._logged_at.get(status, now - _EVERY) < _EVERY:
            self._unlogged[status] = self._unlogged.get(status, 0) + 1
            return
        self._logged_at[status] = now
        unlogged = self._unlogged.pop(status, 0)
        suffix = f" (and {counted(unlogged, 'earlier one')})" if unlogged else ""
        _log.warning("http: a request was refused with %d: %s%s", status, one_line(str(refusal)), suffix)
