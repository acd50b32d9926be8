"""The sinks of AWS: what a call holds, what is made of its answer, and what stops all sending. No server is asked."""

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from botocore.stub import Stubber

from eventonce.clients import aws
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted
from eventonce.sinks import open_sink
from eventonce.sinks.aws_batch import AwsBatchSink
from eventonce.sinks.batching import MAX_ATTEMPTS, SendJob, SendQueue
from eventonce.sinks.events import ClassicSink, NewBusSink
from eventonce.sinks.sns import SnsSink
from eventonce.sinks.sqs import SqsSink
from eventonce.testing.clock import ManualClock

QUEUE_URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
TOPIC = "arn:aws:sns:us-east-1:123456789012:orders"
NEW_BUS = "arn:aws:events:eu-west-1:123456789012:event-busv2/orders/abcdefghijklmnopqrstuvwxy"


class Stubbed:
    """A sink whose client answers by script."""

    def __init__(self, sink: AwsBatchSink) -> None:
        self.sink = sink
        self.stub = Stubber(sink.client())
        self.stub.activate()
        self.calls: list[dict[str, Any]] = []
        sink.client().meta.events.register("provide-client-params.*.*", self._see)

    def _see(self, params: dict[str, Any], **_: Any) -> None:
        self.calls.append(params)

    def ready(self) -> None:
        """Expect the calls that the sink makes before it sends."""
        if isinstance(self.sink, SqsSink):
            self.stub.add_response("get_queue_url", {"QueueUrl": QUEUE_URL})
        elif isinstance(self.sink, ClassicSink) and self.sink.address.name != "default":
            self.stub.add_response("describe_event_bus", {"Name": self.sink.address.name})

    def send(self, events: Sequence[Event]) -> list[Exception | None]:
        answers = self.sink.send(events, [f"key-{number}" for number in range(len(events))])
        self.stub.assert_no_pending_responses()
        return list(answers)

    def entries(self, call: int = -1) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = (
            self.calls[call].get("Entries") or self.calls[call]["PublishBatchRequestEntries"]
        )
        return entries


@pytest.fixture
def stubbed() -> Iterator[Any]:
    made: list[AwsBatchSink] = []

    def make(kind: Any, url: str, *, ready: bool = True) -> Stubbed:
        made.append(kind(url, ManualClock()))
        stubbed = Stubbed(made[-1])
        if ready:
            stubbed.ready()
        return stubbed

    yield make
    for sink in made:
        sink.close()


def event(number: Any = 0, **more: Any) -> Event:
    return read_event(msgspec.json.encode({"id": str(number), **more}))


def events(count: int) -> list[Event]:
    return [event(number) for number in range(count)]


def sqs_response(*numbers: int, failed: dict[int, str] | None = None) -> dict[str, Any]:
    """An answer of SQS."""
    return {
        "Successful": [{"Id": str(number), "MessageId": "m", "MD5OfMessageBody": "x"} for number in numbers],
        "Failed": [
            {"Id": str(number), "Code": code, "Message": "said", "SenderFault": False}
            for number, code in (failed or {}).items()
        ],
    }


def put(*codes: str | None) -> dict[str, Any]:
    """An answer of PutEvents."""
    entries = [{"EventId": "e"} if code is None else {"ErrorCode": code, "ErrorMessage": "said"} for code in codes]
    return {"FailedEntryCount": sum(code is not None for code in codes), "Entries": entries}


# --- the table of errors ---


def test_each_code_has_one_meaning() -> None:
    assert sum(map(len, aws._ERRORS.values())) == len(aws._KINDS)
    assert all(aws.error_kind(code) is kind for code, kind in aws._KINDS.items())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", aws.ErrorKind.MISSING),
        ("ResourceNotFoundException", aws.ErrorKind.MISSING),
        ("ThrottlingException", aws.ErrorKind.THROTTLED),
        ("KMS.AccessDeniedException", aws.ErrorKind.DENIED),
        ("InternalError", None),
        ("", None),
    ],
)
def test_a_code_is_known_in_every_spelling(code: str, kind: aws.ErrorKind | None) -> None:
    assert aws.error_kind(code) is kind


# --- packing ---


