"""Which differences between two events do not speak against their being copies of one.

A copy is made by someone who passes an event on: it gets what belongs to the delivery (a receipt, a trace, an
attempt) and perhaps a new stamp, a moment later. So a difference is excused where

* the field's name says that it belongs to the delivery, or to the moment of passing on;
* it is a time, and the two are at most a second apart: what really happens again does so later than that;
* it is an opaque value that no two events share, while the two agree on when they happened.

All else is a difference in what the event says: a state, a type, an amount, an id. Two events that differ there are
never called copies, however close they are.
"""

from collections.abc import Iterable, Sequence

from eventonce.traffic import names
from eventonce.traffic.fields import Cells, Column

MOST_JITTER = 1000  # milliseconds


class Excuses:
    """The fields that copies may differ in, of those that say something."""

    def __init__(self, columns: Iterable[Column], events: int, fresh: Sequence[Column]) -> None:
        self._columns = {column.number: column for column in columns if _may_differ(column, events)}
        self._fresh = fresh

    def __contains__(self, number: int) -> bool:
        return number in self._columns

    def hold(self, one: Cells, other: Cells) -> bool:
        """Whether all that two events differ in is excused; they are known to agree on all other fields."""
        return all(
            self._holds(column, one, other)
            for number, column in self._columns.items()
            if one.get(number) != other.get(number)
        )

    def _holds(self, column: Column, one: Cells, other: Cells) -> bool:
        if belongs_to_delivery(column):
            return True
        if column.looks == "time":
            return self._close(column, one, other)
        return any(fresh.number in one and one[fresh.number] == other.get(fresh.number) for fresh in self._fresh)

    def _close(self, column: Column, one: Cells, other: Cells) -> bool:
        if column.number not in one or column.number not in other:
            return False
        first, second = column.millis(one[column.number]), column.millis(other[column.number])
        return first is not None and second is not None and abs(first - second) <= MOST_JITTER


def belongs_to_delivery(column: Column) -> bool:
    """Whether each delivery makes the value anew, going by its name."""
    return names.of_delivery(column.name) or (column.looks == "time" and names.of_passing_on(column.name))


def _may_differ(column: Column, events: int) -> bool:
    if not column.known or not column.varies:
        return False
    return belongs_to_delivery(column) or column.looks == "time" or _is_own(column, events)


def _is_own(column: Column, events: int) -> bool:
    """Whether every event has a value of its own there, without any meaning to us."""
    return column.looks == "opaque" and len(column.cells) >= events and not column.of_event
