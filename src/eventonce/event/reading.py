"""Taking a document apart that carries several events, as Lambda's batches do.

A bare list in a file is no event and stays one document, which is rejected: in a file of JSON lines it is most likely
a mistake. (To look at recorded traffic does nothing that could be wrong, so `key`, `audit` and `advise` take a list
apart.) A message of a queue is read here, because its id serves where the event inside has none. The parts of a message
have one handle, and are settled together.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Delivery, Event
from eventonce.event.formats import MAX_BYTES, Carried, read_events, read_message
from eventonce.event.formats.carriers import TRACE_NAMES
from eventonce.event.formats.headers import readable

# What such a document has in it. To look is far cheaper than to parse every body twice.
_MARKS = (b'"Records"', b'"records"', b'"Messages"', b'"Entries"')


def apart(delivery: Delivery) -> Sequence[Delivery]:
    """The deliveries in a delivery: one for each event that its document carries."""
    if delivery.event is not None or delivery.unreadable is not None:
        return [delivery]
    if delivery.handle is not None and "message" in delivery.origin:
        return _message(delivery)
    if not _may_carry(delivery.body):
        return [delivery]
    found = read_events(delivery.body, MAX_BYTES)
    if not any(isinstance(each, Event) for each in found):
        return [delivery]  # the engine says what is wrong with the whole
    return _parts(delivery, found)


def _message(delivery: Delivery) -> Sequence[Delivery]:
    carrier, name = str(delivery.origin["source"]).partition("://")[0], str(delivery.origin["message"])
    trace = {each: delivery.origin[each] for each in TRACE_NAMES if each in delivery.origin}
    headers = _headers(delivery) if carrier == "http" else None  # a dead letter of a request
    origin = str(delivery.origin.get("arn", ""))
    found = read_message(Carried(delivery.body, carrier, name, trace=trace, headers=headers, origin=origin))
    if len(found) > 1 and any(isinstance(each, Event) for each in found):
        return _parts(delivery, found)
    if isinstance(found[0], Event):
        delivery.event = found[0]
    else:
        delivery.unreadable = str(found[0])
    return [delivery]


def _headers(delivery: Delivery) -> dict[str, str]:
    given = delivery.origin.get("headers")
    pairs = given.items() if isinstance(given, Mapping) else ()
    return readable({name: value for name, value in pairs if isinstance(value, str)})


def _may_carry(body: bytes) -> bool:
    return body[:1] == b"{" and any(mark in body for mark in _MARKS)


def _parts(whole: Delivery, found: Sequence[Event | EventRejected]) -> list[Delivery]:
    """A delivery for each event, and one with the whole document for all in it that cannot be read."""
    wrong = sum(isinstance(each, EventRejected) for each in found)
    parts: list[Delivery] = []
    kept = False
    for number, each in enumerate(found, 1):
        where = {**whole.origin, "record": number}
        if isinstance(each, Event):
            parts.append(structs.replace(whole, body=each.line(), origin=where, event=each))
        elif not kept:
            kept = True
            rest = f" (and {wrong - 1:,} more of the same document)" if wrong > 1 else ""
            parts.append(structs.replace(whole, origin=where, unreadable=f"{each}{rest}"))
    return parts
