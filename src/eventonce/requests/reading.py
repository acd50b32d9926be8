"""Reading a request into its deliveries: CloudEvents in all modes, SNS messages, EventBridge events, any JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventonce.errors import EventRejected, describe
from eventonce.event import Delivery, Event
from eventonce.event.formats import Carried, read_binary, read_message
from eventonce.event.formats.carriers import sns_names
from eventonce.event.formats.cloudevents import recognises_headers
from eventonce.event.formats.headers import NAMING, apply_headers, apply_name, delivery_name, readable, unquote_key
from eventonce.event.formats.text import GZIP, content, kind_of, read_json, values_in
from eventonce.requests.refusal import RequestRefused

_LONGEST_KEY = 255  # characters
_BYTES_OF_A_VALUE = 64  # as an object
_HIDES = (b"base64", b"\\u")  # a field of CloudEvents, and an escape
_ENCODINGS = ("", "identity", "gzip")
_PERHAPS_JSON = ("", "text/plain", "application/octet-stream")  # SNS sends its JSON as text/plain


def as_json(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with a type for JSON objects and lists alone in place of one that admits any text.

    If the type is not signed it must not decide whether a body is an event.
    """
    if recognises_headers(headers) or _media(headers) not in _PERHAPS_JSON:
        return dict(headers)
    return {**headers, "content-type": "application/json"}


def deliveries(headers: Mapping[str, str], body: bytes, max_bytes: int, source: str, name: str = "") -> list[Delivery]:
    """Return the deliveries of a request. Raise `RequestRefused` if its kind is not supported.

    `name` is its signer's name for the delivery, used if no header has one.
    """
    readable_headers = readable(headers)
    _check(headers, readable_headers)
    events = _events(headers, readable_headers, body, max_bytes)
    if name and not delivery_name(readable_headers):
        events = [_apply_name(event, name, number, len(events)) for number, event in enumerate(events, 1)]
    origin: dict[str, Any] = {"source": source, **({"headers": readable_headers} if readable_headers else {})}
    if len(events) == 1:
        return [_delivery(events[0], origin, body)]
    parts = [_delivery(event, origin, b"") for event in events if isinstance(event, Event)]
    errors = [event for event in events if isinstance(event, EventRejected)]
    # One delivery with all of the request stands for what cannot be read in it, since that can be a great deal.
    suffix = f" (and {len(errors) - 1:,} more of the same request)" if len(errors) > 1 else ""
    return parts + [Delivery(body=body, origin=origin, unreadable=describe(error) + suffix) for error in errors[:1]]


def idempotency_key(values: Sequence[str]) -> str | None:
    """Return the key among the headers of that name, if any. Raise `RequestRefused` if it is invalid."""
    if not values:
        return None
    key = unquote_key(values[0].strip())
    if len(values) > 1 or not 0 < len(key) <= _LONGEST_KEY:
        raise RequestRefused(400, f"Idempotency-Key is not one string of 1 to {_LONGEST_KEY} characters")
    return key


def size(deliveries: Sequence[Delivery]) -> int:
    """Return how many bytes these hold. Gzip unpacks to far more than its size, and a value to more than its text."""
    return sum(_size(delivery.body, delivery.event) for delivery in deliveries)


def _size(body: bytes, event: Event | None) -> int:
    raw = event.raw if event and len(event.raw) > len(body) else body
    hidden = event.data if event and any(sign in raw for sign in _HIDES) else None
    # Encoded anew, since what is in base64, or escaped in a string that is JSON, cannot be counted in place.
    values = values_in(msgspec.json.encode(hidden)) if isinstance(hidden, dict | list) else 0
    return len(raw) + _BYTES_OF_A_VALUE * max(values_in(raw), values)


def _check(headers: Mapping[str, str], readable_headers: Mapping[str, str]) -> None:
    if headers.get("content-encoding", "").lower() not in _ENCODINGS:
        raise RequestRefused(415, "unsupported content encoding; send the body plain or as gzip")
    media = _media(headers)
    if not (media in _PERHAPS_JSON or _names_json(media) or recognises_headers(headers)):
        raise RequestRefused(
            415, f"unsupported content type {media[:100]}; send application/json or application/cloudevents+json"
        )
    if headers.get("x-amz-sns-message-type", "Notification") != "Notification":
        raise RequestRefused(400, "this is about a subscription to an SNS topic, which needs auth=sns&topic=ARN here")
    for name in NAMING:
        if name in headers and name not in readable_headers:  # another name would be used in its place
            raise RequestRefused(400, f"the header {name} names this delivery, and is empty or too long to be a name")


def _events(
    headers: Mapping[str, str], readable_headers: Mapping[str, str], body: bytes, max_bytes: int
) -> Sequence[Event | EventRejected]:
    try:
        raw = content(body, max_bytes)
        if recognises_headers(headers):
            return [apply_headers(read_binary(headers, raw, max_bytes), readable_headers)]
        media = _media(headers)
        if media.startswith("application/cloudevents-batch") and raw.strip() == b"[]":
            return []
        if not raw.strip():
            raise EventRejected("is empty")
        if _names_json(media) and raw.lstrip()[:1] not in (b"{", b"["):  # text can be an event, but not by mistake
            raise EventRejected(f"is {kind_of(read_json(raw, max_bytes))}, not a JSON object")
    except EventRejected as error:
        return [error]
    name, origin = sns_names(headers)
    unpacked = len(raw) if body[:2] == GZIP else 0
    carried = Carried(raw, "http", name, headers=readable_headers, origin=origin)
    return read_message(carried, max_bytes, max_bytes - unpacked)


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _names_json(media: str) -> bool:
    return media.endswith(("/json", "+json"))


def _apply_name(event: Event | EventRejected, name: str, number: int, count: int) -> Event | EventRejected:
    if isinstance(event, EventRejected):
        return event
    return apply_name(event, name if count == 1 else f"{name}/{number}", ("signed body",))


def _delivery(event: Event | EventRejected, origin: dict[str, Any], body: bytes) -> Delivery:
    if isinstance(event, EventRejected):
        return Delivery(body=body, origin=origin, unreadable=describe(event))
    is_whole = body and event.form != "cloudevents"  # some of which have attributes in the headers
    return Delivery(body=body if is_whole else event.raw or event.line(), origin=origin, event=event)
