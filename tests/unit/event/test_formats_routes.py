"""One event, many routes: the same key under the same rule."""

import gzip
import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from eventonce import Event, Rule
from eventonce.event import Delivery
from eventonce.event.formats import read_binary, read_events
from eventonce.event.reading import split_events
from eventonce.rules.rulebook import Rulebook, identity

EVENT = {
    "version": "0",
    "id": "e-1",
    "detail-type": "Order Placed",
    "source": "com.example.shop",
    "account": "111122223333",
    "time": "2026-01-05T09:00:00Z",
    "region": "eu-west-1",
    "resources": [],
    "detail": {"orderId": "o-1", "total": 12.5, "name": "Zo\u00eb", "lines": [{"sku": "s", "count": 1}]},
}
SYSTEM = {
    "aws:EventId": "e-1",
    "aws:Source": EVENT["source"],
    "aws:DetailType": EVENT["detail-type"],
    "aws:DeliveryType": "LIVE",
}
BOOKS = {
    "content": Rulebook("c", [Rule(name="r", key="content")], identity("14d", "retry")),
    "id": Rulebook("c", [], identity("14d", "retry")),
    "fields": Rulebook("c", [Rule(name="r", key=["source", "detail.orderId"])], identity("14d", "retry")),
}


def b64(raw: bytes) -> str:
    return b64encode(raw).decode()


def sqs(body: str) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": "3"}
    return {"messageId": "m", "receiptHandle": "r", "body": body, "attributes": attributes, "eventSource": "aws:sqs"}


def sns(message: str) -> dict[str, Any]:
    fields = {"Timestamp": "2026-01-05T09:00:01Z", "Signature": "x", "MessageId": "s", "TopicArn": "arn:aws:sns:x"}
    return {"Type": "Notification", "Message": message, **fields}


def kinesis(raw: bytes) -> dict[str, Any]:
    return {"eventSource": "aws:kinesis", "eventVersion": "1.0", "eventID": "s:1", "kinesis": {"data": b64(raw)}}


def firehose(raw: bytes) -> dict[str, Any]:
    return {"invocationId": "i", "deliveryStreamArn": "a", "records": [{"recordId": "f", "data": b64(raw)}]}


def http(text: str) -> dict[str, Any]:
    return {"version": "2.0", "requestContext": {}, "body": text, "isBase64Encoded": False}


Route = Callable[[dict[str, Any]], Any]
ROUTES: dict[str, Route] = {
    "direct": lambda event: event,
    "direct, as bytes": lambda event: json.dumps(event).encode(),
    "direct, indented, other order": lambda event: json.dumps(dict(reversed(event.items())), indent=2),
    "direct, with a BOM": lambda event: "\ufeff" + json.dumps(event),
    "direct, gzip": lambda event: gzip.compress(json.dumps(event).encode()),
    "detail as text": lambda event: {**event, "detail": json.dumps(event["detail"])},
    "replayed": lambda event: {**event, "replay-name": "monday"},
    "a list": lambda event: [event],
    "SQS": lambda event: {"Records": [sqs(json.dumps(event))]},
    "SQS, one record": lambda event: sqs(json.dumps(event)),
    "SNS": lambda event: {"Records": [{"EventSource": "aws:sns", "Sns": sns(json.dumps(event))}]},
    "SNS over HTTP": lambda event: http(json.dumps(sns(json.dumps(event)))),
    "SNS to SQS": lambda event: {"Records": [sqs(json.dumps(sns(json.dumps(event))))]},
    "SNS to SQS, raw": lambda event: {"Records": [sqs(json.dumps(event))]},
    "SNS to SQS to Pipes": lambda event: [sqs(json.dumps(sns(json.dumps(event))))],
    "SNS to Firehose": lambda event: firehose(json.dumps(sns(json.dumps(event))).encode()),
    "bus, WITH_METADATA": lambda event: {"Data": event, "Metadata": {"a": 1}, "SystemMetadata": SYSTEM},
    "bus, WITH_METADATA, as text": lambda event: {"Data": json.dumps(event), "SystemMetadata": SYSTEM},
    "bus, replayed": lambda event: {"Data": event, "SystemMetadata": {**SYSTEM, "aws:DeliveryType": "REPLAY"}},
    "bus, WITH_METADATA, to SQS": lambda event: sqs(json.dumps({"Data": event, "SystemMetadata": SYSTEM})),
    "Kinesis": lambda event: {"Records": [kinesis(json.dumps(event).encode())]},
    "Kinesis, gzip": lambda event: {"Records": [kinesis(gzip.compress(json.dumps(event).encode()))]},
    "Pipes, SQS": lambda event: [sqs(json.dumps(event))],
    "Pipes, Kinesis": lambda event: [{"eventSource": "aws:kinesis", "data": b64(json.dumps(event).encode())}],
    "Firehose": lambda event: firehose(json.dumps(event).encode()),
    "MSK": lambda event: {"eventSource": "aws:kafka", "records": {"t-0": [{"value": b64(json.dumps(event).encode())}]}},
    "ActiveMQ": lambda event: {"eventSource": "aws:mq", "messages": [{"data": b64(json.dumps(event).encode())}]},
    "RabbitMQ": lambda event: {
        "eventSource": "aws:rmq",
        "rmqMessagesByQueue": {"q::/": [{"data": b64(json.dumps(event).encode())}]},
    },
    "API destination": lambda event: http(json.dumps(event)),
    "API destination, base64": lambda event: {**http(b64(json.dumps(event).encode())), "isBase64Encoded": True},
}


