"""Choosing the fields that identify an event.

A set of fields will do if copies agree on it (each field has one value within every group of copies, and is there
in every event) and distinct events do not (no two groups share all values). Many sets will do in a sample; so

* every set needs an id in it: a time or an amount that happens to differ identifies nothing;
* the set with the least cost wins: ids of the event before ids of things, few fields before many, states and times
  only where an id alone is too coarse;
* ids that do equally well are taken together: a larger key never misses what was seen as a copy, and it is the safer
  one if one of them turns out to be a customer and not an order;
* where an id alone was too coarse, so that events come in series about one thing, the time at which they happened is
  taken in as well if there is one, as the next event of a series may be one like the last.

How far the sample carries: if none of n distinct events clashed, fewer than 3 / n of all do, at 95 % (the rule of
three).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from eventonce.event.paths import ITEM
from eventonce.traffic import names
from eventonce.traffic.copies import Copies
from eventonce.traffic.fields import Column, Table

_EVENT_ID, _KIND_ID, _ID, _OPAQUE, _STATE, _TIME = 0, 1, 2, 3, 4, 5
_ASKED = (60, 24, 14)  # candidates for one, two and three fields: bounds the work
_MOST_TIED = 3


_Priced = tuple[int, tuple[Column, ...]]


class Fields(NamedTuple):
    """Fields that identify an event, and others that would, too."""

    columns: tuple[Column, ...]
    cost: int
    tied: bool  # several did equally well, and were taken together
    series: bool  # events about one thing come more than once
    others: tuple[tuple[Column, ...], ...]

    @property
    def paths(self) -> list[str]:
        return [column.path for column in self.columns]

    @property
    def sure(self) -> bool:
        """Whether its name alone says that it is the event's own."""
        return self.cost == _EVENT_ID


def choose(table: Table, copies: Copies, about: str) -> Fields | None:
    """The fields that identify an event; `about` is what the events are called."""
    topic = names.words(about) | {word.removesuffix("s") for word in names.words(about)}
    firsts = sorted({label: row for row, label in reversed(list(enumerate(copies.labels)))}.values())
    stable = [column for column in table.columns if _is_stable(column, table, copies)]
    priced = [(cost, column) for column in stable if (cost := _cost(column, topic)) is not None]
    search = _Search(table, firsts, sorted(priced, key=lambda each: (each[0], len(each[1].steps), each[1].path)))
    found = search.found()
    return _settled(search, found) if found else None


def _settled(search: "_Search", found: list[_Priced]) -> Fields:
    least = found[0][0]
    best = [columns for cost, columns in found if cost == least][:_MOST_TIED]
    columns = tuple(dict.fromkeys(column for each in best for column in each))
    series = len(best[0]) > 1
    if series and not any(column.looks == "time" for column in columns):
        columns += tuple(search.times()[:1])
    others = tuple(each for _, each in found if not set(each) <= set(columns))[:_MOST_TIED]
    return Fields(columns, least, len(best) > 1, series, others)


class _Search:
    """Sets of candidates, by rising cost."""

    def __init__(self, table: Table, firsts: Sequence[int], ranked: list[tuple[int, Column]]) -> None:
        self._table = table
        self._firsts = firsts
        self._ranked = ranked

    def found(self) -> list[_Priced]:
        """The sets of the smallest size that tell all distinct events apart."""
        for size, asked in enumerate(_ASKED, 1):
            sets = [tuple(zip(*each, strict=True)) for each in combinations(self._ranked[:asked], size)]
            priced = sorted(((sum(costs), columns) for costs, columns in sets), key=lambda each: each[0])
            good = [(cost, columns) for cost, columns in priced if _has_id(columns) and self._tells_apart(columns)]
            if good:
                return good
        return []

    def times(self) -> list[Column]:
        """The candidates that are times, the most telling first."""
        times = [column for _, column in self._ranked if column.looks == "time"]
        return sorted(times, key=lambda column: -len(column.cells))

    def _tells_apart(self, columns: Sequence[Column]) -> bool:
        numbers = [column.number for column in columns]
        met: set[tuple[bytes, ...]] = set()
        for row in self._firsts:
            cells = self._table.rows[row]
            values = tuple(cells[number] for number in numbers)
            if values in met:
                return False
            met.add(values)
        return True


def _has_id(columns: Sequence[Column]) -> bool:
    return any(
        column.looks == "opaque" or (column.looks != "time" and names.of_identity(column.name)) for column in columns
    )


def _is_stable(column: Column, table: Table, copies: Copies) -> bool:
    """Whether a key can have it: one value, there in every event, the same in copies, not the same in all events."""
    single = column.known and ITEM not in column.steps and column.looks != "other"
    return single and column.varies and column.present == len(table.rows) and column.number not in copies.volatile


def _cost(column: Column, topic: frozenset[str]) -> int | None:
    if names.of_delivery(column.name):
        return None
    if column.looks == "time":
        return _TIME
    if column.of_event:
        return _EVENT_ID
    if names.of_identity(column.name):
        return _KIND_ID if names.words(column.name) & topic else _ID
    if column.looks == "opaque":
        return _OPAQUE
    return _STATE if names.of_state(column.name) else None
