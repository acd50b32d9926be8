"""Facts: what an audit needs to know of events, in columns. They take few steps for each event and are quick to send.

To make them is nearly all of an audit's work, so those of large archives are made in several processes.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby, tee
from typing import NamedTuple

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import MAX_BYTES, read_events
from eventonce.rules import CompiledRule, Rulebook
from eventonce.rules.rule import Rule
from eventonce.traffic import fingerprint
from eventonce.traffic.archive import INDEX_BITS, Archive, RecordedEvent, time_ms
from eventonce.traffic.content import of_content
from eventonce.traffic.file_ranges import DocumentRow, FileRange, FileRanges, LineCounter
from eventonce.traffic.ledger import NO_TIME, NO_VERSION, AuditColumns
from eventonce.traffic.processes import map_in_processes

_NO_ID = 0  # which is never equal to another
_MAX_NAME = 200
_ROWS = 50_000  # numbers that are put into their columns at once, at least
_WORTH_PROCESSES = 32 * 1024 * 1024  # bytes below which starting processes costs more than it saves


class Rejected(NamedTuple):
    """Why there is no event, or no key for it."""

    type: int | None  # None if there is no event
    reason: str
    file: str
    line: int


class Facts:
    """Facts of some events, in their order. Their types are numbers, which `names` gives to each source and type."""

    def __init__(self, documents: int = 0) -> None:
        self.documents = documents  # read so far, with earlier ones
        self.names: dict[tuple[str, str], int] = {}
        self.rejected: list[Rejected] = []
        self.types = array("I")
        self.rules = array("I")  # by their number in the rulebook
        self.keys = array("Q")  # fingerprints, as are contents and ids
        self.versions = array("q")
        self.contents = array("Q")
        self.times = array("q")
        self.positions = array("Q")
        self.ids = array("Q")
        self.replayed = array("b")

    def add_documents(self, documents: Iterable[DocumentRow], file: str, rulebook: Rulebook) -> None:
        """Add all events of some documents of a file."""
        rows = FactsBuilder(self, file, rulebook)
        try:
            for body, line, _, unreadable in documents:
                self.documents += 1
                position = self.documents << INDEX_BITS
                for event in read_events(body, MAX_BYTES) if unreadable is None else (EventRejected(unreadable),):
                    rows.add(event, position, line)
                    position += 1
                if len(rows) > _ROWS:
                    rows.flush()
        finally:  # also of a file that can be read no further
            rows.flush()

    def __len__(self) -> int:
        return len(self.keys) + len(self.rejected)

    def shift(self, positions: int, lines: int) -> None:
        """Move facts of a file's range, which count from its start, to where the range is in the archive."""
        self.positions = array("Q", [position + positions for position in self.positions])
        self.rejected = [rejected._replace(line=rejected.line + lines) for rejected in self.rejected]

    def entries(self) -> AuditColumns:
        """Return the columns that a ledger takes."""
        return AuditColumns(self.rules, self.keys, self.versions, self.contents, self.times, self.positions)


