"""The headers of a request that name what it brings, and those that rules may look at.

They come from the request alone. What a body calls its `headers` is data like the rest of it.
"""

from collections.abc import Mapping

from msgspec import structs

from eventonce.event import Event

IDEMPOTENCY_KEY = "idempotency-key"
# What the sender calls this delivery, the same whenever it sends it again. It counts more than an `id` in a body
# without an envelope, which is often that of the thing that changed: an order has one, and many events.
NAMING = (IDEMPOTENCY_KEY, "webhook-id", "x-github-delivery", "x-shopify-webhook-id", "x-gitlab-event-uuid")
# What rules may look at. What is not named here stays out, so that no token or signature can get in.
READABLE = frozenset((
    *NAMING, "x-github-event", "x-github-hook-id", "x-gitlab-event", "x-gitlab-instance", "x-shopify-event-id",
    "x-shopify-topic", "x-shopify-shop-domain", "x-shopify-api-version", "x-event-key", "x-amz-sns-message-id",
    "x-amz-sns-topic-arn", "traceparent", "tracestate",
))  # fmt: skip
_LONGEST = 512  # characters of a header


def readable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers, named in small letters, that rules may look at."""
    return {name: headers[name] for name in READABLE if len(headers.get(name, "")) in range(1, _LONGEST + 1)}


def unquoted(key: str) -> str:
    """Return the idempotency key itself: the draft puts it in quotes, most clients do not."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def from_api_destination(headers: Mapping[str, str]) -> bool:
    """Return whether EventBridge says that it sends this: it would take a 409 for the end."""
    return headers.get("user-agent", "").startswith("Amazon/EventBridge/ApiDestinations")


def name_in(headers: Mapping[str, str]) -> str:
    """Return what the sender calls the delivery, or nothing."""
    return next((unquoted(headers[name]) for name in NAMING if name in headers), "")


def of_request(event: Event, headers: Mapping[str, str], part: str = "") -> Event:
    """Return the event as it came in a request with these readable headers; `part` tells it from others in there."""
    name = name_in(headers)
    if name:
        event = named(event, name + part)
    if not headers and "headers" not in event.attributes:
        return event
    attributes = {key: value for key, value in event.attributes.items() if key != "headers"}
    if headers:
        attributes["headers"] = headers
    return structs.replace(event, attributes=attributes, raw=event.raw or event.line())


def named(event: Event, name: str, by: tuple[str, ...] = ()) -> Event:
    """Return the event under the name of its delivery, unless it has an envelope with an id.

    `by` says what gave the name, where its sender did not.
    """
    if event.form != "plain":
        return event
    attributes = {key: value for key, value in event.attributes.items() if key != "id"}
    raw = event.raw or event.line()  # written before anything is added to it
    return structs.replace(event, id=name, named_by=by, attributes=attributes, raw=raw)
