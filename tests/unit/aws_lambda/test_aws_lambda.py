"""The Lambda handler: every shape is recognised by itself and answered in its carrier's own words."""

import asyncio
import gzip
import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from eventonce import EventRejected, Once, Rule
from eventonce.auth import Auth, Bearer, Hmac, Sns, Stripe, github, shopify
from eventonce.claims.protocol import ClaimRequest
from eventonce.errors import ConfigError, EventBusy, StoreError
from eventonce.event import Event
from eventonce.event.formats import read_event, read_events
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from eventonce.webhook import Webhook
from tests.unit.conftest import Faulty
from tests.unit.webhook import test_webhook_sns
from tests.unit.webhook.test_webhook_app import ask


class Function:
    """A Lambda function whose handler fails for some events."""

    def __init__(self, store: Any = None, **settings: Any) -> None:
        rule = Rule(name="r", key=["id"], remember=settings.pop("remember", "seen"))
        self.store = store or MemoryStore()
        self.once = Once(self.store, rules=rule, consumer="billing", **settings)
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.returns: Any = None
        self.handler = self.once.aws_lambda(self._handle)
        self.enrichment = self.once.aws_lambda(self._handle, enrichment=True)

    def _handle(self, event: Event) -> Any:
        self.ran.append(event.id)
        if event.id in self.fails:
            raise ValueError(f"no {event.id}")
        return self.returns(event) if callable(self.returns) else self.returns


@pytest.fixture
def function() -> Iterator[Function]:
    made = Function()
    yield made
    made.once.close()


def bridge(number: object, **more: Any) -> dict[str, Any]:
    return {
        "version": "0", "id": str(number), "detail-type": "Order", "source": "shop", "account": "1",
        "time": "2026-01-01T00:00:00Z", "region": "eu-west-1", "resources": [], "detail": {"n": str(number)}, **more,
    }  # fmt: skip


def test_what_a_handler_writes_into_its_event_is_not_handed_on(function: Function) -> None:
    function.returns = lambda event: event.data.clear()
    for item in (bridge(1), {"id": "2", "lines": ["book"]}):
        arguments = json.loads(json.dumps(item))
        assert function.enrichment([arguments], None) == [item]
        assert arguments == item


def test_a_version_beyond_the_clock_is_refused_in_a_function_too() -> None:
    with Once("memory:", rules=Rule(name="rides", key=["detail.ride"], version="detail.v")) as once:
        ran: list[int] = []
        handler = once.aws_lambda(lambda event: ran.append(event.data["v"]))
        bodies = [json.dumps(bridge(n, detail={"ride": 1, "v": v})) for n, v in enumerate([2**63 - 1, 1, 2])]
        answer = handler(sqs(*bodies), None)
    assert (answer, ran) == ({"batchItemFailures": [{"itemIdentifier": "m-1"}]}, [1, 2])


def packed(value: Any) -> str:
    return b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).decode()


def sqs(*numbers: object, groups: str = "", **more: Any) -> dict[str, Any]:
    """Return the messages m-1, m-2 and so on. For a FIFO queue `groups` has a letter for each."""
    return {
        "Records": [
            {
                "messageId": f"m-{place}",
                "receiptHandle": "r",
                "body": number if isinstance(number, str) else json.dumps(bridge(number)),
                "attributes": {"MessageGroupId": groups[place - 1]} if groups else {},
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:eu-west-1:1:q" + (".fifo" if groups else ""),
                **more,
            }
            for place, number in enumerate(numbers, 1)
        ]
    }


def kinesis(*numbers: object) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventID": f"shardId-0:{place}",
                "eventSource": "aws:kinesis",
                "kinesis": {"sequenceNumber": f"s-{place}", "partitionKey": "p", "data": packed(bridge(number))},
            }
            for place, number in enumerate(numbers, 1)
        ]
    }


def dynamodb(*numbers: int) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventID": f"{number}",
                "eventName": "INSERT",
                "eventSource": "aws:dynamodb",
                "dynamodb": {
                    "Keys": {"pk": {"S": str(number)}},
                    "NewImage": {"pk": {"S": str(number)}},
                    "SequenceNumber": f"s-{number}",
                    "StreamViewType": "NEW_AND_OLD_IMAGES",
                },
            }
            for number in numbers
        ]
    }


def kafka(*numbers: object, partition: int = 0, first: int = 10, source: str = "aws:kafka") -> dict[str, Any]:
    """Return records of one partition. None is a tombstone, and a string is the value as it is."""
    values = [each.encode() if isinstance(each, str) else bridge(each) for each in numbers]
    records = [
        {
            "topic": "o",
            "partition": partition,
            "offset": first + at,
            "timestamp": 1000 + at,
            "key": packed(f"k{number}".encode()),
            "value": None if number is None else packed(values[at]),
        }
        for at, number in enumerate(numbers)
    ]
    return {"eventSource": source, "bootstrapServers": "b:9092", "records": {f"o-{partition}": records}}


def sns(number: object) -> dict[str, Any]:
    notice = {"Type": "Notification", "MessageId": "n-1", "TopicArn": "arn", "Message": json.dumps(bridge(number))}
    return {"Records": [{"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": notice}]}


def firehose(*numbers: object) -> dict[str, Any]:
    records = [{"recordId": f"f-{number}", "data": packed(bridge(number))} for number in numbers]
    return {"invocationId": "i", "deliveryStreamArn": "arn", "region": "eu-west-1", "records": records}


def logs(number: object) -> dict[str, Any]:
    return {"awslogs": {"data": b64encode(gzip.compress(json.dumps(bridge(number)).encode())).decode()}}


def pipe(*numbers: object, place: int = 1) -> list[dict[str, Any]]:
    return [{**record, "messageId": f"m-{at}"} for at, record in enumerate(sqs(*numbers)["Records"], place)]


def request(body: Any, **more: Any) -> dict[str, Any]:
    context = {"http": {"method": "POST"}}
    text = body if isinstance(body, str) else json.dumps(body)
    return {"version": "2.0", "rawPath": "/", "headers": {}, "requestContext": context, "body": text, **more}


def failures(answer: dict[str, Any]) -> list[Any]:
    return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


# --- direct ---


def test_an_event_of_eventbridge(function: Function) -> None:
    function.returns = {"charged": 1}
    assert function.handler(bridge(1), None) == {"charged": 1}
    assert function.handler(bridge(1), None) is None  # a duplicate, whose result is not remembered
    assert function.ran == ["1"]


CLOUDEVENT = {
    "specversion": "1.0",
    "id": "c-1",
    "source": "/shop",
    "type": "order",
    "subject": "o-1",
    "data": {"n": "1"},
}


@pytest.mark.parametrize(
    "document", [bridge(1), {"id": "1", "n": 1}, CLOUDEVENT], ids=["bridge", "plain", "cloudevent"]
)
def test_a_handler_can_pass_on_the_whole_event_of_a_direct_invocation(function: Function, document: Any) -> None:
    seen: list[Event] = []
    function.returns = seen.append
    function.handler(document, None)
    function.handler(sqs(json.dumps({**document, "id": "2"})), None)
    direct, queued = seen
    assert (direct.raw, queued.raw) == (b"", json.dumps({**document, "id": "2"}).encode())
    assert json.loads(direct.line()) == document
    assert queued.line() == queued.raw
    assert direct.document()["detail"] == (document.get("detail") or document.get("data") or document)
    assert {**queued.document(), "id": document["id"]}.keys() == direct.document().keys()


