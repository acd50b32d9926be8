"""What carries events: queues, topics, streams, pipes and requests, as AWS Lambda and recorded traffic show them.

`unpack` finds out what a document is and takes out what it carries, one layer, never with an exception.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from eventonce.clock import moment
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import cloudevents, eventbridge, gateway
from eventonce.event.formats import new_bus as bus
from eventonce.event.formats.headers import readable
from eventonce.event.formats.plain import text
from eventonce.event.formats.text import content, from_base64, kind_of
from eventonce.event.keys import canonical

Document = dict[str, Any]
TRACE_NAMES = ("traceparent", "tracestate", "AWSTraceHeader")
_ATTRIBUTES = ("attributes", "messageAttributes", "Attributes", "MessageAttributes")  # of Lambda, and of SQS and SNS


class Carried(NamedTuple):
    """One event's body, what carried it, the carrier's own name for the message, and the trace that it names.

    `body` is the event itself where there is nothing to read. `origin` is the queue, topic, stream or cluster that the
    name is unique in. With `trouble`, which says why there is no body to read, `body` is the carrier's record or text
    as it came. `headers` are those of a request that rules may look at, and None where it was no request.
    `tombstone` says that it is a record of Kafka without a value.
    """

    body: bytes | str | Document | Event
    carrier: str = "none"
    id: str = ""
    trouble: str | None = None
    trace: Mapping[str, str] = {}
    origin: str = ""
    headers: Mapping[str, str] | None = None
    tombstone: bool = False

    @property
    def namer(self) -> str:
        """What the name counts within; empty where nothing carried the event."""
        kind = self.carrier.removeprefix("pipes-")
        return self.origin or ("" if kind == "none" else kind)

    @property
    def names_itself(self) -> bool:
        """Whether the event says what its name counts within, as a record of a table's stream does."""
        return self.carrier in ("dynamodb", "pipes-dynamodb", "dynamodbstreams")


def unpack(document: object) -> list[Carried]:
    """What a document carries: one for each record of a batch or item of a list, else the document itself."""
    if isinstance(document, list):  # EventBridge Pipes, a batch of CloudEvents, entries of PutEvents
        return [carried for item in document for carried in _item(item)]
    if isinstance(document, Mapping):
        body = document if isinstance(document, dict) else dict(document)
        return _batch(body) or [_one(body)]
    if isinstance(document, str | bytes):
        return [Carried(document)]
    return [_no_object(document)]


def _item(item: Any) -> list[Carried]:
    if not isinstance(item, dict):
        return [_no_object(item)]
    found = _batch(item)
    if found is not None:
        return found
    carried = _one(item)
    return [carried._replace(carrier=f"pipes-{carried.carrier}") if _source(item) in _READERS else carried]


def _no_object(value: Any) -> Carried:
    try:
        shown = canonical(value)
    except EventRejected:
        shown = b""
    return Carried(shown, trouble=f"is {kind_of(value)}, not a JSON object")


# --- documents with several records ---


def _batch(document: Document) -> list[Carried] | None:
    """The records of a document that is a batch, or None where it is not."""
    if eventbridge.recognises(document) or cloudevents.recognises(document):
        return None
    for name, take in _BATCHES:
        records = document.get(name)
        if records and (found := take(document, records)):
            return found
    return None


def _of_lambda(_: Document, records: Any) -> list[Carried] | None:
    if not isinstance(records, list) or not any(_source(record) for record in records):
        return None
    return [_one(record) if isinstance(record, dict) else _no_object(record) for record in records]


def _of_firehose_or_kafka(document: Document, records: Any) -> list[Carried] | None:
    if isinstance(records, dict) and _READERS.get(_source(document)) is _kafka:
        partitions = [each for each in records.values() if isinstance(each, list)]
        found = [_checked(_kafka, record) for partition in partitions for record in partition]
        return [carried._replace(origin=_cluster(document)) for carried in found]
    if isinstance(records, list) and ("deliveryStreamArn" in document or "invocationId" in document):
        stream = _string(document, "deliveryStreamArn")
        return [_checked(_firehose, record)._replace(origin=stream) for record in records]
    return None


def _of_receive_message(_: Document, messages: Any) -> list[Carried] | None:
    if not isinstance(messages, list) or not all(isinstance(each, dict) and _is_received(each) for each in messages):
        return None
    return [_sqs(message) for message in messages]


