"""The headers of a request that name its delivery, and those that rules may read.

They come from the request alone. A field `headers` of a body is data like the rest of it.
"""

from collections.abc import Mapping

from msgspec import structs

from eventonce.event import Event

IDEMPOTENCY_KEY = "idempotency-key"
# What the sender calls this delivery, the same whenever it sends it again. It takes precedence over an `id` in a body
# without an envelope, which is often the id of the thing that changed: an order has one id and many events.
NAMING = (IDEMPOTENCY_KEY, "webhook-id", "x-github-delivery", "x-shopify-webhook-id", "x-gitlab-event-uuid")
# What rules may read. Others stay out, so that no token or signature can get in.
READABLE = frozenset((
    *NAMING, "x-github-event", "x-github-hook-id", "x-gitlab-event", "x-gitlab-instance", "x-shopify-event-id",
    "x-shopify-topic", "x-shopify-shop-domain", "x-shopify-api-version", "x-event-key", "x-amz-sns-message-id",
    "x-amz-sns-topic-arn", "traceparent", "tracestate",
))  # fmt: skip
_LONGEST = 512  # characters of a header


def readable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that rules may read. Names are in lower case."""
    return {name: headers[name] for name in READABLE if len(headers.get(name, "")) in range(1, _LONGEST + 1)}


def unquote_key(key: str) -> str:
    """Return the idempotency key itself. The draft puts it in quotes, most clients do not."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def from_api_destination(headers: Mapping[str, str]) -> bool:
    """Return whether EventBridge sends this, as its header says. It would take a 409 for the end."""
    return headers.get("user-agent", "").startswith("Amazon/EventBridge/ApiDestinations")


def delivery_name(headers: Mapping[str, str]) -> str:
    """Return the sender's name for the delivery, or an empty string."""
    return next((unquote_key(headers[name]) for name in NAMING if name in headers), "")


def apply_headers(event: Event, headers: Mapping[str, str], part: str = "") -> Event:
    """Return the event under its delivery's name and with these readable headers. `part` is its suffix if several."""
    name = delivery_name(headers)
    if name:
        event = apply_name(event, name + part)
    if not headers and "headers" not in event.attributes:
        return event
    attributes = {key: value for key, value in event.attributes.items() if key != "headers"}
    if headers:
        attributes["headers"] = headers
    return structs.replace(event, attributes=attributes, raw=event.raw or event.line())


def apply_name(event: Event, name: str, by: tuple[str, ...] = ()) -> Event:
    """Return the event under the name of its delivery, unless it has an envelope with an id.

    `by` names what gave the name, if that was not the sender.
    """
    if event.form != "plain":
        return event
    attributes = {key: value for key, value in event.attributes.items() if key != "id"}
    raw = event.raw or event.line()  # encoded before anything is added to it
    return structs.replace(event, id=name, named_by=by, attributes=attributes, raw=raw)
