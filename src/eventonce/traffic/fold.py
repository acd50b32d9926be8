"""The fold: events that come by key, and those of a key in the order of their arrival, become decisions.

Engines sort and group. What an event is among the others of its key is decided here, by the ledger of `eventonce
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


def windows(rulebook: Rulebook) -> list[int]:
    """Return for each rule how far apart the copies of a key may be for a query to decide. -1 leaves it to a ledger.

    Copies without versions that are alike are duplicates of the first if none is farther from another than the window,
    which is less than from any time to none. A window that slides counts from the copy before.
    """
    return [-1 if rule.refresh else rule.window for rule in rulebook.all]


class EngineColumns(NamedTuple):
    """Events as an engine returns them, column by column."""

    keys: Sequence[Any]
    orders: Sequence[Any]  # which grow with each arrival
    rules: Sequence[int]  # by their number in the rulebook
    versions: Sequence[int | None]
    contents: Sequence[int]
    times: Sequence[int | None]
    positions: Sequence[int]


class Fold:
    """Decides on events that are sorted by key and arrival."""

    def __init__(self, rulebook: Rulebook) -> None:
        self._rules = rulebook.all
        self._ledger = AuditLedger(self._rules)
        self._last: tuple[Any, Any] | None = None  # key and order of the last event
        self._key = 0  # a number for each key

    def decide(self, rows: EngineColumns) -> list[AuditDecision]:
        """Return the decision on each event."""
        if not rows.keys:
            return []
        last_key = self._last and self._last[0]
        same = next((index for index, key in enumerate(rows.keys) if key != last_key), len(rows.keys))
        entries = self._entries(rows)
        decisions = self._ledger.decide(AuditColumns(*[column[:same] for column in entries]))
        if same < len(rows.keys):
            self._ledger = AuditLedger(self._rules)  # no event of an earlier key follows
            decisions += self._ledger.decide(AuditColumns(*[column[same:] for column in entries]))
        return decisions

    def _entries(self, rows: EngineColumns) -> AuditColumns:
        last = self._check_order(rows)
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

    def _check_order(self, rows: EngineColumns) -> tuple[Any, Any] | None:
        """Return the last event of the rows before. Raise `EventOnceError` if events are out of order."""
        # An engine that lost the order (one was seen to drop a sort as useless) would keep the wrong copies in silence.
        current, before = [*zip(rows.keys, rows.orders, strict=True)], self._last
        if not all(starmap(lt, pairwise(current if before is None else [before, *current]))):
            raise EventOnceError("the engine returned events out of order; duplicates cannot be determined")
        self._last = current[-1]
        return before
