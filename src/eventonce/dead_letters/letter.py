"""Dead letters, read back from bytes and turned into deliveries."""

import hashlib
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from eventonce.claims.outcome import Outcome
from eventonce.dead_letters.writing import fate
from eventonce.event import Delivery
from eventonce.event.paths import read_time
from eventonce.event.reading import split_events
from eventonce.ports import DeadLetter

_FATE = ("outcome", "reason", "error", "attempts", "rule", "key", "time")
_NAMES = ("letter", "event_id", "named_by")
_BODIES = ("body", "body_base64", "body_gzip")
_KEPT_BODY = 64 * 1024 * 1024  # bytes that a packed body may have
MOST = 10_000  # letters that are redriven in one go: they are held in memory, and hidden from others in a queue


def letter_deliveries(letter: DeadLetter) -> Sequence[Delivery]:
    """Return its events: one, or all those of a document that was kept whole."""
    name = letter.event_id or letter.where.get("message")
    if not name and letter.where.get("source") != "http":
        return split_events(Delivery(letter.body, letter.where))
    parts = split_events(Delivery(letter.body, {"source": "", **letter.where, "message": name or ""}, handle=letter.id))
    return [_restored(letter, delivery) for delivery in parts]


def _restored(letter: DeadLetter, delivery: Delivery) -> Delivery:
    """Return the delivery with the id that the event had from its carrier."""
    event = delivery.event
    if event is None:
        return delivery
    attributes = dict(event.attributes)
    if letter.event_id and event.id != letter.event_id:
        attributes.pop("id", None)
    named = {"id": letter.event_id, "named_by": letter.named_by} if letter.event_id else {}
    event = structs.replace(event, attributes=attributes, **named)
    return structs.replace(delivery, event=event)


def after_failure(letter: DeadLetter, outcome: Outcome, now: int) -> DeadLetter:
    """Return the letter after another attempt at its event has failed."""
    if not letter.fields:
        return letter
    changed = fate(outcome, letter.attempts + (outcome.attempt > 0), now)
    return structs.replace(letter, fields={**letter.fields, **changed, "letter": letter.id})


def read_letter(raw: bytes, handle: Any = None) -> DeadLetter:
    """Read a letter of ours; what is none, or is damaged, says so in its trouble."""
    name = hashlib.sha256(raw).hexdigest()[:32]
    try:
        return from_fields(msgspec.json.decode(raw, type=dict[str, Any]), name, handle)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        why = "is no dead letter of eventonce, or a damaged one"
        return DeadLetter(id=name, outcome="unreadable", reason=why, trouble=why, handle=handle)


def from_fields(fields: dict[str, Any], name: str, handle: Any = None) -> DeadLetter:
    """The letter that says this; raises `KeyError`, `ValueError` or the like where it says nothing of the kind."""
    if not all(isinstance(fields[name], str | None) for name in ("rule", "key")):
        raise TypeError("a rule and a key are texts")
    return DeadLetter(
        id=str(fields.get("letter") or name),
        body=_body(fields),
        outcome=str(fields["outcome"]),
        reason=str(fields["reason"]),
        attempts=int(fields["attempts"]),
        rule=fields["rule"],
        key=fields["key"],
        time=read_time(fields["time"]),
        where={name: value for name, value in fields.items() if name not in (*_FATE, *_BODIES, *_NAMES)},
        event_id=str(fields.get("event_id", "")),
        named_by=tuple(map(str, fields.get("named_by", ()))),
        fields=fields,
        handle=handle,
    )


def without_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a letter says beside its body."""
    return {name: value for name, value in fields.items() if name not in _BODIES}


def _body(fields: Mapping[str, Any]) -> bytes:
    if "body" in fields:
        return bytes(fields["body"].encode())
    if "body_base64" in fields:
        return b64decode(fields["body_base64"], validate=True)
    return _unpacked(b64decode(fields["body_gzip"], validate=True))


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    body = unpacker.decompress(data, _KEPT_BODY)
    if not unpacker.eof:
        raise ValueError("it is cut off, or larger than any letter we write")
    return body