def test_a_remembered_result_is_the_answer_to_a_duplicate() -> None:
    function = Function(remember="result")
    function.returns = {"charged": 1}
    assert [function.handler(bridge(1), None) for _ in range(2)] == [{"charged": 1}] * 2
    function.once.close()


def test_a_direct_failure_is_raised_so_that_lambda_retries(function: Function) -> None:
    function.fails.add("1")
    with pytest.raises(ValueError, match="no 1"):
        function.handler(bridge(1), None)
    function.fails.clear()
    function.handler(bridge(1), None)
    assert function.ran == ["1", "1"]


def test_a_busy_copy_is_raised(function: Function) -> None:
    function.store.claim([ClaimRequest(function.once.key(bridge(1)), 60_000)], b"another1", 60_000)
    with pytest.raises(EventBusy):
        function.handler(bridge(1), None)


def test_a_list_of_events_is_raised_as_a_whole_after_all_have_run(function: Function) -> None:
    function.fails.add("1")
    with pytest.raises(ValueError, match="no 1"):
        function.handler([bridge(1), bridge(2), bridge(1)], None)
    assert function.ran == ["1", "2"]
    function.fails.clear()
    assert function.handler([bridge(1), bridge(2)], None) is None
    assert function.ran == ["1", "2", "1"]


def test_the_new_bus_with_metadata(function: Function) -> None:
    event = {"Data": bridge(1), "SystemMetadata": {"aws:EventId": "e", "aws:DeliveryType": "LIVE"}}
    function.handler(event, None)
    function.handler(bridge(1), None)
    assert function.ran == ["1"]


def test_the_new_bus_is_believed_and_its_data_is_not() -> None:
    ran: list[tuple[str, str]] = []
    with Once("memory:") as once:
        handler = once.aws_lambda(lambda event: ran.append((event.source, event.id)))
        raw = {"aws:EventId": "b-1", "aws:DeliveryType": "LIVE"}  # of PutRawEvents, which takes any payload
        with pytest.raises(EventRejected, match="which the bus does not confirm"):
            handler([{"Data": bridge(1, source="aws.s3"), "SystemMetadata": raw}], None)
        with pytest.raises(EventRejected, match="but the bus confirms aws:Source 'evil'"):
            handler([{"Data": bridge(1, source="aws.s3"), "SystemMetadata": {**raw, "aws:Source": "evil"}}], None)
        handler([{"Data": bridge(2, source="evil"), "SystemMetadata": raw}], None)  # ahead of the genuine event
        genuine = {**raw, "aws:Source": "shop", "aws:DetailType": "Order"}
        handler([{"Data": bridge(2), "SystemMetadata": genuine}, {"Data": bridge(2), "SystemMetadata": genuine}], None)
    assert ran == [("evil", "2"), ("shop", "2")]


def test_an_async_handler(function: Function) -> None:
    ran = []

    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        ran.append(event.id)

    handler = function.once.aws_lambda(handle)
    assert handler(sqs(1, 2, 1), None) == {"batchItemFailures": []}
    assert handler(sqs(3), None) == {"batchItemFailures": []}
    assert sorted(ran) == ["1", "2", "3"]


# --- SQS ---


def test_messages_that_failed_are_named(function: Function) -> None:
    function.fails.add("2")
    assert failures(function.handler(sqs(1, 2, 3, 1), None)) == ["m-2"]
    assert function.ran == ["1", "2", "3"]


def test_a_copy_of_what_failed_comes_back_too(function: Function) -> None:
    function.fails.add("1")
    assert failures(function.handler(sqs(1, 2, 1), None)) == ["m-1", "m-3"]


def test_a_busy_message_comes_back(function: Function) -> None:
    function.store.claim([ClaimRequest(function.once.key(bridge(2)), 60_000)], b"another1", 60_000)
    assert failures(function.handler(sqs(1, 2, 3), None)) == ["m-2"]


def test_messages_come_back_when_the_store_does_not_answer() -> None:
    function = Function(Faulty("claim"))
    assert failures(function.handler(sqs(1, 2), None)) == ["m-1", "m-2"]
    assert function.ran == []
    function.once.close()


@pytest.mark.parametrize("body", ["{", "", "[]", '{"Type": "Notification", "TopicArn": "a", "Message": "{"}', "{}"])
def test_a_malformed_message_comes_back_and_the_others_go_on(function: Function, body: str) -> None:
    event = sqs(1, "x", 3)
    event["Records"][1]["body"] = body
    results = failures(function.handler(event, None))
    if body == "{}":  # an object without an id goes by its message's
        assert results == []
    else:
        assert results == ["m-2"]
    assert function.ran[0] == "1"
    assert function.ran[-1] == "3"


def test_sns_inside_sqs(function: Function) -> None:
    notice = {"Type": "Notification", "MessageId": "n", "TopicArn": "arn", "Message": json.dumps(bridge(1))}
    function.handler(sqs(json.dumps(notice), 1), None)
    assert function.ran == ["1"]


def test_a_message_with_several_events_is_done_when_all_are(function: Function) -> None:
    function.fails.add("2")
    batch = json.dumps([bridge(1), bridge(2)])
    assert failures(function.handler(sqs(batch, 3), None)) == ["m-1"]
    function.fails.clear()
    assert failures(function.handler(sqs(batch, 3), None)) == []
    assert function.ran == ["1", "2", "3", "2"]


def test_fifo_stops_a_group_at_its_first_failure_and_others_go_on(function: Function) -> None:
    function.fails.add("2")
    assert failures(function.handler(sqs(1, 2, 3, 4, 5, groups="aabab"), None)) == ["m-2", "m-4"]
    assert sorted(function.ran) == ["1", "2", "3", "5"]


def test_fifo_stops_a_group_at_a_busy_message(function: Function) -> None:
    function.store.claim([ClaimRequest(function.once.key(bridge(1)), 60_000)], b"another1", 60_000)
    assert failures(function.handler(sqs(1, 2, 3, groups="aab"), None)) == ["m-1", "m-2"]
    assert function.ran == ["3"]


def test_groups_of_a_standard_queue_have_no_order(function: Function) -> None:
    event = sqs(1, 2, groups="aa", eventSourceARN="arn:aws:sqs:eu-west-1:1:q")
    function.fails.add("1")
    assert failures(function.handler(event, None)) == ["m-1"]


def test_a_message_without_an_id_is_refused_because_its_failure_cannot_be_reported(function: Function) -> None:
    event = sqs(1)
    del event["Records"][0]["messageId"]
    with pytest.raises(EventRejected, match="has no id"):
        function.handler(event, None)
    assert function.ran == []


# --- streams ---


@pytest.mark.parametrize("stream", [kinesis, dynamodb])
def test_a_stream_stops_at_one_checkpoint(function: Function, stream: Callable[..., dict[str, Any]]) -> None:
    function.fails.add("2")
    assert failures(function.handler(stream(1, 2, 3), None)) == ["s-2"]
    assert function.ran == ["1", "2"]
    function.fails.clear()
    assert function.handler(stream(2, 3), None) == {"batchItemFailures": []}
    assert function.ran == ["1", "2", "2", "3"]