def sizes(*entries: BatchEntry) -> list[list[int]]:
    """The calls that such entries make, where each gets through."""
    jobs = [SendJob(Event(data={}), "k") for _ in entries]
    for job, entry in zip(jobs, entries, strict=True):
        job.entry = entry
    queue, calls = SendQueue(jobs), []
    while call := queue.next_call(CallLimits(3, 10, 100)):
        calls.append([job.entry.size for job in call])
        for job in call:
            job.result = EntryAccepted("id")
            queue.settle(job)
    return calls


def test_a_call_holds_so_many_entries_and_bytes() -> None:
    assert sizes() == []
    assert sizes(*[BatchEntry({}, 1)] * 7) == [[1, 1, 1], [1, 1, 1], [1]]
    assert sizes(BatchEntry({}, 6), BatchEntry({}, 4), BatchEntry({}, 5), BatchEntry({}, 6)) == [[6, 4], [5], [6]]
    assert sizes(BatchEntry({}, 1), BatchEntry({}, 50), BatchEntry({}, 1)) == [[1], [50], [1]]


def test_no_call_holds_two_of_a_group_and_groups_do_not_wait_for_each_other() -> None:
    a, b = BatchEntry({}, 1, "a"), BatchEntry({}, 2, "b")
    assert sizes(a, b, a, a, b) == [[1, 2], [1, 2], [1]]
    assert sizes(a, a, a, b, b, b, BatchEntry({}, 3)) == [[1, 2, 3], [1, 2], [1, 2]]


# --- SQS ---


def test_a_standard_queue_gets_the_line_and_the_key(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0))

    assert queue.send([read_event(b'{"id":"1",  "b":2}')]) == [None]
    attribute = {"DataType": "String", "StringValue": "key-0"}
    assert queue.calls[1] == {
        "QueueUrl": QUEUE_URL,
        "Entries": [
            {"Id": "0", "MessageBody": '{"id":"1",  "b":2}', "MessageAttributes": {"eventonce-key": attribute}}
        ],
    }


def test_a_queue_of_another_account(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://210987654321/orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0))
    queue.send(events(1))

    assert queue.calls[0] == {"QueueName": "orders", "QueueOwnerAWSAccountId": "210987654321"}


def test_a_fifo_queue_gets_the_key_and_the_group(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders.fifo?region=us-east-1&group=detail.customer")
    queue.stub.add_response("send_message_batch", sqs_response(0, 1, 2))
    queue.send([event(customer="c-1"), event(customer=7), event(customer="Übung")])

    first, second, third = queue.entries()
    assert first == {
        "Id": "0",
        "MessageBody": '{"id":"0","customer":"c-1"}',
        "MessageDeduplicationId": "key-0",
        "MessageGroupId": "c-1",
    }
    assert second["MessageGroupId"] == "7"
    assert third["MessageGroupId"] == hashlib.sha256("Übung".encode()).hexdigest()  # AWS takes ASCII only


def test_without_a_path_the_source_is_the_group(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders.fifo?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0, 1))
    queue.send([event(source="shop"), event()])

    assert [entry["MessageGroupId"] for entry in queue.entries()] == ["shop", "eventonce"]


def test_an_event_without_its_group_is_rejected(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders.fifo?region=us-east-1&group=detail.customer")
    queue.stub.add_response("send_message_batch", sqs_response(0))
    without, fine = queue.send([event(), event(customer="c")])

    assert str(without) == "has nothing at detail.customer, which names its group in the sink"
    assert isinstance(without, EventRejected)
    assert fine is None


def test_calls_of_ten(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    for count in (10, 10, 3):
        queue.stub.add_response("send_message_batch", sqs_response(*range(count)))

    assert queue.send(events(23)) == [None] * 23
    bodies = [json.loads(entry["MessageBody"])["id"] for call in (1, 2, 3) for entry in queue.entries(call)]
    assert bodies == [str(number) for number in range(23)]


def test_what_was_refused_for_now_is_sent_again_and_only_that(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response(
        "send_message_batch", sqs_response(0, 2, failed={1: "InternalError", 3: "ThrottlingException"})
    )
    queue.stub.add_response("send_message_batch", sqs_response(1, failed={0: "InternalError"}))
    queue.stub.add_response("send_message_batch", sqs_response(0))

    assert queue.send(events(4)) == [None] * 4
    sent = [[json.loads(entry["MessageBody"])["id"] for entry in queue.entries(call)] for call in (1, 2, 3)]
    assert sent == [["0", "1", "2", "3"], ["1", "3"], ["1"]]
    keys = {entry["MessageAttributes"]["eventonce-key"]["StringValue"] for entry in queue.entries(2)}
    assert keys == {"key-1", "key-3"}


def test_what_is_refused_again_and_again_is_an_answer(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0, failed={1: "InternalError"}))
    for _ in range(MAX_ATTEMPTS - 1):
        queue.stub.add_response("send_message_batch", sqs_response(failed={0: "InternalError"}))
    first, second = queue.send(events(2))

    assert first is None
    assert type(second) is SinkError
    assert str(second) == "sqs://orders did not take it (InternalError: said); trying again later may help"


def test_an_entry_that_the_answer_does_not_name_was_not_taken(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(1))
    queue.stub.add_response("send_message_batch", sqs_response(0))

    assert queue.send(events(2)) == [None, None]
    assert [entry["Id"] for entry in queue.entries()] == ["0"]


def test_a_message_that_can_never_be_taken_is_rejected(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0, failed={1: "InvalidMessageContents"}))
    first, second = queue.send(events(2))

    assert first is None
    assert isinstance(second, EventRejected)
    assert str(second) == "sqs://orders does not take it (InvalidMessageContents: said)"


def test_an_event_over_the_limit_is_not_sent(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0))
    large, small = queue.send([event(text="x" * 1_048_576), event()])

    assert isinstance(large, EventRejected)
    assert str(large) == "has 1,048,620 bytes, over the 1,048,576 of sqs://orders"
    assert small is None


def test_an_event_that_has_no_json_form_is_rejected(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0))
    bad, good = queue.send([Event(id="1", data={"what": object()}), event()])

    assert isinstance(bad, EventRejected)
    assert good is None


