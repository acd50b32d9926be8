"""From a body to its event: through every layer that a route has put around it."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import cloudevents, dynamodb, eventbridge, kpl, plain, records, sdk
from eventonce.event.formats import new_bus as bus
from eventonce.event.formats.carriers import Carried, unpack
from eventonce.event.formats.headers import of_request
from eventonce.event.formats.numbers import known, mark
from eventonce.event.formats.text import (
    GZIP,
    MAX_BYTES,
    SMALL,
    check_size,
    content,
    kind_of,
    most_values,
    read_json,
    tiny_values,
    to_base64,
)

MAX_BATCH = 64 * 1024 * 1024  # what a document with many events may have, and what is unpacked from all its records
_RATIO = 32  # bytes that may be unpacked for each one of a message
MAX_EVENTS = 10_000  # in one message: a list of empty objects takes few bytes, and each becomes a kilobyte here
_MAX_LAYERS = 5
_LAYERS = {
    "sqs": "SQS message",
    "sns": "SNS message",
    "kinesis": "Kinesis record",
    "dynamodb": "DynamoDB record",
    "firehose": "Firehose record",
    "kafka": "Kafka record",
    "http": "HTTP request",
    "logs": "CloudWatch Logs record",
}


def read_event(body: object, max_bytes: int = MAX_BYTES) -> Event:
    """Read one event, whatever envelope it is in and whatever carried it."""
    if type(body) is bytes and len(body) <= max_bytes and (event := eventbridge.read_written(body, max_bytes)):
        return event  # by far the most common
    since = mark()
    if type(body) is bytes and body[:1] == b"{":  # there is nothing to take off
        document, raw = read_json(body, max_bytes), body
    elif isinstance(body, Event):
        return _checked(body)
    else:
        document, raw = _opened(body, max_bytes)
    if type(document) is not dict:
        raise _no_object(document)
    if eventbridge.recognises(document):
        return known(eventbridge.read(document, raw), since)
    if cloudevents.recognises(document):
        return known(cloudevents.read(document, raw), since)
    return _only(_Reader(max_bytes, since, _most_unpacked(body, max_bytes)).documents(document, raw, 0))


def read_events(body: object, max_bytes: int = MAX_BYTES) -> list[Event | EventRejected]:
    """Read all events of a document in the shape of any carrier; in the place of one that cannot be read, why.

    `max_bytes` bounds each event; a document that holds many may be larger.
    """
    if type(body) is bytes and len(body) <= max_bytes and (event := eventbridge.read_written(body, max_bytes)):
        return [event]  # by far the most common
    since = mark()
    try:
        if type(body) is bytes and body[:1] == b"{":  # there is nothing to take off
            document, raw = read_json(body, max(max_bytes, MAX_BATCH)), body
        elif isinstance(body, Event):
            return [_checked(body)]
        else:
            document, raw = (body, b"") if isinstance(body, list) else _opened(body, max(max_bytes, MAX_BATCH))
        if type(document) is dict and eventbridge.recognises(document):
            check_size(raw, max_bytes)
            return [known(eventbridge.read(document, raw), since)]
        if not isinstance(document, dict | list):
            raise _no_object(document)
    except EventRejected as error:
        return [error]
    return list(_Reader(max_bytes, since, MAX_BATCH).documents(document, raw, 0))


def read_message(
    carried: Carried, max_bytes: int = MAX_BYTES, max_unpacked: int | None = None
) -> list[Event | EventRejected]:
    """Read all events of what `unpack` found, nearly always one; in the place of one that cannot be read, why.

    A message that holds more than `MAX_EVENTS` is refused whole. `max_unpacked` bounds what all gzip in it unpacks to,
    by default in proportion to its size.
    """
    most = _most_unpacked(carried.body, max_bytes) if max_unpacked is None else max_unpacked
    return list(_Reader(max_bytes, mark(), most, MAX_EVENTS).carried(carried, 0))


def _most_unpacked(body: object, max_bytes: int) -> int:
    """Return how many bytes all gzip in a message may unpack to: what it costs is in proportion to its size."""
    most = _RATIO * len(body) if isinstance(body, (bytes, str, bytearray, memoryview)) else 0
    return max_bytes if most <= max_bytes else max(max_bytes, min(most, MAX_BATCH))


def _no_object(document: Any) -> EventRejected:
    remedy = "; write each of its events in a line of its own" if isinstance(document, list) else ""
    return EventRejected(f"is {kind_of(document)}, not a JSON object{remedy}")


def _checked(event: Event) -> Event:
    """An event made by hand: its fields are what they say they are, and a time without a zone is UTC."""
    for name in ("id", "source", "type"):
        if not isinstance(getattr(event, name), str):
            raise EventRejected(f"has a {name} that is no text")
    if event.time is None:
        return event
    if not isinstance(event.time, datetime):
        raise EventRejected("has a time that is no datetime")
    return event if event.time.tzinfo else structs.replace(event, time=event.time.replace(tzinfo=UTC))


def _opened(body: object, max_bytes: int) -> tuple[Any, bytes]:
    if isinstance(body, (bytes, str, bytearray, memoryview)):  # a tuple: to write them with | takes longer than to ask
        raw = content(body, max_bytes)
        return read_json(raw, max_bytes), raw
    if isinstance(body, Mapping):
        return dict(body), b""
    if isinstance(body, sdk.CloudEvent):
        raw = sdk.structured(body)
        return read_json(raw, max_bytes), raw
    raise EventRejected(f"is a {type(body).__name__}, not an event; pass bytes, text, a mapping or an Event")


def _only(found: Iterator[Event | EventRejected]) -> Event:
    each = list(found)
    if len(each) != 1:
        raise EventRejected(f"carries {len(each)} events, not one; split them with eventonce.event.formats.read_events")
    if isinstance(each[0], EventRejected):
        raise each[0]
    return each[0]


class TooManyEvents(EventRejected):
    """A message holds more events than one may."""


class _Reader:
    """Takes layers off, and keeps count of them and of what was unpacked."""

    def __init__(self, max_bytes: int, since: object, max_unpacked: int, max_events: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._since = since
        self._max_events = max_events
        self._events = 0
        self._max_unpacked = self._left = max_unpacked  # of gzip: many small bombs are one large one
        self._values = 0

    def documents(self, document: Any, raw: bytes, layer: int) -> Iterator[Event | EventRejected]:
        """The events of a document."""
        for carried in self._unpacked(document):
            if carried.body is document and isinstance(document, dict) and carried.trouble is None:
                yield self._itself(document, raw)
            else:
                yield from self.carried(carried, layer)

    def _unpacked(self, document: Any) -> list[Carried]:
        if isinstance(document, list):
            self._count(len(document))  # before anything is made of them
            return unpack(document)
        found = unpack(document)
        self._count(len(found))
        return found

    def _count(self, more: int) -> None:
        self._events += more - 1  # one stands for the message that these were in
        if self._max_events is not None and self._events >= self._max_events:
            raise TooManyEvents(f"holds more than {self._max_events:,} events; send fewer at a time")

    def carried(self, carried: Carried, layer: int) -> Iterator[Event | EventRejected]:
        """The events of a carrier's message; nearly always one."""
        try:
            found = list(self._inside(carried, layer))
        except EventRejected as error:
            if layer and isinstance(error, TooManyEvents):  # not this part alone is refused
                raise
            found = [error]
        for number, each in enumerate(found, 1):
            if isinstance(each, EventRejected):
                yield _in_layer(each, carried.carrier)
            else:
                # Several without ids of their own must not share one: the others would be taken for copies.
                part = "" if len(found) == 1 else f"/{number}"
                named = each.named_by and carried.names_itself
                event = each if named else _identified(each, carried.id and carried.id + part, carried.namer)
                if carried.headers is not None:
                    event = of_request(event, carried.headers, part)
                # One inside another message is its sender's word, and must not get past a rule.
                if carried.tombstone and layer == 0:
                    event = structs.replace(event, tombstone=True)
                yield _traced(event, carried.trace)

    def _inside(self, carried: Carried, layer: int) -> Iterator[Event | EventRejected]:
        if carried.trouble is not None:
            raise EventRejected(carried.trouble)
        if layer >= _MAX_LAYERS:
            raise EventRejected(f"is wrapped more than {_MAX_LAYERS} times")
        if isinstance(carried.body, Event):
            return iter((carried.body,))
        if isinstance(carried.body, dict):
            return self.documents(carried.body, b"", layer + 1)
        return self._of_bytes(self._content(carried.body), layer)

    def _of_bytes(self, raw: bytes, layer: int) -> Iterator[Event | EventRejected]:
        small = 0 if self._events else SMALL  # many small documents are a large one
        if self._left < self._max_unpacked:
            self._count_values(raw)
        if event := eventbridge.read_written(raw, self._max_bytes, small):
            return iter((event,))
        if kpl.recognises(raw):
            return self._aggregate(raw, layer + 1)
        if raw.lstrip()[:1] not in (b"{", b"["):
            return iter((_bare(raw),))
        document = read_json(raw, self._max_bytes, small)
        if document == []:
            raise EventRejected("is an empty list, not an event")
        return self.documents(document, raw, layer + 1)

    def _count_values(self, raw: bytes) -> None:
        """Refuse tiny values without end: many documents of them, each of which may be, are one large one."""
        self._values += tiny_values(raw)
        if self._values > (most := most_values(self._max_unpacked)):
            raise EventRejected(f"all gzip of its message holds more than {most:,} values")

    def _aggregate(self, raw: bytes, layer: int) -> Iterator[Event | EventRejected]:
        records = kpl.read(raw)
        self._count(len(records))
        for data in records:
            yield from self.carried(Carried(data), layer)

    def _content(self, body: str | bytes) -> bytes:
        if not isinstance(body, bytes) or body[:2] != GZIP:
            raw = content(body, self._max_bytes)
            check_size(raw, self._max_bytes)
            return raw
        most = min(self._max_bytes, self._left)
        self._left -= most  # also of one that turns out to be damaged or too large, which takes as long
        try:
            raw = content(body, most)
        except EventRejected:
            if most == self._max_bytes:
                raise
            reason = f"unpacks to more than all gzip of its message may: {self._max_unpacked:,} bytes"
            raise EventRejected(reason) from None
        self._left += most - len(raw)
        return raw

    def _itself(self, body: dict[str, Any], raw: bytes) -> Event | EventRejected:
        try:
            check_size(raw, self._max_bytes)
            return known(_read(body, raw, self._max_bytes), self._since)
        except EventRejected as error:
            return error


