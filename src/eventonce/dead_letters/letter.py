"""A dead letter: how it is written, read back, and turned into deliveries."""

import hashlib
import logging
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from eventonce.claims.outcome import Outcome
from eventonce.clock import to_datetime
from eventonce.errors import LettersNotKept, describe
from eventonce.event import Delivery, Event
from eventonce.event.paths import read_time
from eventonce.event.reading import split_events
from eventonce.ports import DeadLetter, DeadLetterSink
from eventonce.text import one_line

OUTCOME, RULE = "eventonce-outcome", "eventonce-rule"  # message attributes that tell letters apart unread
MAX_LETTERS = 10_000  # per redrive: they are held in memory, and a queue hides them from others
DeadEvents = Sequence[tuple[Delivery, Outcome]]
_OUTCOME_FIELDS = ("outcome", "reason", "error", "attempts", "rule", "key", "time")
_ID_FIELDS = ("letter", "event_id", "named_by")
_BODY_FIELDS = ("body", "body_base64", "body_gzip")
_OWN_FIELDS = {*_OUTCOME_FIELDS, *_ID_FIELDS, *_BODY_FIELDS}  # the others are the origin's
_MAX_BODY = 64 * 1024 * 1024  # bytes of a body after decompression
_log = logging.getLogger("eventonce")


# --- writing ---


def write_dead_letters(sink: DeadLetterSink, dead: DeadEvents, now: int) -> DeadEvents:
    """Write dead letters. Return those that the sink can never keep, which must not be settled.

    The sender decides how large an event is. One that is too large must not stop all others.
    """
    try:
        sink.write(dead, now)
    except LettersNotKept as error:
        _log.error("%s", one_line(describe(error)))
        return [dead[number] for number in error.numbers]
    return ()


def letter_fields(delivery: Delivery, outcome: Outcome, now: int) -> dict[str, Any]:
    """Return a letter as it is written: reason, history, origin, and the event's own bytes."""
    return {
        **outcome_fields(outcome, outcome.attempt, now),
        **{name: _writable(value) for name, value in delivery.origin.items()},
        **_identity(delivery.event),
        **_body(delivery.body),
    }


def _identity(event: Event | None) -> dict[str, Any]:
    """Return the event's id, and which carriers gave it. Its bytes do not say that."""
    if event is None or not event.id:
        return {}
    named_by = {"named_by": [_writable(carrier) for carrier in event.named_by]} if event.named_by else {}
    return {"event_id": _writable(event.id), **named_by}


def outcome_fields(outcome: Outcome, attempts: int, now: int) -> dict[str, Any]:
    """Return the fields of a letter that describe how its event ended."""
    return {
        "outcome": outcome.kind,
        "reason": describe(outcome.error),
        "error": type(outcome.error).__name__,
        "attempts": attempts,
        "rule": outcome.rule,
        "key": outcome.key.hex() if outcome.key else None,
        "time": to_datetime(now).isoformat(),
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
    """Read a letter of ours. One that is damaged, or not ours, says so in `unreadable`."""
    name = hashlib.sha256(raw).hexdigest()[:32]
    try:
        return from_fields(msgspec.json.decode(raw, type=dict[str, Any]), name, handle)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        reason = "is not an eventonce dead letter, or is damaged"
        return DeadLetter(id=name, outcome="unreadable", reason=reason, unreadable=reason, handle=handle)


def from_fields(fields: dict[str, Any], name: str, handle: Any = None) -> DeadLetter:
    """Return the letter with these fields. Raise `KeyError`, `TypeError` or `ValueError` if they are not a letter's."""
    if not all(isinstance(fields[name], str | None) for name in ("rule", "key")):
        raise TypeError("rule and key must be strings")
    return DeadLetter(
        id=str(fields.get("letter") or name),
        body=_read_body(fields),
        outcome=str(fields["outcome"]),
        reason=str(fields["reason"]),
        attempts=int(fields["attempts"]),
        rule=fields["rule"],
        key=fields["key"],
        time=read_time(fields["time"]),
        origin={name: value for name, value in fields.items() if name not in _OWN_FIELDS},
        event_id=str(fields.get("event_id", "")),
        named_by=tuple(map(str, fields.get("named_by", ()))),
        fields=fields,
        handle=handle,
    )


def without_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a letter without its body."""
    return {name: value for name, value in fields.items() if name not in _BODY_FIELDS}


def _read_body(fields: Mapping[str, Any]) -> bytes:
    if "body" in fields:
        return bytes(fields["body"].encode())
    if "body_base64" in fields:
        return b64decode(fields["body_base64"], validate=True)
    return _decompress(b64decode(fields["body_gzip"], validate=True))


def _decompress(data: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    body = decompressor.decompress(data, _MAX_BODY)
    if not decompressor.eof:
        raise ValueError("it is truncated, or larger than any letter we write")
    return body


# --- redriving ---


def letter_deliveries(letter: DeadLetter) -> Sequence[Delivery]:
    """Return the deliveries of a letter: one, or one per event of a document that was kept whole."""
    name = letter.event_id or letter.origin.get("message")
    if not name and letter.origin.get("source") != "http":
        return split_events(Delivery(letter.body, letter.origin))
    parts = split_events(
        Delivery(letter.body, {"source": "", **letter.origin, "message": name or ""}, handle=letter.id)
    )
    return [_restore_id(letter, delivery) for delivery in parts]


def _restore_id(letter: DeadLetter, delivery: Delivery) -> Delivery:
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
    """Return the letter of an event after another failed attempt."""
    if not letter.fields:
        return letter
    changed = outcome_fields(outcome, letter.attempts + (outcome.attempt > 0), now)
    return structs.replace(letter, fields={**letter.fields, **changed, "letter": letter.id})