def test_a_call_that_one_event_spoils_is_made_for_each_alone(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_client_error("send_message_batch", "InvalidParameterValue", "too large")
    queue.stub.add_response("send_message_batch", sqs_response(0))
    queue.stub.add_client_error("send_message_batch", "InvalidParameterValue", "too large")
    queue.stub.add_response("send_message_batch", sqs_response(0))
    first, second, third = queue.send(events(3))

    assert (first, third) == (None, None)
    assert isinstance(second, EventRejected)


def test_order_is_kept_in_a_group_that_is_stuck(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders.fifo?region=us-east-1&group=detail.customer")
    queue.stub.add_response("send_message_batch", sqs_response(1, failed={0: "InternalError"}))
    queue.stub.add_response("send_message_batch", sqs_response(0))
    for _ in range(MAX_ATTEMPTS - 1):
        queue.stub.add_response("send_message_batch", sqs_response(failed={0: "InternalError"}))
    stuck, other, behind, after = queue.send([event(customer=each) for each in "abab"])

    assert (other, after) == (None, None)
    assert "InternalError" in str(stuck)
    assert str(behind) == "was not sent: an earlier event in its group failed"


def test_a_rejected_event_does_not_hold_its_group_back(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders.fifo?region=us-east-1&group=detail.customer")
    queue.stub.add_response("send_message_batch", sqs_response(failed={0: "InvalidMessageContents"}))
    queue.stub.add_response("send_message_batch", sqs_response(0))
    first, second = queue.send([event(customer="a"), event(customer="a")])

    assert isinstance(first, EventRejected)
    assert second is None


# --- trouble of a whole call ---


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ThrottlingException", 400),
        ("AWS.SimpleQueueService.RequestThrottled", 403),
        ("ExpiredToken", 403),
        ("ExpiredTokenException", 400),
        ("InternalFailure", 500),
        ("Odd", 503),
    ],
)
def test_trouble_that_passes_is_an_answer_for_all_that_is_left(stubbed: Any, code: str, status: int) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(*range(10)))
    queue.stub.add_client_error("send_message_batch", code, "said", http_status_code=status)
    answers = queue.send(events(30))

    assert answers[:10] == [None] * 10
    assert {type(answer) for answer in answers[10:]} == {SinkDown}
    assert f"({code}: said)" in str(answers[-1])


@pytest.mark.parametrize(("code", "kind"), [("ThrottlingException", SinkDown), ("InternalFailure", SinkError)])
def test_an_entry_that_is_throttled_is_not_to_blame(stubbed: Any, code: str, kind: type) -> None:
    bus = stubbed(ClassicSink, "events://default?region=us-east-1&source=shop&detail-type=Order")
    for _ in range(MAX_ATTEMPTS):
        bus.stub.add_response("put_events", put(code))
    (answer,) = bus.send(events(1))

    assert type(answer) is kind


