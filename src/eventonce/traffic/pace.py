"""The pace of events: whether what says the same comes as anything else does.

A meter that is read every 15 seconds and stands still says the same twice, 15 seconds apart. By chance alone equal
events would hardly be that near, but the next event of the meter always is. So where most equals follow each other
directly, among all events or among those about one thing, and no sooner than others do, nearness means nothing.
"""

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from eventonce.event.paths import ITEM
from eventonce.traffic.fields import Column, Table
from eventonce.traffic.judge import Moment

_SEVERAL = 5  # events about one thing
_MOST_ASKED = 30  # bounds the work
_MOST = 0.75  # of the equals follow each other directly
_SOONER = 0.75


class _Step(NamedTuple):
    gap: int
    equal: bool


def in_step(table: Table, moments: Sequence[Moment], groups: Sequence[Sequence[int]], said: set[int]) -> bool:
    """Whether equal events come at the pace of all; `groups` are rows that say the same, single ones too."""
    home = {row: number for number, group in enumerate(groups) for row in group}
    again = len(home) - len(groups)
    things = [column for column in table.columns if column.number in said and _recurs(column, len(home))]
    return any(_is_pace(list(_steps(table, moments, home, thing)), again) for thing in (None, *things[:_MOST_ASKED]))


def _recurs(column: Column, events: int) -> bool:
    return column.known and ITEM not in column.steps and 1 < len(column.cells) <= events / _SEVERAL


def _steps(table: Table, moments: Sequence[Moment], home: dict[int, int], thing: Column | None) -> Iterator[_Step]:
    """From each event to the next about the same thing; without a thing, to the next of all."""
    placed = sorted(
        (b"" if thing is None else table.rows[row].get(thing.number, b""), moments[row].time or 0, row) for row in home
    )
    for (about, begin, one), (about_next, end, other) in pairwise(placed):
        if about == about_next:
            yield _Step(end - begin, home[one] == home[other])


def _is_pace(steps: Sequence[_Step], again: int) -> bool:
    """Whether most equals are one such step apart, and the step is no shorter than others."""
    equal = [step.gap for step in steps if step.equal]
    others = [step.gap for step in steps if not step.equal]
    if len(equal) < _MOST * again or not others:
        return False
    return statistics.median(equal) >= _SOONER * statistics.median(others)
