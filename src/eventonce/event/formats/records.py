"""Records that AWS services write themselves, such as S3 notifications, CloudTrail and CodeCommit."""

from typing import Any

from eventonce.event import Event
from eventonce.event.formats.plain import text
from eventonce.event.paths import read_time


def recognises(body: dict[str, Any]) -> bool:
    """Return whether this is such a record."""
    return "eventSource" in body and "eventName" in body and "eventVersion" in body


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it: all of it is the data."""
    event_id = text(body.get("eventID"))
    return Event(
        id=event_id or text(body.get("id")),
        source=text(body["eventSource"]),
        type=text(body["eventName"]),
        time=read_time(body.get("eventTime")),
        data=body,
        attributes={**body, "id": event_id} if event_id else body,
        raw=raw,
    )
