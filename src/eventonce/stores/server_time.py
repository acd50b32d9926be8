"""An estimate of the server's time. DynamoDB and S3 send their date with every answer, to the second."""

import threading
from email.utils import parsedate_to_datetime
from functools import lru_cache

from eventonce.clock import Clock

_RESOLUTION = 1000
_SLACK = 1000  # an answer's date may have been written a little earlier than the answer
_CLOCK_JUMP = 500  # milliseconds from which a change means that our clock was set, and does not only drift


class ServerTime:
    """The server's time, from our clock and an offset between two bounds that every answer can narrow.

    If the bounds include zero, the offset is zero. So a clock that is right to a second or two is never corrected.
    Bounds that an answer contradicts are dropped, because a clock has been set. After ours was set, the offset is
    wrong until the next answer, and `is_certain` returns false.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bounds: tuple[int, int] | None = None
        self._offset_of_utc: int | None = None  # our clock minus the steady one, at the last answer
        self.offset = 0

    def is_certain(self) -> bool:
        """Return whether there was an answer, and our clock was not set since."""
        return (
            self._offset_of_utc is not None
            and abs(self._clock.utc() - self._clock.steady() - self._offset_of_utc) < _CLOCK_JUMP
        )

    def now(self) -> int:
        return self._clock.utc() + self.offset

    def learn(self, date: str | None, round_trip: int) -> None:
        """Learn from the date of an answer, and from how long the answer took."""
        received = self._clock.utc()
        self._offset_of_utc = received - self._clock.steady()
        server_time = _parse_date(date or "")
        if server_time is None:
            return
        # Not from our clock at the start of the call, because it may have been set since.
        lower, upper = server_time - _SLACK - received, server_time + _RESOLUTION + _SLACK - (received - round_trip)
        with self._lock:
            old = self._bounds or (lower, upper)
            bounds = max(old[0], lower), min(old[1], upper)
            self._bounds = bounds if bounds[0] <= bounds[1] else (lower, upper)
            lower, upper = self._bounds
            self.offset = 0 if lower <= 0 <= upper else (lower + upper) // 2


@lru_cache(maxsize=4)
def _parse_date(date: str) -> int | None:
    """Parse a date. The cache serves all answers of the same second."""
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return None