def test_credentials_that_have_expired_are_looked_up_anew(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    before = queue.sink.client()
    queue.stub.add_client_error("send_message_batch", "ExpiredToken", "said", http_status_code=403)
    (answer,) = queue.send(events(1))

    assert type(answer) is SinkDown
    assert queue.sink.client() is not before


@pytest.mark.parametrize(
    "code", ["AccessDenied", "AWS.SimpleQueueService.NonExistentQueue", "InvalidClientTokenId", "KmsAccessDenied"]
)
def test_an_error_that_needs_a_fix_stops_everything(stubbed: Any, code: str) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_client_error("send_message_batch", code, "said", http_status_code=400)

    with pytest.raises(SinkError, match=r"^sqs://orders cannot be used \(.*: said\); fix this and run again"):
        queue.send(events(30))


def test_what_was_sent_before_that_counts_as_sent(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(*range(10)))
    queue.stub.add_client_error("send_message_batch", "AccessDenied", "said", http_status_code=403)
    answers = queue.send(events(30))

    assert answers[:10] == [None] * 10
    assert all(isinstance(answer, SinkError) for answer in answers[10:])


def test_trouble_while_trying_again_leaves_what_was_sent(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.stub.add_response("send_message_batch", sqs_response(0, failed={1: "InternalError"}))
    queue.stub.add_client_error("send_message_batch", "AccessDenied", "said", http_status_code=403)
    first, second = queue.send(events(2))

    assert first is None
    assert isinstance(second, SinkError)


def test_an_entry_that_is_denied_stops_everything(stubbed: Any) -> None:
    bus = stubbed(ClassicSink, "events://default?region=us-east-1&source=s&detail-type=t")
    bus.stub.add_response("put_events", put("AccessDeniedException", "AccessDeniedException"))

    with pytest.raises(SinkError, match="AccessDeniedException"):
        bus.send(events(2))


def test_a_missing_queue_stops_everything(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1", ready=False)
    queue.stub.add_client_error("get_queue_url", "AWS.SimpleQueueService.NonExistentQueue", "no such queue")

    with pytest.raises(SinkError, match="cannot be used"):
        queue.send(events(1))


def test_a_queue_that_cannot_be_looked_up_now_is_looked_up_later(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1", ready=False)
    queue.stub.add_client_error("get_queue_url", "ThrottlingException", "slow down")
    assert "ThrottlingException" in str(queue.send(events(1)))

    queue.ready()
    queue.stub.add_response("send_message_batch", sqs_response(0))
    assert queue.send(events(1)) == [None]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ReadTimeoutError(endpoint_url="http://me:pw@x"), "did not answer (ReadTimeoutError)"),
        (EndpointConnectionError(endpoint_url="http://me:pw@x"), "did not answer (EndpointConnectionError)"),
    ],
)
def test_no_answer_is_an_answer_for_all_that_is_left(stubbed: Any, error: Exception, message: str) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.sink.client().meta.events.register_first("provide-client-params.sqs.SendMessageBatch", _raising(error))
    answers = queue.send(events(30))

    assert {str(answer) for answer in answers} == {f"sqs://orders {message}; trying again later may help"}


def test_without_credentials_everything_stops(stubbed: Any) -> None:
    queue = stubbed(SqsSink, "sqs://orders?region=us-east-1")
    queue.sink.client().meta.events.register_first(
        "provide-client-params.sqs.SendMessageBatch", _raising(NoCredentialsError())
    )

    with pytest.raises(SinkError, match="there are no AWS credentials"):
        queue.send(events(1))


def _raising(error: Exception) -> Any:
    def fail(**_: Any) -> None:
        raise error

    return fail


def test_without_a_region_everything_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")

    with pytest.raises(SinkError, match=r"^sink: sqs://orders: no AWS region is set; add "):
        SqsSink("sqs://orders").send(events(1), ["k"])


# --- SNS ---


def test_a_topic_gets_the_line_and_the_key(stubbed: Any) -> None:
    topic = stubbed(SnsSink, f"sns://{TOPIC}")
    topic.stub.add_response("publish_batch", {"Successful": [{"Id": "0", "MessageId": "m"}], "Failed": []})

    assert topic.send(events(1)) == [None]
    assert topic.sink.client().meta.region_name == "us-east-1"
    attribute = {"DataType": "String", "StringValue": "key-0"}
    assert topic.calls == [
        {
            "TopicArn": TOPIC,
            "PublishBatchRequestEntries": [
                {"Id": "0", "Message": '{"id":"0"}', "MessageAttributes": {"eventonce-key": attribute}}
            ],
        }
    ]


def test_a_topic_may_be_set_to_take_more_than_a_quarter_of_a_megabyte(stubbed: Any) -> None:
    topic = stubbed(SnsSink, f"sns://{TOPIC}")
    for _ in range(2):
        topic.stub.add_response("publish_batch", {"Successful": [{"Id": "0", "MessageId": "m"}]})
    small, large, too_large = topic.send([event(), event(text="x" * 300_000), event(text="x" * 1_100_000)])

    assert (small, large) == (None, None)
    assert isinstance(too_large, EventRejected)


# --- EventBridge ---

ENVELOPE = {
    "id": "e-1",
    "source": "com.example.shop",
    "detail-type": "Order Placed",
    "time": "2026-01-31T12:00:00Z",
    "resources": ["arn:aws:s3:::b"],
    "account": "123456789012",
    "detail": {"order": 1},
}


def test_an_event_of_a_bus_stays_what_it_is(stubbed: Any) -> None:
    bus = stubbed(ClassicSink, "events://orders?region=us-east-1")
    bus.stub.add_response("put_events", put(None))

    assert bus.send([read_event(ENVELOPE)]) == [None]
    assert bus.calls[0] == {"Name": "orders"}
    assert bus.entries() == [
        {
            "EventBusName": "orders",
            "Source": "com.example.shop",
            "DetailType": "Order Placed",
            "Detail": '{"order":1}',
            "Time": datetime(2026, 1, 31, 12, tzinfo=UTC),
            "Resources": ["arn:aws:s3:::b"],
        }
    ]


def test_other_events_are_put_into_its_shape(stubbed: Any) -> None:
    bus = stubbed(ClassicSink, "events://default?region=us-east-1&source=me&detail-type=Thing")
    bus.stub.add_response("put_events", put(None, None, None))
    cloud = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order", "data": [1, 2]}
    aws = {**ENVELOPE, "source": "aws.partner/genesys.com/cloud/1"}
    bus.send([event(5), read_event(cloud), read_event(aws)])

    entries = [(entry["Source"], entry["DetailType"], entry["Detail"]) for entry in bus.entries()]
    assert entries == [
        ("me", "Thing", '{"id":"5"}'),
        ("/shop", "order", '{"specversion":"1.0","id":"1","source":"/shop","type":"order","data":[1,2]}'),
        ("me", "Order Placed", '{"order":1}'),
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type": "t"}, "has no source of its own, which an event on a bus needs; add source= to the sink's URL"),
        ({"type": "t", "source": "aws.s3"}, "has no source of its own"),
        ({"source": "s"}, "has no type, which an event on a bus needs; add detail-type= to the sink's URL"),
        ({"source": "s", "type": "t" * 129}, "has a detail-type of 129 characters, and EventBridge takes 128"),
    ],
)
def test_an_event_that_a_bus_would_not_keep_is_rejected(stubbed: Any, fields: dict[str, str], reason: str) -> None:
    (error,) = stubbed(ClassicSink, "events://default?region=us-east-1").send([event(**fields)])

    assert isinstance(error, EventRejected)
    assert str(error).startswith(reason)


