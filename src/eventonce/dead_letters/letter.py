"""A dead letter as it is read back, whoever wrote it."""

import hashlib
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs

from eventonce.claims.outcome import Outcome
from eventonce.dead_letters.writing import fate
from eventonce.event import Delivery
from eventonce.event.paths import read_time
from eventonce.event.reading import apart

_FATE = ("outcome", "reason", "error", "attempts", "rule", "key", "time")
_NAMES = ("letter", "event_id", "named_by")
_BODIES = ("body", "body_base64", "body_gzip")
_KEPT_BODY = 64 * 1024 * 1024  # bytes that a packed body may have
MOST = 10_000  # letters that are redriven in one go: they are held in memory, and hidden from others in a queue


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter.

    `id` names it and stays the same however often it is redriven. `told` is the letter as we wrote it, empty where
    another did. With `trouble` it cannot be redriven.
    """

    id: str
    body: bytes = b""
    outcome: str = ""
    reason: str = ""
    attempts: int = 0
    rule: str | None = None
    key: str | None = None
    time: datetime | None = None
    where: Mapping[str, Any] = {}
    event_id: str = ""
    named_by: tuple[str, ...] = ()
    told: Mapping[str, Any] = {}
    trouble: str | None = None
    handle: Any = None  # what its box finds it by

    @property
    def mark(self) -> str:
        """The name of the replay that its event belongs to, where it is to run whatever is remembered."""
        return f"redrive:{self.id}"

    @property
    def place(self) -> str:
        """Where the event was found at first, in short."""
        return Delivery(b"", self.where).location

    def deliveries(self) -> Sequence[Delivery]:
        """Its events: one, or all those of a document that was kept whole."""
        name = self.event_id or self.where.get("message")
        if not name and self.where.get("source") != "http":
            return apart(Delivery(self.body, self.where))
        found = apart(Delivery(self.body, {"source": "", **self.where, "message": name or ""}, handle=self.id))
        return [self._restored(delivery) for delivery in found]

    def _restored(self, delivery: Delivery) -> Delivery:
        """With the id that the event had from its carrier."""
        event = delivery.event
        if event is None:
            return delivery
        attributes = dict(event.attributes)
        if self.event_id and event.id != self.event_id:
            attributes.pop("id", None)
        named = {"id": self.event_id, "named_by": self.named_by} if self.event_id else {}
        event = structs.replace(event, attributes=attributes, **named)
        return structs.replace(delivery, event=event)

    def again(self, outcome: Outcome, now: int) -> "DeadLetter":
        """The letter after its event was tried once more in vain."""
        changed = fate(outcome, self.attempts + (outcome.attempt > 0), now)
        return structs.replace(self, told={**self.told, **changed, "letter": self.id}) if self.told else self


def read_letter(raw: bytes, handle: Any = None) -> DeadLetter:
    """Read a letter of ours; what is none, or is damaged, says so in its trouble."""
    name = hashlib.sha256(raw).hexdigest()[:32]
    try:
        return from_told(msgspec.json.decode(raw, type=dict[str, Any]), name, handle)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        why = "is no dead letter of eventonce, or a damaged one"
        return DeadLetter(id=name, outcome="unreadable", reason=why, trouble=why, handle=handle)


def from_told(told: dict[str, Any], name: str, handle: Any = None) -> DeadLetter:
    """The letter that says this; raises `KeyError`, `ValueError` or the like where it says nothing of the kind."""
    if not all(isinstance(told[name], str | None) for name in ("rule", "key")):
        raise TypeError("a rule and a key are texts")
    return DeadLetter(
        id=str(told.get("letter") or name),
        body=_body(told),
        outcome=str(told["outcome"]),
        reason=str(told["reason"]),
        attempts=int(told["attempts"]),
        rule=told["rule"],
        key=told["key"],
        time=read_time(told["time"]),
        where={name: value for name, value in told.items() if name not in (*_FATE, *_BODIES, *_NAMES)},
        event_id=str(told.get("event_id", "")),
        named_by=tuple(map(str, told.get("named_by", ()))),
        told=told,
        handle=handle,
    )


def without_body(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a letter says beside its body."""
    return {name: value for name, value in told.items() if name not in _BODIES}


def _body(told: Mapping[str, Any]) -> bytes:
    if "body" in told:
        return bytes(told["body"].encode())
    if "body_base64" in told:
        return b64decode(told["body_base64"], validate=True)
    return _unpacked(b64decode(told["body_gzip"], validate=True))


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    body = unpacker.decompress(data, _KEPT_BODY)
    if not unpacker.eof:
        raise ValueError("it is cut off, or larger than any letter we write")
    return body
