"""What the name of a field suggests: that it identifies, that it belongs to one delivery, or that it is a time.

A name is a hint and never a proof: it decides which fields are asked first, the traffic decides the rest. The name of
a kind of event tells besides whether such an event can come to one thing again.
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
_ANY_TIME = _set("at date epoch event message millis ms stamp time timestamp ts unix utc")  # of what, is not said
# Things that stay while events happen to them: their ids come again with new events.
_LASTING = _set(
    "account agent alarm api app application article asset bucket button cache camera campaign car card cell channel "
    "check client company component config container contract course customer department device doctor door driver "
    "employee endpoint feature file flight gate gateway group host hotel instance item job lamp line loan location "
    "lock machine member meter model monitor node organisation organization package page parcel part participant "
    "partition partner patient person phone plate platform player pod policy portal product profile project queue "
    "room routing rule schedule screen seat sensor serial server service session shop site sku station store student "
    "subscriber subscription supplier switch table task team tenant terminal thermostat tracking truck unit user "
    "valve vehicle vendor visitor wallet warehouse website widget worker workflow zone"
)
# What happens to one thing once: anything is made once, and a deal is made and done once.
_MADE = _set("created creation inserted new registered registration")
_DEALS = _set(
    "bill booking charge deposit intent invoice order payment payout purchase reservation trade transaction "
    "transfer withdrawal"
)
_DONE = _set("captured confirmed issued paid placed received settled succeeded")
_HAPPENINGS = _set("click heartbeat login measurement ping reading search visit")  # an id of theirs is one event's own
_AGAIN = _HAPPENINGS | _set(
    "accessed alive attempt attempted beat bounced clicked clicks declined denied detected downloaded entered error "
    "failed failure keepalive liked log logged logout measured opened played poll polled press pressed read readings "
    "refused rejected reminder retried retry scanned scroll searched seen shared tap tapped telemetry tick toggled "
    "view viewed views visited watched"
)
_CHANGE = _set("changed edited modified patched saved touched updated upserted")
_FILLING = _set("data detail entity object payload record resource")
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


def of_any_time(name: str) -> bool:
    """Whether a time by this name may be that of the event or that of its sending."""
    return words(name) <= _ANY_TIME


def of_lasting(name: str, about: str) -> bool:
    """Whether an id by this name is that of a thing that lasts; an `id` alone is that of what the event is about."""
    thing = _thing(name)
    return bool(_LASTING & (set(_singular(about)) if thing is None else {thing}))


def happens_once(name: str, about: str) -> bool:
    """Whether an event called this can happen only once to the thing with an id by this name."""
    thing = _thing(name)
    if thing in _HAPPENINGS:
        return thing in _singular(about)
    if happens_again(about):
        return False
    if _is_bare(about):
        return thing is None or thing in _singular(about)
    subject, verb = _said(about)
    return thing in {None, subject} and (verb in _MADE or (verb in _DONE and subject in _DEALS))


def of_topic(name: str, about: str) -> bool:
    """Whether the name is that of what events called this are about."""
    return _thing(name) in _singular(about)


def of_change(about: str) -> bool:
    """Whether events called this may be changes, of which a thing has any number."""
    return bool(words(about) & _CHANGE) or _is_bare(about)


def happens_again(about: str) -> bool:
    """Whether an event called this can happen to one thing again and again: a click, a reading."""
    return bool(words(about) & _AGAIN)


def of_time(name: str) -> bool:
    """Whether a number by this name may be a moment."""
    return bool(words(name) & _TIME)


def _thing(name: str) -> str | None:
    """`customerOrderId` is that of an order; an `id` names nothing."""
    return next((word for word in reversed(_singular(name)) if word not in _IDENTITY | _FILLING), None)


def _said(about: str) -> tuple[str | None, str | None]:
    """`Order Payment Received` says of a payment that it was received."""
    own = _singular(about)
    place = next((place for place, word in enumerate(own) if word in _MADE | _DONE), None)
    if place is None:
        return None, None
    return next(iter(own[place - 1 : place] or own[1:2]), None), own[place]


def _is_bare(about: str) -> bool:
    """Whether it names a deal and not what happens to it: `order`."""
    own = set(_singular(about)) - _EVENT
    return bool(own) and own <= _DEALS


def _singular(name: str) -> list[str]:
    return [word.lower().removesuffix("s") for word in _WORD.findall(name[:200])]
