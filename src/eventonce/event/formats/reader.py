"""Reading a body: from the bytes to the event, through every layer that a route has put around it."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import cloudevents, dynamodb, eventbridge, kpl, logs, plain, records, sdk
from eventonce.event.formats import new_bus as bus
from eventonce.event.formats.carriers import POINTER, Carried, is_pointer, unpack
from eventonce.event.formats.headers import apply_headers
from eventonce.event.formats.numbers import flag_plain_numbers, number_watch
from eventonce.event.formats.text import (
    GZIP,
    MAX_BYTES,
    SMALL,
    check_size,
    content,
    kind_of,
    max_values,
    read_json,
    tiny_values,
    to_base64,
)
from eventonce.text import type_of

MAX_BATCH = 64 * 1024 * 1024  # bytes of a document with many events, and of what all its records unpack to
_RATIO = 32  # bytes that each byte of a message may unpack to
MAX_EVENTS = 10_000  # in one message: a list of empty objects takes few bytes, and each becomes a kilobyte here
_MAX_LAYERS = 5
_LAYERS = {
    "sqs": "SQS message",
    "sns": "SNS message",
    "kinesis": "Kinesis record",
    "dynamodb": "DynamoDB record",
    "firehose": "Firehose record",
    "kafka": "Kafka record",
    "activemq": "ActiveMQ message",
    "rabbitmq": "RabbitMQ message",
    "http": "HTTP request",
    "logs": "CloudWatch Logs record",
}


def read_event(body: object, max_bytes: int = MAX_BYTES) -> Event:
    """Read one event in any envelope, from any carrier."""
    if type(body) is bytes and len(body) <= max_bytes and (event := eventbridge.read_written(body, max_bytes)):
        return event  # by far the most common
    watch = number_watch()
    if type(body) is bytes and body[:1] == b"{":  # there is nothing to take off
        document, raw = read_json(body, max_bytes), body
    elif isinstance(body, Event):
        return _checked(body)
    else:
        document, raw = _decode(body, max_bytes)
    if type(document) is not dict:
        raise _not_an_object(document)
    if eventbridge.recognises(document):
        return flag_plain_numbers(eventbridge.read(_plain(document, raw), raw), watch)
    if cloudevents.recognises(document):
        return flag_plain_numbers(cloudevents.read(_plain(document, raw), raw), watch)
    reader = _Reader(max_bytes, watch, _max_unpacked(body, max_bytes), is_plain=bool(raw))
    return _only(reader.documents(document, raw, 0))


def read_events(body: object, max_bytes: int = MAX_BYTES) -> list[Event | EventRejected]:
    """Read all events of a document in the shape of any carrier. An event that cannot be read becomes its error.

    `max_bytes` bounds each event. A document that holds many may be larger.
    """
    if type(body) is bytes and len(body) <= max_bytes and (event := eventbridge.read_written(body, max_bytes)):
        return [event]  # by far the most common
    watch = number_watch()
    try:
        if type(body) is bytes and body[:1] == b"{":  # there is nothing to take off
            document, raw = read_json(body, max(max_bytes, MAX_BATCH)), body
        elif isinstance(body, Event):
            return [_checked(body)]
        else:
            document, raw = (body, b"") if isinstance(body, list) else _decode(body, max(max_bytes, MAX_BATCH))
        if type(document) is dict and eventbridge.recognises(document):
            check_size(raw, max_bytes)
            return [flag_plain_numbers(eventbridge.read(_plain(document, raw), raw), watch)]
        if not isinstance(document, dict | list):
            raise _not_an_object(document)
    except EventRejected as error:
        return [error]
    return list(_Reader(max_bytes, watch, MAX_BATCH, is_plain=bool(raw)).documents(document, raw, 0))


def read_message(
    carried: Carried, max_bytes: int = MAX_BYTES, max_unpacked: int | None = None
) -> list[Event | EventRejected]:
    """Read all events of a message from `unpack`, nearly always one. An event that cannot be read becomes its error.

    A message that holds more than `MAX_EVENTS` is refused whole. `max_unpacked` bounds what all gzip in it unpacks to,
    by default in proportion to its size.
    """
    limit = _max_unpacked(carried.body, max_bytes) if max_unpacked is None else max_unpacked
    return list(_Reader(max_bytes, number_watch(), limit, MAX_EVENTS).carried(carried, 0))


def _max_unpacked(body: object, max_bytes: int) -> int:
    """Return how many bytes all gzip in a message may unpack to, so that its cost is in proportion to its size."""
    unpacked = _RATIO * len(body) if isinstance(body, (bytes, str, bytearray, memoryview)) else 0
    return max_bytes if unpacked <= max_bytes else max(max_bytes, min(unpacked, MAX_BATCH))


def _not_an_object(document: Any) -> EventRejected:
    if isinstance(document, list) and is_pointer(document):
        return EventRejected(POINTER)
    remedy = "; write each of its events on a line of its own" if isinstance(document, list) else ""
    return EventRejected(f"is {kind_of(document)}, not a JSON object{remedy}")


def _checked(event: Event) -> Event:
    """Return an event made by hand with data of its own, as JSON can say it. A time without a zone becomes UTC."""
    for name in ("id", "source", "type"):
        if not isinstance(getattr(event, name), str):
            raise EventRejected(f"has a {name} that is not a string")
    time = event.time
    if time is not None and not isinstance(time, datetime):
        raise EventRejected("has a time that is not a datetime")
    data = _values().spell(event.data, "data")
    attributes = data if event.attributes is event.data else _values().spell(event.attributes, "attributes")
    if time is not None and time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return structs.replace(event, data=data, attributes=attributes, time=time)


def _decode(body: object, max_bytes: int) -> tuple[Any, bytes]:
    if isinstance(body, (bytes, str, bytearray, memoryview)):  # a tuple: to build a union with | takes longer
        raw = content(body, max_bytes)
        return read_json(raw, max_bytes), raw
    if isinstance(body, Mapping):
        return dict(body), b""
    if isinstance(body, sdk.CloudEvent):
        raw = sdk.structured(body)
        return read_json(raw, max_bytes), raw
    if _values().is_model(body):
        return _values().spell(body), b""
    raise EventRejected(f"is {type_of(body)}, not an event; pass bytes, text, a mapping, a model or an Event")


def _plain(document: dict[str, Any], raw: bytes) -> dict[str, Any]:
    """Return a document as JSON can say it. One that was read from JSON is that already."""
    plain: dict[str, Any] = document if raw else _values().spell(document)
    return plain


@cache
def _values() -> Any:
    from eventonce.event import values  # which costs a cold start, and text needs nothing of it

    return values


def _only(results: Iterator[Event | EventRejected]) -> Event:
    events = list(results)
    if len(events) != 1:
        raise EventRejected(
            f"carries {len(events)} events, not one; split them with eventonce.event.formats.read_events"
        )
    if isinstance(events[0], EventRejected):
        raise events[0]
    return events[0]


class TooManyEvents(EventRejected):
    """A message holds more events than it may."""


class _Reader:
    """Takes layers off one body. It counts them, and what was unpacked."""

    def __init__(
        self,
        max_bytes: int,
        watch: object,
        max_unpacked: int,
        max_events: int | None = None,
        *,
        is_plain: bool = False,
    ) -> None:
        self._max_bytes = max_bytes
        self._is_plain = is_plain  # all of the document was read from JSON
        self._watch = watch
        self._max_events = max_events
        self._events = 0
        self._max_unpacked = self._remaining = max_unpacked  # of gzip: many small bombs are one large one
        self._values = 0

    def documents(self, document: Any, raw: bytes, layer: int) -> Iterator[Event | EventRejected]:
        """Yield the events of a document."""
        for carried in self._unpack(document):
            if carried.body is document and isinstance(document, dict) and carried.unreadable is None:
                yield self._read(document, raw)
            else:
                yield from self.carried(carried, layer)

    def _unpack(self, document: Any) -> list[Carried]:
        if isinstance(document, list):
            self._count(len(document))  # before anything is made of them
            return unpack(document)
        messages = unpack(document)
        self._count(len(messages))
        return messages

    def _count(self, parts: int) -> None:
        self._events += parts - 1  # the message that held these was counted as one
        if self._max_events is not None and self._events >= self._max_events:
            raise TooManyEvents(f"holds more than {self._max_events:,} events; send fewer at a time")

    def carried(self, carried: Carried, layer: int) -> Iterator[Event | EventRejected]:
        """Yield the events of a carrier's message, nearly always one."""
        try:
            results = list(self._inside(carried, layer))
        except EventRejected as error:
            if layer and isinstance(error, TooManyEvents):  # this refuses the whole message, not this part alone
                raise
            results = [error]
        for number, result in enumerate(results, 1):
            if isinstance(result, EventRejected):
                yield _in_layer(result, carried.carrier)
            else:
                # Several without ids of their own must not share one: the others would be taken for copies.
                part = "" if len(results) == 1 else f"/{number}"
                is_named = result.named_by and carried.names_itself
                event = result if is_named else _identify(result, carried.id and carried.id + part, carried.namer)
                if carried.headers is not None:
                    event = apply_headers(event, carried.headers, part)
                # One inside another message is its sender's claim, and must not get past a rule.
                if carried.tombstone and layer == 0:
                    event = structs.replace(event, tombstone=True)
                if carried.fields and layer == 0:
                    event = _add_fields(event, carried.fields)
                yield _add_trace(event, carried.trace)

    def _inside(self, carried: Carried, layer: int) -> Iterator[Event | EventRejected]:
        if carried.unreadable is not None:
            raise EventRejected(carried.unreadable)
        if layer >= _MAX_LAYERS:
            raise EventRejected(f"is wrapped more than {_MAX_LAYERS} times")
        if isinstance(carried.body, Event):
            return iter((carried.body,))
        if isinstance(carried.body, dict):
            return self.documents(carried.body, b"", layer + 1)
        return self._parse(self._content(carried.body), layer)

    def _parse(self, raw: bytes, layer: int) -> Iterator[Event | EventRejected]:
        small = 0 if self._events else SMALL  # many small documents are a large one
        if self._remaining < self._max_unpacked:
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
        """Refuse too many tiny values: many documents of them, each within its limit, are one large one."""
        self._values += tiny_values(raw)
        if self._values > (limit := max_values(self._max_unpacked)):
            raise EventRejected(f"its message holds more than {limit:,} values")

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
        limit = min(self._max_bytes, self._remaining)
        self._remaining -= limit  # also for one that is damaged or too large, which takes as long
        try:
            raw = content(body, limit)
        except EventRejected:
            if limit == self._max_bytes:
                raise
            reason = f"unpacks to more than all gzip of its message may: {self._max_unpacked:,} bytes"
            raise EventRejected(reason) from None
        self._remaining += limit - len(raw)
        return raw

    def _read(self, body: dict[str, Any], raw: bytes) -> Event | EventRejected:
        try:
            check_size(raw, self._max_bytes)
            if "logEvents" in body and logs.recognises(body):
                self._count_values(logs.message(body))  # a string to its document, and an object to its reader
            document = body if self._is_plain else _plain(body, raw)
            return flag_plain_numbers(_read(document, raw, self._max_bytes), self._watch)
        except EventRejected as error:
            return error


