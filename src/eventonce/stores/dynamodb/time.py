"""The server's time as far as it can be known: DynamoDB tells it in the header of every answer, to the second."""

import threading
from email.utils import parsedate_to_datetime
from functools import lru_cache

from eventonce.clock import Clock

_RESOLUTION = 1000
_SLACK = 1000  # an answer's date may have been written a little earlier than the answer


class ServerTime:
    """The server's clock minus ours lies between two bounds that every answer can narrow.

    Where they allow that there is no difference our own clock is used; so one that is right to a second or two is
    never touched. Bounds that an answer contradicts are dropped: a clock has been set.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bounds: tuple[int, int] | None = None
        self.offset = 0

    def now(self) -> int:
        return self._clock.utc() + self.offset

    def learn(self, date: str | None, sent: int, received: int) -> None:
        """An answer to what was sent and received at these times of ours carries this date."""
        at = _millis(date or "")
        if at is None:
            return
        least, most = at - _SLACK - received, at + _RESOLUTION + _SLACK - sent
        with self._lock:
            old = self._bounds or (least, most)
            bounds = max(old[0], least), min(old[1], most)
            self._bounds = bounds if bounds[0] <= bounds[1] else (least, most)
            least, most = self._bounds
            self.offset = 0 if least <= 0 <= most else (least + most) // 2


@lru_cache(maxsize=4)
def _millis(date: str) -> int | None:
    """All answers of a second have the same date."""
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return None
