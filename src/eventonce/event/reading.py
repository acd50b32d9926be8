"""Splitting a document that carries several events, such as a Lambda batch.

A bare list in a file stays one document and is rejected, because in a file of JSON lines it is most likely a mistake.
(Looking at recorded traffic can do no harm, so `key`, `audit` and `advise` do split a list.) A message of a queue is
read here, because its id serves if the event inside has none. The parts of a message have one handle and are settled
together.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Delivery, Event
from eventonce.event.formats import MAX_BYTES, Carried, read_events, read_message
from eventonce.event.formats.carriers import TRACE_NAMES
from eventonce.event.formats.headers import readable

# Names in such a document. A search for them is far cheaper than parsing every body twice.
_BATCH_FIELDS = (
    b'"Records"', b'"records"', b'"Messages"', b'"Entries"', b'"aws:mq"', b'"rmqMessagesByQueue"', b'"awslogs"',
    b'"logEvents"',
)  # fmt: skip


def split_events(delivery: Delivery) -> Sequence[Delivery]:
    """Return one delivery for each event that a delivery's document carries."""
    if delivery.event is not None or delivery.unreadable is not None:
        return [delivery]
    if delivery.handle is not None and "message" in delivery.origin:
        return _read_message(delivery)
    if not _may_carry(delivery.body):
        return [delivery]
    events = read_events(delivery.body, MAX_BYTES)
    if not any(isinstance(event, Event) for event in events):
        return [delivery]  # the engine reports what is wrong with the whole
    return _parts(delivery, events)


def _read_message(delivery: Delivery) -> Sequence[Delivery]:
    carrier, name = str(delivery.origin["source"]).partition("://")[0], str(delivery.origin["message"])
    trace = {field: delivery.origin[field] for field in TRACE_NAMES if field in delivery.origin}
    headers = _headers(delivery) if carrier == "http" else None  # a dead letter of a request
    origin = str(delivery.origin.get("arn", ""))
    events = read_message(Carried(delivery.body, carrier, name, trace=trace, headers=headers, origin=origin))
    if len(events) > 1 and any(isinstance(event, Event) for event in events):
        return _parts(delivery, events)
    if isinstance(events[0], Event):
        delivery.event = events[0]
    else:
        delivery.unreadable = str(events[0])
    return [delivery]


def _headers(delivery: Delivery) -> dict[str, str]:
    headers = delivery.origin.get("headers")
    pairs = headers.items() if isinstance(headers, Mapping) else ()
    return readable({name: value for name, value in pairs if isinstance(value, str)})


def _may_carry(body: bytes) -> bool:
    return body[:1] == b"{" and any(field in body for field in _BATCH_FIELDS)


def _parts(whole: Delivery, events: Sequence[Event | EventRejected]) -> list[Delivery]:
    """Return a delivery for each event, and one with the whole document for all parts that cannot be read."""
    errors = sum(isinstance(event, EventRejected) for event in events)
    parts: list[Delivery] = []
    has_error = False
    for number, event in enumerate(events, 1):
        origin = {**whole.origin, "record": number}
        if isinstance(event, Event):
            parts.append(structs.replace(whole, body=event.line(), origin=origin, event=event))
        elif not has_error:
            has_error = True
            suffix = f" (and {errors - 1:,} more of the same document)" if errors > 1 else ""
            parts.append(structs.replace(whole, origin=origin, unreadable=f"{event}{suffix}"))
    return parts