def test_gzip_inside_a_stream(function: Function) -> None:
    event = kinesis(1)
    event["Records"][0]["kinesis"]["data"] = packed(gzip.compress(json.dumps(bridge(1)).encode()))
    assert failures(function.handler(event, None)) == []
    assert function.ran == ["1"]


def test_a_tumbling_window_keeps_its_state(function: Function) -> None:
    event = {**kinesis(1), "window": {"start": "a", "end": "b"}, "state": {"sum": 3}}
    assert function.handler(event, None) == {"batchItemFailures": [], "state": {"sum": 3}}


def test_a_tumbling_window_ends_without_records(function: Function) -> None:
    event = {"Records": [], "window": {"start": "a", "end": "b"}, "state": {"sum": 3}, "isFinalInvokeForWindow": True}
    assert function.handler(event, None) == {"batchItemFailures": [], "state": {"sum": 3}}


# --- Kafka ---


TOMBSTONE_RULES = {
    "none": None,
    "content": Rule(name="r", key="content"),
    "paths": Rule(name="r", key=["detail.n"], version="detail.n", max_age="36500d"),
    "attributes": Rule(name="r", key=["detail.n || kafka.topic"], replaces={"name": "old", "key": "content"}),
    "otherwise": Rule(name="r", key=["detail.n"], otherwise="content"),
    "powertools": Rule(name="r", key=["detail.n"], digest="powertools"),
}