def _of_put_events(_: Document, entries: Any) -> list[Carried] | None:
    if not isinstance(entries, list) or not any(_is_entry(entry) for entry in entries):
        return None
    return [_checked(_one, entry) for entry in entries]


_BATCHES: tuple[tuple[str, Callable[[Document, Any], list[Carried] | None]], ...] = (
    ("Records", _of_lambda),
    ("records", _of_firehose_or_kafka),
    ("Messages", _of_receive_message),
    ("Entries", _of_put_events),
)


def _checked(read: Callable[[Document], Carried], record: Any) -> Carried:
    return read(record) if isinstance(record, dict) else _no_object(record)


# --- one record ---


def _one(body: Document) -> Carried:
    """One record, message, request or event."""
    if eventbridge.recognises(body) or bus.recognises(body):
        return Carried(body, "eventbridge")
    if cloudevents.recognises(body):
        return Carried(body)
    source = _source(body)
    if source in _READERS:
        return _READERS[source](body)
    if source:
        return _own_record(body, source)
    for recognises, read in _SHAPES:
        if recognises(body):
            return read(body)
    return Carried(body)


def _source(record: Any) -> str:
    """Which service a record says it is of."""
    given = (record.get("eventSource") or record.get("EventSource")) if isinstance(record, dict) else None
    return given if isinstance(given, str) else ""


def _own_record(record: Document, source: str) -> Carried:
    """A record that a service wrote itself, as S3 and CloudTrail do: it is the event."""
    if "eventVersion" not in record:
        return Carried(record)  # somebody else's word
    carrier = "cloudtrail" if source.endswith(".amazonaws.com") else source.removeprefix("aws:")
    return Carried(record, carrier, _name(record, "eventID"))


def _sqs(record: Document) -> Carried:
    name = _name(record, "messageId") or _name(record, "MessageId")
    carried = _text("sqs", name, record, record.get("body", record.get("Body")), "body")
    return carried._replace(trace=_trace(record), origin=_queue(record))


def _queue(record: Document) -> str:
    """The queue that gave a message its id: one that SQS has moved to another queue still has it."""
    system = record.get("attributes", record.get("Attributes"))
    moved_from = _string(system, "DeadLetterQueueSourceArn") if isinstance(system, dict) else ""
    return moved_from or _string(record, "eventSourceARN")


def _sns(record: Document) -> Carried:
    notice = record.get("Sns")
    return _notification(notice) if isinstance(notice, dict) else Carried(record, "sns", trouble="has no Sns object")


def _notification(notice: Document) -> Carried:
    carried = _text("sns", _name(notice, "MessageId"), notice, notice.get("Message"), "Message")
    return carried._replace(trace=_trace(notice), origin=_string(notice, "TopicArn"))


def _kinesis(record: Document) -> Carried:
    inner = record.get("kinesis")  # which Pipes leave out
    holder = inner if isinstance(inner, dict) else record
    stream = _string(record, "eventSourceARN").partition("/consumer/")[0]  # with enhanced fan-out it names a consumer
    name = _name(record, "eventID")
    if holder.get("data") == "":  # Kinesis takes such a record, and a worker reads it as an empty text
        return Carried(b"", "kinesis", name, origin=stream)
    return _packed("kinesis", name, record, holder, "data")._replace(origin=stream)


def _dynamodb(record: Document) -> Carried:
    trouble = None if isinstance(record.get("dynamodb"), dict) else "has no dynamodb object"
    return Carried(record, "dynamodb", _name(record, "eventID"), trouble, origin=_string(record, "eventSourceARN"))


def _firehose(record: Document) -> Carried:
    return _packed("firehose", _name(record, "recordId"), record, record, "data")


def _kafka(record: Document) -> Carried:
    place = [_name(record, name) for name in ("topic", "partition", "offset")]
    time = _name(record, "timestamp")  # a topic that was deleted and made again has the same offsets once more
    name = "-".join(place) + (f"@{time}" if time else "") if all(place) else ""
    carried = _packed("kafka", name, record, record, "value")._replace(origin=_cluster(record))
    empty, headers = record.get("value") in (None, ""), _record_headers(record)
    if cloudevents.recognises_kafka_headers(headers) and (empty or not carried.trouble):
        binary = _kafka_binary(carried, headers)
        if not (empty and binary.trouble):  # a tombstone is an event in any case
            return binary._replace(tombstone=empty)
    return carried._replace(body=_tombstone(record), trouble=None, tombstone=True) if empty and name else carried


