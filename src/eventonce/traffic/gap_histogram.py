"""The time between copies: a histogram, and the window that would have caught them."""

from bisect import bisect_left
from typing import Self

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
# The upper ends of the histogram's bars; what is longer than the last has a bar of its own.
EDGES = (
    1,
    10,
    100,
    SECOND,
    10 * SECOND,
    MINUTE,
    10 * MINUTE,
    HOUR,
    6 * HOUR,
    DAY,
    3 * DAY,
    7 * DAY,
    14 * DAY,
    30 * DAY,
)
_READABLE = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(count * SECOND for count in (1, 2, 5, 10, 15, 20, 30)),
    *(count * MINUTE for count in (1, 2, 3, 5, 10, 15, 20, 30)),
    *(count * HOUR for count in (1, 2, 3, 4, 6, 8, 12, 18)),
    *(count * DAY for count in (1, 2, 3, 4, 5, 7, 10, 14, 21, 30, 45, 60, 90, 180, 365)),
)
_FINE_BITS = 7  # 64 steps to each doubling: a share is found to within 1.6 %


class Gaps:
    """Counts gaps in memory that does not grow with them."""

    def __init__(self) -> None:
        self.known = 0
        self.longest: int | None = None
        self.unknown = 0  # a time was missing
        self.same_time = 0  # delivered again as it was: when, is not in the traffic
        self.bars = [0] * (len(EDGES) + 1)
        self._fine: dict[int, tuple[int, int]] = {}  # by size: how many, and the longest of them

    def add(self, gap: int, copies: int = 1) -> None:
        """One more copy, or several, so many milliseconds after the one before."""
        self.known += copies
        self.bars[bisect_left(EDGES, gap)] += copies
        self._enter(_step(gap), copies, gap)

    def merge(self, other: "Gaps") -> Self:
        """All of another's, too."""
        self.known += other.known
        self.unknown += other.unknown
        self.same_time += other.same_time
        self.bars = [one + more for one, more in zip(self.bars, other.bars, strict=True)]
        for step, (count, longest) in other._fine.items():
            self._enter(step, count, longest)
        return self

    def within(self, thousandths: int) -> int | None:
        """The gap that this share of the known ones does not exceed."""
        needed = -(-self.known * thousandths // 1000)
        for step in sorted(self._fine):
            count, longest = self._fine[step]
            needed -= count
            if needed <= 0:
                return longest
        return None

    def _enter(self, step: int, count: int, gap: int) -> None:
        before, longest = self._fine.get(step, (0, 0))
        self._fine[step] = (before + count, max(longest, gap))
        self.longest = gap if self.longest is None else max(self.longest, gap)


def _step(gap: int) -> int:
    shift = max(0, gap.bit_length() - _FINE_BITS)
    return shift << _FINE_BITS | gap >> shift


def readable(gap: int) -> int:
    """Rounded up to a duration that people would write."""
    at = bisect_left(_READABLE, gap)
    return _READABLE[at] if at < len(_READABLE) else -(-gap // (365 * DAY)) * 365 * DAY
