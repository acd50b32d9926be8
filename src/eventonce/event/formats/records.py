"""Records that AWS services write themselves, such as S3 notifications, CloudTrail and CodeCommit."""

from typing import Any

from eventonce.event import Event
from eventonce.event.formats.plain import read_id, text
from eventonce.event.paths import read_time

# Services that give their records no id, or none in the field of the others, and what identifies a record.
_WITHOUT_ID = {
    "aws:s3": 'is a record of Amazon S3, which has no id; use its preset, such as use = ["s3"]',
    "aws:ses": (
        "is a record of Amazon SES, which has no id and no preset; give its rule "
        'key = ["detail.ses.mail.messageId"], which names the mail'
    ),
    "aws:codecommit": (
        "is a record of AWS CodeCommit, which has no eventID and no preset; give its rule "
        'key = ["detail.eventId", "detail.eventPartNumber"], which name the record'
    ),
}


def without_id(event: Event, remedy: str) -> str:
    """Return the reason why an event without an id is rejected, and what to do."""
    service = event.attributes.get("eventSource")
    reason = _WITHOUT_ID.get(service) if isinstance(service, str) else None
    return reason or f"has no id; {remedy}"


def recognises(body: dict[str, Any]) -> bool:
    """Return whether this is such a record."""
    return "eventSource" in body and "eventName" in body and "eventVersion" in body


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it: all of it is the data."""
    event_id = text(body.get("eventID"))
    return Event(
        id=event_id or read_id(body.get("id")),
        source=text(body["eventSource"]),
        type=text(body["eventName"]),
        time=read_time(body.get("eventTime")),
        data=body,
        attributes={**body, "id": event_id} if event_id else body,
        raw=raw,
    )
