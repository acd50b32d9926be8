"""From a request to its deliveries: CloudEvents in all modes, messages of SNS, EventBridge events, any JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from eventonce.errors import EventRejected, describe
from eventonce.event import Delivery, Event
from eventonce.formats import Carried, read_binary, read_message
from eventonce.formats.carriers import sns_names
from eventonce.formats.cloudevents import recognises_headers
from eventonce.formats.text import content, kind_of, read_json, values_in
from eventonce.refusal import Refusal

IDEMPOTENCY_KEY = "idempotency-key"
# What the sender calls this delivery, the same whenever it sends it again. It counts more than an `id` in a body
# without an envelope, which is often that of the thing that changed: an order has one, and many events.
_NAMES = (IDEMPOTENCY_KEY, "webhook-id", "x-github-delivery", "x-shopify-webhook-id", "x-gitlab-event-uuid")
# What rules may look at. What is not named here stays out, so that no token or signature can get in.
_SHOWN = frozenset((
    *_NAMES, "x-github-event", "x-github-hook-id", "x-gitlab-event", "x-gitlab-instance", "x-shopify-event-id",
    "x-shopify-topic", "x-shopify-shop-domain", "x-shopify-api-version", "x-event-key", "x-amz-sns-message-id",
    "x-amz-sns-topic-arn", "traceparent", "tracestate",
))  # fmt: skip
_LONGEST = 512  # characters of a header
_BYTES_OF_A_VALUE = 64  # as an object
_ENCODINGS = ("", "identity", "gzip")
_PERHAPS_JSON = ("", "text/plain", "application/octet-stream")  # SNS sends its JSON as text/plain


def deliveries(headers: Mapping[str, str], body: bytes, max_bytes: int, source: str) -> list[Delivery]:
    """The deliveries of a request; raises `Refusal` where it is none that is read here."""
    _check(headers)
    shown = {name: headers[name] for name in _SHOWN if len(headers.get(name, "")) in range(1, _LONGEST + 1)}
    found = _events(headers, body, max_bytes)
    name = next((unquoted(shown[name]) for name in _NAMES if name in shown), "")
    where: dict[str, Any] = {"source": source, **({"headers": shown} if shown else {})}
    if len(found) == 1:
        return [_delivery(found[0], name, where, shown, body)]
    names = [name and f"{name}/{number}" for number in range(1, len(found) + 1)]
    parts = zip(found, names, strict=True)
    read = [_delivery(each, part, where, shown, b"") for each, part in parts if isinstance(each, Event)]
    wrong = [each for each in found if isinstance(each, EventRejected)]
    # What cannot be read is kept with all of the request: once for all of it, since a request can hold a great many.
    rest = f" (and {len(wrong) - 1:,} more of the same request)" if len(wrong) > 1 else ""
    return read + [Delivery(body=body, where=where, trouble=describe(each) + rest) for each in wrong[:1]]


def unquoted(key: str) -> str:
    """The idempotency key itself: the draft puts it in quotes, most clients do not."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def size(found: Sequence[Delivery]) -> int:
    """How many bytes these hold: gzip unpacks to far more than it took, and a value to far more than its text."""
    raws = [each.event.raw if each.event and len(each.event.raw) > len(each.body) else each.body for each in found]
    return sum(len(raw) + _BYTES_OF_A_VALUE * values_in(raw) for raw in raws)


def _check(headers: Mapping[str, str]) -> None:
    if headers.get("content-encoding", "").lower() not in _ENCODINGS:
        raise Refusal(415, "the body is packed in a way that is not known here; send it plain or as gzip")
    media = _media(headers)
    if not (media in _PERHAPS_JSON or _is_json(media) or recognises_headers(headers)):
        raise Refusal(415, f"{media[:100]} is not read here; send application/json or application/cloudevents+json")
    if headers.get("x-amz-sns-message-type", "Notification") != "Notification":
        raise Refusal(400, "this is about a subscription to a topic of SNS, which needs auth=sns&topic=ARN here")


def _events(headers: Mapping[str, str], body: bytes, max_bytes: int) -> Sequence[Event | EventRejected]:
    try:
        raw = content(body, max_bytes)
        if recognises_headers(headers):
            return [read_binary(headers, raw, max_bytes)]
        media = _media(headers)
        if media.startswith("application/cloudevents-batch") and raw.strip() == b"[]":
            return []
        if not raw.strip():
            raise EventRejected("is empty")
        if _is_json(media) and raw.lstrip()[:1] not in (b"{", b"["):  # text can be an event, but not by mistake
            raise EventRejected(f"is {kind_of(read_json(raw, max_bytes))}, not a JSON object")
    except EventRejected as error:
        return [error]
    name, origin = sns_names(headers)
    return read_message(Carried(raw, "http", name, origin=origin), max_bytes, max_bytes)


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(media: str) -> bool:
    return media.endswith(("/json", "+json"))


def _delivery(
    found: Event | EventRejected, name: str, where: dict[str, Any], shown: dict[str, str], body: bytes
) -> Delivery:
    if isinstance(found, EventRejected):
        return Delivery(body=body, where=where, trouble=describe(found))
    event, raw = found, found.raw or found.line()  # written before anything is added to it
    if name and found.form == "plain":
        own = {key: value for key, value in found.attributes.items() if key != "id"}
        event = structs.replace(event, id=name, named_by=(), attributes=own, raw=raw)
    if shown:
        event = structs.replace(event, attributes={**event.attributes, "headers": shown}, raw=raw)
    whole = body and found.form != "cloudevents"  # some of which are in the headers
    return Delivery(body=body if whole else raw, where=where, event=event)