class FactsBuilder:
    """Collects events for `Facts`: one step for all columns of an event, and one for all events of a column."""

    def __init__(self, facts: Facts, file: str, rulebook: Rulebook) -> None:
        self._facts, self._file, self._rulebook = facts, file, rulebook
        self._numbers: list[int] = []  # row after row
        self._buffer = bytearray()  # for fingerprints of contents

    def add(self, event: Event | EventRejected, position: int, line: int) -> None:
        """Add an event, or the reason why there is none."""
        if isinstance(event, EventRejected):
            self._facts.rejected.append(Rejected(None, str(event), self._file, line))
            return
        number = self._facts.names.get((event.source, event.type))
        if number is None:
            number = self._number(event)
        try:
            self._add(event, self._rulebook.find(event), number, position)
        except EventRejected as error:
            self._facts.rejected.append(Rejected(number, str(error), self._file, line))

    def _add(self, event: Event, rule: CompiledRule, number: int, position: int) -> None:
        own_id, time, version, key_kind = fingerprint.of_id(event), time_ms(event), None, rule.rule.key
        if key_kind == "id" and own_id is not None and _is_id_alone(rule.rule, event):
            key = own_id ^ rule.number
        else:
            keyed = rule.key(event)
            key, version = fingerprint.of_digest(keyed.key), keyed.version
        self._numbers += (
            number,
            rule.number,
            key,
            NO_VERSION if version is None else version,
            key if key_kind == "content" else of_content(rule, event, self._buffer),
            NO_TIME if time is None else time,
            position,
            _NO_ID if own_id is None else own_id,
            1 if event.replay else 0,
        )

    def __len__(self) -> int:
        """Return how many numbers are not in their columns yet."""
        return len(self._numbers)

    def flush(self) -> None:
        """Put all numbers into their columns."""
        facts, numbers = self._facts, self._numbers
        columns: tuple[array[int], ...] = (
            facts.types,
            facts.rules,
            facts.keys,
            facts.versions,
            facts.contents,
            facts.times,
            facts.positions,
            facts.ids,
            facts.replayed,
        )
        for index, column in enumerate(columns):
            column.extend(numbers[index :: len(columns)])
        numbers.clear()

    def _number(self, event: Event) -> int:
        names = self._facts.names
        return names.setdefault((event.source[:_MAX_NAME], event.type[:_MAX_NAME]), len(names))


def _is_id_alone(rule: Rule, event: Event) -> bool:
    """Return whether a key by id is no more than the id. Then it needs no digest: under one rule both say the same."""
    return rule.version is None and not (event.replay and rule.replay == "reprocess")


# --- the facts of an archive ---


def read_facts(archive: Archive, rulebook: Rulebook, processes: int | None = None) -> Iterator[Facts]:
    """Yield the facts of all events of an archive, in their order."""
    if processes is None:
        processes = (os.cpu_count() or 1) if (archive.size or 0) >= _WORTH_PROCESSES else 1
    files, files_ahead = tee((file, FileRanges.of(file)) for file in archive.files)
    ranges, tasks = tee(file_range for _, cut in files_ahead if cut for file_range in cut.unnumbered())
    facts_of_ranges = map_in_processes(_range_facts, tasks, rulebook, processes, share=True)
    by_file = groupby(zip(ranges, facts_of_ranges, strict=True), key=lambda pair: pair[0].path)
    for file, cut in files:
        if cut is None:
            yield from (_batch_facts(batch, rulebook) for batch in archive.batches(file))
        else:
            yield from _shifted(archive, *next(by_file))


def _range_facts(file_range: FileRange, rulebook: Rulebook) -> Facts:
    """Return the facts of a range. Positions and lines count from its start."""
    facts = Facts()
    facts.add_documents(file_range.documents(hasty=True), file_range.display_name, rulebook)
    if any(rejected.type is None for rejected in facts.rejected):  # there may be several documents in a line
        facts = Facts()
        facts.add_documents(file_range.documents(), file_range.display_name, rulebook)
    return facts


def _shifted(archive: Archive, file: str, pairs: Iterable[tuple[FileRange, Facts]]) -> Iterator[Facts]:
    lines = LineCounter(file)
    for file_range, facts in pairs:
        positions = archive.skip_range(file_range, facts.documents)
        facts.shift(positions, lines.before(file_range.start) if facts.rejected else 0)
        yield facts


def _batch_facts(batch: Iterable[RecordedEvent], rulebook: Rulebook) -> Facts:
    facts = Facts()
    for file, events in groupby(batch, lambda recorded: str(recorded.delivery.origin["source"])):
        rows = FactsBuilder(facts, file, rulebook)
        for event, delivery, position in events:
            rows.add(event, position, delivery.origin["line"])
        rows.flush()
    return facts