def read(body: Any) -> Event:
    (event,) = read_events(body)
    assert isinstance(event, Event), event
    return event


@pytest.mark.parametrize("rules", BOOKS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_same_key(route: str, rules: str) -> None:
    event = read(ROUTES[route](EVENT))
    assert event.form == "eventbridge"
    assert (event.id, event.source, event.type) == ("e-1", "com.example.shop", "Order Placed")
    assert BOOKS[rules].key(event).key == BOOKS[rules].key(read(EVENT)).key
    changed = {**EVENT, "id": "e-2", "detail": {"orderId": "o-2"}}
    assert BOOKS[rules].key(read(ROUTES[route](changed))).key != BOOKS[rules].key(event).key


def test_an_entry_of_put_events_has_the_content_of_what_is_delivered() -> None:
    entry = {"Source": EVENT["source"], "DetailType": EVENT["detail-type"], "Detail": json.dumps(EVENT["detail"])}
    assert BOOKS["content"].key(read([entry])).key == BOOKS["content"].key(read(EVENT)).key


CLOUDEVENT = {
    "specversion": "1.0",
    "id": "c-1",
    "source": "/shop",
    "type": "order.placed",
    "datacontenttype": "application/json",
    "data": {"orderId": "o-1"},
}
ATTRIBUTES = {f"ce-{name}": value for name, value in CLOUDEVENT.items() if isinstance(value, str)}
HEADERS = {**ATTRIBUTES, "content-type": "application/json"}
BODY = b'{"orderId":"o-1"}'


@pytest.mark.parametrize("rules", BOOKS)
@pytest.mark.parametrize(
    "event",
    [
        read([CLOUDEVENT]),
        read({**{name: CLOUDEVENT[name] for name in CLOUDEVENT if name != "data"}, "data_base64": b64(BODY)}),
        read_binary(HEADERS, BODY),
        read({**http(BODY.decode()), "headers": HEADERS}),
        read({"Records": [sqs(json.dumps(CLOUDEVENT))]}),
        read({"Data": CLOUDEVENT, "SystemMetadata": {"aws:EventId": "e-1", "aws:DeliveryType": "LIVE"}}),
    ],
    ids=["batch", "base64", "binary", "binary over HTTP", "SQS", "bus"],
)
def test_every_mode_of_a_cloudevent_gives_the_same_key(event: Event, rules: str) -> None:
    assert BOOKS[rules].key(event).key == BOOKS[rules].key(read(CLOUDEVENT)).key


def test_a_change_of_a_table_has_one_key_through_lambda_pipes_a_worker_and_a_file() -> None:
    record = {
        "eventID": "d-1",
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/x",
        "dynamodb": {"Keys": {"id": {"S": "o-1"}}, "NewImage": {"id": {"S": "o-1"}}},
    }
    where = {"source": "dynamodbstreams://orders", "arn": record["eventSourceARN"], "message": "d-1"}
    (delivery,) = split_events(Delivery(json.dumps(record).encode(), where, handle="h"))
    assert delivery.event is not None
    events = [delivery.event, *map(read, [{"Records": [record]}, [record], record])]
    forwarded = read({"Records": [kinesis(json.dumps(record).encode())]})
    for rules in ("id", "content"):
        (one,) = {BOOKS[rules].key(event).key for event in events}
        # What somebody has put into another stream is their word: its id counts within that.
        assert (BOOKS[rules].key(forwarded).key == one) is (rules == "content")


def test_messages_without_an_id_of_their_own_differ_by_the_carriers_id() -> None:
    same = {name: "" if name == "id" else value for name, value in EVENT.items()}
    bodies: list[Any] = [{**sqs(json.dumps(body)), "messageId": name} for body in (same, {"id": ""}) for name in "ab"]
    assert len({BOOKS["id"].key(read(body)).key for body in bodies}) == 4
