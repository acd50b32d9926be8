"""A request that is not taken, and why."""

import logging

from eventonce.clock import Clock

RETRY_AFTER = "5"  # seconds
_EVERY = 60_000  # milliseconds
_log = logging.getLogger("eventonce.requests")


class RequestRefused(Exception):
    """A request that is not taken: the status, why, and headers that say more."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if status == 503:
            self.headers["retry-after"] = RETRY_AFTER


class Refusals:
    """Logs what is refused, of each status once a minute: whoever sends cannot fill the log, nor hide in it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: dict[int, int] = {}
        self._unsaid: dict[int, int] = {}

    def add(self, refusal: RequestRefused) -> None:
        """One more."""
        status, now = refusal.status, self._clock.steady()
        if now - self._logged_at.get(status, now - _EVERY) < _EVERY:
            self._unsaid[status] = self._unsaid.get(status, 0) + 1
            return
        self._logged_at[status] = now
        before = self._unsaid.pop(status, 0)
        rest = f"; and {before:,} more before this one" if before else ""
        _log.warning("http: a request was refused with %d: %s%s", status, refusal, rest)
