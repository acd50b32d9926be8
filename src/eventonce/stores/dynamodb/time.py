"""The server's time as far as it can be known: DynamoDB tells it in the header of every answer, to the second."""

import threading
from email.utils import parsedate_to_datetime
from functools import lru_cache

from eventonce.clock import Clock

_RESOLUTION = 1000
_SLACK = 1000  # an answer's date may have been written a little earlier than the answer
_SET = 500  # by so much our clock has been set, and does not merely run a little faster or slower


class ServerTime:
    """The server's clock minus ours lies between two bounds that every answer can narrow.

    Where they allow that there is no difference our own clock is used; so one that is right to a second or two is
    never touched. Bounds that an answer contradicts are dropped: a clock has been set.

    Where ours was set since the last answer, only the next one tells what time it is; `known` says so.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bounds: tuple[int, int] | None = None
        self._apart: int | None = None  # our clock minus the steady one, at the last answer
        self.offset = 0

    def known(self) -> bool:
        """Whether there was an answer, and nobody has set our clock since."""
        return self._apart is not None and abs(self._clock.utc() - self._clock.steady() - self._apart) < _SET

    def now(self) -> int:
        return self._clock.utc() + self.offset

    def learn(self, date: str | None, waited: int) -> None:
        """An answer that we have waited for so long carries this date."""
        received = self._clock.utc()
        self._apart = received - self._clock.steady()
        at = _millis(date or "")
        if at is None:
            return
        # Not by our clock when it was sent: that may have been set meanwhile.
        least, most = at - _SLACK - received, at + _RESOLUTION + _SLACK - (received - waited)
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
