"""Records that AWS services write themselves: S3 notifications, CloudTrail, CodeCommit and the like."""

from typing import Any

from eventonce.event import Event
from eventonce.event.formats.plain import text
from eventonce.event.paths import read_time


def recognises(body: dict[str, Any]) -> bool:
    """Whether this is such a record."""
    return "eventSource" in body and "eventName" in body and "eventVersion" in body


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it: all of it is the data."""
    own = text(body.get("eventID"))
    return Event(
        id=own or text(body.get("id")),
        source=text(body["eventSource"]),
        type=text(body["eventName"]),
        time=read_time(body.get("eventTime")),
        data=body,
        attributes={**body, "id": own} if own else body,
        raw=raw,
    )
