"""What a Lambda function was invoked with: which carrier, and which messages."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from eventonce.errors import EventRejected
from eventonce.event.formats import Carried, gateway, unpack

Document = Mapping[str, Any]
EXPECTED = (
    "an EventBridge event or a list of them, Records of SQS, SNS, Kinesis or DynamoDB Streams, records of Firehose or "
    "Kafka, the list of a pipe, a request of API Gateway or of a function URL, or a JSON object that a rule can key"
)


_KAFKA = ("aws:kafka", "SelfManagedKafka")
# Of other sources, such as Kafka, a pipe takes every answer for success of all.
_TELLING_PIPES = ("pipes-sqs", "pipes-kinesis", "pipes-dynamodb")


class Reply(Enum):
    """How a carrier wants to be told."""

    MESSAGES = auto()  # the messages that failed
    OFFSETS = auto()  # the records of Kafka that failed, by partition and offset
    CHECKPOINT = auto()  # the first record that failed, and all behind it come again
    RECORDS = auto()  # a result for each record
    RESPONSE = auto()  # an HTTP response
    RAISE = auto()  # an exception, and all of it comes again


class InvocationMessage(NamedTuple):
    """One message, record or item: what it carries, what its carrier calls it, and the group it is ordered in."""

    carried: Carried
    name: str
    group: str | None
    item: Any  # as it came


class Invocation(NamedTuple):
    """An invocation taken apart."""

    carrier: str
    reply: Reply
    messages: Sequence[InvocationMessage]
    document: Any


def recognise(event: Any) -> Invocation:
    """What this invocation is; raises where it is nothing that carries events."""
    if isinstance(event, list) and event:
        return _list(event)
    if isinstance(event, Mapping) and gateway.recognises(event):  # first: its body is a stranger's word
        return Invocation("http", Reply.RESPONSE, [InvocationMessage(Carried(b"", "http"), "", None, event)], event)
    if isinstance(event, Mapping) and event:
        if event.get("Records") == [] and "window" in event:  # a tumbling one, at its end
            return Invocation("stream", Reply.CHECKPOINT, [], event)
        for name, found in (("Records", _records), ("records", _transformation)):
            if isinstance(event.get(name), list) and event[name]:
                return found(event, event[name])
        if event.get("eventSource") in _KAFKA and isinstance(event.get("records"), Mapping) and event["records"]:
            return _partitions(event, event["records"])
        return _single(event)
    raise EventRejected(f"the function was invoked with {_seen(event)}; expected {EXPECTED}")


def is_of_aws(envelope: Invocation) -> bool:
    """Return whether this is what a service invokes a function with, which IAM lets nobody else do.

    A bare event is not, nor one message without its batch: API Gateway hands on what a stranger sends as it is, where
    its integration is not a proxy.
    """
    if isinstance(envelope.document, list):
        return all(each.carried.carrier.startswith(("pipes-", "eventbridge")) for each in envelope.messages)
    batch = any(isinstance(envelope.document.get(name), list | dict) for name in ("Records", "records"))
    return envelope.carrier in ("eventbridge", "logs") or (batch and envelope.carrier != "none")


def unknown(event: Any, why: str) -> EventRejected:
    """That an invocation is of no known shape and cannot be keyed as it is."""
    return EventRejected(f"the function was invoked with {_seen(event)}, which {why}; expected {EXPECTED}")


def _records(event: Document, records: list[Any]) -> Invocation:
    carried = unpack(event)
    carrier = carried[0].carrier
    if len(carried) != len(records):
        raise unknown(event, "has Records of no service that is known here")
    if not all(isinstance(item, Mapping) for item in records):
        raise unknown(event, "has Records that are not all objects")
    reply, name, group = _OF_RECORDS.get(carrier, (Reply.RAISE, _none, _none))
    found = [
        InvocationMessage(each, _word(name(item)), group(item), item)
        for each, item in zip(carried, records, strict=True)
    ]
    return _checked(Invocation(carrier, reply, found, event))


def _transformation(event: Document, records: list[Any]) -> Invocation:
    carried = unpack(event)
    if carried[0].carrier != "firehose":
        raise unknown(event, "has records of no service that is known here")
    found = [InvocationMessage(each, each.id, None, item) for each, item in zip(carried, records, strict=True)]
    return _checked(Invocation("firehose", Reply.RECORDS, found, event))


def _partitions(event: Document, records: Document) -> Invocation:
    if not all(isinstance(partition, list) for partition in records.values()):
        raise unknown(event, "has a partition that is not a list of records")
    pairs = [(name, record) for name, partition in records.items() for record in partition]
    carried = unpack(event) if pairs else []
    found = [InvocationMessage(each, each.id, name, item) for each, (name, item) in zip(carried, pairs, strict=True)]
    return _checked(Invocation("kafka", Reply.OFFSETS, found, event))


def _list(items: list[Any]) -> Invocation:
    """What a pipe hands on, also a single item; or events that somebody sends as a list."""
    if not all(isinstance(item, Mapping) for item in items):
        raise EventRejected(f"the function was invoked with {_seen(items)}; expected {EXPECTED}")
    found = [InvocationMessage(each, each.id, _group(item), item) for item in items for each in unpack([item])]
    carrier = found[0].carried.carrier
    if carrier in _TELLING_PIPES:
        return _checked(Invocation(carrier, Reply.MESSAGES, found, items))
    return Invocation(carrier if carrier.startswith("pipes-") else "list", Reply.RAISE, found, items)


def _single(event: Document) -> Invocation:
    found = [InvocationMessage(each, each.id, None, event) for each in unpack(event)]
    return Invocation(found[0].carried.carrier, Reply.RAISE, found, event)


def _checked(envelope: Invocation) -> Invocation:
    """Where failures are told by name, everything needs one."""
    if envelope.reply is not Reply.RAISE and not all(message.name for message in envelope.messages):
        raise EventRejected(f"a record of {envelope.carrier} has no id, so that its failure could not be told")
    return envelope


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
    """The group that an item is ordered in: that of a FIFO queue, its shard, or its partition of a topic."""
    if item.get("eventSource") in ("aws:kinesis", "aws:dynamodb"):
        return _shard(item)
    if item.get("eventSource") in _KAFKA:
        return f"{item.get('topic')}-{item.get('partition')}"
    if not str(item.get("eventSourceARN", "")).endswith(".fifo"):  # other queues have groups too, without an order
        return None
    return _word(_inner(item, "attributes").get("MessageGroupId")) or None


def _shard(record: Document) -> str:
    return "shard"  # an invocation has the records of one


def _inner(record: Any, name: str) -> Document:
    found = record.get(name) if isinstance(record, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


_OF_RECORDS: dict[str, tuple[Reply, Callable[[Document], Any], Callable[[Document], str | None]]] = {
    "sqs": (Reply.MESSAGES, _of_sqs, _group),
    "kinesis": (Reply.CHECKPOINT, _of_kinesis, _shard),
    "dynamodb": (Reply.CHECKPOINT, _of_dynamodb, _shard),
}


def _seen(event: Any) -> str:
    """An invocation in a few words, without its values."""
    if isinstance(event, Mapping):
        names = ", ".join(repr(str(name)[:40]) for name in list(event)[:8])
        return f"an object with {names}{', ...' if len(event) > 8 else ''}" if event else "an empty object"
    if isinstance(event, list):
        return f"a list of {len(event)} items, the first of them {_seen(event[0])}" if event else "an empty list"
    return {str: "a text", bool: "true or false", int: "a number", type(None): "nothing"}.get(
        type(event), f"a {type(event).__name__}"
    )
