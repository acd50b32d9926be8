"""CloudEvents 1.0, structured and binary. Version 0.3 is read as well."""

from collections.abc import Mapping
from typing import Any

import msgspec

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats.numbers import flag_plain_numbers, number_watch
from eventonce.event.formats.plain import read_id, text
from eventonce.event.formats.text import MAX_BYTES, check_size, from_base64, read_json, to_base64
from eventonce.event.paths import read_time

_NAMED = frozenset(("id", "source", "type", "data", "data_base64"))
_REQUIRED = ("specversion", "id", "source", "type")
_PREFIX, _KAFKA_PREFIX = "ce-", "ce_"


def recognises(body: dict[str, Any]) -> bool:
    """Return whether this is a CloudEvent."""
    return "specversion" in body and "source" in body and "type" in body


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it."""
    return Event(
        id=read_id(body.get("id")),
        source=text(body["source"]),
        type=text(body["type"]),
        time=read_time(body.get("time")),
        data=_data(body),
        attributes={name: value for name, value in body.items() if name not in _NAMED},
        raw=raw,
        form="cloudevents",
    )


def _data(body: dict[str, Any]) -> Any:
    packed = body.get("data_base64")
    if packed is None and body.get("datacontentencoding") == "base64":  # version 0.3
        packed = body.get("data")
    if packed is None:
        return body.get("data")
    raw = from_base64(packed)
    if raw is None:
        raise EventRejected("has data_base64 that is not base64")
    return _content(raw, _media(body.get("datacontenttype")))


def _content(raw: bytes, media: str) -> Any:
    """Return data by its media type: JSON as its value, text as text, anything else as base64.

    A producer may put the same text into `data`, into `data_base64` or into the body of a request. All are the same
    content.
    """
    if media == "":
        return _perhaps_json(raw)
    if _is_json(media):
        return _json(raw)
    if media.startswith("text/"):
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
    return to_base64(raw)


def _json(raw: bytes) -> Any:
    try:
        return read_json(raw, max(len(raw), MAX_BYTES))
    except EventRejected as error:
        raise EventRejected(f"in its data: {error}") from None


def _perhaps_json(raw: bytes) -> Any:
    try:
        return read_json(raw, max(len(raw), MAX_BYTES))
    except EventRejected:
        return to_base64(raw)


def _media(content_type: Any) -> str:
    return content_type.partition(";")[0].strip().lower() if isinstance(content_type, str) else ""


def _is_json(media: str) -> bool:
    return media.endswith(("/json", "+json"))


# --- binary mode: attributes in headers, data in the body ---


def recognises_headers(headers: Mapping[str, str]) -> bool:
    """Return whether a request with these headers (in lower case) is a CloudEvent in binary mode."""
    return _recognises(headers, _PREFIX)


def recognises_kafka_headers(headers: Mapping[str, str]) -> bool:
    """Return whether a Kafka record with these headers (in lower case) is a CloudEvent in binary mode."""
    return _recognises(headers, _KAFKA_PREFIX)


def _recognises(headers: Mapping[str, str], prefix: str) -> bool:
    media = _media(headers.get("content-type"))
    return f"{prefix}specversion" in headers and not media.startswith("application/cloudevents")


def structured(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the structured form of a request's CloudEvent in binary mode."""
    lowered = {name.lower(): value for name, value in headers.items()}
    attributes = {name: _decode(name, value) for name, value in lowered.items() if name.startswith(_PREFIX)}
    return _structured(attributes, _PREFIX, lowered.get("content-type"), body)


def structured_of_kafka(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the structured form of a Kafka record. Its headers (in lower case) are plain UTF-8."""
    attributes = {name: value for name, value in headers.items() if name.startswith(_KAFKA_PREFIX)}
    return _structured(attributes, _KAFKA_PREFIX, headers.get("content-type"), body)


def _structured(attributes: Mapping[str, str], prefix: str, media: str | None, body: bytes) -> dict[str, Any]:
    event: dict[str, Any] = {name.removeprefix(prefix): value for name, value in attributes.items()}
    if missing := [name for name in _REQUIRED if not event.get(name)]:
        raise EventRejected(f"has no {prefix}{missing[0]} header, which a CloudEvent in binary mode needs")
    for name in ("data", "data_base64"):  # not attributes: the data is in the body
        event.pop(name, None)
    if media:
        event["datacontenttype"] = media
    if body and _is_json(_media(media)):
        event["data"] = _json(body)
    elif body:
        event["data_base64"] = to_base64(body)
    return event


def read_binary(headers: Mapping[str, str], body: bytes, max_bytes: int = MAX_BYTES) -> Event:
    """Read a CloudEvent whose attributes are in `ce-*` headers and whose data is the body."""
    check_size(body, max_bytes)
    watch = number_watch()
    event = structured(headers, body)
    return flag_plain_numbers(read(event, msgspec.json.encode(event)), watch)


def _decode(name: str, value: str) -> str:
    from urllib.parse import unquote

    if value[:1] == value[-1:] == '"' and len(value) > 1:  # older producers quote
        value = value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise EventRejected(f"has a {name} header that is not UTF-8") from None
