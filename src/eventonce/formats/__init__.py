"""Ways to read a body: raw bytes, text or a mapping become an `Event`."""

from collections.abc import Mapping
from typing import Any

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.formats import cloudevents, eventbridge, plain
from eventonce.formats.text import MAX_BYTES, read_json

__all__ = ["MAX_BYTES", "read_event"]


def read_event(body: object, max_bytes: int = MAX_BYTES) -> Event:
    """Read one event, whatever envelope it is in."""
    if isinstance(body, Event):
        return body
    if isinstance(body, str | bytes | bytearray | memoryview):
        raw = _bytes(body)
        return _event(_object(read_json(raw, max_bytes)), raw)
    if isinstance(body, Mapping):
        return _event(dict(body), b"")
    raise EventRejected(f"is a {type(body).__name__}, not an event; pass bytes, text, a mapping or an Event")


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
