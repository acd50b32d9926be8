"""Groups of rows that agree, and what they differ in."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise

from eventonce.traffic.fields import Cells


def only(cells: Cells, numbers: set[int]) -> Hashable:
    """What a row has in these columns."""
    return frozenset((number, cell) for number, cell in cells.items() if number in numbers)


def grouped(rows: Iterable[int], by: Callable[[int], Hashable]) -> list[list[int]]:
    """Rows that are the same by this, in the order of their first ones."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return list(groups.values())


def differing(rows: Sequence[Cells], group: Sequence[int]) -> set[int]:
    """The columns that the rows of a group differ in."""
    found: set[int] = set()
    for one, other in pairwise(group):
        found |= {number for number, _ in rows[one].items() ^ rows[other].items()}
    return found


def agree(rows: Sequence[Cells], group: Sequence[int], number: int) -> bool:
    """Whether all rows of a group have the same in one column."""
    return len({rows[row].get(number) for row in group}) == 1
