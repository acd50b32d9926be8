"""JSON objects without an envelope: all of an object is the data, and common names in it count."""

from typing import Any

from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import read_time


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it."""
    return Event(
        id=read_id(body.get("id")),
        source=text(body.get("source")),
        type=text(body.get("type")),
        time=read_time(body.get("time")),
        data=body,
        attributes=body,
        raw=raw,
    )


def read_id(value: Any) -> str:
    """Return an id as text, or "" for true and false, which identify nothing."""
    return "" if isinstance(value, bool) else text(value)


def text(value: Any) -> str:
    """Return a value of an envelope as text: a string as it is, None as "", anything else in canonical JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else canonical(value).decode()
