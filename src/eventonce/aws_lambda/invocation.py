"""Reading an invocation of a Lambda function: its carrier and its messages."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from eventonce.errors import EventRejected
from eventonce.event.formats import Carried, gateway, unpack
from eventonce.text import counted, type_of

Document = Mapping[str, Any]
EXPECTED = (
    "an EventBridge event or a list of them, Records of SQS, SNS, Kinesis or DynamoDB Streams, records of Firehose or "
    "Kafka, messages of ActiveMQ or RabbitMQ, log events of CloudWatch Logs, the list of a pipe, a request of API "
    "Gateway or of a function URL, or a JSON object that a rule can key"
)

# The field by which a document of a carrier is a whole batch.
_BATCHES = {"activemq": "messages", "rabbitmq": "rmqMessagesByQueue", "logs": "awslogs", "docdb": "events"}
_KAFKA = ("aws:kafka", "SelfManagedKafka")
# A pipe from another source, such as Kafka, takes every response for success.
_REPORTING_PIPES = ("pipes-sqs", "pipes-kinesis", "pipes-dynamodb")


class Reply(Enum):
    """The form in which a carrier expects the result."""

    MESSAGES = auto()  # the messages that failed
    OFFSETS = auto()  # the records of Kafka that failed, by partition and offset
    CHECKPOINT = auto()  # the first record that failed: it and all later ones are redelivered
    RECORDS = auto()  # a result for each record
    RESPONSE = auto()  # an HTTP response
    RAISE = auto()  # an exception: all of it is redelivered


class InvocationMessage(NamedTuple):
    """One message, record or item: its content, its name at its carrier, and the group it is ordered in."""

    carried: Carried
    name: str
    group: str | None
    item: Any  # as received


class Invocation(NamedTuple):
    """An invocation as its messages."""

    carrier: str
    reply: Reply
    messages: Sequence[InvocationMessage]
    document: Any


def recognise(event: Any) -> Invocation:
    """Read an invocation. Raise `EventRejected` if it carries no events."""
    if isinstance(event, list) and event:
        return _list(event)
    if isinstance(event, Mapping) and gateway.recognises(event):  # first: its body is not trusted
        return Invocation("http", Reply.RESPONSE, [InvocationMessage(Carried(b"", "http"), "", None, event)], event)
    if isinstance(event, Mapping) and event:
        if event.get("Records") == [] and "window" in event:  # a tumbling one, at its end
            return Invocation("stream", Reply.CHECKPOINT, [], event)
        for name, read in (("Records", _records), ("records", _transformation)):
            if isinstance(event.get(name), list) and event[name]:
                return read(event, event[name])
        if event.get("eventSource") in _KAFKA and isinstance(event.get("records"), Mapping) and event["records"]:
            return _partitions(event, event["records"])
        return _single(event)
    raise EventRejected(f"the function was invoked with {_describe(event)}; expected {EXPECTED}")


def is_of_aws(invocation: Invocation) -> bool:
    """Return whether only a service of AWS can have sent this: IAM lets nobody else invoke a function so.

    A bare event and a message without its batch are not proof. If its integration is not a proxy, API Gateway passes on
    unchanged what a stranger sends.
    """
    if isinstance(invocation.document, list):
        return all(message.carried.carrier.startswith(("pipes-", "eventbridge")) for message in invocation.messages)
    names = ("Records", "records", _BATCHES.get(invocation.carrier, "Records"))
    batch = any(isinstance(invocation.document.get(name), list | dict) for name in names)
    return invocation.carrier == "eventbridge" or (batch and invocation.carrier != "none")


def unknown(event: Any, problem: str) -> EventRejected:
    """Return the error for an invocation of unknown shape."""
    return EventRejected(f"the function was invoked with {_describe(event)}, which {problem}; expected {EXPECTED}")


def _records(event: Document, records: list[Any]) -> Invocation:
    carried = unpack(event)
    carrier = carried[0].carrier
    if len(carried) != len(records) or (carrier == "none" and carried[0].body is event):
        raise unknown(event, "has Records of an unknown service")
    if not all(isinstance(item, Mapping) for item in records):
        raise unknown(event, "has Records that are not all objects")
    reply, name, group = _OF_RECORDS.get(carrier, (Reply.RAISE, _none, _none))
    messages = [
        InvocationMessage(content, _string(name(item)), group(item), item)
        for content, item in zip(carried, records, strict=True)
    ]
    return _require_names(Invocation(carrier, reply, messages, event))


def _transformation(event: Document, records: list[Any]) -> Invocation:
    carried = unpack(event)
    if carried[0].carrier != "firehose":
        raise unknown(event, "has records of an unknown service")
    messages = [
        InvocationMessage(content, content.id, None, item) for content, item in zip(carried, records, strict=True)
    ]
    return _require_names(Invocation("firehose", Reply.RECORDS, messages, event))


def _partitions(event: Document, records: Document) -> Invocation:
    if not all(isinstance(partition, list) for partition in records.values()):
        raise unknown(event, "has a partition that is not a list of records")
    pairs = [(name, record) for name, partition in records.items() for record in partition]
    carried = unpack(event) if pairs else []
    messages = [
        InvocationMessage(content, content.id, name, item) for content, (name, item) in zip(carried, pairs, strict=True)
    ]
    return _require_names(Invocation("kafka", Reply.OFFSETS, messages, event))


def _list(items: list[Any]) -> Invocation:
    """Read the list of a pipe, which may hold a single item, or a list of events that a caller sent."""
    if not all(isinstance(item, Mapping) for item in items):
        raise EventRejected(f"the function was invoked with {_describe(items)}; expected {EXPECTED}")
    messages = [
        InvocationMessage(content, content.id, _group(item), item) for item in items for content in unpack([item])
    ]
    carrier = messages[0].carried.carrier
    if carrier in _REPORTING_PIPES:
        return _require_names(Invocation(carrier, Reply.MESSAGES, messages, items))
    return Invocation(carrier if carrier.startswith("pipes-") else "list", Reply.RAISE, messages, items)


def _single(event: Document) -> Invocation:
    messages = [InvocationMessage(content, content.id, None, event) for content in unpack(event)]
    return Invocation(messages[0].carried.carrier, Reply.RAISE, messages, event)


def _require_names(invocation: Invocation) -> Invocation:
    """Return the invocation. Raise `EventRejected` if a message has no name to report its failure by."""
    if invocation.reply is not Reply.RAISE and not all(message.name for message in invocation.messages):
        raise EventRejected(f"a record of {invocation.carrier} has no id, so its failure cannot be reported")
    return invocation


# --- names and groups ---


def _of_sqs(record: Document) -> Any:
    return record.get("messageId")


def _of_kinesis(record: Document) -> Any:
    return _inner(record, "kinesis").get("sequenceNumber")


def _of_dynamodb(record: Document) -> Any:
    return _inner(record, "dynamodb").get("SequenceNumber")


def _none(record: Document) -> None:
    return None


def _group(item: Document) -> str | None:
    """Return the group that orders an item: of a FIFO queue, its shard, or its partition of a topic."""
    if item.get("eventSource") in ("aws:kinesis", "aws:dynamodb"):
        return _shard(item)
    if item.get("eventSource") in _KAFKA:
        return f"{item.get('topic')}-{item.get('partition')}"
    if not str(item.get("eventSourceARN", "")).endswith(".fifo"):  # other queues have groups that are not ordered
        return None
    return _string(_inner(item, "attributes").get("MessageGroupId")) or None


def _shard(record: Document) -> str:
    return "shard"  # an invocation has the records of one


def _inner(record: Any, name: str) -> Document:
    value = record.get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


_OF_RECORDS: dict[str, tuple[Reply, Callable[[Document], Any], Callable[[Document], str | None]]] = {
    "sqs": (Reply.MESSAGES, _of_sqs, _group),
    "kinesis": (Reply.CHECKPOINT, _of_kinesis, _shard),
    "dynamodb": (Reply.CHECKPOINT, _of_dynamodb, _shard),
}


def _describe(event: Any) -> str:
    """Return an invocation in a few words, without its values."""
    if isinstance(event, Mapping):
        names = ", ".join(repr(str(name)[:40]) for name in list(event)[:8])
        return f"an object with {names}{', ...' if len(event) > 8 else ''}" if event else "an empty object"
    if isinstance(event, list):
        return (
            f"a list of {counted(len(event), 'item')}, the first of them {_describe(event[0])}"
            if event
            else "an empty list"
        )
    return {str: "a string", bool: "true or false", int: "a number", type(None): "nothing"}.get(
        type(event), type_of(event)
    )
