"""Carriers of events: queues, topics, streams, pipes and requests, as AWS Lambda and recorded traffic show them.

`unpack` recognises a document and takes one layer off it. It never raises.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from eventonce.clock import to_datetime
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import cloudevents, eventbridge, gateway, logs
from eventonce.event.formats import new_bus as bus
from eventonce.event.formats.headers import readable
from eventonce.event.formats.plain import text
from eventonce.event.formats.text import content, from_base64, kind_of
from eventonce.event.keys import canonical

Document = dict[str, Any]
TRACE_NAMES = ("traceparent", "tracestate", "AWSTraceHeader")
_ATTRIBUTES = ("attributes", "messageAttributes", "Attributes", "MessageAttributes")  # of Lambda, and of SQS and SNS
_SERVICES = {"aws:docdb": "Amazon DocumentDB"}  # whose batches are not taken apart
POINTER = (
    "is a pointer to a payload in S3 by the extended client of SQS or SNS, not the event; read it with that client and "
    "pass the payload to once.run, or send payloads that fit into the message"
)


class Carried(NamedTuple):
    """One event's body, its carrier, the carrier's own name for the message, and the trace that it names.

    `body` is an `Event` if there is nothing to read. `origin` is the queue, topic, stream or cluster that the name is
    unique in. `unreadable` is the reason if there is no body to read. Then `body` is the carrier's record or text as it
    came. `headers` are the readable headers of a request, and None if it was not a request. `tombstone` marks a Kafka
    record without a value. `fields` are what a broker's message has beside its body, under the broker's name.
    """

    body: bytes | str | Document | Event
    carrier: str = "none"
    id: str = ""
    unreadable: str | None = None
    trace: Mapping[str, str] = {}
    origin: str = ""
    headers: Mapping[str, str] | None = None
    tombstone: bool = False
    fields: Mapping[str, Any] = {}

    @property
    def namer(self) -> str:
        """Return what the name is unique within, or an empty string if nothing carried the event."""
        kind = self.carrier.removeprefix("pipes-")
        return self.origin or ("" if kind == "none" else kind)

    @property
    def names_itself(self) -> bool:
        """Return whether the event says what its name is unique within, as a record of a table's stream does."""
        is_log_event = self.carrier == "logs" and isinstance(self.body, dict)
        return is_log_event or self.carrier in ("dynamodb", "pipes-dynamodb", "dynamodbstreams")


def unpack(document: object) -> list[Carried]:
    """Return the messages in a document: one for each record of a batch or item of a list, else the document itself."""
    if isinstance(document, list):  # EventBridge Pipes, a batch of CloudEvents, entries of PutEvents
        if is_pointer(document):
            return [Carried(document[1], unreadable=POINTER)]
        return [carried for item in document for carried in _item(item)]
    if isinstance(document, Mapping):
        body = document if isinstance(document, dict) else dict(document)
        return _batch(body) or [_one(body)]
    if isinstance(document, str | bytes):
        return [Carried(document)]
    return [_not_an_object(document)]


def _item(item: Any) -> list[Carried]:
    if not isinstance(item, dict):
        return [_not_an_object(item)]
    messages = _batch(item)
    if messages is not None:
        return messages
    carried = _one(item)
    return [carried._replace(carrier=f"pipes-{carried.carrier}") if _source(item) in _READERS else carried]


def _not_an_object(value: Any) -> Carried:
    try:
        body = canonical(value)
    except EventRejected:
        body = b""
    return Carried(body, unreadable=f"is {kind_of(value)}, not a JSON object")


# --- documents with several records ---


def _batch(document: Document) -> list[Carried] | None:
    """Return the messages of a batch, or None if the document is not one."""
    if eventbridge.recognises(document) or cloudevents.recognises(document):
        return None
    for name, read in _BATCHES:
        records = document.get(name)
        if records and (messages := read(document, records)):
            return messages
    return None


def _of_lambda(_: Document, records: Any) -> list[Carried] | None:
    if not isinstance(records, list) or not any(_source(record) for record in records):
        return None
    return [_one(record) if isinstance(record, dict) else _not_an_object(record) for record in records]


def _of_firehose_or_kafka(document: Document, records: Any) -> list[Carried] | None:
    if isinstance(records, dict) and _READERS.get(_source(document)) is _kafka:
        partitions = [partition for partition in records.values() if isinstance(partition, list)]
        messages = [_checked(_kafka, record) for partition in partitions for record in partition]
        return [carried._replace(origin=_cluster(document)) for carried in messages]
    if isinstance(records, list) and ("deliveryStreamArn" in document or "invocationId" in document):
        stream = _string(document, "deliveryStreamArn")
        return [_checked(_firehose, record)._replace(origin=stream) for record in records]
    return None


