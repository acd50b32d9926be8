"""CloudEvents 1.0 in structured form."""

from typing import Any

from eventonce.event import Event
from eventonce.formats.plain import text
from eventonce.path import read_time

_NAMED = frozenset(("id", "source", "type", "data"))


def recognises(body: dict[str, Any]) -> bool:
    """Whether this is a CloudEvent."""
    return "specversion" in body and "source" in body and "type" in body


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it."""
    return Event(
        id=text(body.get("id")),
        source=text(body["source"]),
        type=text(body["type"]),
        time=read_time(body.get("time")),
        data=body.get("data"),
        attributes={name: value for name, value in body.items() if name not in _NAMED},
        raw=raw,
        form="cloudevents",
    )
