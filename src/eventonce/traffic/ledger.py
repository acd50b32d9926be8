"""What an audit remembers of each key: a few numbers in columns, so that millions of keys fit in memory."""

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum, auto
from itertools import compress
from typing import NamedTuple

from eventonce.rules import CompiledRule

NO_TIME = NO_VERSION = -(2**63)
_FIRST_SLOTS = 1 << 10


class Index:
    """The row of each fingerprint: 0, 1, 2 and so on. About 18 bytes each, by open addressing."""

    def __init__(self) -> None:
        self._fingerprints = array("Q")
        self._slots = array("I", bytes(4 * _FIRST_SLOTS))  # the row plus 1, or 0
        self._mask = _FIRST_SLOTS - 1

    def __len__(self) -> int:
        return len(self._fingerprints)

    def rows(self, fingerprints: Iterable[int]) -> list[int | None]:
        """Return the row of each. A new one gets the next row, and None is returned for it.

        In one loop: a call for each would take longer than what it does.
        """
        slots, mask, known = self._slots, self._mask, self._fingerprints
        rows: list[int | None] = []
        for fingerprint in fingerprints:
            slot = fingerprint & mask
            while (row := slots[slot]) and known[row - 1] != fingerprint:
                slot = (slot + 1) & mask
            if row:
                rows.append(row - 1)
                continue
            rows.append(None)
            known.append(fingerprint)
            row = slots[slot] = len(known)
            if row * 3 > mask * 2:
                self._grow()
                slots, mask = self._slots, self._mask
        return rows

    def _grow(self) -> None:
        mask = self._mask = self._mask * 2 + 1
        slots = self._slots = array("I", bytes(4 * (mask + 1)))
        for row, fingerprint in enumerate(self._fingerprints, 1):
            slot = fingerprint & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = row


class FingerprintSet:
    """A set of fingerprints that takes 12 to 24 bytes for each, by open addressing. It never contains 0."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _FIRST_SLOTS))  # 0 is an empty slot
        self._mask = _FIRST_SLOTS - 1
        self._room = _FIRST_SLOTS * 2 // 3

    def add_all(self, fingerprints: Iterable[int]) -> list[bool]:
        """Add fingerprints. Return for each whether it was in the set before."""
        slots, mask = self._slots, self._mask
        seen = []
        for fingerprint in fingerprints:
            slot = fingerprint & mask
            while (entry := slots[slot]) and entry != fingerprint:
                slot = (slot + 1) & mask
            seen.append(entry != 0)
            if not entry and fingerprint:
                slots[slot] = fingerprint
                self._room -= 1
                if not self._room:
                    self._grow()
                    slots, mask = self._slots, self._mask
        return seen

    def _grow(self) -> None:
        mask, before = self._mask * 2 + 1, self._slots
        slots = array("Q", bytes(8 * (mask + 1)))
        for fingerprint in filter(None, before):
            slot = fingerprint & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = fingerprint
        self._slots, self._mask, self._room = slots, mask, (mask + 1) // 3


class Decision(IntEnum):
    """What the pipeline does with an event."""

    NEW = auto()  # it runs
    NEWER = auto()  # it runs: a higher version of a known key
    DUPLICATE = auto()  # it is dropped
    STALE = auto()  # it is dropped: a lower version of a known key
    LATE = auto()  # it runs again: the window has expired


class AuditRow(NamedTuple):
    """One event as it enters the ledger."""

    rule: int  # its number in the rulebook
    key: int  # a fingerprint, as is the content
    version: int
    content: int
    time: int
    position: int


class AuditColumns(NamedTuple):
    """Events as they enter the ledger, column by column."""

    rules: Sequence[int]
    keys: Sequence[int]
    versions: Sequence[int]
    contents: Sequence[int]
    times: Sequence[int]
    positions: Sequence[int]


class AuditDecision(NamedTuple):
    """The decision on an event, its gap after the first copy, and the position of that if the contents differ."""

    kind: Decision
    gap: int | None = None
    differs_from: int | None = None


NEW, _NEWER = AuditDecision(Decision.NEW), AuditDecision(Decision.NEWER)


class AuditLedger:
    """One row for each key, and the rules of the claim protocol applied to recorded times.

    A window counts from the first copy, or from the latest one if it slides. So does the gap of a copy.
    Copies may come out of order: a gap has no sign. A copy without a time is taken to be inside the window.
    """

    def __init__(self, rules: Sequence[CompiledRule]) -> None:
        self._rules = rules
        self._rows = Index()
        self._first = array("q")  # time of the first copy
        self._start = array("q")  # time from which the window counts
        self._content = array("Q")
        self._position = array("Q")
        self._version = array("q")

    def __len__(self) -> int:
        return len(self._rows)

    def decide(self, events: AuditColumns) -> list[AuditDecision]:
        """Enter events in their order. Most are new, and are entered column by column."""
        rows = self._rows.rows(events.keys)
        self._append(events, [row is None for row in rows])
        return [NEW if row is None else self._enter(row, events, index) for index, row in enumerate(rows)]

    def _append(self, events: AuditColumns, new: Sequence[bool]) -> None:
        self._first.extend(compress(events.times, new))
        self._start.extend(compress(events.times, new))
        self._content.extend(compress(events.contents, new))
        self._position.extend(compress(events.positions, new))
        self._version.extend(compress(events.versions, new))

    def _enter(self, row: int, events: AuditColumns, index: int) -> AuditDecision:
        event = AuditRow(*[column[index] for column in events])
        if event.version > self._version[row]:
            self._replace(row, event)
            return _NEWER
        return self._enter_copy(row, event, stale=event.version < self._version[row])

    def _enter_copy(self, row: int, event: AuditRow, *, stale: bool) -> AuditDecision:
        rule = self._rules[event.rule]
        gap = _gap(event.time, (self._start if rule.refresh else self._first)[row])
        since = _gap(event.time, self._start[row])
        if since is not None and since > rule.window:
            self._restart(row, event)
            return AuditDecision(Decision.LATE, gap)
        self._note_time(row, event.time, refresh=rule.refresh)
        if stale:
            return AuditDecision(Decision.STALE, gap)
        same = self._content[row] == event.content
        return AuditDecision(Decision.DUPLICATE, gap, None if same else self._position[row])

    def _note_time(self, row: int, time: int, *, refresh: bool) -> None:
        if self._first[row] == NO_TIME:
            self._first[row] = self._start[row] = time
        elif refresh:
            self._start[row] = max(self._start[row], time)

    def _replace(self, row: int, event: AuditRow) -> None:
        """Enter a new version. Later copies are measured against it."""
        self._restart(row, event)
        self._first[row] = self._start[row]
        self._version[row] = event.version

    def _restart(self, row: int, event: AuditRow) -> None:
        """Enter an event that runs again. A new window begins, but the first copy stays the first."""
        self._start[row] = event.time
        self._content[row] = event.content
        self._position[row] = event.position


def _gap(time: int, before: int) -> int | None:
    return None if NO_TIME in (time, before) else abs(time - before)
