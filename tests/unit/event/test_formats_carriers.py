"""What carries events, as Lambda, Pipes and recorded traffic show it."""

import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest

from eventonce import Event, EventRejected
from eventonce.event.formats import Carried, read_events, read_message, unpack

EVENT = {"id": "e-1", "source": "shop", "detail-type": "Order Placed", "detail": {"orderId": "o-1"}}
CLOUDEVENT = {"specversion": "1.0", "id": "c-1", "source": "/shop", "type": "order.placed", "data": {"orderId": "o-1"}}
TEXT = json.dumps(EVENT)
PACKED = b64encode(TEXT.encode()).decode()


def sqs(body: Any = TEXT, name: str = "m-1", **fields: Any) -> dict[str, Any]:
    return {"messageId": name, "receiptHandle": "r", "body": body, "eventSource": "aws:sqs", **fields}


def sns(message: Any = TEXT) -> dict[str, Any]:
    return {"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": {"MessageId": "s-1", "Message": message}}


def kinesis(data: Any = PACKED) -> dict[str, Any]:
    inner = {"data": data, "sequenceNumber": "1", "partitionKey": "p"}
    return {"eventSource": "aws:kinesis", "eventVersion": "1.0", "eventID": "shard:1", "kinesis": inner}


def flat(data: Any = PACKED) -> dict[str, Any]:
    return {
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": "shard:1",
        "data": data,
        "partitionKey": "p",
    }


def change(**fields: Any) -> dict[str, Any]:
    return {
        "eventID": "d-1",
        "eventName": "MODIFY",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/2026-01-05T09:00:00.000",
        "dynamodb": {"ApproximateCreationDateTime": 1767603600, "Keys": {"Id": {"N": "101"}}, "SequenceNumber": "7"},
        **fields,
    }


def http(body: Any = TEXT, **fields: Any) -> dict[str, Any]:
    return {"version": "2.0", "requestContext": {}, "headers": {}, "body": body, "isBase64Encoded": False, **fields}


def kafka(value: Any = PACKED) -> dict[str, Any]:
    return {"topic": "orders", "partition": 0, "offset": 15, "value": value}


FIREHOSE = {"invocationId": "i", "deliveryStreamArn": "arn", "records": [{"recordId": "f-1", "data": PACKED}]}
S3 = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"object": {"key": "k"}}}
ENTRY = {"Source": "shop", "DetailType": "Order Placed", "Detail": '{"orderId": "o-1"}', "EventBusName": "b"}
NOTICE = {"Type": "Notification", "TopicArn": "arn", "MessageId": "s-1", "Message": TEXT}