def _read(body: dict[str, Any], raw: bytes, max_bytes: int) -> Event:
    """Read an event that is in no carrier's message any more."""
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
    (logs.recognises, logs.read),
    (records.recognises, records.read),
)


def _bare(raw: bytes) -> Event:
    """Return the event of a body that is not a JSON object: its text, or its bytes in base64."""
    try:
        return Event(data=raw.decode())
    except UnicodeDecodeError:
        return Event(data=to_base64(raw))


def _in_layer(error: EventRejected, carrier: str) -> EventRejected:
    name = _LAYERS.get(carrier.removeprefix("pipes-"))
    return EventRejected(f"in the {name}: {error}") if name else error


def _identify(event: Event, name: str, namer: str) -> Event:
    """Return the event with its carrier's message id if it has no id of its own.

    A name by a carrier inside this one stays, and is unique within this one alone, because the body that contains it is
    what its sender wrote.
    """
    if event.named_by and namer:
        return structs.replace(event, named_by=(namer, *event.named_by))
    if event.id or not name:
        return event
    # An empty id among the attributes would be used in its place.
    attributes = {key: value for key, value in event.attributes.items() if key != "id"}
    return structs.replace(event, id=name, named_by=(namer,), attributes=attributes)


def _add_fields(event: Event, fields: Mapping[str, Any]) -> Event:
    """Return the event with the fields of its broker. A field of that name that its sender wrote gives way."""
    return structs.replace(event, attributes={**event.attributes, **fields}, raw=event.raw or event.line())


def _add_trace(event: Event, trace: Mapping[str, str]) -> Event:
    """Return the event with the trace that its carrier names. A trace of its own wins. Its bytes stay as they are."""
    if not trace:
        return event
    return structs.replace(event, attributes={**trace, **event.attributes}, raw=event.raw or event.line())