def test_entries_that_failed_are_found_by_their_place(stubbed: Any) -> None:
    bus = stubbed(ClassicSink, "events://default?region=us-east-1&source=s&detail-type=t")
    bus.stub.add_response(
        "put_events", put(None, "InternalFailure", "MalformedDetail", "NotAuthorizedForSourceException")
    )
    bus.stub.add_response("put_events", put(None))
    answers = bus.send(events(4))

    assert [type(answer) for answer in answers] == [type(None), type(None), EventRejected, EventRejected]
    assert [entry["Detail"] for entry in bus.entries()] == ['{"id":"1"}']


def test_a_missing_bus_stops_everything_though_put_events_would_accept(stubbed: Any) -> None:
    bus = stubbed(ClassicSink, "events://orders?region=us-east-1&source=s&detail-type=t", ready=False)
    bus.stub.add_client_error("describe_event_bus", "ResourceNotFoundException", "no such bus")

    with pytest.raises(SinkError, match="ResourceNotFoundException: no such bus"):
        bus.send(events(1))


def test_a_role_that_may_not_look_is_warned(stubbed: Any, caplog: pytest.LogCaptureFixture) -> None:
    bus = stubbed(ClassicSink, "events://orders?region=us-east-1&source=s&detail-type=t", ready=False)
    bus.stub.add_client_error("describe_event_bus", "AccessDeniedException", "no")
    bus.stub.add_response("put_events", put(None))
    with caplog.at_level(logging.WARNING):
        assert bus.send(events(1)) == [None]

    assert "no permission for events:DescribeEventBus" in caplog.text


