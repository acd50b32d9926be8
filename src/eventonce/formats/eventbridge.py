"""The envelope of Amazon EventBridge."""

from typing import Any

from eventonce.event import Event
from eventonce.formats.plain import text
from eventonce.path import read_time

_NAMED = frozenset(("id", "source", "detail-type", "detail"))


def recognises(body: dict[str, Any]) -> bool:
    """Whether this is an EventBridge event."""
    return "detail-type" in body and "detail" in body and "source" in body


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it."""
    return Event(
        id=text(body.get("id")),
        source=text(body["source"]),
        type=text(body["detail-type"]),
        time=read_time(body.get("time")),
        data=body["detail"],
        attributes={name: value for name, value in body.items() if name not in _NAMED},
        replay=text(body.get("replay-name")) or None,
        raw=raw,
        form="eventbridge",
    )
