"""The fold: events by key, and those of a key in the order of their arrival, become verdicts.

Engines sort and group; what an event is among the others of its key is decided here, by the ledger of `eventonce
audit`. Memory grows neither with the copies of a key nor with keys.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, starmap
from operator import lt, ne
from typing import Any, NamedTuple

from eventonce.errors import EventOnceError
from eventonce.rules import Rulebook
from eventonce.traffic.ledger import NO_TIME, NO_VERSION, AuditColumns, AuditDecision, AuditLedger, Decision

_UNSIGNED = 2**64 - 1
NOTHING = f"CAST('{NO_TIME}' AS BIGINT)"  # in SQL: neither a time nor a version
DROPPED = (Decision.DUPLICATE, Decision.STALE)


def windows(book: Rulebook) -> list[int]:
    """For each rule, how far apart the copies of a key may be for a query to judge them; -1 where it takes a ledger.

    Copies without versions that are alike are duplicates of the first if none is farther from another than the window,
    which is less than from any time to none. A window that slides counts from the copy before.
    """
    return [-1 if rule.refresh else rule.window for rule in book.all]


class EngineColumns(NamedTuple):
    """Events as an engine hands them over, column by column."""

    keys: Sequence[Any]
    orders: Sequence[Any]  # what grows with each arrival
    rules: Sequence[int]  # by their number in the book
    versions: Sequence[int | None]
    contents: Sequence[int]
    times: Sequence[int | None]
    positions: Sequence[int]


class Fold:
    """Takes rows that are sorted by key and arrival."""

    def __init__(self, book: Rulebook) -> None:
        self._rules = book.all
        self._ledger = AuditLedger(self._rules)
        self._last: tuple[Any, Any] | None = None
        self._key = 0  # a number for each key

    def take(self, rows: EngineColumns) -> list[AuditDecision]:
        """What becomes of each."""
        if not rows.keys:
            return []
        last = self._last and self._last[0]
        going_on = next((at for at, key in enumerate(rows.keys) if key != last), len(rows.keys))
        entries = self._entries(rows)
        taken = self._ledger.take(AuditColumns(*[column[:going_on] for column in entries]))
        if going_on < len(rows.keys):
            self._ledger = AuditLedger(self._rules)  # the keys before are done with
            taken += self._ledger.take(AuditColumns(*[column[going_on:] for column in entries]))
        return taken

    def _entries(self, rows: EngineColumns) -> AuditColumns:
        last = self._follow(rows)
        changes = starmap(ne, pairwise([last and last[0], *rows.keys]))
        _, *keys = accumulate(changes, initial=self._key)
        self._key = keys[-1]
        return AuditColumns(
            rows.rules,
            keys,
            [NO_VERSION if version is None else version for version in rows.versions],
            [content & _UNSIGNED for content in rows.contents],
            [NO_TIME if time is None else time for time in rows.times],
            rows.positions,
        )

    def _follow(self, rows: EngineColumns) -> tuple[Any, Any] | None:
        # An engine that lost the order (one was seen to drop a sort as useless) would keep the wrong copies in silence.
        places, before = [*zip(rows.keys, rows.orders, strict=True)], self._last
        if not all(starmap(lt, pairwise(places if before is None else [before, *places]))):
            raise EventOnceError("the engine handed over events out of order; nothing can be told of their copies")
        self._last = places[-1]
        return before
