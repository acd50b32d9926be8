"""Facts: what an audit needs to know of events, in columns: few steps for each event, and quick to hand over."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from eventonce.errors import EventRejected
from eventonce.event import Delivery, Event
from eventonce.rules import CompiledRule, Rulebook
from eventonce.study import fingerprint
from eventonce.study.content import of_content
from eventonce.study.ledger import NO_TIME, NO_VERSION, Entry
from eventonce.study.traffic import millis

NO_ID = 0
_LONGEST_NAME = 200


class Rejected(NamedTuple):
    """Why there is no event, or no key to it."""

    group: int | None  # none where there is no event
    reason: str
    place: str


class Facts:
    """Some events, in their order. A group is a source and type, by its number among `names`."""

    def __init__(self) -> None:
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

    def add(self, event: Event | EventRejected, delivery: Delivery, position: int, book: Rulebook) -> None:
        """One more event, or what is none."""
        if isinstance(event, EventRejected):
            self.rejected.append(Rejected(None, str(event), delivery.place))
            return
        name = (event.source[:_LONGEST_NAME], event.type[:_LONGEST_NAME])
        group = self.names.setdefault(name, len(self.names))
        try:
            self._enter(event, book.find(event))
        except EventRejected as error:
            self.rejected.append(Rejected(group, str(error), delivery.place))
        else:
            self.groups.append(group)
            self.positions.append(position)

    def __len__(self) -> int:
        return len(self.keys) + len(self.rejected)

    def shift(self, positions: int) -> None:
        """They were found in a part of the traffic, with so much before it."""
        self.positions = array("Q", [position + positions for position in self.positions])

    def entries(self, rules: Sequence[CompiledRule]) -> list[Entry]:
        """As a ledger takes them."""
        columns = zip(self.rules, self.keys, self.versions, self.contents, self.times, self.positions, strict=True)
        return [
            Entry(
                rules[rule],
                key,
                None if version == NO_VERSION else version,
                content,
                None if time == NO_TIME else time,
                position,
            )
            for rule, key, version, content, time, position in columns
        ]

    def _enter(self, event: Event, rule: CompiledRule) -> None:
        own_id, time = fingerprint.of_id(event), millis(event)
        key, version = _key(event, rule, own_id)
        self.rules.append(rule.number)
        self.keys.append(key)
        self.versions.append(NO_VERSION if version is None else version)
        self.contents.append(key if rule.rule.key == "content" else of_content(rule, event))
        self.times.append(NO_TIME if time is None else time)
        self.ids.append(NO_ID if own_id is None else own_id)
        self.replayed.append(bool(event.replay))


def _key(event: Event, rule: CompiledRule, own_id: int | None) -> tuple[int, int | None]:
    """The fingerprint of the key, and the version. A key by id needs no digest: under one rule its id says the same."""
    told = rule.rule
    apart = told.replay == "reprocess" and event.replay
    if told.key == "id" and told.version is None and own_id is not None and not apart:
        return own_id ^ rule.number, None
    keyed = rule.key(event)
    return fingerprint.of_digest(keyed.key), keyed.version