def _of_receive_message(_: Document, messages: Any) -> list[Carried] | None:
    if not isinstance(messages, list) or not all(isinstance(item, dict) and _is_received(item) for item in messages):
        return None
    return [_sqs(message) for message in messages]


def _of_put_events(_: Document, entries: Any) -> list[Carried] | None:
    if not isinstance(entries, list) or not any(_is_entry(entry) for entry in entries):
        return None
    return [_checked(_one, entry) for entry in entries]


def _of_activemq(document: Document, messages: Any) -> list[Carried] | None:
    if not isinstance(messages, list) or _READERS.get(_source(document)) is not _activemq:
        return None
    broker = {"eventSourceArn": document.get("eventSourceArn")}
    return [_checked(_activemq, _add(broker, message)) for message in messages]


def _of_rabbitmq(document: Document, queues: Any) -> list[Carried] | None:
    if not isinstance(queues, dict) or _READERS.get(_source(document)) is not _rabbitmq:
        return None
    carried = []
    for queue, messages in queues.items():
        origin = {"eventSourceArn": document.get("eventSourceArn"), "eventSourceKey": queue}
        items = messages if isinstance(messages, list) else [messages]
        carried += [_checked(_rabbitmq, _add(origin, message)) for message in items]
    return carried


def _add(fields: Document, record: Any) -> Any:
    """Return a record with fields of its batch, as an item of a pipe has them."""
    return record | fields if isinstance(record, dict) else record


def _of_logs(document: Document, _: Any) -> list[Carried] | None:
    if not logs.recognises_batch(document) or logs.recognises(document):
        return None
    return [Carried(part, "logs") if isinstance(part, dict) else _not_an_object(part) for part in logs.split(document)]


_BATCHES: tuple[tuple[str, Callable[[Document, Any], list[Carried] | None]], ...] = (
    ("Records", _of_lambda),
    ("records", _of_firehose_or_kafka),
    ("messages", _of_activemq),
    ("rmqMessagesByQueue", _of_rabbitmq),
    ("logEvents", _of_logs),
    ("Messages", _of_receive_message),
    ("Entries", _of_put_events),
)


def _checked(read: Callable[[Document], Carried], record: Any) -> Carried:
    return read(record) if isinstance(record, dict) else _not_an_object(record)


# --- one record ---


def _one(body: Document) -> Carried:
    """Return one record, message, request or event as a message."""
    if eventbridge.recognises(body) or bus.recognises(body):
        return Carried(body, "eventbridge")
    if cloudevents.recognises(body):
        return Carried(body)
    source = _source(body)
    if source in _READERS:
        return _READERS[source](body)
    if source:
        return _of_service(body, source)
    for recognises, read in _SHAPES:
        if recognises(body):
            return read(body)
    return Carried(body)


def _source(record: Any) -> str:
    """Return the service that a record names as its own."""
    source = (record.get("eventSource") or record.get("EventSource")) if isinstance(record, dict) else None
    return source if isinstance(source, str) else ""


def _of_service(record: Document, source: str) -> Carried:
    """Return a record that a service wrote itself, as S3 and CloudTrail do, as the event. Refuse a batch of a service.

    As one event a batch would have a key that no retry of it has.
    """
    if "eventVersion" in record:
        carrier = "cloudtrail" if source.endswith(".amazonaws.com") else source.removeprefix("aws:")
        return Carried(record, carrier, _name(record, "eventID"))
    if source.startswith("aws:") and any(map(_holds_records, record.values())):
        service = _SERVICES.get(source) or f"{source!r:.80}"
        reason = f"is a batch of {service}, which is not taken apart; pass its events one by one to once.run"
        return Carried(record, source.removeprefix("aws:"), unreadable=reason)
    return Carried(record)  # its sender's claim alone


def _holds_records(value: Any) -> bool:
    """Return whether a value is a list of objects or an object of lists, as batches have one."""
    if isinstance(value, dict):
        return bool(value) and all(isinstance(item, list) for item in value.values())
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _sqs(record: Document) -> Carried:
    name = _name(record, "messageId") or _name(record, "MessageId")
    carried = _text("sqs", name, record, record.get("body", record.get("Body")), "body")
    return carried._replace(trace=_trace(record), origin=_queue(record))


def _queue(record: Document) -> str:
    """Return the queue that gave a message its id. SQS keeps the id when it moves the message to another queue."""
    system = record.get("attributes", record.get("Attributes"))
    moved_from = _string(system, "DeadLetterQueueSourceArn") if isinstance(system, dict) else ""
    return moved_from or _string(record, "eventSourceARN")


def _sns(record: Document) -> Carried:
    notice = record.get("Sns")
    return _notification(notice) if isinstance(notice, dict) else Carried(record, "sns", unreadable="has no Sns object")


