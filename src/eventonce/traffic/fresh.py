"""Fields that tell when an event happened, as opposed to when the thing it is about was made.

Such a time is there in every event, changes from event to event, and goes along with the envelope's own time; where
the envelope has none, it rises along the recording.
"""

from collections.abc import Sequence
from itertools import pairwise

from eventonce.traffic.fields import Column, Table
from eventonce.traffic.gap_histogram import DAY
from eventonce.traffic.judge import Moment

_MOST = 0.9
_RISES = 0.75


def fresh_columns(table: Table, rows: Sequence[int], moments: Sequence[Moment]) -> list[Column]:
    """The columns that tell when; `rows` and `moments` are those of distinct contents."""
    return [
        column
        for column in table.columns
        if _changes(column, table, len(rows)) and _goes_along([_at(table, row, column) for row in rows], moments)
    ]


def _changes(column: Column, table: Table, distinct: int) -> bool:
    whole = column.looks == "time" and column.of_data and column.present == len(table.rows)
    return whole and 2 * len(column.cells) >= distinct


def _at(table: Table, row: int, column: Column) -> int:
    return column.millis(table.rows[row][column.number]) or 0


def _goes_along(times: Sequence[int], moments: Sequence[Moment]) -> bool:
    known = [(time, moment.time) for time, moment in zip(times, moments, strict=True) if moment.time is not None]
    if known:
        near = sum(abs(time - own) <= DAY for time, own in known)
        return near >= _MOST * len(known)
    rises = sum(later >= earlier for earlier, later in pairwise(times))
    return rises >= _RISES * (len(times) - 1)