def _kafka_binary(carried: Carried, headers: Mapping[str, str]) -> Carried:
    body = carried.body if isinstance(carried.body, bytes) else b""
    try:
        event = cloudevents.structured_of_kafka(headers, body)
    except EventRejected as error:
        return carried._replace(trouble=str(error))
    return carried._replace(body=msgspec.json.encode(event), trouble=None)


def _record_headers(record: Document) -> dict[str, str]:
    """The headers of a record that are text; each comes as a list of the numbers of its bytes."""
    given = record.get("headers")
    headers = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    found = {name.lower(): _header_text(value) for each in headers for name, value in each.items()}
    return {name: value for name, value in found.items() if value is not None}


def _header_text(value: Any) -> str | None:
    try:
        return bytes(value).decode() if isinstance(value, list) else None
    except (TypeError, ValueError):  # no bytes, or no UTF-8
        return None


def _tombstone(record: Document) -> Event:
    """A record of Kafka without a value: nothing is left under its key.

    It has no data, and every rule knows it by its name.
    """
    fields = {"topic": record["topic"], "key": _record_key(record.get("key")), "timestamp": record.get("timestamp")}
    raw = msgspec.json.encode({**fields, "value": None})
    return Event(data=None, attributes=fields, time=_time(record.get("timestamp")), raw=raw)


def _time(millis: Any) -> datetime | None:
    try:
        return moment(millis) if isinstance(millis, int) else None
    except (ValueError, OverflowError, OSError):
        return None


def _record_key(given: Any) -> Any:
    raw = from_base64(given)
    try:
        return given if raw is None else raw.decode()
    except UnicodeDecodeError:
        return {"$binary": given}  # base64, which a text could be too


def _cluster(holder: Document) -> str:
    servers = sorted(_string(holder, "bootstrapServers").split(","))
    return _string(holder, "eventSourceArn") or ",".join(servers)


def _logs(document: Document) -> Carried:
    return _packed("logs", "", document, document["awslogs"], "data")


def _entry(entry: Document) -> Carried:
    return Carried(eventbridge.from_entry(entry), "eventbridge")


def _request(request: Document) -> Carried:
    """A request as API Gateway, a load balancer or a function URL hands it on."""
    headers = gateway.headers(request)
    name, origin = sns_names(headers)
    carried = Carried(request, "http", name, headers=readable(headers), origin=origin)
    try:
        raw = gateway.body(request)
        if cloudevents.recognises_headers(headers):
            event = cloudevents.structured(headers, content(raw))
            return carried._replace(body=msgspec.json.encode(event))
    except EventRejected as error:
        return carried._replace(trouble=str(error))
    return carried._replace(body=raw) if raw else carried._replace(trouble="has no body")


def sns_names(headers: Mapping[str, str]) -> tuple[str, str]:
    """The id of a message of SNS and what it counts within, of a request: raw delivery has them in headers alone.

    Anybody can write a header, so such an id never counts as one that SNS gave to a queue or a function.
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


_Reader = Callable[[Document], Carried]
_READERS: dict[str, _Reader] = {
    "aws:sqs": _sqs,
    "aws:sns": _sns,
    "aws:kinesis": _kinesis,
    "aws:dynamodb": _dynamodb,
    "aws:kafka": _kafka,
    "SelfManagedKafka": _kafka,
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
    """The trace that a message of SQS or SNS names: among the sender's attributes, or as X-Ray has AWS add it."""
    holders = [each for each in map(message.get, _ATTRIBUTES) if isinstance(each, Mapping)]
    given = [(name, _attribute(each.get(name))) for each in holders for name in TRACE_NAMES]
    return {name: value for name, value in given if value}


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


def _text(carrier: str, name: str, record: Document, given: Any, field: str) -> Carried:
    if isinstance(given, str | dict) and given:  # an object where somebody wrote the record by hand
        return Carried(given, carrier, name)
    return Carried(record, carrier, name, f"has no {field}" if not given else f"has a {field} that is no text")


def _packed(carrier: str, name: str, record: Document, holder: Document, field: str) -> Carried:
    given = holder.get(field)
    if not given:
        return Carried(record, carrier, name, f"has no {field}")
    raw = from_base64(given)
    if raw is None:
        return Carried(record, carrier, name, f"has {field} that is not base64")
    return Carried(raw, carrier, name)