@pytest.mark.parametrize(
    ("document", "results"),
    [
        (EVENT, [("eventbridge", "")]),
        ({"Data": EVENT, "SystemMetadata": {}}, [("eventbridge", "")]),
        (CLOUDEVENT, [("none", "")]),
        ({"orderId": "o-1"}, [("none", "")]),
        ("text", [("none", "")]),
        (b"bytes", [("none", "")]),
        ([], []),
        ({"Records": []}, [("none", "")]),
        ({"Records": [{"mine": 1}]}, [("none", "")]),
        ({"records": [{"mine": 1}]}, [("none", "")]),
        ({"Messages": [{"mine": 1}]}, [("none", "")]),
        ({"Entries": [{"mine": 1}]}, [("none", "")]),
        ({"eventSource": "mine", "orderId": "o-1"}, [("none", "")]),
        ({"Records": [sqs(), sqs(name="m-2")]}, [("sqs", "m-1"), ("sqs", "m-2")]),
        ({"Records": [sns()]}, [("sns", "s-1")]),
        ({"Records": [kinesis()], "window": {}, "state": {}}, [("kinesis", "shard:1")]),
        ({"Records": [change()]}, [("dynamodb", "d-1")]),
        ({"Records": [S3]}, [("s3", "")]),
        (
            {"Records": [{"eventVersion": "1", "eventSource": "ec2.amazonaws.com", "eventID": "t-1"}]},
            [("cloudtrail", "t-1")],
        ),
        ([sqs()], [("pipes-sqs", "m-1")]),
        ([flat(), kinesis()], [("pipes-kinesis", "shard:1")] * 2),
        ([change()], [("pipes-dynamodb", "d-1")]),
        ([{"eventSource": "aws:kafka", **kafka()}], [("pipes-kafka", "orders-0-15")]),
        (FIREHOSE, [("firehose", "f-1")]),
        ({"eventSource": "aws:kafka", "records": {"orders-0": [kafka()]}}, [("kafka", "orders-0-15")]),
        ({"eventSource": "SelfManagedKafka", "records": {"orders-0": [kafka()]}}, [("kafka", "orders-0-15")]),
        (http(), [("http", "")]),
        ({"httpMethod": "POST", "requestContext": {"elb": {}}, "body": TEXT}, [("http", "")]),
        (http(headers={"X-Amz-Sns-Message-Id": "s-1"}), [("http", "s-1")]),
        ([EVENT, EVENT], [("eventbridge", "")] * 2),
        ([CLOUDEVENT, CLOUDEVENT], [("none", "")] * 2),
        ([ENTRY], [("eventbridge", "")]),
        ({"Entries": [ENTRY, ENTRY]}, [("eventbridge", "")] * 2),
        ({"Messages": [{"MessageId": "m-1", "ReceiptHandle": "r", "Body": TEXT}]}, [("sqs", "m-1")]),
        (NOTICE, [("sns", "s-1")]),
        ([NOTICE], [("sns", "s-1")]),
        ({"awslogs": {"data": b64encode(gzip.compress(b"{}", mtime=0)).decode()}}, [("logs", "")]),
        ([{"Records": [sqs(), sqs()]}, EVENT], [("sqs", "m-1"), ("sqs", "m-1"), ("eventbridge", "")]),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_each_carrier_is_recognised(document: object, results: list[tuple[str, str]]) -> None:
    unpacked = unpack(document)
    assert [(carried.carrier, carried.id) for carried in unpacked] == results
    assert [carried.unreadable for carried in unpacked] == [None] * len(results)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"Records": [sqs(body=None)]}, "has no body"),
        ({"Records": [sqs(body="")]}, "has no body"),
        ({"Records": [sqs(body=7)]}, "has a body that is not a string"),
        ({"Records": [{"eventSource": "aws:sns"}]}, "has no Sns object"),
        ({"Records": [sns(message=None)]}, "has no Message"),
        ({"Records": [kinesis(data="not base64!")]}, "has data that is not base64"),
        ({"Records": [kinesis(data="\u20ac")]}, "has data that is not base64"),
        ({"Records": [kinesis(data=["x"])]}, "has data that is not base64"),
        ({"Records": [kinesis(data=None)]}, "has no data"),
        ({"Records": [{"eventSource": "aws:kinesis"}]}, "has no data"),
        ({"Records": [change(dynamodb=None)]}, "has no dynamodb object"),
        ({"invocationId": "i", "records": [{"recordId": "1"}]}, "has no data"),
        ({"invocationId": "i", "records": [7]}, "is a number, not a JSON object"),
        ({"eventSource": "aws:kafka", "records": {"orders-0": [kafka(7)]}}, "has value that is not base64"),
        ({"eventSource": "aws:kafka", "records": {"orders-0": [{"topic": "orders", "value": None}]}}, "has no value"),
        ({"eventSource": "aws:kafka", "records": {}}, "has no value"),
        ({"eventSource": "aws:kafka", "records": {"orders-0": ["x"]}}, "is a string, not a JSON object"),
        (http(None), "has no body"),
        (http("%", isBase64Encoded=True), "has body that is not base64"),
        (http("{", headers={"ce-specversion": "1.0"}), "has no ce-id header, which a CloudEvent in binary mode needs"),
        ([7], "is a number, not a JSON object"),
        ([[EVENT]], "is a list, not a JSON object"),
        (["\ud800"], "is a string, not a JSON object"),
        (None, "is null, not a JSON object"),
        (True, "is a boolean, not a JSON object"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_broken_record_has_a_reason_and_raises_nothing(document: object, reason: str) -> None:
    assert [carried.unreadable for carried in unpack(document)] == [reason]
    (error,) = read_events(document) if isinstance(document, list | dict) else read_events(json.dumps(document))
    assert isinstance(error, EventRejected)
    assert reason in str(error)


def test_the_others_of_a_batch_are_read() -> None:
    first, second, third = read_events({"Records": [sqs("{"), "x", sqs()]})
    assert str(first).startswith("in the SQS message: is not JSON")
    assert str(second) == "is a string, not a JSON object"
    assert isinstance(third, Event)
    assert third.id == "e-1"


# --- what is read ---


def only(document: object) -> Event:
    (event,) = read_events(document)
    assert isinstance(event, Event), event
    return event


def test_a_change_in_a_table() -> None:
    images = {
        "Keys": {"Id": {"N": "101"}},
        "NewImage": {
            "Id": {"N": "101"},
            "text": {"S": "x"},
            "price": {"N": "1.10"},
            "zero": {"N": "0.0"},
            "tiny": {"N": "1E-300"},
            "exact": {"N": "0.12345678901234567890"},
            "large": {"N": "12345678901234567890123456789012345678"},
            "odd": {"N": "1_000"},
            "yes": {"BOOL": True},
            "none": {"NULL": True},
            "bytes": {"B": "AAE="},
            "tags": {"SS": ["b", "a"]},
            "numbers": {"NS": ["2", "1.5"]},
            "blobs": {"BS": ["Ag==", "AQ=="]},
            "map": {"M": {"list": {"L": [{"S": "x"}, {"N": "1"}, {"M": {}}]}}},
            "untyped": {"a": 1, "b": 2},
            "unknown": {"X": 1},
            "bare": 7,
        },
    }
    event = only({"Records": [change(dynamodb={"ApproximateCreationDateTime": 1767603600, **images})]})
    assert (event.form, event.id, event.source, event.type) == ("plain", "d-1", "orders", "MODIFY")
    assert event.time == datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert "dynamodb" not in event.attributes
    assert event.data == {
        "eventName": "MODIFY",
        "keys": {"Id": 101},
        "new": {
            "Id": 101,
            "text": "x",
            "price": 1.1,
            "zero": 0,
            "tiny": {"$number": "1E-300"},
            "exact": {"$number": "0.12345678901234567890"},
            "large": 12345678901234567890123456789012345678,
            "odd": {"$number": "1_000"},
            "yes": True,
            "none": None,
            "bytes": {"$binary": "AAE="},
            "tags": {"$set": ["a", "b"]},
            "numbers": {"$set": [1.5, 2]},
            "blobs": {"$binary": {"$set": ["AQ==", "Ag=="]}},
            "map": {"list": ["x", 1, {}]},
            "untyped": {"a": 1, "b": 2},
            "unknown": {"X": 1},
            "bare": 7,
        },
    }


def test_values_of_different_types_stay_different() -> None:
    values: list[Any] = [
        {"S": "YQ=="},
        {"B": "YQ=="},
        {"L": [{"S": "YQ=="}]},
        {"SS": ["YQ=="]},
        {"BS": ["YQ=="]},
        {"S": "1e300"},
        {"N": "1e300"},
        {"N": "1"},
        {"NS": ["1"]},
    ]
    results = [only({"Records": [change(dynamodb={"NewImage": {"v": value}})]}).data["new"]["v"] for value in values]
    assert len({json.dumps(value) for value in results}) == len(values)


@pytest.mark.parametrize(
    ("fields", "source", "time"),
    [
        ({"eventSourceARN": "stream-ARN"}, "", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ({"eventSourceARN": None}, "", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ({"tableName": "orders"}, "orders", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ({"dynamodb": {"ApproximateCreationDateTime": 1767603600000}}, "orders", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ({"dynamodb": {"ApproximateCreationDateTime": -9e10}}, "orders", None),
        ({"dynamodb": {"ApproximateCreationDateTime": "x"}}, "orders", None),
        ({"dynamodb": {"Keys": 7}}, "orders", None),
    ],
)
def test_odd_changes(fields: dict[str, Any], source: str, time: datetime | None) -> None:
    event = only({"Records": [change(**fields)]})
    assert (event.source, event.time) == (source, time)


def test_a_change_that_is_nested_too_deep() -> None:
    deep: dict[str, Any] = {"S": "x"}
    for _ in range(100_000):
        deep = {"M": {"a": deep}}
    (error,) = read_events({"Records": [change(dynamodb={"Keys": {"a": deep}})]})
    assert str(error).startswith("in the DynamoDB record: is nested deeper than 200 levels")


@pytest.mark.parametrize("value", [{"value": None}, {}, {"value": ""}])
@pytest.mark.parametrize("pipe", [False, True])
def test_a_tombstone_is_the_deletion_of_its_key(value: dict[str, Any], pipe: bool) -> None:
    record = {"topic": "orders", "partition": 0, "offset": 15, "timestamp": 1767603600000, **value}
    record["key"] = b64encode("o-1 é".encode()).decode()
    source = {"eventSource": "aws:kafka", "eventSourceArn": "arn:c"}
    event = only([{**source, **record}] if pipe else {**source, "records": {"orders-0": [record]}})
    assert (event.form, event.id, event.source, event.type) == ("plain", "orders-0-15@1767603600000", "", "")
    assert (event.data, event.time) == (None, datetime(2026, 1, 5, 9, tzinfo=UTC))
    fields = {"topic": "orders", "key": "o-1 é", "timestamp": 1767603600000}
    assert event.attributes == {"kafka": {**fields, "headers": {}}}
    assert json.loads(event.line()) == {**fields, "value": None}


def test_keys_of_tombstones_stay_apart() -> None:
    keys = [None, b64encode(b"\xff").decode(), "not base64!", b64encode(b"").decode(), b64encode(b"/w==").decode()]
    times = [1, "x", None, -(10**30), 10**30]
    records = [{**kafka(None), "offset": n, "key": key, "timestamp": times[n]} for n, key in enumerate(keys)]
    results = read_events({"eventSource": "aws:kafka", "records": {"orders-0": records}})
    events = [each for each in results if isinstance(each, Event)]
    assert [each.attributes["kafka"]["key"] for each in events] == [
        None,
        {"$binary": "/w=="},
        "not base64!",
        "",
        "/w==",
    ]
    assert [each.time is None for each in events] == [False, True, True, True, True]


def in_bytes(**headers: str) -> list[dict[str, list[int]]]:
    return [{name.replace("__", "-"): list(value.encode())} for name, value in headers.items()]


BINARY = {"ce_specversion": "1.0", "ce_id": "c-1", "ce_source": "/shop", "ce_type": "order.placed", "ce_note": "5%25 é"}


@pytest.mark.parametrize("kind", ["application/json", "application/JSON; charset=utf-8"])
def test_a_record_of_kafka_may_be_a_cloudevent_in_binary_mode(kind: str) -> None:
    value = b64encode(b'{"orderId": "o-1"}').decode()
    records = [{**kafka(value), "offset": n, "headers": in_bytes(content__type=kind, **BINARY)} for n in (1, 2)]
    results = read_events({"eventSource": "aws:kafka", "eventSourceArn": "arn", "records": {"orders-0": records}})
    first, second = [each for each in results if isinstance(each, Event)]
    assert (first.form, first.id, first.source, first.type) == ("cloudevents", "c-1", "/shop", "order.placed")
    assert (first.data, first.attributes["note"], first.named_by) == ({"orderId": "o-1"}, "5%25 é", ())
    assert first.line() == second.line()  # a producer's retry


def test_a_cloudevent_of_kafka_may_have_no_data() -> None:
    event = only([{"eventSource": "aws:kafka", **kafka(None), "headers": in_bytes(**BINARY)}])
    assert (event.form, event.id, event.data) == ("cloudevents", "c-1", None)


def test_rules_may_read_the_key_and_the_headers_of_a_record() -> None:
    record = {**kafka(), "timestamp": 5, "key": b64encode(b"o-1").decode(), "headers": in_bytes(Shop="north", x__y="z")}
    fields = {"topic": "orders", "key": "o-1", "timestamp": 5, "headers": {"shop": "north", "x-y": "z"}}
    batch, item = (
        {"eventSource": "aws:kafka", "records": {"orders-0": [record]}},
        [{"eventSource": "aws:kafka", **record}],
    )
    for value in (
        PACKED,
        b64encode(b'{"kafka": {"key": "of its sender"}}').decode(),
        b64encode(b"text").decode(),
        None,
    ):
        for document in (batch, item):
            record["value"] = document[0]["value"] if isinstance(document, list) else value
            event = only(document if isinstance(document, dict) else [{**document[0], "value": value}])
            assert event.attributes["kafka"] == fields
            assert event.document()["kafka"] == fields
    binary = only([{**item[0], "value": b64encode(b"{}").decode(), "headers": in_bytes(ce_kafka="mine", **BINARY)}])
    assert binary.attributes["kafka"]["headers"]["ce_kafka"] == "mine"
    assert json.loads(binary.line())["kafka"] == "mine"  # as its producer sent it


def test_headers_that_name_a_delivery_or_a_caller_name_nothing_on_kafka() -> None:
    headers = in_bytes(idempotency__key="k-1", x__github__delivery="d-1", authorization="Bearer x", webhook__id="w-1")
    value = b64encode(b'{"n": 1}').decode()
    event = only([{"eventSource": "aws:kafka", "eventSourceArn": "arn", **kafka(value), "headers": headers}])
    assert (event.id, event.named_by) == ("orders-0-15", ("arn",))


def test_what_looks_like_a_record_of_kafka_in_a_message_has_no_fields_of_kafka() -> None:
    record = json.dumps({"eventSource": "aws:kafka", **kafka(), "key": b64encode(b"o-1").decode()})
    assert "kafka" not in only({"Records": [sqs(record)]}).attributes


def test_headers_of_kafka_that_make_no_cloudevent() -> None:
    def read(value: Any, headers: Any) -> Event | EventRejected:
        (result,) = read_events([{"eventSource": "aws:kafka", **kafka(value), "headers": headers}])
        return result

    odd: list[Any] = [None, {}, "x", [7], [{"ce_specversion": "1.0"}], [{"ce_specversion": [256]}], [{"x": [255]}]]
    for headers in odd:
        event = read(PACKED, headers)
        assert isinstance(event, Event)
        assert event.id == "e-1"
    structured = b64encode(json.dumps(CLOUDEVENT).encode()).decode()
    event = read(structured, in_bytes(content__type="application/cloudevents+json", **{**BINARY, "ce_id": "other"}))
    assert isinstance(event, Event)
    assert event.id == "c-1"
    without = {name: value for name, value in BINARY.items() if name != "ce_type"}
    assert str(read(PACKED, in_bytes(**without))) == (
        "in the Kafka record: has no ce_type header, which a CloudEvent in binary mode needs"
    )
    assert "is not base64" in str(read("%", in_bytes(**BINARY)))


def test_records_of_services_are_events() -> None:
    event = only({"Records": [{**S3, "eventTime": "2026-01-05T09:00:00Z"}]})
    assert (event.form, event.id, event.source, event.type) == ("plain", "", "aws:s3", "ObjectCreated:Put")
    assert event.time == datetime(2026, 1, 5, 9, tzinfo=UTC)
    trail = {"eventVersion": "1.08", "eventSource": "ec2.amazonaws.com", "eventName": "RunInstances", "eventID": "t-1"}
    assert only({"Records": [{**trail, "id": "not this"}]}).attributes["id"] == "t-1"


def test_s3_through_a_queue_has_the_message_id() -> None:
    event = only({"Records": [sqs(json.dumps({"Records": [S3]}))]})
    assert (event.id, event.source) == ("m-1", "aws:s3")


def test_several_events_in_one_message_have_different_ids() -> None:
    first, second = read_events({"Records": [sqs('[{"orderId": "o-1"}, {"orderId": "o-2"}]')]})
    assert isinstance(first, Event)
    assert isinstance(second, Event)
    assert (first.id, second.id) == ("m-1/1", "m-1/2")


LOGS = {"messageType": "DATA_MESSAGE", "owner": "1", "logGroup": "g", "logStream": "s", "subscriptionFilters": ["f"]}


def logs(*lines: Any, **fields: Any) -> dict[str, Any]:
    """Return a document of CloudWatch Logs, with an id and a time for each line."""
    events = [{"id": f"l-{at}", "timestamp": 1767603600000, "message": line} for at, line in enumerate(lines, 1)]
    return {**LOGS, "logEvents": events, **fields}


def zipped(document: Any) -> str:
    return b64encode(gzip.compress(json.dumps(document).encode(), mtime=0)).decode()


LINES = ["[INFO] started\n", '{"orderId": "o-1"}', '{"orderId": ', json.dumps([1]), json.dumps({"Records": [sqs()]})]


@pytest.mark.parametrize("way", ["function", "stream", "bare"])
def test_each_log_event_is_an_event(way: str) -> None:
    document = logs(*LINES)
    packed = {"awslogs": {"data": zipped(document)}}
    in_stream = {"Records": [kinesis(zipped(document))]}
    results = read_events({"function": packed, "stream": in_stream, "bare": document}[way])
    events = [each for each in results if isinstance(each, Event)]
    assert [each.id for each in events] == [f"l-{at}" for at in range(1, 6)]
    # A line that holds a document of a carrier is what its writer logged, and no message of that carrier.
    assert [each.data for each in events] == [LINES[0], {"orderId": "o-1"}, *LINES[2:4], {"Records": [sqs()]}]
    assert {(each.source, each.type, each.time) for each in events} == {
        ("g", "DATA_MESSAGE", datetime(2026, 1, 5, 9, tzinfo=UTC))
    }
    assert events[0].attributes == LOGS
    for each in events:  # alone it is a document of CloudWatch Logs too, so that a dead letter of it can be read
        again = only(each.line())
        assert (again.id, again.data, again.attributes, again.time) == (each.id, each.data, each.attributes, each.time)


def test_odd_log_events() -> None:
    first, second, third, fourth = read_events(
        {
            **LOGS,
            "logEvents": [7, {}, {"id": 7, "timestamp": "x", "message": {"a": 1}}, {"id": "4", "timestamp": 10**30}],
        }
    )
    assert str(first) == "is a number, not a JSON object"
    for event, expected in ((second, ("", None)), (third, ("7", {"a": 1})), (fourth, ("4", None))):
        assert isinstance(event, Event)
        assert (event.id, event.data, event.time) == (*expected, None)
    assert only({**LOGS, "logEvents": []}).form == "plain"


def test_a_control_message_of_cloudwatch_logs_can_be_told_by_its_type() -> None:
    control = logs("CWL CONTROL MESSAGE: Checking health", messageType="CONTROL_MESSAGE", owner="CloudwatchLogs")
    control["logEvents"][0]["id"] = ""
    event = only({"Records": [kinesis(zipped(control))]})
    assert (event.type, event.id) == ("CONTROL_MESSAGE", "shard:1")


def test_lines_of_logs_cost_no_more_than_a_document() -> None:
    tiny = '{"a":[' + ",".join(["[]"] * 1000) + "]}"
    plain = json.dumps(logs(*[tiny] * 600)).encode()
    for body in (plain, gzip.compress(plain)):
        results = read_message(Carried(body, "kinesis", "s:1"), 2_000_000, 2_000_000)
        refused = [str(each) for each in results if isinstance(each, EventRejected)]
        assert 0 < len(refused) < 600
        assert "its message holds more than 250,000 values" in refused[0]
    (bomb,) = read_events({"awslogs": {"data": zipped(logs("x" * 3_000_000))}}, 2_000_000)
    assert str(bomb) == "in the CloudWatch Logs record: unpacks to more than the limit of 2,000,000 bytes"
    (many,) = read_message(unpack({"awslogs": {"data": zipped(logs(*["x"] * 10_001))}})[0])
    assert str(many) == "in the CloudWatch Logs record: holds more than 10,000 events; send fewer at a time"


# --- brokers ---


def activemq(data: Any = PACKED, name: str = "ID:1", **fields: Any) -> dict[str, Any]:
    message = {"messageID": name, "redelivered": False, "destination": {"physicalName": "orders"}, "data": data}
    return {**message, **fields}


def rabbitmq(data: Any = PACKED, name: str | None = "m-1", user: str | None = None) -> dict[str, Any]:
    return {"basicProperties": {"messageId": name, "userId": user}, "redelivered": False, "data": data}


def broker(*messages: Any, queue: str | None = None, arn: str = "arn:broker") -> dict[str, Any]:
    """Return a batch of ActiveMQ, or of RabbitMQ if there is a queue."""
    if queue is None:
        return {"eventSource": "aws:mq", "eventSourceArn": arn, "messages": list(messages)}
    return {"eventSource": "aws:rmq", "eventSourceArn": arn, "rmqMessagesByQueue": {queue: list(messages)}}


@pytest.mark.parametrize(
    ("data", "value"),
    [(b'{"orderId": "o-1"}', {"orderId": "o-1"}), (b"text", "text"), (b"", ""), (b"\xff", "/w==")],
)
def test_messages_of_brokers_are_taken_apart(data: bytes, value: Any) -> None:
    packed = b64encode(data).decode()
    pairs = [
        (broker(activemq(packed)), "ID:1", "activemq"),
        ([{"eventSource": "aws:amq", "eventSourceArn": "arn:broker", **activemq(packed)}], "ID:1", "activemq"),
        (broker(rabbitmq(packed), queue="q::/"), "m-1", "rabbitmq"),
        ([{"eventSource": "aws:rmq", "eventSourceKey": "q::/", **rabbitmq(packed)}], "m-1", "rabbitmq"),
    ]
    for document, name, field in pairs:
        event = only(document)
        assert (event.id, event.data) == (name, value)
        assert event.attributes[field]["redelivered"] is False
        assert "data" not in event.attributes[field]
    assert event.attributes["rabbitmq"]["queue"] == "q::/"
    assert only(broker(activemq(), queue=None)).id == "e-1"


def test_all_messages_of_all_queues_are_read() -> None:
    document = broker(rabbitmq(), 7, queue="q::/")
    document["rmqMessagesByQueue"] |= {"r::/": [rabbitmq("%")], "s::/": "x", "t::/": []}
    assert [str(each) if isinstance(each, EventRejected) else each.id for each in read_events(document)] == [
        "e-1",
        "is a number, not a JSON object",
        "in the RabbitMQ message: has data that is not base64",
        "is a string, not a JSON object",
    ]
    results = [str(each) for each in read_events(broker(7, activemq(None), activemq("%")))]
    assert results == [
        "is a number, not a JSON object",
        "in the ActiveMQ message: has no data",
        "in the ActiveMQ message: has data that is not base64",
    ]


# --- batches of other services ---


@pytest.mark.parametrize(
    ("document", "service"),
    [
        (
            {"eventSource": "aws:docdb", "eventSourceArn": "arn", "events": [{"event": {"_id": {}}}]},
            "Amazon DocumentDB",
        ),
        ({"eventSource": "aws:SelfManagedKafka", "records": {"t-0": [kafka()]}}, "'aws:SelfManagedKafka'"),
        ({"eventSource": "aws:new\n" + "x" * 100, "items": [{"n": 1}]}, "'aws:new\\n" + "x" * 70),
    ],
)
def test_a_batch_of_another_service_is_refused_by_name(document: dict[str, Any], service: str) -> None:
    for body in (document, {"Records": [sqs(json.dumps(document))]}, [document]):
        (error,) = read_events(body)
        assert f"is a batch of {service}, which is not taken apart; pass its events one by one to once.run" in str(
            error
        )


def test_what_is_no_batch_of_a_service_is_an_event() -> None:
    for document in ({"eventSource": "aws:mine", "n": 1, "tags": ["a"]}, {"eventSource": "mine", "items": [{"n": 1}]}):
        assert only(document).data == document


# --- payloads in S3 ---

POINTERS = {
    name: json.dumps([name, {"s3BucketName": "b", "s3Key": "k"}])
    for name in ("software.amazon.payloadoffloading.PayloadS3Pointer", "com.amazon.sqs.javamessaging.MessageS3Pointer")
}


@pytest.mark.parametrize("pointer", POINTERS.values(), ids=POINTERS)
def test_a_pointer_of_an_extended_client_is_refused_with_the_remedy(pointer: str) -> None:
    notice = json.dumps({**NOTICE, "Message": pointer})
    for document in (
        {"Records": [sqs(pointer)]},
        {"Records": [sqs(notice)]},
        {"Records": [sns(pointer)]},
        [sqs(pointer)],
    ):
        (error,) = read_events(document)
        assert "is a pointer to a payload in S3 by the extended client of SQS or SNS, not the event; read it" in str(
            error
        )


def test_what_only_resembles_a_pointer_is_read() -> None:
    for body in ('[{"n": 1}, {"s3BucketName": "b", "s3Key": "k"}]', '{"s3BucketName": "b", "s3Key": "k"}'):
        assert {type(each) for each in read_events({"Records": [sqs(body)]})} == {Event}


def test_what_is_not_json_is_text_or_base64() -> None:
    assert only({"Records": [sqs("Test message.")]}).data == "Test message."
    assert only({"Records": [sqs("42")]}).data == "42"
    assert only({"Records": [kinesis(b64encode(b"\xff\x00").decode())]}).data == "/wA="


def test_an_aggregate_of_the_producer_library_is_named() -> None:
    (error,) = read_events([flat(b64encode(b"\xf3\x89\x9a\xc2...").decode())])
    assert "in the Kinesis record: is an aggregate of the Kinesis Producer Library" in str(error)


def test_small_bombs_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.event.formats.reader.MAX_BATCH", 5000)
    bomb = b64encode(gzip.compress(json.dumps({"a": "x" * 2000}).encode())).decode()
    kinds = [type(each) for each in read_events([flat(bomb)] * 4, max_bytes=3000)]
    assert kinds == [Event, Event, EventRejected, EventRejected]


def test_a_batch_may_be_larger_than_an_event() -> None:
    body = json.dumps({"Records": [sqs()] * 100})
    assert {type(each) for each in read_events(body, max_bytes=1000)} == {Event}
    (error,) = read_events(json.dumps({"orderId": "x" * 2000}), max_bytes=1000)
    assert str(error) == "has 2,015 bytes, over the limit of 1,000"


def test_a_request_in_binary_mode() -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "c-1", "ce-source": "/shop", "ce-type": "order.placed"}
    event = only(http('{"orderId": "o-1"}', headers={**headers, "Content-Type": "application/json"}))
    assert (event.form, event.id, event.data) == ("cloudevents", "c-1", {"orderId": "o-1"})
    several = {name: [value] for name, value in headers.items()}
    assert only(http(None, headers=None, multiValueHeaders=several)).id == "c-1"
    packed = http(b64encode(b"\xff").decode(), headers=headers, isBase64Encoded=True)
    assert only(packed).data == "/w=="


@pytest.mark.parametrize("kind", ["application/cloudevents+json", "application/cloudevents-batch+json"])
def test_a_request_in_structured_mode_or_a_batch(kind: str) -> None:
    body = json.dumps([CLOUDEVENT] if "batch" in kind else CLOUDEVENT)
    assert only(http(body, headers={"Content-Type": kind, "ce-specversion": "1.0"})).id == "c-1"


def test_entries_of_put_events_are_events_without_an_id() -> None:
    event = only([{**ENTRY, "Time": "2026-01-05T09:00:00Z", "Resources": ["arn"]}])
    assert (event.form, event.id, event.source, event.type) == ("eventbridge", "", "shop", "Order Placed")
    assert event.data == {"orderId": "o-1"}
    assert event.time == datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert event.attributes["resources"] == ["arn"]


def test_a_record_written_by_hand_may_hold_an_object() -> None:
    assert only({"Records": [sqs(EVENT)]}).id == "e-1"


def test_bodies_that_are_no_documents() -> None:
    event = Event(id="x", data=None)
    assert read_events(event) == [event]
    assert [str(each) for each in read_events(42)] == [
        "is of type int, not an event; pass bytes, text, a mapping, a model or an Event"
    ]
    assert [str(each) for each in read_events([b"{}"])] == ["is of type bytes, not a JSON object"]
    assert read_events(b"[]") == []
    assert str(read_events("text")[0]).startswith("is not JSON")


def test_a_message_may_be_bare_text_and_must_have_a_body() -> None:
    (event,) = read_message(Carried("hello", "sqs", "m-1"))
    assert isinstance(event, Event)
    assert (event.id, event.data) == ("m-1", "hello")
    (rejected,) = read_message(unpack({"Records": [sqs(None)]})[0])
    assert str(rejected) == "in the SQS message: has no body"


def test_a_message_holds_so_many_events_and_no_more() -> None:
    def read(message: Any) -> list[Event | EventRejected]:
        return read_message(Carried(json.dumps(message), "sqs", "m-1"))

    many = json.dumps([{"n": 1}] * 100)
    assert len(read([{"n": 1}] * 10_000)) == 10_000
    assert len(read([sqs(many)] * 100)) == 10_000
    too_many: list[Any] = [[{}] * 10_001, {"Records": [sqs()] * 10_001}, [sqs(many)] * 101, [*[sqs(many)] * 200, sqs()]]
    for message in too_many:
        (error,) = read(message)
        assert str(error) == "in the SQS message: holds more than 10,000 events; send fewer at a time"
    assert len(read_events([{"n": 1}] * 10_001)) == 10_001  # a document of one's own is not a message
