"""From a request to its deliveries: CloudEvents in all modes, messages of SNS, EventBridge events, any JSON."""

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
    """Return the headers with a type that admits JSON objects and lists alone, in place of one that admits any text.

    Where the type is not signed it must not decide whether a body is an event.
    """
    if recognises_headers(headers) or _media(headers) not in _PERHAPS_JSON:
        return dict(headers)
    return {**headers, "content-type": "application/json"}


def deliveries(headers: Mapping[str, str], body: bytes, max_bytes: int, source: str, name: str = "") -> list[Delivery]:
    """The deliveries of a request; raises `RequestRefused` where it is none that is read here.

    `name` is what its signer calls the delivery, where no header does.
    """
    shown = readable(headers)
    _check(headers, shown)
    found = _events(headers, shown, body, max_bytes)
    if name and not delivery_name(shown):
        found = [_named(each, name, number, len(found)) for number, each in enumerate(found, 1)]
    where: dict[str, Any] = {"source": source, **({"headers": shown} if shown else {})}
    if len(found) == 1:
        return [_delivery(found[0], where, body)]
    read = [_delivery(each, where, b"") for each in found if isinstance(each, Event)]
    wrong = [each for each in found if isinstance(each, EventRejected)]
    # What cannot be read is kept with all of the request: once for all of it, since a request can hold a great many.
    rest = f" (and {len(wrong) - 1:,} more of the same request)" if len(wrong) > 1 else ""
    return read + [Delivery(body=body, origin=where, unreadable=describe(each) + rest) for each in wrong[:1]]


def idempotency_key(given: Sequence[str]) -> str | None:
    """Return the key among the headers of that name, if any; raise `RequestRefused` for one that cannot serve."""
    if not given:
        return None
    key = unquote_key(given[0].strip())
    if len(given) > 1 or not 0 < len(key) <= _LONGEST_KEY:
        raise RequestRefused(400, f"Idempotency-Key is not one text of 1 to {_LONGEST_KEY} characters")
    return key


def size(found: Sequence[Delivery]) -> int:
    """How many bytes these hold: gzip unpacks to far more than it took, and a value to far more than its text."""
    return sum(_size(each.body, each.event) for each in found)


def _size(body: bytes, event: Event | None) -> int:
    raw = event.raw if event and len(event.raw) > len(body) else body
    hidden = event.data if event and any(sign in raw for sign in _HIDES) else None
    # Written anew, since what is in base64, or escaped in a text that is JSON, cannot be counted where it stands.
    values = values_in(msgspec.json.encode(hidden)) if isinstance(hidden, dict | list) else 0
    return len(raw) + _BYTES_OF_A_VALUE * max(values_in(raw), values)


def _check(headers: Mapping[str, str], shown: Mapping[str, str]) -> None:
    if headers.get("content-encoding", "").lower() not in _ENCODINGS:
        raise RequestRefused(415, "the body is packed in a way that is not known here; send it plain or as gzip")
    media = _media(headers)
    if not (media in _PERHAPS_JSON or _names_json(media) or recognises_headers(headers)):
        raise RequestRefused(
            415, f"{media[:100]} is not read here; send application/json or application/cloudevents+json"
        )
    if headers.get("x-amz-sns-message-type", "Notification") != "Notification":
        raise RequestRefused(400, "this is about a subscription to a topic of SNS, which needs auth=sns&topic=ARN here")
    for name in NAMING:
        if name in headers and name not in shown:  # another name would be taken in its place
            raise RequestRefused(400, f"the header {name} names this delivery, and is empty or too long to be a name")


def _events(
    headers: Mapping[str, str], shown: Mapping[str, str], body: bytes, max_bytes: int
) -> Sequence[Event | EventRejected]:
    try:
        raw = content(body, max_bytes)
        if recognises_headers(headers):
            return [apply_headers(read_binary(headers, raw, max_bytes), shown)]
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
    return read_message(Carried(raw, "http", name, headers=shown, origin=origin), max_bytes, max_bytes - unpacked)


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _names_json(media: str) -> bool:
    return media.endswith(("/json", "+json"))


def _named(found: Event | EventRejected, name: str, number: int, count: int) -> Event | EventRejected:
    if isinstance(found, EventRejected):
        return found
    return apply_name(found, name if count == 1 else f"{name}/{number}", ("signed body",))


def _delivery(found: Event | EventRejected, where: dict[str, Any], body: bytes) -> Delivery:
    if isinstance(found, EventRejected):
        return Delivery(body=body, origin=where, unreadable=describe(found))
    whole = body and found.form != "cloudevents"  # some of which are in the headers
    return Delivery(body=body if whole else found.raw or found.line(), origin=where, event=found)
