"""What the name of a field suggests: that it identifies, that it belongs to one delivery, or that it is a time.

A name is a hint and never a proof: it decides which fields are asked first, the traffic decides the rest.
"""

import re


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_DELIVERY = _set(
    "attempt attempts baggage correlation hmac hop hops invocation nonce receipt redelivered redelivery "
    "retries retry signature span spanid trace traceid traceparent tracestate"
)
# These belong to one delivery only together with what they count or name: a parcel service has deliveries, too.
_DELIVERY_PAIRS = {
    "delivery": _set("id count attempt number tag token uuid"),
    "request": _set("id uuid"),
    "receive": _set("count time"),
}
_PASSED_ON = _set(
    "arrived arrival delivered dispatched emitted enqueued forwarded ingested ingestion processed processing publish "
    "published received send sending sent"
)
_IDENTITY = _set("arn guid id identifier key number no ref reference sequence sequencer uid uuid eventid messageid")
_EVENT = _set("dedup deduplication event eventid idempotency message messageid")
_STATE = _set(
    "action code direction event kind level name operation phase reason revision state status step topic type version"
)
_TIME = _set(
    "at created date end ended epoch finished initiated millis modified ms occurred start started stamp time timestamp "
    "ts updated"
)
GENERIC = _set("arn guid id key name number ref sequence state status time timestamp type uuid")  # says little alone


def words(name: str) -> frozenset[str]:
    """`lineItem-ID` is made of `line`, `item` and `id`."""
    return frozenset(word.lower() for word in _WORD.findall(name[:200]))


def of_delivery(name: str) -> bool:
    """Whether the name says that the value is made anew for each delivery: a receipt, a trace, an attempt."""
    own = words(name)
    return bool(own & _DELIVERY) or any(word in own and own & others for word, others in _DELIVERY_PAIRS.items())


def of_passing_on(name: str) -> bool:
    """Whether a time by this name says when the event was passed on, not when it happened."""
    return bool(words(name) & _PASSED_ON)


def of_identity(name: str) -> bool:
    """Whether the name is one that identifies something."""
    return bool(words(name) & _IDENTITY) and not of_delivery(name)


def of_event(name: str) -> bool:
    """Whether the name is one that identifies the event itself, not what it is about."""
    return name.lower() in {"uuid", "guid"} or (of_identity(name) and bool(words(name) & _EVENT))


def of_state(name: str) -> bool:
    """Whether the name is one that tells events about one thing apart."""
    return bool(words(name) & _STATE)


def of_time(name: str) -> bool:
    """Whether a number by this name may be a moment."""
    return bool(words(name) & _TIME)
