"""The new EventBridge bus, where a subscriber asks for WITH_METADATA: `{Data, Metadata?, SystemMetadata}`."""

from typing import Any

import msgspec
from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.formats import cloudevents, eventbridge
from eventonce.formats.plain import text
from eventonce.formats.text import content, read_json
from eventonce.path import read_time


def recognises(body: dict[str, Any]) -> bool:
    """Whether this is an event with the bus's metadata."""
    return "Data" in body and isinstance(body.get("SystemMetadata"), dict)


def read(body: dict[str, Any], max_bytes: int) -> Event:
    """Read it.

    What the inner envelope says of itself counts, so that RAW and WITH_METADATA give one key. The bus's word stays
    among the attributes: only `SystemMetadata."aws:Source"` proves where an event came from.
    """
    data, system = _data(body["Data"], max_bytes), body["SystemMetadata"]
    inner = _enveloped(data)
    event = _bare(data, system) if inner is None else inner
    extra = {name: body[name] for name in ("Metadata", "SystemMetadata") if name in body}
    replayed = "REPLAY" if system.get("aws:DeliveryType") == "REPLAY" else None  # the bus gives a replay no name
    return structs.replace(
        event,
        id=event.id or text(system.get("aws:EventId")),
        replay=event.replay or replayed,
        attributes={**event.attributes, **extra},
    )


def _data(given: Any, max_bytes: int) -> Any:
    if not isinstance(given, str) or not given.lstrip("\ufeff \t\r\n").startswith("{"):
        return given  # PutRawEvents takes any text
    try:
        return read_json(content(given, max_bytes), max_bytes)
    except EventRejected as error:
        raise EventRejected(f"in its Data: {error}") from None


def _enveloped(data: Any) -> Event | None:
    if not isinstance(data, dict):
        return None
    if eventbridge.recognises(data):
        return eventbridge.read(data, msgspec.json.encode(data))
    return cloudevents.read(data, msgspec.json.encode(data)) if cloudevents.recognises(data) else None


def _bare(data: Any, system: dict[str, Any]) -> Event:
    own = data if isinstance(data, dict) else {}
    return Event(
        id=text(system.get("aws:EventId")) or text(own.get("id")),
        source=text(system.get("aws:Source")) or text(own.get("source")),
        type=text(system.get("aws:DetailType")) or text(own.get("type")),
        time=read_time(own.get("time")),
        data=data,
        form="eventbridge",
    )