def _read(body: dict[str, Any], raw: bytes, max_bytes: int) -> Event:
    """Read an event that nothing carries any more."""
    if bus.recognises(body) and not eventbridge.recognises(body):
        return bus.read(body, max_bytes)
    for recognises, read in _FORMS:
        if recognises(body):
            return read(body, raw)
    return plain.read(body, raw)


_FORMS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any], bytes], Event]], ...] = (
    (eventbridge.recognises, eventbridge.read),
    (cloudevents.recognises, cloudevents.read),
    (dynamodb.recognises, dynamodb.read),
    (records.recognises, records.read),
)


def _bare(raw: bytes) -> Event:
    """What is no JSON object, as queues and streams also carry it: text, or bytes in base64."""
    try:
        return Event(data=raw.decode())
    except UnicodeDecodeError:
        return Event(data=to_base64(raw))


def _in_layer(error: EventRejected, carrier: str) -> EventRejected:
    name = _LAYERS.get(carrier.removeprefix("pipes-"))
    return EventRejected(f"in the {name}: {error}") if name else error


def _identified(event: Event, name: str, namer: str) -> Event:
    """The event, with its carrier's message id where it has no id of its own.

    What a carrier inside this one has named stays so, and counts within this one alone: the body that says so is what
    its sender wrote.
    """
    if event.named_by and namer:
        return structs.replace(event, named_by=(namer, *event.named_by))
    if event.id or not name:
        return event
    own = {key: value for key, value in event.attributes.items() if key != "id"}  # it is empty, and would be used
    return structs.replace(event, id=name, named_by=(namer,), attributes=own)


def _traced(event: Event, trace: Mapping[str, str]) -> Event:
    """The event, with the trace that its carrier names; its own counts more, and its bytes stay as they are."""
    if not trace:
        return event
    return structs.replace(event, attributes={**trace, **event.attributes}, raw=event.raw or event.line())
