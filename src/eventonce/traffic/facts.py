"""Facts: what an audit needs to know of events, in columns: few steps for each event, and quick to hand over."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import MAX_BYTES, read_events
from eventonce.rules import CompiledRule, Rulebook
from eventonce.rules.rule import Rule
from eventonce.traffic import fingerprint
from eventonce.traffic.content import of_content
from eventonce.traffic.file_ranges import DocumentRow
from eventonce.traffic.ledger import NO_TIME, NO_VERSION, AuditColumns
from eventonce.traffic.recorded import NTH_BITS, millis

_NO_ID = 0  # which is never taken for known
_LONGEST_NAME = 200
_ROWS = 50_000  # numbers that are put into their columns at once, at least


class Rejected(NamedTuple):
    """Why there is no event, or no key to it."""

    group: int | None  # none where there is no event
    reason: str
    file: str
    line: int


class Facts:
    """Some events, in their order. A group is a source and type, by its number among `names`."""

    def __init__(self, documents: int = 0) -> None:
        self.documents = documents  # looked at so far, with those before
        self.names: dict[tuple[str, str], int] = {}
        self.rejected: list[Rejected] = []
        self.groups = array("I")
        self.rules = array("I")  # by their number in the book
        self.keys = array("Q")  # fingerprints, as are contents and ids
        self.versions = array("q")
        self.contents = array("Q")
        self.times = array("q")
        self.positions = array("Q")
        self.ids = array("Q")
        self.replayed = array("b")

    def take(self, documents: Iterable[DocumentRow], shown: str, book: Rulebook) -> None:
        """All events of some documents of a file."""
        rows = FactsBuilder(self, shown, book)
        try:
            for body, line, _, trouble in documents:
                self.documents += 1
                position = self.documents << NTH_BITS
                for event in read_events(body, MAX_BYTES) if trouble is None else (EventRejected(trouble),):
                    rows.add(event, position, line)
                    position += 1
                if len(rows) > _ROWS:
                    rows.enter()
        finally:  # also of a file that can be read no further
            rows.enter()

    def __len__(self) -> int:
        return len(self.keys) + len(self.rejected)

    def shift(self, positions: int, lines: int) -> None:
        """They were found in a piece of a file, with so much before it."""
        self.positions = array("Q", [position + positions for position in self.positions])
        self.rejected = [each._replace(line=each.line + lines) for each in self.rejected]

    def entries(self) -> AuditColumns:
        """As a ledger takes them."""
        return AuditColumns(self.rules, self.keys, self.versions, self.contents, self.times, self.positions)


class FactsBuilder:
    """Events on their way into columns: one step for all columns of an event, and one for all events of a column."""

    def __init__(self, facts: Facts, shown: str, book: Rulebook) -> None:
        self._facts, self._shown, self._book = facts, shown, book
        self._found: list[int] = []  # one row behind the other
        self._packed = bytearray()  # a place to work, used again and again

    def add(self, event: Event | EventRejected, position: int, line: int) -> None:
        """One more event, or what is none, and where it was found."""
        if isinstance(event, EventRejected):
            self._facts.rejected.append(Rejected(None, str(event), self._shown, line))
            return
        group = self._facts.names.get((event.source, event.type))
        if group is None:
            group = self._group(event)
        try:
            self._add(event, self._book.find(event), group, position)
        except EventRejected as error:
            self._facts.rejected.append(Rejected(group, str(error), self._shown, line))

    def _add(self, event: Event, rule: CompiledRule, group: int, position: int) -> None:
        own_id, time, version, by = fingerprint.of_id(event), millis(event), None, rule.rule.key
        if by == "id" and own_id is not None and _is_id_alone(rule.rule, event):
            key = own_id ^ rule.number
        else:
            keyed = rule.key(event)
            key, version = fingerprint.of_digest(keyed.key), keyed.version
        self._found += (
            group,
            rule.number,
            key,
            NO_VERSION if version is None else version,
            key if by == "content" else of_content(rule, event, self._packed),
            NO_TIME if time is None else time,
            position,
            _NO_ID if own_id is None else own_id,
            1 if event.replay else 0,
        )

    def __len__(self) -> int:
        """How many numbers are on their way."""
        return len(self._found)

    def enter(self) -> None:
        """Put all into their columns."""
        facts, found = self._facts, self._found
        columns: tuple[array[int], ...] = (
            facts.groups,
            facts.rules,
            facts.keys,
            facts.versions,
            facts.contents,
            facts.times,
            facts.positions,
            facts.ids,
            facts.replayed,
        )
        for at, column in enumerate(columns):
            column.extend(found[at :: len(columns)])
        found.clear()

    def _group(self, event: Event) -> int:
        names = self._facts.names
        return names.setdefault((event.source[:_LONGEST_NAME], event.type[:_LONGEST_NAME]), len(names))


def _is_id_alone(rule: Rule, event: Event) -> bool:
    """Whether a key by id is no more than that: then it needs no digest, since under one rule the id says the same."""
    return rule.version is None and not (event.replay and rule.replay == "reprocess")
