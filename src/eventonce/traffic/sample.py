"""A bounded sample of recorded traffic, by source and type.

The first events of each kind are in it, and of the later ones those that look like copies: they have the id or the
content of a sampled event. So the sample is small and the copies in it are complete. Events are stored packed, as a
parsed event takes several times the room.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from eventonce.event import Event
from eventonce.event.keys import canonical

MAX_EVENTS = 5_000  # of one kind, and as many copies of them
MAX_KINDS = 200
MAX_BYTES = 256 * 1024 * 1024
_MAX_NAME = 1000
_pack = msgspec.json.Encoder().encode
_unpack = msgspec.json.Decoder(Event).decode


class TypeSample:
    """The sample of one source and type."""

    def __init__(self, source: str, type_: str) -> None:
        self.source = source
        self.type = type_
        self.events = 0
        self.replayed = 0
        self.queued = False  # some came through an SQS queue
        self._packed: list[bytes] = []
        self._fingerprints: set[bytes] = set()

    def __iter__(self) -> Iterator[Event]:
        return map(_unpack, self._packed)

    def add(self, event: Event, room: int) -> int:
        """Count the event, and add it if it is of use. Return how many bytes that took."""
        content = canonical(event.data)
        self.events += 1
        if event.replay:
            self.replayed += 1  # sent again on purpose, so it shows nothing about copies
            return 0
        fingerprints = {_fingerprint(b"content", content)}
        if event.id:
            fingerprints.add(_fingerprint(b"id", event.id.encode()))
        limit = MAX_EVENTS if self._fingerprints.isdisjoint(fingerprints) else 2 * MAX_EVENTS
        if len(self._packed) >= limit or room <= 0:
            return 0
        packed = _pack(msgspec.structs.replace(event, raw=b""))
        self._packed.append(packed)
        self._fingerprints |= fingerprints
        return len(packed)


class Sample:
    """A sample of each source and type."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], TypeSample] = {}
        self.unsampled = 0  # events of kinds beyond the limit
        self._room = MAX_BYTES

    def add(self, event: Event, *, queued: bool = False) -> None:
        """Add one more event. Raise `EventRejected` if its content has no canonical form."""
        kind = self.kinds.get((event.source, event.type))
        if kind is None and (len(self.kinds) >= MAX_KINDS or len(event.source + event.type) > _MAX_NAME):
            self.unsampled += 1
            return
        if kind is None:
            kind = TypeSample(event.source, event.type)
        self._room -= kind.add(event, self._room)
        kind.queued |= queued
        self.kinds.setdefault((event.source, event.type), kind)


def _fingerprint(domain: bytes, data: bytes) -> bytes:
    return hashlib.sha256(domain + b" " + data).digest()[:16]