def _notification(notice: Document) -> Carried:
    carried = _text("sns", _name(notice, "MessageId"), notice, notice.get("Message"), "Message")
    return carried._replace(trace=_trace(notice), origin=_string(notice, "TopicArn"))


def _kinesis(record: Document) -> Carried:
    inner = record.get("kinesis")  # which Pipes leave out
    holder = inner if isinstance(inner, dict) else record
    stream = _string(record, "eventSourceARN").partition("/consumer/")[0]  # with enhanced fan-out it names a consumer
    return _message("kinesis", _name(record, "eventID"), record, holder)._replace(origin=stream)


def _dynamodb(record: Document) -> Carried:
    reason = None if isinstance(record.get("dynamodb"), dict) else "has no dynamodb object"
    return Carried(record, "dynamodb", _name(record, "eventID"), reason, origin=_string(record, "eventSourceARN"))


def _firehose(record: Document) -> Carried:
    return _packed("firehose", _name(record, "recordId"), record, record, "data")


def _activemq(message: Document) -> Carried:
    carried = _message("activemq", _name(message, "messageID"), message, message)
    return carried._replace(origin=_string(message, "eventSourceArn"), fields={"activemq": _beside_data(message)})


def _rabbitmq(message: Document) -> Carried:
    """Return a message, under the name that its publisher gave it: RabbitMQ gives none.

    Such a name is unique within its queue alone, and within the user whom RabbitMQ has checked if it names one.
    """
    properties = message.get("basicProperties")
    properties = properties if isinstance(properties, dict) else {}
    queue, user = _string(message, "eventSourceKey"), _string(properties, "userId")
    origin = " ".join(filter(None, (_string(message, "eventSourceArn"), queue, user and f"by {user}")))
    carried = _message("rabbitmq", _name(properties, "messageId"), message, message)
    return carried._replace(origin=origin, fields={"rabbitmq": {"queue": queue, **_beside_data(message)}})


def _beside_data(message: Document) -> Document:
    return {name: value for name, value in message.items() if name != "data" and not name.startswith("eventSource")}


def _kafka(record: Document) -> Carried:
    position = [_name(record, field) for field in ("topic", "partition", "offset")]
    time = _name(record, "timestamp")  # a topic that was deleted and created again uses the same offsets
    name = "-".join(position) + (f"@{time}" if time else "") if all(position) else ""
    empty, headers = record.get("value") in (None, ""), _record_headers(record)
    fields = {"topic": record.get("topic"), "key": _record_key(record.get("key")), "timestamp": record.get("timestamp")}
    carried = _packed("kafka", name, record, record, "value")._replace(
        origin=_cluster(record), fields={"kafka": {**fields, "headers": headers}}
    )
    if cloudevents.recognises_kafka_headers(headers) and (empty or not carried.unreadable):
        binary = _kafka_binary(carried, headers)
        if not (empty and binary.unreadable):  # a tombstone is an event in any case
            return binary._replace(tombstone=empty)
    return carried._replace(body=_tombstone(fields), unreadable=None, tombstone=True) if empty and name else carried


def _kafka_binary(carried: Carried, headers: Mapping[str, str]) -> Carried:
    body = carried.body if isinstance(carried.body, bytes) else b""
    try:
        event = cloudevents.structured_of_kafka(headers, body)
    except EventRejected as error:
        return carried._replace(unreadable=str(error))
    return carried._replace(body=msgspec.json.encode(event), unreadable=None)


def _record_headers(record: Document) -> dict[str, str]:
    """Return the headers of a record that are text. Each comes as a list of the numbers of its bytes."""
    items = record.get("headers")
    headers = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    texts = {name.lower(): _header_text(value) for header in headers for name, value in header.items()}
    return {name: value for name, value in texts.items() if value is not None}


def _header_text(value: Any) -> str | None:
    try:
        return bytes(value).decode() if isinstance(value, list) else None
    except (TypeError, ValueError):  # not bytes, or not UTF-8
        return None


def _tombstone(fields: Document) -> Event:
    """Return the event of a Kafka record without a value, which says that nothing remains under its key.

    It has no data, and its name is its identity under every rule.
    """
    return Event(data=None, time=_time(fields["timestamp"]), raw=msgspec.json.encode({**fields, "value": None}))


def _time(millis: Any) -> datetime | None:
    try:
        return to_datetime(millis) if isinstance(millis, int) else None
    except (ValueError, OverflowError, OSError):
        return None


def _record_key(key: Any) -> Any:
    raw = from_base64(key)
    try:
        return key if raw is None else raw.decode()
    except UnicodeDecodeError:
        return {"$binary": key}  # base64, which a string could be too


