"""The stamp: the field that a publisher adds to an event, by which consumers recognise its copies."""

from typing import Any

import msgspec
from msgspec import structs

from eventonce.event import Event
from eventonce.event.decoding import decode

FIELD = "_eventonce"
LONGEST = 256  # characters of an identity


def add_stamp(event: Event, identity: str, attempt: int) -> Event:
    """Return the event with a stamp in its data, or beside the attributes of a CloudEvent, whose data may be anything.

    Data that is not an object becomes one, as it does on every bus.
    """
    stamp = {"id": identity, "attempt": attempt}
    if event.form == "cloudevents":
        raw = msgspec.json.encode({**decode(event.line()), FIELD: stamp})
        return structs.replace(event, attributes={**event.attributes, FIELD: stamp}, raw=raw)
    data = event.data if isinstance(event.data, dict) else {"data": event.data}
    return structs.replace(event, data={**data, FIELD: stamp}, raw=b"")


def remove_stamp(event: Event) -> Event:
    """Return the event without the stamp of an earlier publisher."""
    if event.form == "cloudevents" and FIELD in event.attributes:
        fields = {name: value for name, value in decode(event.line()).items() if name != FIELD}
        attributes = {name: value for name, value in event.attributes.items() if name != FIELD}
        return structs.replace(event, attributes=attributes, raw=msgspec.json.encode(fields))
    if not isinstance(event.data, dict) or FIELD not in event.data:
        return event
    return structs.replace(event, data={name: value for name, value in event.data.items() if name != FIELD}, raw=b"")


def identity_of(event: Event) -> str | None:
    """Return the identity that a publisher gave an event, if any. The field came from outside and may hold anything."""
    stamp: Any = event.attributes.get(FIELD) if event.form == "cloudevents" else None
    if stamp is None and isinstance(event.data, dict):
        stamp = event.data.get(FIELD)
    identity = stamp.get("id") if isinstance(stamp, dict) else None
    return identity if isinstance(identity, str) and identity.strip() and len(identity) <= LONGEST else None
