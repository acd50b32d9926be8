"""The new EventBridge bus, for subscribers that ask for WITH_METADATA: `{Data, Metadata?, SystemMetadata}`."""

from typing import Any

import msgspec
from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import cloudevents, eventbridge
from eventonce.event.formats.plain import text
from eventonce.event.formats.text import content, read_json
from eventonce.event.paths import read_time

_ID, _SOURCE, _TYPE = "aws:EventId", "aws:Source", "aws:DetailType"
_RESERVED = "aws."  # AWS accepts such a source from nobody else


def recognises(body: dict[str, Any]) -> bool:
    """Return whether this is an event with the bus's metadata."""
    return "Data" in body and isinstance(body.get("SystemMetadata"), dict)


def read(body: dict[str, Any], max_bytes: int) -> Event:
    """Read it, or refuse data that contradicts the bus.

    For PutEvents and for its event sources the bus writes the envelope itself and repeats id, source and type in
    `SystemMetadata`. The two agree, so RAW and WITH_METADATA have one key. For PutRawEvents the bus knows neither
    source nor type. Then an envelope is its sender's claim, and its id is unique within its source and type alone. So
    is an id that is not the bus's own.
    """
    data, system = _data(body["Data"], max_bytes), body["SystemMetadata"]
    inner = _enveloped(data)
    event = _bare(data, system) if inner is None else inner
    confirmed = _confirmed(event, system) and _named_by_bus(data, system)
    metadata = {name: body[name] for name in ("Metadata", "SystemMetadata") if name in body}
    event = structs.replace(event, id=event.id or text(system.get(_ID)), attributes={**event.attributes, **metadata})
    if inner is not None and not confirmed:
        form = "plain" if event.form == "eventbridge" else event.form
        event = structs.replace(event, form=form, replay=None)
    if event.form == "plain":  # it depends on the metadata, so whoever reads it again needs them
        event = structs.replace(event, raw=msgspec.json.encode(body))
    replayed = "REPLAY" if system.get("aws:DeliveryType") == "REPLAY" else None  # the bus gives a replay no name
    return structs.replace(event, replay=event.replay or replayed)


def _confirmed(event: Event, system: dict[str, Any]) -> bool:
    """Return whether the bus confirms the event's source. Raise EventRejected if the event contradicts the bus."""
    for name, field, claimed in ((_SOURCE, "source", event.source), (_TYPE, "type", event.type)):
        value = text(system.get(name))
        if value and value != claimed:
            reason = f"its {field} is {claimed!r:.80}, but the bus confirms {name} {value!r:.80}"
            raise EventRejected(f"in its Data: {reason}")
    has_source = bool(system.get(_SOURCE))
    if not has_source and event.source.startswith(_RESERVED):
        raise EventRejected(f"in its Data: its source is {event.source!r:.80}, which the bus does not confirm")
    return has_source


def _named_by_bus(data: Any, system: dict[str, Any]) -> bool:
    """Return whether the envelope has the bus's own id. By another id it could take the place of any event."""
    bus_id, claimed = text(system.get(_ID)), text(data.get("id")) if isinstance(data, dict) else ""
    return not bus_id or not claimed or claimed == bus_id


def _data(data: Any, max_bytes: int) -> Any:
    if not isinstance(data, str) or not data.lstrip("\ufeff \t\r\n").startswith("{"):
        return data  # PutRawEvents takes any text
    try:
        return read_json(content(data, max_bytes), max_bytes)
    except EventRejected as error:
        raise EventRejected(f"in its Data: {error}") from None


def _enveloped(data: Any) -> Event | None:
    if not isinstance(data, dict):
        return None
    if eventbridge.recognises(data):
        return eventbridge.read(data, msgspec.json.encode(data))
    return cloudevents.read(data, msgspec.json.encode(data)) if cloudevents.recognises(data) else None


def _bare(data: Any, system: dict[str, Any]) -> Event:
    fields = data if isinstance(data, dict) else {}
    bus_id = text(system.get(_ID))
    return Event(
        id=bus_id or text(fields.get("id")),
        source=text(system.get(_SOURCE)) or text(fields.get("source")),
        type=text(system.get(_TYPE)) or text(fields.get("type")),
        time=read_time(fields.get("time")),
        data=data,
        form="eventbridge" if bus_id else "plain",
    )
