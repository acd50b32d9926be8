"""The fold: events by key, and those of a key in the order of their arrival, become verdicts.

Engines sort and group; what an event is among the others of its key is decided here, by the ledger of `eventonce
audit`. Memory grows neither with the copies of a key nor with keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from eventonce.errors import EventOnceError
from eventonce.rules import Rulebook
from eventonce.study.ledger import NO_TIME, NO_VERSION, Entries, Entry, Ledger, Taken, Verdict

_UNSIGNED = 2**64 - 1
DROPPED = (Verdict.DUPLICATE, Verdict.STALE)


class Row(NamedTuple):
    """One event, as an engine hands it over."""

    key: Any
    order: Any  # what grows with each arrival
    rule: int  # by its number in the book
    version: int | None
    content: int
    time: int | None
    position: int


class Fold:
    """Takes rows that are sorted by key and arrival."""

    def __init__(self, book: Rulebook) -> None:
        self._rules = book.all
        self._ledger = Ledger(self._rules)
        self._last: tuple[Any, Any] | None = None
        self._key = 0  # a number for each key

    def take(self, rows: Sequence[Row]) -> list[Taken]:
        """What becomes of each."""
        going_on = self._still(rows)
        taken = self._enter(rows[:going_on])
        if going_on < len(rows):
            self._ledger = Ledger(self._rules)  # the keys before are done with
            taken += self._enter(rows[going_on:])
        return taken

    def _still(self, rows: Sequence[Row]) -> int:
        """How many at the begin have the key that was the last before."""
        last = self._last and self._last[0]
        return next((at for at, row in enumerate(rows) if row.key != last), len(rows))

    def _enter(self, rows: Sequence[Row]) -> list[Taken]:
        entries = [self._entry(row) for row in rows]
        return self._ledger.take(Entries(*zip(*entries, strict=True))) if entries else []

    def _entry(self, row: Row) -> Entry:
        self._follow((row.key, row.order))
        version = NO_VERSION if row.version is None else row.version
        time = NO_TIME if row.time is None else row.time
        return Entry(row.rule, self._key, version, row.content & _UNSIGNED, time, row.position)

    def _follow(self, place: tuple[Any, Any]) -> None:
        # An engine that lost the order (one was seen to drop a sort as useless) would keep the wrong copies in silence.
        if self._last is not None and place <= self._last:
            raise EventOnceError("the engine handed over events out of order; nothing can be told of their copies")
        if self._last is None or self._last[0] != place[0]:
            self._key += 1
        self._last = place
