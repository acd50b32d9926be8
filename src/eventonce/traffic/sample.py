"""A bounded sample of recorded traffic, by source and type.

The first events of each kind are kept, and later on only those that look like copies of a kept one: the same id, or
the same content. So the sample stays small while the copies in it stay complete. Events are kept packed, as a parsed
event takes several times the room.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from eventonce.event import Event
from eventonce.event.keys import canonical

MOST_EVENTS = 5_000  # of one kind, and as many copies of them
MOST_KINDS = 200
MOST_BYTES = 256 * 1024 * 1024
_LONGEST_NAME = 1000
_pack = msgspec.json.Encoder().encode
_unpack = msgspec.json.Decoder(Event).decode


class TypeSample:
    """What was seen of one source and type."""

    def __init__(self, source: str, type_: str) -> None:
        self.source = source
        self.type = type_
        self.events = 0
        self.replayed = 0
        self.queued = False  # some came through an SQS queue
        self._kept: list[bytes] = []
        self._marks: set[bytes] = set()

    def __iter__(self) -> Iterator[Event]:
        return map(_unpack, self._kept)

    def add(self, event: Event, room: int) -> int:
        """Count the event, and keep it where it is of use; how many bytes that took."""
        content = canonical(event.data)
        self.events += 1
        if event.replay:
            self.replayed += 1  # sent again on purpose: it says nothing about copies
            return 0
        marks = {_mark(b"content", content)} | ({_mark(b"id", event.id.encode())} if event.id else set())
        most = MOST_EVENTS if self._marks.isdisjoint(marks) else 2 * MOST_EVENTS
        if len(self._kept) >= most or room <= 0:
            return 0
        packed = _pack(msgspec.structs.replace(event, raw=b""))
        self._kept.append(packed)
        self._marks |= marks
        return len(packed)


class Sample:
    """All kinds of events that were seen."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], TypeSample] = {}
        self.unsampled = 0  # events of kinds beyond the limit
        self._room = MOST_BYTES

    def add(self, event: Event, *, queued: bool = False) -> None:
        """One more event; `EventRejected` where its content has no canonical form."""
        kind = self.kinds.get((event.source, event.type))
        if kind is None and (len(self.kinds) >= MOST_KINDS or len(event.source + event.type) > _LONGEST_NAME):
            self.unsampled += 1
            return
        if kind is None:
            kind = TypeSample(event.source, event.type)
        self._room -= kind.add(event, self._room)
        kind.queued |= queued
        self.kinds.setdefault((event.source, event.type), kind)


def _mark(what: bytes, data: bytes) -> bytes:
    return hashlib.sha256(what + b" " + data).digest()[:16]