def _cluster(holder: Document) -> str:
    servers = sorted(_string(holder, "bootstrapServers").split(","))
    return _string(holder, "eventSourceArn") or ",".join(servers)


def _logs(document: Document) -> Carried:
    return _packed("logs", "", document, document["awslogs"], "data")


def _entry(entry: Document) -> Carried:
    return Carried(eventbridge.from_entry(entry), "eventbridge")


def _request(request: Document) -> Carried:
    """Return a request as API Gateway, a load balancer or a function URL passes it on."""
    headers = gateway.headers(request)
    name, origin = sns_names(headers)
    carried = Carried(request, "http", name, headers=readable(headers), origin=origin)
    try:
        raw = gateway.body(request)
        if cloudevents.recognises_headers(headers):
            event = cloudevents.structured(headers, content(raw))
            return carried._replace(body=msgspec.json.encode(event))
    except EventRejected as error:
        return carried._replace(unreadable=str(error))
    return carried._replace(body=raw) if raw else carried._replace(unreadable="has no body")


def sns_names(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the id of an SNS message and what it is unique within, from a request's headers.

    Raw delivery has them in headers alone. Anybody can write a header, so such an id never counts as one that SNS gave
    to a queue or a function.
    """
    return headers.get("x-amz-sns-message-id", ""), f"http {headers.get('x-amz-sns-topic-arn', '')}".strip()


def _is_notification(body: Document) -> bool:
    return body.get("Type") == "Notification" and "TopicArn" in body


def _is_received(body: Document) -> bool:
    return ("ReceiptHandle" in body and "Body" in body) or ("receiptHandle" in body and "body" in body)


def _is_entry(body: Any) -> bool:
    return isinstance(body, dict) and eventbridge.recognises_entry(body)


def _is_logs(body: Document) -> bool:
    return isinstance(body.get("awslogs"), dict) and len(body) == 1


def is_pointer(items: list[Any]) -> bool:
    """Return whether this is what the extended clients send: the name of a class, and the place of the payload in S3.

    The class differs between their versions, and is the same in Java and Python.
    """
    if len(items) != 2 or not isinstance(items[0], str):
        return False
    return isinstance(items[1], dict) and items[1].keys() >= {"s3BucketName", "s3Key"}


_Reader = Callable[[Document], Carried]
_READERS: dict[str, _Reader] = {
    "aws:sqs": _sqs,
    "aws:sns": _sns,
    "aws:kinesis": _kinesis,
    "aws:dynamodb": _dynamodb,
    "aws:kafka": _kafka,
    "SelfManagedKafka": _kafka,
    "aws:mq": _activemq,
    "aws:amq": _activemq,  # of a pipe
    "aws:rmq": _rabbitmq,
}
_SHAPES: tuple[tuple[Callable[[Document], bool], _Reader], ...] = (
    (_is_notification, _notification),
    (_is_received, _sqs),
    (_is_entry, _entry),
    (gateway.recognises, _request),
    (_is_logs, _logs),
)


# --- traces ---


def _trace(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace that a message of SQS or SNS names, in the sender's attributes or as AWS adds it for X-Ray."""
    holders = [holder for holder in map(message.get, _ATTRIBUTES) if isinstance(holder, Mapping)]
    pairs = [(name, _attribute(holder.get(name))) for holder in holders for name in TRACE_NAMES]
    return {name: value for name, value in pairs if value}


def _attribute(value: Any) -> str:
    if isinstance(value, Mapping):
        value = next((value[name] for name in ("stringValue", "StringValue", "Value") if name in value), "")
    return value if isinstance(value, str) else ""


# --- bodies ---


def _string(record: Document, field: str) -> str:
    value = record.get(field)
    return value if isinstance(value, str) else ""


def _name(record: Document, field: str) -> str:
    value = record.get(field)
    return value if isinstance(value, str) else text(value) if isinstance(value, int) else ""


def _text(carrier: str, name: str, record: Document, body: Any, field: str) -> Carried:
    if isinstance(body, str | dict) and body:  # an object if the record was written by hand
        return Carried(body, carrier, name)
    return Carried(record, carrier, name, f"has no {field}" if not body else f"has a {field} that is not a string")


def _message(carrier: str, name: str, record: Document, holder: Document) -> Carried:
    """Return a message whose `data` may be empty: its carrier accepts it, and it is empty text."""
    return Carried(b"", carrier, name) if holder.get("data") == "" else _packed(carrier, name, record, holder, "data")


def _packed(carrier: str, name: str, record: Document, holder: Document, field: str) -> Carried:
    packed = holder.get(field)
    if not packed:
        return Carried(record, carrier, name, f"has no {field}")
    raw = from_base64(packed)
    if raw is None:
        return Carried(record, carrier, name, f"has {field} that is not base64")
    return Carried(raw, carrier, name)