def of_kafka(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = event.attributes["kafka"]
    return fields


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("rule", TOMBSTONE_RULES)
def test_a_tombstone_is_an_event_under_every_rule_and_the_batch_goes_on(value: Any, rule: str) -> None:
    seen: list[Any] = []
    with Once("memory:", rules=TOMBSTONE_RULES[rule] or (), consumer="billing") as once:
        handler = once.aws_lambda(lambda event: seen.append((event.data or {}).get("n") or of_kafka(event)["key"]))
        for _ in range(2):
            assert handler(kafka(1, value, 2, value), None) is None
    assert seen == ["1", f"k{value}", "2", f"k{value}"]


CLOUDEVENT_HEADERS = {"ce_specversion": "1.0", "ce_id": "c-1", "ce_source": "/shop", "ce_type": "order"}


@pytest.mark.parametrize("missing", [None, "ce_id", "ce_source", "ce_type"])
@pytest.mark.parametrize("rule", TOMBSTONE_RULES)
def test_a_tombstone_with_headers_of_a_cloudevent_stops_no_partition(rule: str, missing: str | None) -> None:
    event = kafka(1, None, 2)
    headers = [{name: list(value.encode())} for name, value in CLOUDEVENT_HEADERS.items() if name != missing]
    event["records"]["o-0"][1]["headers"] = headers
    seen: list[Any] = []
    with Once("memory:", rules=TOMBSTONE_RULES[rule] or (), consumer="billing") as once:
        handler = once.aws_lambda(lambda event: seen.append(event.data and event.data["n"]))
        for _ in range(2):
            assert handler(event, None) is None
    assert seen == ["1", None, "2"]


def test_a_tombstone_that_is_a_cloudevent_is_known_by_its_own_name() -> None:
    first, retry, other = kafka(None), kafka(None, first=11), kafka(None, first=12)
    for number, event in (("c-1", first), ("c-1", retry), ("c-2", other)):
        given = {**CLOUDEVENT_HEADERS, "ce_id": number, "ce_subject": "o-7", "ce_count": "3"}
        event["records"]["o-0"][0]["headers"] = [{name: list(value.encode())} for name, value in given.items()]
    rules = [Rule(name="content", key="content"), Rule(name="subject", key=["subject"], version="count")]
    for rule, count in zip(rules, (2, 1), strict=True):
        seen: list[str] = []
        with Once("memory:", rules=rule, consumer="billing") as once:
            handler = once.aws_lambda(lambda event, seen=seen: seen.append(event.id))
            for event in (first, retry, other):
                handler(event, None)
        assert seen == ["c-1", "c-2"][:count]


@pytest.mark.parametrize("source", ["aws:kafka", "SelfManagedKafka"])
def test_nothing_of_a_partition_runs_after_a_record_that_failed(function: Function, source: str) -> None:
    function.fails.add("2")
    event = kafka(1, 2, 3, source=source)
    event["records"] |= kafka(4, 5, partition=1)["records"]
    with pytest.raises(ValueError, match="no 2"):
        function.handler(event, None)
    assert sorted(function.ran) == ["1", "2", "4", "5"]
    function.fails.clear()
    assert function.handler(event, None) is None
    assert [each for each in function.ran if each in "123"] == ["1", "2", "2", "3"]
    assert sorted(function.ran) == ["1", "2", "2", "3", "4", "5"]


def test_a_broken_record_of_kafka_stops_its_partition_alone(function: Function) -> None:
    handler = function.once.aws_lambda(function._handle, report_kafka_failures=True)
    event = kafka(1, '{"id": ', 3)
    event["records"] |= kafka(4, partition=1)["records"]
    assert failures(handler(event, None)) == [{"partition": "o-0", "offset": n} for n in (11, 12)]
    assert sorted(function.ran) == ["1", "4"]


def test_a_busy_record_of_kafka_stops_its_partition(function: Function) -> None:
    handler = function.once.aws_lambda(function._handle, report_kafka_failures=True)
    function.store.claim([ClaimRequest(function.once.key(bridge(1)), 60_000)], b"another1", 60_000)
    assert failures(handler(kafka(1, 2), None)) == [{"partition": "o-0", "offset": n} for n in (10, 11)]
    assert function.ran == []


def test_kafka_gets_an_empty_list_on_success(function: Function) -> None:
    handler = function.once.aws_lambda(function._handle, report_kafka_failures=True)
    assert handler(kafka(1, 2, 1), None) == {"batchItemFailures": []}


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("reports", [True, False])
def test_a_mapping_of_kafka_loses_nothing_and_keeps_the_order(function: Function, reports: bool, resumes: bool) -> None:
    """A mapping that goes on from the first offset that is named, and one that sends again only what is named."""
    handler = function.once.aws_lambda(function._handle, report_kafka_failures=reports)
    function.fails |= {"2", "6"}
    records = {**kafka(*range(1, 5))["records"], **kafka(*range(5, 9), partition=1)["records"]}
    rounds = 0
    while records:
        rounds += 1
        if rounds == 3:
            function.fails.clear()
        try:
            response = failures(handler({**kafka(), "records": records}, None))
        except ValueError:
            assert not reports
            continue  # all of it
        except TypeError:
            break  # no failure was reported: all is done
        named = {(each["partition"], each["offset"]) for each in response}
        assert named <= {(name, record["offset"]) for name, of in records.items() for record in of}
        again: dict[str, Any] = {}
        for name, of in records.items():
            offsets = [offset for partition, offset in named if partition == name]
            again[name] = [
                each for each in of
                if (offsets and each["offset"] >= min(offsets) if resumes else (name, each["offset"]) in named)
            ]  # fmt: skip
        records = {name: of for name, of in again.items() if of}
    assert rounds == 3
    done = [each for at, each in enumerate(function.ran) if each not in function.ran[at + 1 :]]
    assert [each for each in done if each in "1234"] == ["1", "2", "3", "4"]
    assert [each for each in done if each in "5678"] == ["5", "6", "7", "8"]
    assert {each for each in function.ran if function.ran.count(each) > 1} == {"2", "6"}


def test_partitions_without_records_are_nothing_to_do(function: Function) -> None:
    assert function.handler({**kafka(), "records": {"o-0": []}}, None) is None
    function.handler({**kafka(), "records": {"o-0": [], **kafka(1, partition=1)["records"]}}, None)
    assert function.ran == ["1"]


@pytest.mark.parametrize("records", [{"o-0": {"topic": "o"}}, {"o-0": "x", "o-1": []}])
def test_a_partition_that_is_not_a_list_is_refused(function: Function, records: Any) -> None:
    with pytest.raises(EventRejected, match="has a partition that is not a list of records"):
        function.handler({**kafka(), "records": records}, None)


def test_a_pipe_of_kafka_keeps_the_order_of_a_partition(function: Function) -> None:
    function.fails.add("2")
    items = [
        {"eventSource": "aws:kafka", "eventSourceArn": "arn", **record}
        for each in (kafka(1, 2, 3), kafka(4, partition=1)) for of in each["records"].values() for record in of
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no 2"):
        function.handler(items, None)
    assert sorted(function.ran) == ["1", "2", "4"]


# --- batches of brokers and of logs: one failure brings all of it back, and what was done is a duplicate ---


def activemq(*numbers: object) -> dict[str, Any]:
    messages = [
        {"messageID": f"ID:{n}", "redelivered": False, "data": packed(n.encode() if isinstance(n, str) else bridge(n))}
        for n in numbers
    ]
    return {"eventSource": "aws:mq", "eventSourceArn": "arn", "messages": messages}


def rabbitmq(*numbers: object) -> dict[str, Any]:
    queues: dict[str, list[Any]] = {"a::/": [], "b::/": []}
    for at, n in enumerate(numbers):
        data = packed(n.encode() if isinstance(n, str) else bridge(n))
        queues["ab"[at % 2] + "::/"].append(
            {"basicProperties": {"messageId": None}, "redelivered": False, "data": data}
        )
    return {"eventSource": "aws:rmq", "eventSourceArn": "arn", "rmqMessagesByQueue": queues}


def log_batch(*numbers: object) -> dict[str, Any]:
    names = {"messageType": "DATA_MESSAGE", "owner": "1", "logGroup": "g", "logStream": "s", "subscriptionFilters": []}
    events = [{"id": str(n), "timestamp": 1767603600000, "message": f"line {n}"} for n in numbers]
    return {"awslogs": {"data": b64encode(gzip.compress(json.dumps({**names, "logEvents": events}).encode())).decode()}}


def redelivered(document: dict[str, Any]) -> dict[str, Any]:
    """Return a batch as its broker sends it again."""
    return json.loads(json.dumps(document).replace('"redelivered": false', '"redelivered": true'))  # type: ignore[no-any-return]


RETRIED = {"ActiveMQ": activemq, "RabbitMQ": rabbitmq, "CloudWatch Logs": log_batch}


@pytest.mark.parametrize("batch", RETRIED.values(), ids=RETRIED)
def test_one_failure_brings_a_batch_back_and_nothing_runs_twice(function: Function, batch: Any) -> None:
    function.fails.add("2")
    with pytest.raises(ValueError, match="no 2"):
        function.handler(batch(1, 2, 3), None)
    assert sorted(function.ran) == ["1", "2", "3"]
    with pytest.raises(ValueError, match="no 2"):
        function.handler(redelivered(batch(1, 2, 3)), None)
    function.fails.clear()
    assert function.handler(redelivered(batch(1, 2, 3)), None) is None
    assert function.handler(batch(1, 2, 3), None) is None
    assert sorted(function.ran) == ["1", "2", "2", "2", "3"]


@pytest.mark.parametrize("batch", RETRIED.values(), ids=RETRIED)
def test_a_batch_with_a_busy_event_comes_back(function: Function, batch: Any) -> None:
    (event, *_) = [each for each in read_events(batch(1)) if isinstance(each, Event)]
    function.store.claim([ClaimRequest(function.once.key(event), 60_000)], b"another1", 60_000)
    with pytest.raises(EventBusy):
        function.handler(batch(1, 2), None)
    assert function.ran == ["2"]


@pytest.mark.parametrize("batch", RETRIED.values(), ids=RETRIED)
def test_a_batch_comes_back_if_the_store_does_not_answer(batch: Any) -> None:
    function = Function(Faulty("claim"))
    with pytest.raises(StoreError):
        function.handler(batch(1, 2), None)
    function.once.close()


@pytest.mark.parametrize("batch", [activemq, rabbitmq])
def test_a_message_that_cannot_be_read_brings_its_batch_back_and_the_others_run(function: Function, batch: Any) -> None:
    with pytest.raises(EventRejected, match="MQ message: is not JSON"):
        function.handler(batch(1, '{"id": ', 3), None)
    assert sorted(function.ran) == ["1", "3"]


def test_a_pipe_of_a_broker_takes_an_error(function: Function) -> None:
    function.fails.add("2")
    for source, batch in (("aws:amq", activemq(1, 2)["messages"]), ("aws:rmq", rabbitmq(1, 2)["rmqMessagesByQueue"])):
        messages = batch if isinstance(batch, list) else [each for queue in batch.values() for each in queue]
        items = [{"eventSource": source, "eventSourceArn": "arn", **message} for message in messages]
        with pytest.raises(ValueError, match="no 2"):
            function.handler(items, None)
    assert function.ran == ["1", "2", "2"]


CONTENT = Rule(name="content", key="content")
DOCUMENTDB = {"eventSource": "aws:docdb", "eventSourceArn": "arn", "events": [{"event": {"_id": {"_data": "1"}}}]}
EDGE: dict[str, Any] = {"Records": [{"cf": {"config": {}, "request": {}}}]}


@pytest.mark.parametrize("auth", [None, Bearer("a-token-of-length")])
@pytest.mark.parametrize(
    ("document", "reason"),
    [(DOCUMENTDB, "is a batch of Amazon DocumentDB"), (EDGE, "which has Records of an unknown service")],
)
def test_a_batch_that_is_not_taken_apart_is_no_event_by_its_content(document: Any, reason: str, auth: Any) -> None:
    ran: list[Event] = []
    with Once("memory:", rules=CONTENT) as once, pytest.raises(EventRejected, match=reason):
        once.aws_lambda(ran.append, auth=auth)(document)
    assert ran == []


@pytest.mark.parametrize("batch", RETRIED.values(), ids=RETRIED)
def test_batches_of_brokers_and_logs_need_no_signature(batch: Any) -> None:
    ran: list[Event] = []
    with Once("memory:") as once:
        handler = once.aws_lambda(ran.append, auth=Bearer("a-token-of-length"))
        handler(batch(1, 2))
        bare = json.loads(gzip.decompress(b64decode(log_batch(3)["awslogs"]["data"])))
        with pytest.raises(EventRejected, match="is neither a request nor what a service of AWS sends"):
            handler(bare)
    assert len(ran) == 2


POINTER = json.dumps(["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "b", "s3Key": "k"}])


def test_a_pointer_of_an_extended_client_is_refused_by_each_form_of_invocation() -> None:
    ran: list[Event] = []
    notice = {"Type": "Notification", "MessageId": "n-1", "TopicArn": "arn", "Message": POINTER}
    with Once("memory:", rules=CONTENT) as once:
        handler = once.aws_lambda(ran.append)
        assert failures(handler(sqs(POINTER, json.dumps(notice), 3))) == ["m-1", "m-2"]
        assert failures(handler(pipe(POINTER))) == ["m-1"]
        with pytest.raises(EventRejected, match="is a pointer to a payload in S3"):
            handler({"Records": [{"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": notice}]})
        for body in (POINTER, notice):
            response = handler(request(body))
            assert response["statusCode"] == 400
            assert "is a pointer to a payload in S3" in response["body"]
    assert [event.id for event in ran] == ["3"]


# --- malformed at every layer: kept by its carrier, and the others go on ---

LAYERS = {
    "no JSON": b'{"id": ',
    "no JSON in SNS": {"Type": "Notification", "TopicArn": "t", "MessageId": "s", "Message": '{"id": '},
    "half a gzip": gzip.compress(json.dumps(bridge(2)).encode())[:-20],
    "no JSON in gzip": gzip.compress(b'{"id": '),
    "no base64 inside": {"Records": [{"eventSource": "aws:kinesis", "eventID": "1", "kinesis": {"data": "%%%"}}]},
    "no gzip in logs": {"awslogs": {"data": packed(b"\x1f\x8b broken")}},
}


@pytest.mark.parametrize("layer", [*LAYERS, "no base64"])
def test_a_malformed_record_of_firehose_is_kept_and_the_others_go_on(function: Function, layer: str) -> None:
    event = firehose(1, 2, 3)
    event["records"][1]["data"] = packed(LAYERS[layer]) if layer in LAYERS else "%%%"
    results = function.handler(event, None)["records"]
    assert [each["result"] for each in results] == ["Ok", "ProcessingFailed", "Ok"]
    assert results[1]["data"] == event["records"][1]["data"]
    assert function.ran == ["1", "3"]


@pytest.mark.parametrize("layer", [*LAYERS, "no base64"])
def test_a_malformed_record_of_a_stream_is_the_checkpoint(function: Function, layer: str) -> None:
    event = kinesis(1, 2, 3)
    event["Records"][1]["kinesis"]["data"] = packed(LAYERS[layer]) if layer in LAYERS else "%%%"
    assert failures(function.handler(event, None)) == ["s-2"]
    assert function.ran == ["1"]


@pytest.mark.parametrize("layer", [layer for layer, body in LAYERS.items() if isinstance(body, dict)])
def test_a_malformed_message_of_a_queue_is_named(function: Function, layer: str) -> None:
    assert failures(function.handler(sqs(1, json.dumps(LAYERS[layer]), 3), None)) == ["m-2"]
    assert function.ran == ["1", "3"]


@pytest.mark.parametrize("layer", [*LAYERS, "no base64"])
def test_a_malformed_request_is_answered_with_400(function: Function, layer: str) -> None:
    body = packed(LAYERS[layer]) if layer in LAYERS else "%%%"
    assert function.handler(request(body, isBase64Encoded=True), None)["statusCode"] == 400
    assert function.ran == []


# --- SNS ---


def test_a_notification_is_raised(function: Function) -> None:
    function.fails.add("1")
    with pytest.raises(ValueError, match="no 1"):
        function.handler(sns(1), None)
    function.fails.clear()
    function.handler(sns(1), None)
    function.handler(bridge(1), None)
    assert function.ran == ["1", "1"]


# --- Firehose ---


def test_firehose_keeps_drops_and_fails_records(function: Function) -> None:
    function.handler(bridge(2), None)
    function.fails.add("3")
    results = function.handler(firehose(1, 2, 3), None)["records"]
    assert [(each["recordId"], each["result"]) for each in results] == [
        ("f-1", "Ok"),
        ("f-2", "Dropped"),
        ("f-3", "ProcessingFailed"),
    ]
    assert json.loads(b64decode(results[0]["data"])) == bridge(1)


def test_firehose_takes_what_the_handler_returns(function: Function) -> None:
    for returned, data in (({"n": 1}, b'{"n":1}'), ("line\n", b"line\n"), (b"\xff", b"\xff")):
        function.returns = returned
        (record,) = function.handler(firehose(len(function.ran)), None)["records"]
        assert b64decode(record["data"]) == data


def test_firehose_keeps_the_others_where_a_result_cannot_be_written(
    function: Function, caplog: pytest.LogCaptureFixture
) -> None:
    function.returns = lambda event: object() if event.id == "2" else {"n": event.id}
    results = function.handler(firehose(1, 2, 3), None)["records"]
    assert [each["result"] for each in results] == ["Ok", "ProcessingFailed", "Ok"]
    assert "firehose f-2: its result cannot be written" in caplog.text


def test_firehose_that_sends_its_records_again_gets_them_again(function: Function) -> None:
    first = function.handler(firehose(1, 2), None)
    assert function.handler(firehose(1, 2), None) == first  # the answer was lost
    again = firehose(1)
    again["records"][0]["recordId"] = "f-9"
    assert function.handler(again, None)["records"][0]["result"] == "Dropped"


# --- Pipes ---


def test_a_pipe_gets_the_messages_that_failed(function: Function) -> None:
    function.fails.add("2")
    assert failures(function.handler(pipe(1, 2, 3), None)) == ["m-2"]


def test_a_pipe_of_a_stream_gets_the_event_id_that_failed(function: Function) -> None:
    function.fails.add("2")
    items = [
        {
            "eventSource": "aws:kinesis",
            "eventID": f"shardId-0:{n}",
            "sequenceNumber": f"s-{n}",
            "data": packed(bridge(n)),
        }
        for n in (1, 2, 3)
    ]
    assert failures(function.handler(items, None)) == ["shardId-0:2", "shardId-0:3"]
    assert function.ran == ["1", "2"]


@pytest.mark.parametrize("source", ["aws:kafka", "SelfManagedKafka"])
def test_a_pipe_that_takes_no_single_failures_gets_an_error(function: Function, source: str) -> None:
    function.fails.add("2")
    items = [
        {"eventSource": source, "topic": "t", "partition": 0, "offset": n, "value": packed(bridge(n))} for n in (1, 2)
    ]
    with pytest.raises(ValueError, match="no 2"):
        function.handler(items, None)
    function.fails.clear()
    function.handler(items, None)
    assert function.ran == ["1", "2", "2"]


def test_an_enrichment_hands_on_what_is_new(function: Function) -> None:
    items = pipe(1, 2, 1)
    assert function.enrichment(items, None) == items[:2]
    assert function.enrichment(pipe(1, 2, place=7), None) == []


def test_an_enrichment_hands_on_what_the_handler_returns(function: Function) -> None:
    function.returns = lambda event: {"order": event.data["n"]}
    assert function.enrichment(pipe(1, 2), None) == [{"order": "1"}, {"order": "2"}]


def test_an_enrichment_hands_on_again_what_the_pipe_sends_again(function: Function) -> None:
    items = pipe(1, 2)
    assert function.enrichment(items, None) == items
    assert function.enrichment(items[1:], None) == items[1:]  # the target failed on it


def test_an_enrichment_knows_a_message_by_its_name_within_its_cluster(function: Function) -> None:
    (record,) = kafka(1)["records"]["o-0"]
    blue, green = ([{"eventSource": "aws:kafka", "eventSourceArn": arn, **record}] for arn in ("blue", "green"))
    assert function.enrichment(blue, None) == blue
    assert function.enrichment(green, None) == []  # the same event in another message
    assert function.enrichment(blue, None) == blue


def test_an_enrichment_hands_on_again_also_in_another_order(function: Function) -> None:
    first, copy = pipe(1, 1)
    assert function.enrichment([first, copy], None) == [first]
    assert function.enrichment([copy, first], None) == [first]


def test_an_enrichment_that_fails_gets_all_of_it_again(function: Function) -> None:
    function.fails.add("2")
    items = pipe(1, 2, 3)
    with pytest.raises(ValueError, match="no 2"):
        function.enrichment(items, None)
    function.fails.clear()
    assert function.enrichment(items, None) == items


# --- HTTP ---


def test_a_webhook(function: Function) -> None:
    first, second = (function.handler(request(bridge(1)), None) for _ in range(2))
    assert (first["statusCode"], json.loads(first["body"])) == (200, {"outcome": "processed"})
    assert (second["statusCode"], second["headers"]["eventonce-outcome"]) == (200, "duplicate")
    assert function.ran == ["1"]


def test_a_webhook_answers_with_the_handlers_own_response() -> None:
    function = Function(remember="result")
    function.returns = {"statusCode": 202, "headers": {"x": "y"}, "body": "ok"}
    first, second = (function.handler(request(bridge(1)), None) for _ in range(2))
    assert first == {"statusCode": 202, "headers": {"x": "y", "eventonce-outcome": "processed"}, "body": "ok"}
    assert second == {"statusCode": 202, "headers": {"x": "y", "eventonce-outcome": "duplicate"}, "body": "ok"}
    function.once.close()


def test_a_webhook_responds_with_what_is_wrong(function: Function) -> None:
    assert function.handler(request("{"), None)["statusCode"] == 400
    function.fails.add("1")
    failed = function.handler(request(bridge(1)), None)
    assert failed["statusCode"] == 500
    assert "no 1" not in failed["body"]
    function.store.claim([ClaimRequest(function.once.key(bridge(2)), 60_000)], b"another1", 60_000)
    busy = function.handler(request(bridge(2)), None)
    assert (busy["statusCode"], busy["headers"]["retry-after"]) == (503, "5")


def test_a_webhook_waits_for_a_store_that_does_not_answer() -> None:
    function = Function(Faulty("claim"))
    assert function.handler(request(bridge(1)), None)["statusCode"] == 503
    function.once.close()


# --- HTTP: the same request through both doors ---

BODY = {"n": 1}
TEXT = json.dumps(BODY)
KEY = {"Idempotency-Key": "k-1"}


def api_v1(body: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    several = {name: [value] for name, value in headers.items()}
    context = {"resourcePath": "/", "httpMethod": "POST", "identity": {}}
    return {
        "resource": "/",
        "path": "/",
        "httpMethod": "POST",
        "headers": headers,
        "multiValueHeaders": several,
        "requestContext": context,
        "body": body,
        "isBase64Encoded": False,
        **more,
    }


def api_v2(body: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    small = {name.lower(): value for name, value in headers.items()}
    return {**request(body, headers=small), "routeKey": "$default", "isBase64Encoded": False, **more}


def balancer(body: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    context = {"elb": {"targetGroupArn": "arn"}}
    return {
        "requestContext": context,
        "httpMethod": "POST",
        "path": "/",
        "headers": {name.lower(): value for name, value in headers.items()},
        "body": body,
        "isBase64Encoded": False,
        **more,
    }


def several_values(body: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    document = balancer(body, headers, **more)
    several = {name: [value] for name, value in document.pop("headers").items()}
    return {**document, "multiValueHeaders": several}


def lattice(body: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    several = {name.lower(): [value] for name, value in headers.items()}
    context = {"serviceNetworkArn": "arn", "targetGroupArn": "arn", "region": "us-east-2"}
    return {
        "version": "2.0",
        "path": "/",
        "method": "POST",
        "headers": several,
        "body": body,
        "isBase64Encoded": False,
        "requestContext": context,
        **more,
    }


def lattice_v1(body: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    packed = more.pop("isBase64Encoded", False)
    small = {name.lower(): value for name, value in headers.items()}
    document = {"raw_path": "/", "method": "POST", "headers": small, "query_string_parameters": {}}
    return {**document, "body": body, "is_base64_encoded": packed, **more}


HTTP_DOORS = [api_v1, api_v2, balancer, several_values, lattice, lattice_v1]
http_doors = pytest.mark.parametrize("door", HTTP_DOORS)
Door = Callable[..., dict[str, Any]]
SAID = {"headers": {"idempotency-key": "victim"}}
CLOUD = {"ce-specversion": "1.0", "ce-id": "c-1", "ce-source": "/shop", "ce-type": "order"}
GITHUB = {"X-GitHub-Delivery": "g-1", "X-GitHub-Event": "push", "Content-Type": "application/json"}
BY_HEADER = Rule(name="r", key=['headers."idempotency-key"'], remember="note")
BY_EVENT = [Rule(name="pushes", match={"headers": {"x-github-event": ["push"]}}, key="id")]
REQUESTS: dict[str, tuple[Any, list[tuple[str, dict[str, str]]]]] = {
    "a key and its copy": (BY_HEADER, [(TEXT, KEY), (TEXT, KEY), ('{"n": 2}', KEY)]),
    "no key": (BY_HEADER, [(TEXT, {})]),
    "a key in quotes": ((), [(TEXT, {"Idempotency-Key": '"k-1"'}), (TEXT, KEY)]),
    "an empty name": ((), [(TEXT, {"Webhook-Id": ""})]),
    "an empty key": (BY_HEADER, [(TEXT, {"Idempotency-Key": ""})]),
    "a key that is too long": (BY_HEADER, [(TEXT, {"Idempotency-Key": "k" * 256})]),
    "a key in the body": (BY_HEADER, [(json.dumps(SAID), {})]),
    "a key in the body of an event": (BY_HEADER, [(json.dumps({**bridge(1), **SAID}), {})]),
    "a name": ((), [('{"id": 7, "n": 1}', GITHUB), ('{"id": 7, "n": 2}', {**GITHUB, "X-GitHub-Delivery": "g-2"})]),
    "an event of GitHub": (BY_EVENT, [(TEXT, GITHUB), (TEXT, GITHUB)]),
    "a batch": ((), [('[{"n": 1}, {"n": 2}]', KEY)]),
    "an empty batch": ((), [("[]", {"Content-Type": "application/cloudevents-batch+json"})]),
    "a CloudEvent": ((), [(TEXT, {**CLOUD, "Content-Type": "application/json"})]),
    "a CloudEvent without an id": ((), [(TEXT, {"ce-specversion": "1.0"})]),
    "a form": ((), [("n=1", {"Content-Type": "application/x-www-form-urlencoded"})]),
    "packed otherwise": ((), [(TEXT, {"Content-Encoding": "br"})]),
    "a subscription": ((), [(TEXT, {"x-amz-sns-message-type": "SubscriptionConfirmation"})]),
    "a string": ((), [("hello", {**KEY, "Content-Type": "text/plain"})]),
    "a string as JSON": ((), [('"hello"', {**KEY, "Content-Type": "application/json"})]),
    "nothing": ((), [("", KEY)]),
    "no JSON": ((), [("{", KEY)]),
    "an event": ((), [(json.dumps(bridge(1)), {}), (json.dumps(bridge(1)), {})]),
    "worst first": ((), [(json.dumps([{"n": 1}, bridge("fails")]), {})]),
}


@http_doors
@pytest.mark.parametrize("packing", [False, True], ids=["text", "base64"])
@pytest.mark.parametrize(("rules", "sent"), REQUESTS.values(), ids=REQUESTS)
def test_both_doors_answer_a_request_alike(
    rules: Any, sent: list[tuple[str, dict[str, str]]], door: Door, *, packing: bool
) -> None:
    ran: list[tuple[str, Any, Any]] = []

    def handle(event: Event) -> None:
        if event.id == "fails":
            raise ValueError(event.id)
        ran.append((event.id, event.data, event.attributes.get("headers")))

    results = []
    for at_webhook in (True, False):
        with Once("memory:", rules=rules) as once:
            app, function = Webhook(once, handle), once.aws_lambda(handle)
            for body, headers in sent:
                if at_webhook:
                    arguments = {
                        "content_type": "",
                        **{name.lower().replace("-", "_"): headers[name] for name in headers},
                    }
                    response = asyncio.run(ask(app, body.encode(), **arguments))
                    results.append((response.status, response.headers, response.body))
                else:
                    text = b64encode(body.encode()).decode() if packing else body
                    answer = function(door(text, headers, isBase64Encoded=packing), None)
                    results.append((answer["statusCode"], answer["headers"], json.loads(answer["body"])))
            app.close()
    half = len(sent)
    for _, headers, _ in results[:half]:
        del headers["content-length"]
    assert results[:half] == results[half:]
    assert ran[: len(ran) // 2] == ran[len(ran) // 2 :]


@http_doors
def test_a_recorded_request_has_the_key_that_it_had(door: Door) -> None:
    with Once("memory:", rules=BY_HEADER) as once:
        headers = {"Idempotency-Key": "k-1", "Authorization": "Bearer s", "Cookie": "c"}
        seen: list[Event] = []
        once.aws_lambda(seen.append)(door(TEXT, headers), None)
        assert once.key(door(TEXT, headers)) == once.key(seen[0])
        assert read_event(door(TEXT, headers)).attributes["headers"] == {"idempotency-key": "k-1"}


def test_a_load_balancer_is_answered_in_the_form_it_asks_in(function: Function) -> None:
    response = function.handler(several_values(json.dumps(bridge(1)), {}), None)
    assert response["multiValueHeaders"] == {name: [value] for name, value in response["headers"].items()}
    assert "multiValueHeaders" not in function.handler(api_v1(json.dumps(bridge(2)), {}), None)


@pytest.mark.parametrize("door", [api_v1, several_values, lattice])
def test_two_idempotency_keys_are_refused(door: Door, function: Function) -> None:
    document = door(json.dumps(bridge(1)), KEY)
    field = "headers" if door is lattice else "multiValueHeaders"
    name = next(iter(document[field]))
    document[field][name] = ["k-1", "k-2"]
    assert function.handler(document, None)["statusCode"] == 400
    assert function.ran == []


# --- who may send ---

SECRET = "s-1"
NOW = 1_800_000_000


def sign(body: bytes) -> bytes:
    return hmac.new(SECRET.encode(), body, hashlib.sha256).digest()


def of_stripe(body: bytes) -> dict[str, str]:
    return {"Stripe-Signature": f"t={NOW},v1={sign(b'%d.' % NOW + body).hex()}"}


SIGNERS: dict[str, tuple[Auth, Callable[[bytes], dict[str, str]]]] = {
    "github": (github(SECRET), lambda body: {"X-Hub-Signature-256": f"sha256={sign(body).hex()}"}),
    "shopify": (shopify(SECRET), lambda body: {"X-Shopify-Hmac-Sha256": b64encode(sign(body)).decode()}),
    "stripe": (Stripe(SECRET, clock=ManualClock(NOW * 1000)), of_stripe),
    "hmac": (Hmac(SECRET, header="X-Sign"), lambda body: {"X-Sign": sign(body).hex()}),
    "bearer": (Bearer(SECRET), lambda body: {"Authorization": f"Bearer {SECRET}"}),
}
signers = pytest.mark.parametrize(("auth", "signed"), SIGNERS.values(), ids=SIGNERS)
Signed = Callable[[bytes], dict[str, str]]
BYTES = gzip.compress(b'{"id": "e-1", "text": "\xe2\x82\xac"}', mtime=0)


class Guarded:
    """A function that takes requests of those who are known."""

    def __init__(self, auth: Auth, **settings: Any) -> None:
        self.ran: list[Event] = []
        self._once = Once("memory:", **settings)
        self._handler = self._once.aws_lambda(self.ran.append, auth=auth)

    def __call__(self, event: Any) -> Any:
        return self._handler(event, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._once.close()


@http_doors
@signers
def test_only_who_is_known_may_send(auth: Auth, signed: Signed, door: Door) -> None:
    text = '{"id": "e-1", "text": "\u20ac"}'
    body = text.encode()
    with Guarded(auth) as function:
        for headers in ({}, dict.fromkeys(signed(body), "x"), dict.fromkeys(signed(body), "€")):
            response = function(door(text, headers))
            assert (response["statusCode"], "www-authenticate" in response["headers"]) == (401, True)
            assert SECRET not in response["body"]
        if not isinstance(auth, Bearer):
            assert function(door(text + " ", signed(body)))["statusCode"] == 401
        assert function.ran == []
        outcomes = [function(door(text, signed(body)))["headers"]["eventonce-outcome"] for _ in range(2)]
        assert outcomes == ["processed", "duplicate"]
        packed = function(door(b64encode(body).decode(), signed(body), isBase64Encoded=True))
        assert packed["headers"]["eventonce-outcome"] == "duplicate"
        assert [event.data for event in function.ran] == [{"id": "e-1", "text": "\u20ac"}]


@http_doors
@signers
def test_what_is_signed_are_the_bytes_that_were_sent(auth: Auth, signed: Signed, door: Door) -> None:
    with Guarded(auth) as function:
        response = function(door(b64encode(BYTES).decode(), signed(BYTES), isBase64Encoded=True))
        assert response["statusCode"] == 200
        assert [event.data["text"] for event in function.ran] == ["\u20ac"]
        response = function(door("not base64!", signed(b"not base64!"), isBase64Encoded=True))
        assert response["statusCode"] == 400


def test_headers_that_are_not_signed_are_not_read_behind_lambda_either() -> None:
    auth, signed = SIGNERS["github"]
    with Guarded(auth) as function:
        responses = [function(api_v2(TEXT, {**signed(TEXT.encode()), **more})) for more in (GITHUB, {}, CLOUD)]
        assert [each["statusCode"] for each in responses] == [200, 200, 400]
        digest = hashlib.sha256(TEXT.encode()).hexdigest()
        assert [(event.id, event.attributes.get("headers")) for event in function.ran] == [(f"sha256:{digest}", None)]


def test_a_topic_sends_to_a_function() -> None:
    calls: list[str] = []

    def fetch(url: str) -> bytes:
        calls.append(url)
        return test_webhook_sns.certificate()

    with Guarded(Sns(test_webhook_sns.TOPIC, fetch=fetch)) as function:
        notice = {**test_webhook_sns.NOTICE, "Message": json.dumps(bridge(1))}
        bodies = [
            test_webhook_sns.signed(test_webhook_sns.CONFIRMATION),
            test_webhook_sns.signed(notice),
            test_webhook_sns.signed(notice, **test_webhook_sns.ORDER),
            test_webhook_sns.signed(notice, Message="{}"),
        ]
        responses = [function(api_v2(body.decode(), {})) for body in bodies]
        assert [each["statusCode"] for each in responses] == [200, 200, 200, 401]
        assert [json.loads(each["body"]).get("outcome") for each in responses[:3]] == [
            "confirmed",
            "processed",
            "duplicate",
        ]
        assert [event.id for event in function.ran] == ["1"]
    assert calls == [test_webhook_sns.CERTIFICATE, test_webhook_sns.SUBSCRIBE]


@pytest.mark.parametrize(
    "event",
    [bridge(1), sqs(1), kinesis(1), dynamodb(1), sns(1), firehose(1), pipe(1), [bridge(1)], logs(1)],
    ids=["EventBridge", "SQS", "Kinesis", "DynamoDB", "SNS", "Firehose", "a pipe", "a list", "CloudWatch Logs"],
)
def test_a_service_of_aws_needs_no_signature(event: Any) -> None:
    with Guarded(SIGNERS["github"][0], rules=Rule(name="r", key="content")) as function:
        function(event)
        assert len(function.ran) == 1


@pytest.mark.parametrize(
    "event",
    [
        {"id": "e-1"},
        [{"id": "e-1"}],
        {"specversion": "1.0", "id": "c-1", "source": "/s", "type": "t"},
        sns(1)["Records"][0]["Sns"],
        sqs(1)["Records"][0],
        {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "{}"}]},
        {"requestContext": {}, "body": "{}", "headers": {}},
    ],
)
def test_what_is_neither_a_request_nor_of_a_service_is_refused(event: Any) -> None:
    """If its integration is not a proxy, API Gateway passes on unchanged what a stranger sends."""
    with Guarded(SIGNERS["github"][0], rules=Rule(name="r", key="content")) as function:
        with pytest.raises(EventRejected, match="auth="):
            function(event)
        assert function.ran == []


def test_an_enrichment_takes_no_requests() -> None:
    with Once("memory:") as once, pytest.raises(ConfigError, match="enrichment"):
        once.aws_lambda(print, enrichment=True, auth=Bearer("t"))


def test_refused_requests_and_open_functions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Guarded(SIGNERS["bearer"][0]) as function:
        for _ in range(3):
            assert function(api_v2(TEXT, {}))["statusCode"] == 401
    assert len([line for line in caplog.messages if "refused with 401" in line]) == 1
    caplog.clear()
    with Once("memory:") as once:
        handler = once.aws_lambda(print)
        for _ in range(2):
            handler(api_v2(TEXT, KEY), None)
    assert len([line for line in caplog.messages if "unauthenticated" in line]) == 1
    caplog.clear()
    with Once("memory:") as once:
        document = api_v2(TEXT, KEY)
        document["requestContext"] = {**document["requestContext"], "authorizer": {"iam": {"accountId": "1"}}}
        once.aws_lambda(print)(document, None)
    assert caplog.messages == []


# --- unknown shapes ---


@pytest.mark.parametrize(
    ("event", "seen"),
    [
        (None, "nothing"),
        ("text", "a string"),
        (7, "a number"),
        ({}, "an empty object"),
        ([], "an empty list"),
        ([1, 2], "a list of 2 items"),
        ({"Records": [{"foo": 1}]}, "'Records'"),
        ({"Records": [*sqs(1)["Records"], 7]}, "'Records', which has Records that are not all objects"),
        ({"Records": [7, *kinesis(1)["Records"]]}, "'Records', which has Records that are not all objects"),
        ({"records": [{"foo": 1}]}, "'records'"),
        ({"triggerSource": "PreSignUp", "userName": "x"}, "'triggerSource', 'userName'"),
    ],
)
def test_an_unknown_shape_is_refused_with_a_description_of_it(function: Function, event: Any, seen: str) -> None:
    with pytest.raises(EventRejected, match=seen) as caught:
        function.handler(event, None)
    assert "expected an EventBridge event" in str(caught.value)
    assert function.ran == []


# --- time, and telling ---


class Context:
    def __init__(self, left: int) -> None:
        self._left = left

    def get_remaining_time_in_millis(self) -> int:
        return self._left


def test_the_lease_follows_the_time_that_is_left(function: Function) -> None:
    deadlines = []
    handler = function.once.aws_lambda(lambda event, ctx: deadlines.append(ctx.deadline.timestamp()))
    handler(bridge(1), Context(3000))
    handler(bridge(2), Context(600_000))
    assert 590 < deadlines[1] - deadlines[0] < 605


def test_claims_made_late_do_not_outlive_the_function(function: Function) -> None:
    deadlines = []
    handler = function.once.aws_lambda(lambda event, ctx: deadlines.append(ctx.deadline.timestamp()))
    handler(sqs(*range(600)), Context(60_000))  # more than are claimed together
    assert max(deadlines) - min(deadlines) < 0.5


def test_a_busy_copy_is_not_waited_for_until_no_time_is_left_to_answer(function: Function) -> None:
    patient = Once(function.store, rules=Rule(name="r", key=["id"]), consumer="billing", busy_wait="1h")
    function.store.claim([ClaimRequest(patient.key(bridge(2)), 60_000)], b"another1", 60_000)
    handler = patient.aws_lambda(lambda event: None)
    assert failures(handler(sqs(1, 2), Context(1000))) == ["m-2"]
    patient.close()


def test_what_failed_often_runs_again_when_its_queue_sends_it_again(function: Function) -> None:
    function.fails.add("1")
    for _ in range(8):
        assert failures(function.handler(sqs(1), None)) == ["m-1"]
    assert len(function.ran) == 8
    function.fails.clear()
    assert failures(function.handler(sqs(1), None)) == []


def test_one_line_reports_the_outcomes_of_a_batch(function: Function, capsys: pytest.CaptureFixture[str]) -> None:
    function.fails.add("2")
    function.handler(sqs(1, 2, 1), None)
    (line,) = capsys.readouterr().out.splitlines()
    response = json.loads(line)
    assert {name: response[name] for name in ("consumer", "carrier", "events", "processed", "duplicate", "failed")} == {
        "consumer": "billing", "carrier": "sqs", "events": 3, "processed": 1, "duplicate": 1, "failed": 1,
    }  # fmt: skip
    (metrics,) = response["_aws"]["CloudWatchMetrics"]
    assert all(each["Name"] in response for each in metrics["Metrics"])
    assert response["_aws"]["Timestamp"] > 1_700_000_000_000


def test_failures_are_logged_up_to_a_limit(function: Function, caplog: pytest.LogCaptureFixture) -> None:
    function.fails.update(str(number) for number in range(100))
    function.handler(sqs(*range(100)), None)
    assert len(caplog.records) == 6
    assert "no 0" in caplog.text
    assert "95 more failed" in caplog.text


def test_a_failure_of_the_store_is_raised_as_a_store_error() -> None:
    function = Function(Faulty("claim"))
    with pytest.raises(StoreError):
        function.handler(bridge(1), None)
    function.once.close()
