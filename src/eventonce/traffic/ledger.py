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
    """Gives each fingerprint a row: 0, 1, 2 and so on. About 18 bytes each, by open addressing."""

    def __init__(self) -> None:
        self._fingerprints = array("Q")
        self._slots = array("I", bytes(4 * _FIRST_SLOTS))  # the row plus 1, or 0
        self._mask = _FIRST_SLOTS - 1

    def __len__(self) -> int:
        return len(self._fingerprints)

    def rows(self, fingerprints: Iterable[int]) -> list[int | None]:
        """The row of each; None where it was not known, and from now on has the next one.

        In one loop: a call for each would take longer than what it does.
        """
        slots, mask, known = self._slots, self._mask, self._fingerprints
        found: list[int | None] = []
        for fingerprint in fingerprints:
            at = fingerprint & mask
            while (row := slots[at]) and known[row - 1] != fingerprint:
                at = (at + 1) & mask
            if row:
                found.append(row - 1)
                continue
            found.append(None)
            known.append(fingerprint)
            row = slots[at] = len(known)
            if row * 3 > mask * 2:
                self._grow()
                slots, mask = self._slots, self._mask
        return found

    def _grow(self) -> None:
        mask = self._mask = self._mask * 2 + 1
        slots = self._slots = array("I", bytes(4 * (mask + 1)))
        for row, fingerprint in enumerate(self._fingerprints, 1):
            at = fingerprint & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = row


class Known:
    """A set of fingerprints that takes 12 to 24 bytes for each, by open addressing."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _FIRST_SLOTS))  # 0 is none
        self._mask = _FIRST_SLOTS - 1
        self._room = _FIRST_SLOTS * 2 // 3

    def all_seen(self, fingerprints: Iterable[int]) -> list[bool]:
        """Whether each was known before; from now on it is. Of 0 it is never known."""
        slots, mask = self._slots, self._mask
        seen = []
        for fingerprint in fingerprints:
            at = fingerprint & mask
            while (there := slots[at]) and there != fingerprint:
                at = (at + 1) & mask
            seen.append(there != 0)
            if not there and fingerprint:
                slots[at] = fingerprint
                self._room -= 1
                if not self._room:
                    self._grow()
                    slots, mask = self._slots, self._mask
        return seen

    def _grow(self) -> None:
        mask, before = self._mask * 2 + 1, self._slots
        slots = array("Q", bytes(8 * (mask + 1)))
        for fingerprint in filter(None, before):
            at = fingerprint & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = fingerprint
        self._slots, self._mask, self._room = slots, mask, (mask + 1) // 3


class Decision(IntEnum):
    """What the pipeline does with an event."""

    NEW = auto()  # it runs
    NEWER = auto()  # it runs: a higher version of a known key
    DUPLICATE = auto()  # it is dropped
    STALE = auto()  # it is dropped: a lower version of a known key
    LATE = auto()  # it runs again: the window was over


class AuditRow(NamedTuple):
    """One event as it is entered."""

    rule: int  # its number in the book
    key: int  # its fingerprint, as is the content's
    version: int
    content: int
    time: int
    position: int


class AuditColumns(NamedTuple):
    """Many of them, column by column."""

    rules: Sequence[int]
    keys: Sequence[int]
    versions: Sequence[int]
    contents: Sequence[int]
    times: Sequence[int]
    positions: Sequence[int]


class AuditDecision(NamedTuple):
    """What became of it, how long after the copy before it came, and where that copy with another content is."""

    verdict: Decision
    gap: int | None = None
    differs_from: int | None = None


NEW, _NEWER = AuditDecision(Decision.NEW), AuditDecision(Decision.NEWER)


class AuditLedger:
    """One row for each key, and the rules of the claim protocol applied to recorded times.

    A window counts from the first copy, or from the latest one where it slides; so does the gap of a copy.
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

    def take(self, entries: AuditColumns) -> list[AuditDecision]:
        """Enter many, in their order. Most are new, and are entered column by column."""
        rows = self._rows.rows(entries.keys)
        self._append(entries, [row is None for row in rows])
        return [NEW if row is None else self._enter(row, entries, at) for at, row in enumerate(rows)]

    def _append(self, entries: AuditColumns, new: Sequence[bool]) -> None:
        self._first.extend(compress(entries.times, new))
        self._start.extend(compress(entries.times, new))
        self._content.extend(compress(entries.contents, new))
        self._position.extend(compress(entries.positions, new))
        self._version.extend(compress(entries.versions, new))

    def _enter(self, row: int, entries: AuditColumns, at: int) -> AuditDecision:
        entry = AuditRow(*[column[at] for column in entries])
        if entry.version > self._version[row]:
            self._replace(row, entry)
            return _NEWER
        return self._copy(row, entry, stale=entry.version < self._version[row])

    def _copy(self, row: int, entry: AuditRow, *, stale: bool) -> AuditDecision:
        rule = self._rules[entry.rule]
        gap = _gap(entry.time, (self._start if rule.refresh else self._first)[row])
        since = _gap(entry.time, self._start[row])
        if since is not None and since > rule.window:
            self._restart(row, entry)
            return AuditDecision(Decision.LATE, gap)
        self._note_time(row, entry.time, refresh=rule.refresh)
        if stale:
            return AuditDecision(Decision.STALE, gap)
        same = self._content[row] == entry.content
        return AuditDecision(Decision.DUPLICATE, gap, None if same else self._position[row])

    def _note_time(self, row: int, time: int, *, refresh: bool) -> None:
        if self._first[row] == NO_TIME:
            self._first[row] = self._start[row] = time
        elif refresh:
            self._start[row] = max(self._start[row], time)

    def _replace(self, row: int, entry: AuditRow) -> None:
        """A new version: copies are measured against it from now on."""
        self._restart(row, entry)
        self._first[row] = self._start[row]
        self._version[row] = entry.version

    def _restart(self, row: int, entry: AuditRow) -> None:
        """It runs again: a new window begins, but the first copy stays the first."""
        self._start[row] = entry.time
        self._content[row] = entry.content
        self._position[row] = entry.position


def _gap(time: int, before: int) -> int | None:
    return None if NO_TIME in (time, before) else abs(time - before)
