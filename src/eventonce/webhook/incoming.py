"""From a request to its deliveries: CloudEvents in all modes, messages of SNS, EventBridge events, any JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from eventonce.errors import EventRejected, describe
from eventonce.event import Delivery, Event
from eventonce.formats import Carried, read_binary, read_message
from eventonce.formats.cloudevents import recognises_headers
from eventonce.formats.text import content
from eventonce.webhook.refusal import Refusal

# What the sender calls this delivery, the same whenever it sends it again. It counts more than an `id` in a body
# without an envelope, which is often that of the thing that changed: an order has one, and many events.
_NAMES = ("idempotency-key", "webhook-id", "x-github-delivery", "x-shopify-webhook-id", "x-gitlab-event-uuid")
# What rules may look at. What is not named here stays out, so that no token or signature can get in.
_SHOWN = frozenset((
    *_NAMES, "x-github-event", "x-github-hook-id", "x-gitlab-event", "x-gitlab-instance", "x-shopify-event-id",
    "x-shopify-topic", "x-shopify-shop-domain", "x-shopify-api-version", "x-event-key", "x-amz-sns-message-id",
    "x-amz-sns-topic-arn",
))  # fmt: skip
_LONGEST = 512  # characters of a header
_ENCODINGS = ("", "identity", "gzip")


def deliveries(headers: Mapping[str, str], body: bytes, max_bytes: int, source: str) -> list[Delivery]:
    """The deliveries of a request; raises `Refusal` where nothing in it can be read."""
    shown = {name: headers[name] for name in _SHOWN if len(headers.get(name, "")) in range(1, _LONGEST + 1)}
    found = _events(headers, body, max_bytes)
    name = next((unquoted(shown[name]) for name in _NAMES if name in shown), "")
    if found and not any(isinstance(each, Event) for each in found):
        raise Refusal(400, _why(found), eventonce_outcome="rejected")
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


def size(found: Sequence[Delivery]) -> int:
    """How many bytes these hold: gzip unpacks to far more than it took."""
    return sum(max(len(each.body), len(each.event.raw) if each.event else 0) for each in found)


def unquoted(key: str) -> str:
    """An `Idempotency-Key`: the draft puts it in quotes, most clients do not."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def _why(found: Sequence[Event | EventRejected]) -> str:
    return next((describe(each) for each in found if isinstance(each, EventRejected)), "")


def _events(headers: Mapping[str, str], body: bytes, max_bytes: int) -> Sequence[Event | EventRejected]:
    if headers.get("content-encoding", "").lower() not in _ENCODINGS:
        raise Refusal(415, "the body is packed in a way that is not known here; send it plain or as gzip")
    try:
        if recognises_headers(headers):
            return [read_binary(headers, content(body, max_bytes), max_bytes)]
    except EventRejected as error:
        return [error]
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    _check_media(media)
    if media.startswith("application/cloudevents-batch") and body.strip() == b"[]":
        return []
    return read_message(Carried(body, "http", headers.get("x-amz-sns-message-id", "")), max_bytes)


def _check_media(media: str) -> None:
    # SNS sends its JSON as text/plain.
    if media not in ("", "text/plain", "application/octet-stream") and not media.endswith(("/json", "+json")):
        raise Refusal(415, f"{media[:100]} is not read here; send application/json or application/cloudevents+json")


def _delivery(
    found: Event | EventRejected, name: str, where: dict[str, Any], shown: dict[str, str], body: bytes
) -> Delivery:
    if isinstance(found, EventRejected):
        return Delivery(body=body, where=where, trouble=describe(found))
    event, raw = found, found.raw or found.line()  # written before anything is added to it
    if name and found.form == "plain":
        own = {key: value for key, value in found.attributes.items() if key != "id"}
        event = structs.replace(event, id=name, attributes=own, raw=raw)
    if shown:
        event = structs.replace(event, attributes={**event.attributes, "headers": shown}, raw=raw)
    whole = body and found.form != "cloudevents"  # some of which are in the headers
    return Delivery(body=body if whole else raw, where=where, event=event)
