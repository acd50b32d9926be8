"""A dead letter: how an event that cannot be processed is written with its reason, read back, and made a delivery."""

import hashlib
import logging
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from eventonce.claims.outcome import Outcome
from eventonce.clock import moment
from eventonce.errors import LettersNotKept, describe
from eventonce.event import Delivery, Event
from eventonce.event.paths import read_time
from eventonce.event.reading import apart
from eventonce.ports import DeadLetter, DeadLetters

OUTCOME, RULE = "eventonce-outcome", "eventonce-rule"  # attributes of a message, to tell letters apart unread
Dead = Sequence[tuple[Delivery, Outcome]]
_FATE = ("outcome", "reason", "error", "attempts", "rule", "key", "time")
_NAMES = ("letter", "event_id", "named_by")
_BODIES = ("body", "body_base64", "body_gzip")
_KEPT_BODY = 64 * 1024 * 1024  # bytes that a packed body may have
MOST = 10_000  # letters that are redriven in one go: they are held in memory, and hidden from others in a queue
_log = logging.getLogger("eventonce")


def keep(place: DeadLetters, dead: Dead, now: int) -> Dead:
    """Keep these; return those that can never be kept there, which must not be settled.

    Whoever may send events decides how large they are, so that one of them must not be the end of all others.
    """
    try:
        place.write(dead, now)
    except LettersNotKept as error:
        _log.error("%s", describe(error))
        return [dead[number] for number in error.numbers]
    return ()


# --- writing ---


def letter(delivery: Delivery, outcome: Outcome, now: int) -> dict[str, Any]:
    """One dead letter: reason, history, place, and the event's own bytes."""
    return {
        **fate(outcome, outcome.attempt, now),
        **{name: _writable(value) for name, value in delivery.origin.items()},
        **_identity(delivery.event),
        **_body(delivery.body),
    }


def _identity(event: Event | None) -> dict[str, Any]:
    """The event's id, and which carriers gave it: its bytes do not say that."""
    if event is None or not event.id:
        return {}
    named_by = {"named_by": [_writable(each) for each in event.named_by]} if event.named_by else {}
    return {"event_id": _writable(event.id), **named_by}


def fate(outcome: Outcome, attempts: int, now: int) -> dict[str, Any]:
    """What a dead letter says of how its event ended."""
    return {
        "outcome": outcome.kind,
        "reason": describe(outcome.error),
        "error": type(outcome.error).__name__,
        "attempts": attempts,
        "rule": outcome.rule,
        "key": outcome.key.hex() if outcome.key else None,
        "time": moment(now).isoformat(),
    }


def _writable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


# --- reading ---


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
        body=_read_body(fields),
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


def _read_body(fields: Mapping[str, Any]) -> bytes:
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


# --- redriving ---


def letter_deliveries(letter: DeadLetter) -> Sequence[Delivery]:
    """Return its events: one, or all those of a document that was kept whole."""
    name = letter.event_id or letter.where.get("message")
    if not name and letter.where.get("source") != "http":
        return apart(Delivery(letter.body, letter.where))
    parts = apart(Delivery(letter.body, {"source": "", **letter.where, "message": name or ""}, handle=letter.id))
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
