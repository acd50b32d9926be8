"""Facts: what an audit needs to know of events, in columns: few steps for each event, and quick to hand over."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.rule import Rule
from eventonce.rules import CompiledRule, Rulebook
from eventonce.study import fingerprint
from eventonce.study.content import of_content
from eventonce.study.ledger import NO_TIME, NO_VERSION, Entries
from eventonce.study.pieces import Placed
from eventonce.study.traffic import millis, unpack

_NO_ID = 0  # which is never taken for known
_LONGEST_NAME = 200


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
        self.replayed = bytearray()
        self._packed = bytearray()  # a place to work, used again and again

    def take(self, documents: Iterable[Placed], shown: str, book: Rulebook) -> None:
        """All events of some documents of a file."""
        for body, line, _, trouble in documents:
            self.documents += 1
            for position, event in unpack(self.documents, body, trouble):
                self.add(event, position, shown, line, book)

    def add(self, event: Event | EventRejected, position: int, shown: str, line: int, book: Rulebook) -> None:
        """One more event, or what is none, and where it was found."""
        if isinstance(event, EventRejected):
            self.rejected.append(Rejected(None, str(event), shown, line))
            return
        group = self.names.get((event.source, event.type))
        if group is None:
            group = self._group(event)
        try:
            self._enter(event, book.find(event))
        except EventRejected as error:
            self.rejected.append(Rejected(group, str(error), shown, line))
        else:
            self.groups.append(group)
            self.positions.append(position)

    def __len__(self) -> int:
        return len(self.keys) + len(self.rejected)

    def shift(self, positions: int, lines: int) -> None:
        """They were found in a piece of a file, with so much before it."""
        self.positions = array("Q", [position + positions for position in self.positions])
        self.rejected = [each._replace(line=each.line + lines) for each in self.rejected]

    def entries(self) -> Entries:
        """As a ledger takes them."""
        return Entries(self.rules, self.keys, self.versions, self.contents, self.times, self.positions)

    def _group(self, event: Event) -> int:
        name = (event.source[:_LONGEST_NAME], event.type[:_LONGEST_NAME])
        return self.names.setdefault(name, len(self.names))

    def _enter(self, event: Event, rule: CompiledRule) -> None:
        own_id, time, version = fingerprint.of_id(event), millis(event), None
        if own_id is not None and _is_by_id(rule.rule, event):
            key = own_id ^ rule.number
        else:
            keyed = rule.key(event)
            key, version = fingerprint.of_digest(keyed.key), keyed.version
        content = key if rule.rule.key == "content" else of_content(rule, event, self._packed)
        self.rules.append(rule.number)
        self.keys.append(key)
        self.versions.append(NO_VERSION if version is None else version)
        self.contents.append(content)
        self.times.append(NO_TIME if time is None else time)
        self.ids.append(_NO_ID if own_id is None else own_id)
        self.replayed.append(bool(event.replay))


def _is_by_id(rule: Rule, event: Event) -> bool:
    """Whether the key is the id and no more: then it needs no digest, since under one rule the id says the same."""
    return rule.key == "id" and rule.version is None and not (event.replay and rule.replay == "reprocess")
