"""Log events of CloudWatch Logs, as a subscription filter delivers them: several in one document."""

from datetime import datetime
from typing import Any

import msgspec

from eventonce.clock import to_datetime
from eventonce.event import Event
from eventonce.event.formats.plain import text
from eventonce.event.formats.text import read_object

_EVENTS = "logEvents"
_NAMES = ("messageType", "logGroup", "logStream")


def recognises_batch(body: dict[str, Any]) -> bool:
    """Return whether this is a document with log events."""
    events = body.get(_EVENTS)
    return isinstance(events, list) and bool(events) and all(isinstance(body.get(name), str) for name in _NAMES)


def recognises(body: dict[str, Any]) -> bool:
    """Return whether this is a document with one log event, which is read as that event."""
    if _EVENTS not in body or not recognises_batch(body):
        return False
    return len(body[_EVENTS]) == 1 and isinstance(body[_EVENTS][0], dict)


def split(body: dict[str, Any]) -> list[Any]:
    """Return a document for each log event. What is not an object stays as it is."""
    return [{**body, _EVENTS: [event]} if isinstance(event, dict) else event for event in body[_EVENTS]]


def message(body: dict[str, Any]) -> bytes:
    """Return the text of the one log event."""
    return text(body[_EVENTS][0].get("message")).encode("utf-8", "surrogatepass")


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read the one log event: its message is the data, as the object that it encodes or as text.

    CloudWatch Logs gives it its id, which is unique within its log stream alone.
    """
    event = body[_EVENTS][0]
    event_id, line = text(event.get("id")), event.get("message")
    fields = {name: value for name, value in event.items() if name not in ("id", "message", "timestamp")}
    return Event(
        id=event_id,
        source=body["logGroup"],
        type=body["messageType"],
        time=_time(event.get("timestamp")),
        data=read_object(line, 0) if isinstance(line, str) else line,
        attributes={name: value for name, value in body.items() if name not in (_EVENTS, "id")} | fields,
        raw=raw or msgspec.json.encode(body),
        named_by=(f"logs {text(body.get('owner'))} {body['logGroup']} {body['logStream']}",) if event_id else (),
    )


def _time(millis: Any) -> datetime | None:
    try:
        return to_datetime(millis) if isinstance(millis, int) else None
    except (ValueError, OverflowError, OSError):
        return None
