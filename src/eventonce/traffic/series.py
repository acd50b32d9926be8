"""Signs that equal events belong to a series about one thing, and are no copies: a lamp goes on, off, and on again.

* Something else came in between: more than half of the equals have another event about the same thing between them.
  A copy may come that late, too, so this makes it unclear and no more.
* They depend on the state: copies strike any event alike, while what happens again does so in some states only. The
  test is a plain one for shares: more than 4.5 standard deviations off.

The thing is all that an event says except for fields with a few values, as states are.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from eventonce.traffic import names
from eventonce.traffic.excuse import belongs_to_delivery
from eventonce.traffic.fields import Column, Table
from eventonce.traffic.groups import only
from eventonce.traffic.judge import Moment

_FEW = 20
_DEVIATIONS = 4.5
_LEAST = 5  # events that a share is drawn from


def objection(table: Table, moments: Sequence[Moment], groups: Sequence[Sequence[int]], said: set[int]) -> str | None:
    """What speaks against copies, in words; `groups` are rows that say the same, those alone of their kind too."""
    state = next(
        (column for column in _few(table, said) if names.of_state(column.name) and _favours(table, groups, column)),
        None,
    )
    if state is not None:
        return f"it depends on {state.path} whether an event comes again"
    several = sum(len(group) > 1 for group in groups)
    if 2 * between(table, moments, groups, said) > several:
        return "other events about the same thing come in between"
    return None


def _few(table: Table, said: set[int]) -> list[Column]:
    return [table.columns[number] for number in said if _is_few(table.columns[number])]


def _is_few(column: Column) -> bool:
    return column.known and 1 < len(column.cells) <= _FEW and not belongs_to_delivery(column)


def _favours(table: Table, groups: Sequence[Sequence[int]], column: Column) -> bool:
    share = sum(len(group) > 1 for group in groups) / len(groups)
    if share in (0, 1):
        return False
    every = Counter(table.rows[group[0]].get(column.number) for group in groups)
    again = Counter(table.rows[group[0]].get(column.number) for group in groups if len(group) > 1)
    return any(_is_off(again[cell], count, share) for cell, count in every.items())


def _is_off(again: int, count: int, share: float) -> bool:
    expected = count * share
    off = abs(again - expected) > _DEVIATIONS * math.sqrt(expected * (1 - share))
    return off and max(again, expected) >= _LEAST


def between(table: Table, moments: Sequence[Moment], groups: Sequence[Sequence[int]], said: set[int]) -> int:
    """How many groups have an event of another group about the same thing between their first and last."""
    thing = said - {column.number for column in _few(table, said)}
    about: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, group in enumerate(groups):
        about[only(table.rows[group[0]], thing)].append(number)
    return sum(
        _is_between(moments, groups, number, others)
        for others in about.values()
        if len(others) > 1
        for number in others
        if len(groups[number]) > 1
    )


def _is_between(moments: Sequence[Moment], groups: Sequence[Sequence[int]], number: int, others: Sequence[int]) -> bool:
    own = [_at(moments[row]) for row in groups[number]]
    least, most = min(own), max(own)
    # A few of them tell enough: a thing with thousands of events would take thousands of times thousands of steps.
    near = others[max(0, others.index(number) - _FEW) :][: 2 * _FEW]
    return any(least < _at(moments[row]) < most for other in near if other != number for row in groups[other])


def _at(moment: Moment) -> tuple[int, int]:
    return (moment.time or 0, moment.position)
