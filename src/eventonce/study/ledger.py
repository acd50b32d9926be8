"""What an audit remembers of each key: a few numbers in columns, so that millions of keys fit in memory."""

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum, auto
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

    def rows(self, fingerprints: Iterable[int]) -> list[int]:
        """The row of each; a new one, which is the length before, where it was not known.

        In one loop: a call for each would take longer than what it does.
        """
        slots, mask, known = self._slots, self._mask, self._fingerprints
        found = []
        for fingerprint in fingerprints:
            at = fingerprint & mask
            while (row := slots[at]) and known[row - 1] != fingerprint:
                at = (at + 1) & mask
            if not row:
                known.append(fingerprint)
                row = slots[at] = len(known)
                if row * 3 > mask * 2:
                    self._grow()
                    slots, mask = self._slots, self._mask
            found.append(row - 1)
        return found

    def all_seen(self, fingerprints: Iterable[int]) -> list[bool]:
        """Whether each was known before; from now on it is."""
        new, seen = len(self), []
        for row in self.rows(fingerprints):
            seen.append(row != new)
            new += row == new
        return seen

    def _grow(self) -> None:
        mask = self._mask = self._mask * 2 + 1
        slots = self._slots = array("I", bytes(4 * (mask + 1)))
        for row, fingerprint in enumerate(self._fingerprints, 1):
            at = fingerprint & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = row


class Verdict(IntEnum):
    """What the pipeline does with an event."""

    NEW = auto()  # it runs
    NEWER = auto()  # it runs: a higher version of a known key
    DUPLICATE = auto()  # it is dropped
    STALE = auto()  # it is dropped: a lower version of a known key
    LATE = auto()  # it runs again: the window was over


class Entry(NamedTuple):
    """One event as it is entered."""

    rule: CompiledRule
    key: int  # its fingerprint, as is the content's
    version: int | None
    content: int
    time: int | None
    position: int


class Taken(NamedTuple):
    """What became of it, how long after the copy before it came, and where that copy with another content is."""

    verdict: Verdict
    gap: int | None = None
    differs_from: int | None = None


_NEW, _NEWER = Taken(Verdict.NEW), Taken(Verdict.NEWER)


class Ledger:
    """One row for each key, and the rules of the claim protocol applied to recorded times.

    A window counts from the first copy, or from the latest one where it slides; so does the gap of a copy.
    Copies may come out of order: a gap has no sign. A copy without a time is taken to be inside the window.
    """

    def __init__(self) -> None:
        self._rows = Index()
        self._first = array("q")  # time of the first copy
        self._start = array("q")  # time from which the window counts
        self._content = array("Q")
        self._position = array("Q")
        self._version = array("q")

    def __len__(self) -> int:
        return len(self._rows)

    def take_all(self, entries: Sequence[Entry]) -> list[Taken]:
        """Enter many, in their order."""
        rows = self._rows.rows([entry.key for entry in entries])
        return [self._enter(row, entry) for row, entry in zip(rows, entries, strict=True)]

    def _enter(self, row: int, entry: Entry) -> Taken:
        if row == len(self._first):
            self._append(entry)
            return _NEW
        version = _version(entry)
        if version > self._version[row]:
            self._replace(row, entry)
            return _NEWER
        return self._copy(row, entry, stale=version < self._version[row])

    def _copy(self, row: int, entry: Entry, *, stale: bool) -> Taken:
        gap = self._gap(row, entry)
        if self._is_late(row, entry):
            self._restart(row, entry)
            return Taken(Verdict.LATE, gap)
        self._note_time(row, entry)
        if stale:
            return Taken(Verdict.STALE, gap)
        same = self._content[row] == entry.content
        return Taken(Verdict.DUPLICATE, gap, None if same else self._position[row])

    def _gap(self, row: int, entry: Entry) -> int | None:
        since = (self._start if entry.rule.refresh else self._first)[row]
        return None if entry.time is None or since == NO_TIME else abs(entry.time - since)

    def _is_late(self, row: int, entry: Entry) -> bool:
        start = self._start[row]
        return entry.time is not None and start != NO_TIME and abs(entry.time - start) > entry.rule.window

    def _note_time(self, row: int, entry: Entry) -> None:
        if entry.time is None:
            return
        if self._first[row] == NO_TIME:
            self._first[row] = self._start[row] = entry.time
        elif entry.rule.refresh:
            self._start[row] = max(self._start[row], entry.time)

    def _append(self, entry: Entry) -> None:
        time = NO_TIME if entry.time is None else entry.time
        self._first.append(time)
        self._start.append(time)
        self._content.append(entry.content)
        self._position.append(entry.position)
        self._version.append(_version(entry))

    def _replace(self, row: int, entry: Entry) -> None:
        """A new version: copies are measured against it from now on."""
        self._restart(row, entry)
        self._first[row] = self._start[row]
        self._version[row] = _version(entry)

    def _restart(self, row: int, entry: Entry) -> None:
        """It runs again: a new window begins, but the first copy stays the first."""
        self._start[row] = NO_TIME if entry.time is None else entry.time
        self._content[row] = entry.content
        self._position[row] = entry.position


def _version(entry: Entry) -> int:
    return NO_VERSION if entry.version is None else entry.version
