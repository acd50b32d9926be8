"""The stamp: what a publisher writes into an event, so that consumers can tell its copies."""

from typing import Any

import msgspec
from msgspec import structs

from eventonce.event import Event
from eventonce.event.decoding import decode

FIELD = "_eventonce"
LONGEST = 256  # characters of an identity


def stamped(event: Event, identity: str, attempt: int) -> Event:
    """The event with its stamp inside the data; in a CloudEvent beside the attributes, since its data may be anything.

    Data that is no object becomes one, as it does on every bus.
    """
    stamp = {"id": identity, "attempt": attempt}
    if event.form == "cloudevents":
        raw = msgspec.json.encode({**decode(event.line()), FIELD: stamp})
        return structs.replace(event, attributes={**event.attributes, FIELD: stamp}, raw=raw)
    data = event.data if isinstance(event.data, dict) else {"data": event.data}
    return structs.replace(event, data={**data, FIELD: stamp}, raw=b"")


def unstamped(event: Event) -> Event:
    """The event without the stamp of whoever published it before."""
    if event.form == "cloudevents" and FIELD in event.attributes:
        own = {name: value for name, value in decode(event.line()).items() if name != FIELD}
        attributes = {name: value for name, value in event.attributes.items() if name != FIELD}
        return structs.replace(event, attributes=attributes, raw=msgspec.json.encode(own))
    if not isinstance(event.data, dict) or FIELD not in event.data:
        return event
    return structs.replace(event, data={name: value for name, value in event.data.items() if name != FIELD}, raw=b"")


def identity_of(event: Event) -> str | None:
    """The identity that a publisher gave an event, if one did. It came from outside, and may be anything."""
    stamp: Any = event.attributes.get(FIELD) if event.form == "cloudevents" else None
    if stamp is None and isinstance(event.data, dict):
        stamp = event.data.get(FIELD)
    given = stamp.get("id") if isinstance(stamp, dict) else None
    return given if isinstance(given, str) and 0 < len(given) <= LONGEST else None
