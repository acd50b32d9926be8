"""The time between copies: a histogram, and the window that would have caught them."""

from bisect import bisect_left
from typing import Self

import msgspec

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
# The upper ends of the histogram's bars. Longer gaps have a bar of their own.
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
_FINE_BITS = 7  # 64 steps to each doubling: a share is exact to within 1.6 %


class Gaps(msgspec.Struct):
    """A histogram of gaps. Its memory does not grow with their number."""

    known: int = 0
    longest: int | None = None
    unknown: int = 0  # a time was missing
    same_time: int = 0  # redelivered unchanged: the traffic does not have the time of arrival
    bars: list[int] = msgspec.field(default_factory=lambda: [0] * (len(EDGES) + 1))
    fine: dict[int, tuple[int, int]] = {}  # by step: the number of gaps in it, and the longest

    def add(self, gap: int, copies: int = 1) -> None:
        """Add copies that came so many milliseconds after the first."""
        self.known += copies
        self.bars[bisect_left(EDGES, gap)] += copies
        self._add_fine(_step(gap), copies, gap)

    def merge(self, other: "Gaps") -> Self:
        """Add all gaps of another histogram."""
        self.known += other.known
        self.unknown += other.unknown
        self.same_time += other.same_time
        self.bars = [left + right for left, right in zip(self.bars, other.bars, strict=True)]
        for step, (copies, longest) in other.fine.items():
            self._add_fine(step, copies, longest)
        return self

    def within(self, thousandths: int) -> int | None:
        """Return the gap that this share of the known ones does not exceed."""
        needed = -(-self.known * thousandths // 1000)
        for step in sorted(self.fine):
            copies, longest = self.fine[step]
            needed -= copies
            if needed <= 0:
                return longest
        return None

    def _add_fine(self, step: int, copies: int, gap: int) -> None:
        before, longest = self.fine.get(step, (0, 0))
        self.fine[step] = (before + copies, max(longest, gap))
        self.longest = gap if self.longest is None else max(self.longest, gap)


def _step(gap: int) -> int:
    shift = max(0, gap.bit_length() - _FINE_BITS)
    return shift << _FINE_BITS | gap >> shift


def readable(gap: int) -> int:
    """Return the gap, rounded up to a duration that people would write."""
    index = bisect_left(_READABLE, gap)
    return _READABLE[index] if index < len(_READABLE) else -(-gap // (365 * DAY)) * 365 * DAY
