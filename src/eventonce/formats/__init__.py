"""Ways to read a body: raw bytes, text or a mapping become an `Event`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.formats import cloudevents, eventbridge, plain
from eventonce.formats.text import MAX_BYTES, read_json

__all__ = ["MAX_BYTES", "read_event"]


def read_event(body: object, max_bytes: int = MAX_BYTES) -> Event:
    """Read one event, whatever envelope it is in."""
    if isinstance(body, Event):
        return _checked(body)
    if isinstance(body, str | bytes | bytearray | memoryview):
        raw = _bytes(body)
        return _event(_object(read_json(raw, max_bytes)), raw)
    if isinstance(body, Mapping):
        return _event(dict(body), b"")
    raise EventRejected(f"is a {type(body).__name__}, not an event; pass bytes, text, a mapping or an Event")


def _checked(event: Event) -> Event:
    """An event made by hand: its fields are what they say they are, and a time without a zone is UTC."""
    for name in ("id", "source", "type"):
        if not isinstance(getattr(event, name), str):
            raise EventRejected(f"has a {name} that is no text")
    if event.time is None:
        return event
    if not isinstance(event.time, datetime):
        raise EventRejected("has a time that is no datetime")
    return event if event.time.tzinfo else structs.replace(event, time=event.time.replace(tzinfo=UTC))


def _bytes(body: str | bytes | bytearray | memoryview) -> bytes:
    try:
        return body.encode() if isinstance(body, str) else bytes(body)
    except UnicodeEncodeError:
        raise EventRejected("holds half a surrogate pair, which has no UTF-8 form") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        name = {list: "a list", str: "a string", type(None): "null", bool: "a boolean"}.get(type(value), "a number")
        raise EventRejected(f"is {name}, not a JSON object")
    return value


def _event(body: dict[str, Any], raw: bytes) -> Event:
    if eventbridge.recognises(body):
        return eventbridge.read(body, raw)
    if cloudevents.recognises(body):
        return cloudevents.read(body, raw)
    return plain.read(body, raw)