def test_a_new_bus_gets_the_key_and_a_repeated_event_counts_as_sent(stubbed: Any) -> None:
    bus = stubbed(NewBusSink, f"events://{NEW_BUS}?source=s&detail-type=t&group=detail.id")
    answer = {
        "FailedEntryCount": 0,
        "Entries": [{"EventId": "1", "SuccessCode": "PUBLISHED"}, {"EventId": "2", "SuccessCode": "DEDUPLICATED"}],
    }
    bus.stub.add_response("put_events", answer)

    assert bus.send(events(2)) == [None, None]
    assert bus.sink.client().meta.region_name == "eu-west-1"
    assert bus.calls[0]["EventBusArn"] == NEW_BUS
    assert bus.entries()[1] == {
        "Source": "s",
        "DetailType": "t",
        "Detail": '{"id":"1"}',
        "SystemMetadata": {"DeduplicationId": "key-1", "EventGroupId": "1"},
    }


def test_a_new_bus_takes_a_hundred_at_a_time(stubbed: Any) -> None:
    bus = stubbed(NewBusSink, f"events://{NEW_BUS}?source=s&detail-type=t")
    for count in (100, 50):
        bus.stub.add_response("put_events", put(*[None] * count))

    assert bus.send(events(150)) == [None] * 150
    assert "EventGroupId" not in bus.entries()[0]["SystemMetadata"]


def test_one_entry_that_a_new_bus_cannot_read_is_found(stubbed: Any) -> None:
    bus = stubbed(NewBusSink, f"events://{NEW_BUS}?source=s&detail-type=t")
    bus.stub.add_client_error("put_events", "InvalidInputException", "bad")
    bus.stub.add_client_error("put_events", "InvalidInputException", "bad")
    bus.stub.add_response("put_events", put(None))
    bad, good = bus.send(events(2))

    assert isinstance(bad, EventRejected)
    assert good is None


# --- opening ---


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqs://orders", SqsSink),
        ("sns://orders.fifo?group=detail.id", SnsSink),
        ("events://default", ClassicSink),
        ("events://arn:aws:events:us-east-1:123456789012:event-bus/orders", ClassicSink),
        (f"events://{NEW_BUS}", NewBusSink),
    ],
)
def test_sinks_are_opened_by_url_and_connect_to_nothing(
    url: str, kind: type[AwsBatchSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    sink = open_sink(url)

    assert isinstance(sink, kind)
    sink.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqs://", "names nothing"),
        ("sqs://host.example.com/orders", "names no queue"),
        ("sqs://orders?group=detail.id", "which end in .fifo"),
        ("sqs://orders.fifo?group=a[", "group: 'a[' is not a path"),
        ("sns://orders?groop=a", "unknown option 'groop'"),
        ("events://default?group=a", "unknown option 'group'"),
        ("events://default?source=aws.me", "source=aws.me is reserved"),
        ("kafka://stream", "kafka:// is not supported; use a file, -"),
    ],
)
def test_a_wrong_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_sink(url)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("https://host", "httpx", "http"), ("sqs://q", "botocore", "aws"), ("events://b", "botocore", "aws")],
)
def test_a_missing_driver_names_its_extra(url: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom eventonce.sinks import open_sink\nopen_sink({url!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert f"install it with pip install 'eventonce[{extra}]'" in done.stderr


def test_ways_out_import_no_driver_before_they_are_opened() -> None:
    code = (
        "import sys, eventonce.sinks; print([name for name in ('httpx', 'botocore', 'boto3') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
