"""The worker on real queues: standard and FIFO, with faults between it and them."""

import base64
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from eventonce import Once
from eventonce.claims.protocol import ClaimRequest
from eventonce.dead_letters.file import DeadFile
from eventonce.errors import ConfigError, SourceError
from eventonce.event import Delivery, Event
from eventonce.event.reading import split_events
from eventonce.observe.trace_context import trace_context
from eventonce.ports import Source
from eventonce.sinks import open_sink
from eventonce.sources import check_source, open_source
from eventonce.sources.sqs import SqsSource
from eventonce.stores.memory import MemoryStore
from eventonce.testing import FaultProxy, ManualClock
from eventonce.worker import WorkerPool
from tests.servers import Ministack, Redis
from tests.unit.sinks.test_sinks_http import Answer, Receiver, Request

GRACE = 60_000
_TARGET = "X-Amz-Target"


# --- a queue, and what can go wrong on the way to it ---


class Gateway(ThreadingHTTPServer):
    """A proxy between a client and the server. A fault may answer in place of the server.

    A fault takes the call's name and its request. It returns a status and a document, or None to pass the call on.
    Messages are hidden `hides` times as long as requested, so that a client may be slow to keep them hidden. `renewed`
    counts how often the client has done so for each message.
    """

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = server
        self.fault: Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]] | None] = lambda name, request: None
        self.calls: Counter[str] = Counter()
        self.hides = 1
        self.renewed: Counter[str] = Counter()
        self._call = threading.local()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def who(self) -> str:
        """The access key of the call that a fault handles."""
        name: str = self._call.who
        return name

    def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        name = headers.get(_TARGET, "").rpartition(".")[2]
        self.calls[name] += 1
        self._call.who = headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        request = json.loads(body)
        for each in request.get("Entries", ()) if name == "ChangeMessageVisibilityBatch" else ():
            each["VisibilityTimeout"] *= self.hides
            self.renewed[each["ReceiptHandle"]] += bool(each["VisibilityTimeout"])
        if name == "ReceiveMessage" and self.hides > 1:
            request["VisibilityTimeout"] *= self.hides
        response = self.fault(name, request)
        if response is not None:
            return response[0], json.dumps(response[1]).encode()
        return self.pass_on(headers, request)

    def pass_on(self, headers: Mapping[str, str], request_body: dict[str, Any]) -> tuple[int, bytes]:
        passed_headers = {
            name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")
        }
        request = urllib.request.Request(self.server, json.dumps(request_body).encode(), passed_headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, document = self.server.answer(dict(self.headers.items()), body)
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(document)))
        self.end_headers()
        self.wfile.write(document)

    def log_message(self, *_: Any) -> None: ...


def wrong(code: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"__type": f"com.amazonaws.sqs#{code}", "message": f"{code}, it says"}


class Queue:
    """One queue of the server, seen from outside."""

    def __init__(self, server: Ministack, *, fifo: bool = False, visibility: int = 30) -> None:
        self.name = f"q-{uuid.uuid4().hex}{'.fifo' if fifo else ''}"
        self.endpoint = server.endpoint()
        self.client: Any = boto3.client("sqs", endpoint_url=self.endpoint, region_name="us-east-1")
        self.attributes = {"VisibilityTimeout": str(visibility)} | ({"FifoQueue": "true"} if fifo else {})
        self.create()

    def create(self) -> None:
        self.url = self.client.create_queue(QueueName=self.name, Attributes=self.attributes)["QueueUrl"]

    def source(self, endpoint: str | None = None, **options: str) -> str:
        options = {"region": "us-east-1", "endpoint": endpoint or self.endpoint, "wait": "1s", **options}
        return f"sqs://{self.name}?" + "&".join(f"{name}={value}" for name, value in options.items())

    def send(self, *bodies: Any, group: str | None = None) -> None:
        texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
        for start in range(0, len(texts), 10):
            entries: list[dict[str, Any]] = [
                {"Id": str(number), "MessageBody": text} for number, text in enumerate(texts[start : start + 10])
            ]
            for entry in entries if group else ():
                entry |= {"MessageGroupId": group, "MessageDeduplicationId": uuid.uuid4().hex}
            assert not self.client.send_message_batch(QueueUrl=self.url, Entries=entries).get("Failed")

    def counts(self) -> tuple[int, int]:
        """Return how many messages can be received, and how many are hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return int(attributes[names[0]]), int(attributes[names[1]])

    def received(self) -> list[tuple[str, int]]:
        """Receive messages now. Return each body with its receive count."""
        answer = self.client.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, AttributeNames=["ApproximateReceiveCount"], VisibilityTimeout=0
        )
        return [
            (each["Body"], int(each["Attributes"]["ApproximateReceiveCount"])) for each in answer.get("Messages", ())
        ]


@pytest.fixture
def queue(ministack: Ministack) -> Queue:
    return Queue(ministack)


@pytest.fixture
def gateway(ministack: Ministack) -> Iterator[Gateway]:
    made = Gateway(ministack.endpoint())
    yield made
    made.shutdown()
    made.server_close()


class Running:
    """A crew at work in a thread, and what its handler was given.

    Its leases are counted on a clock that stands still, so none is lost where the process does.
    """

    def __init__(self, url: str | Source, folder: Path, handler: Any = None, store: Any = None, **more: Any) -> None:
        self.ran: list[str] = []
        self.clock: ManualClock = more.pop("clock", None) or ManualClock()
        self.once = Once(store or MemoryStore(clock=self.clock), clock=self.clock, **more.pop("once", {}))
        self.source: Any = open_source(url) if isinstance(url, str) else url
        self.letters = DeadFile(str(folder / "dead.jsonl"))
        self.handler: Any = handler or (lambda event: None)
        self.sink: Any = more.pop("sink", None)
        chosen = self.sink or (self._handle_async if more.pop("is_async", False) else self._handle)
        self.pool = WorkerPool(self.once, self.source, chosen, self.letters, **{"batch": 10, "threads": 4, **more})
        self.left = -1
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _handle(self, event: Event) -> Any:
        self.ran.append(event.id)
        return self.handler(event)

    async def _handle_async(self, event: Event) -> Any:
        self.ran.append(event.id)
        return await self.handler(event)

    def _run(self) -> None:
        try:
            self.left = self.pool.run(GRACE)
        except BaseException as error:
            self.error = error

    def until(self, true: Callable[[], bool]) -> None:
        wait_until(lambda: true() or not self._thread.is_alive())
        assert self.error is None

    def until_ended(self, events: int) -> None:
        self.until(lambda: self.pool.counts.events >= events)

    def stop(self) -> None:
        self.pool.stop()
        self._thread.join(60)
        self.source.close()
        self.once.close()
        self.letters.close()
        if self.sink is not None:
            self.sink.close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a crew on a queue."""
    made: list[Running] = []

    def start(url: str | Source, handler: Any = None, store: Any = None, **more: Any) -> Running:
        made.append(Running(url, tmp_path, handler, store, **more))
        return made[-1]

    yield start
    for each in made:
        each.stop()


Run = Callable[..., Running]


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dead.jsonl").read_text().splitlines()]


def events(*names: object) -> list[dict[str, str]]:
    return [{"id": str(name)} for name in names]


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "eventonce.outage"]


# --- what is read ---


def test_every_event_once_and_the_queue_is_empty(queue: Queue, run: Run) -> None:
    queue.send(*events(*range(60), *range(40)))
    running = run(queue.source(), batch=25)
    running.until_ended(100)
    assert sorted(running.ran) == sorted(str(number) for number in range(60))
    assert running.pool.counts.as_dict()["processed"] == 60
    assert queue.counts() == (0, 0)


def test_a_delivery_has_its_origin(queue: Queue) -> None:
    queue.send('{"id": "ä"}')
    source = open_source(queue.source())
    (delivery,) = source.receive(100)
    assert delivery.body == '{"id": "ä"}'.encode()
    assert delivery.origin["source"] == f"sqs://{queue.name}"
    assert delivery.origin["message"]
    assert abs(datetime.fromisoformat(delivery.origin["sent"]) - datetime.now(UTC)) < timedelta(minutes=5)
    assert (delivery.receive_count, delivery.group) == (1, None)
    source.retry(delivery, 0)
    source.close()
    assert queue.received() == [('{"id": "ä"}', 2)]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_worker_and_a_function_name_a_message_alike_also_where_sqs_has_moved_it(
    ministack: Ministack, fifo: bool
) -> None:
    dead = Queue(ministack, fifo=fifo)
    queue = Queue(ministack, fifo=fifo, visibility=1)
    arns = [
        each.client.get_queue_attributes(QueueUrl=each.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for each in (queue, dead)
    ]
    policy = json.dumps({"deadLetterTargetArn": arns[1], "maxReceiveCount": 1})
    queue.client.set_queue_attributes(QueueUrl=queue.url, Attributes={"RedrivePolicy": policy})
    queue.send("bare text, without an id", group="g" if fifo else None)
    ran: list[Event] = []
    with Once("memory:", consumer="billing") as once:
        first = open_source(queue.source(visibility="1s"))
        (delivery,) = first.receive(1)
        assert delivery.origin["arn"] == arns[0]
        record = {"messageId": delivery.origin["message"], "eventSource": "aws:sqs", "eventSourceARN": arns[0]}
        function = once.aws_lambda(ran.append)
        assert function({"Records": [{**record, "body": delivery.body.decode()}]}, None) == {"batchItemFailures": []}

        assert [each.kind for each in once.run(split_events(delivery), ran.append)] == ["duplicate"]
        first.close()
        second = open_source(dead.source())
        moved: Sequence[Delivery] = []
        deadline = time.monotonic() + 60
        while not moved:
            assert time.monotonic() < deadline
            queue.client.receive_message(QueueUrl=queue.url, WaitTimeSeconds=1)  # which is one too many, and moves it
            moved = second.receive(1)
        assert [each.kind for each in once.run(split_events(moved[0]), ran.append)] == ["duplicate"]
        second.close()
    assert [(each.id, each.named_by) for each in ran] == [(delivery.origin["message"], (arns[0],))]


def test_a_message_names_its_trace(queue: Queue, run: Run) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    attributes = {"traceparent": {"DataType": "String", "StringValue": parent}}
    queue.client.send_message(QueueUrl=queue.url, MessageBody='{"id": "1"}', MessageAttributes=attributes)
    events: list[Event] = []
    run(queue.source(), events.append).until_ended(1)
    assert trace_context(events[0]) == {"traceparent": parent}
    assert events[0].line() == b'{"id": "1"}'


def test_envelopes_are_taken_off_and_ids_come_from_the_carrier_at_last(queue: Queue, run: Run) -> None:
    inner = {"id": "e-1", "source": "shop", "detail-type": "Order", "detail": {"n": 1}}
    notice = {"Type": "Notification", "TopicArn": "arn", "MessageId": "s-1"}
    queue.send({**notice, "Message": json.dumps(inner)}, inner, "hello", "hello")
    events: list[Any] = []
    running = run(queue.source(), lambda event: events.append(event.data), threads=1)
    running.until_ended(4)
    assert sorted(map(str, events)) == ["hello", "hello", "{'n': 1}"]
    assert running.pool.counts.as_dict()["duplicate"] == 1
    assert len(set(running.ran)) == 3


def test_a_message_of_several_events_goes_when_all_are_done(queue: Queue, run: Run) -> None:
    def handle(event: Event) -> None:
        if event.data["s3"]["object"]["key"] == "b" and len(running.ran) < 4:
            raise ValueError("not yet")

    running = run(queue.source(), handle)
    queue.send({"Records": [s3(key) for key in "abc"]})
    running.until_ended(3)
    counts = running.pool.counts.as_dict()
    assert (counts["processed"], counts["duplicate"]) == (1, 2)
    assert len(running.ran) == 4
    assert queue.counts() == (0, 0)


def s3(key: str) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, "sequencer": "0055AED6"}},
    }


MALFORMED = {
    "json": '{"id": ',
    "json in json": json.dumps({"Type": "Notification", "TopicArn": "t", "MessageId": "s", "Message": '{"id": '}),
    "base64": json.dumps({"Records": [{"eventSource": "aws:kinesis", "eventID": "1", "kinesis": {"data": "%%%"}}]}),
    "gzip": json.dumps({"awslogs": {"data": "H4sIAAAAAAAA/w=="}}),
    "list": "[]",
}


def test_malformed_bodies_are_kept_as_they_were_and_the_others_go_on(queue: Queue, run: Run, tmp_path: Path) -> None:
    queue.send({"id": "a"}, *MALFORMED.values(), {"id": "b"})
    running = run(queue.source())
    running.until_ended(len(MALFORMED) + 2)
    assert sorted(running.ran) == ["a", "b"]
    assert sorted(letter["body"] for letter in letters(tmp_path)) == sorted(MALFORMED.values())
    assert all(letter["message"] and letter["reason"] for letter in letters(tmp_path))
    assert queue.counts() == (0, 0)


# --- order ---


def test_groups_are_in_order_and_go_on_beside_each_other(ministack: Ministack, run: Run) -> None:
    queue = Queue(ministack, fifo=True)
    for group in "abcd":
        queue.send(*events(*(f"{group}{number}" for number in range(8))), group=group)
    failed: list[str] = []

    def handle(event: Event) -> None:
        if event.id in ("a3", "c5") and failed.count(event.id) < 2:
            failed.append(event.id)
            raise ValueError("not yet")
        done.append(event.id)

    done: list[str] = []
    running = run(queue.source(), handle)
    running.until_ended(32)
    for group in "abcd":
        assert [each for each in done if each[0] == group] == [f"{group}{number}" for number in range(8)]
    assert sorted(failed) == ["a3", "a3", "c5", "c5"]


def test_a_poisonous_event_does_not_hold_its_group_forever(ministack: Ministack, run: Run, tmp_path: Path) -> None:
    queue = Queue(ministack, fifo=True)
    queue.send({"id": "a"}, '{"id": ', {"id": "b"}, group="g")
    running = run(queue.source())
    running.until_ended(3)
    assert running.ran == ["a", "b"]
    assert [letter["body"] for letter in letters(tmp_path)] == ['{"id": ']


# --- visibility ---


def test_a_slow_handler_keeps_its_message_to_itself(ministack: Ministack, gateway: Gateway, run: Run) -> None:
    queue, gateway.hides = Queue(ministack, visibility=1), 60
    release = threading.Event()
    running = run(queue.source(gateway.endpoint), lambda event: release.wait(300), threads=1)
    queue.send({"id": "a"})
    running.until(lambda: running.ran == ["a"])
    running.until(lambda: min(gateway.renewed.values(), default=0) > 6)  # each time when a third of it has passed
    other = open_source(queue.source())
    assert other.receive(10) == []
    release.set()
    running.until_ended(1)
    other.close()
    assert queue.counts() == (0, 0)


@pytest.mark.long
def test_a_thousand_messages_in_progress_are_all_kept(ministack: Ministack, gateway: Gateway, run: Run) -> None:
    queue = Queue(ministack, visibility=12)
    queue.send(*events(*range(1000)))
    release = threading.Event()
    running = run(queue.source(gateway.endpoint), lambda event: release.wait(300), threads=10, batch=100)
    running.until(lambda: len(running.ran) == 10 and sum(queue.counts()) == queue.counts()[1] == 1000)
    # Each is hidden anew when a third of its time has passed, so by then the first time of all of them is over.
    running.until(lambda: len(gateway.renewed) == 1000 and min(gateway.renewed.values()) > 2)
    other = open_source(queue.source())
    assert other.receive(10) == []
    release.set()
    running.until_ended(1000)
    other.close()
    assert running.pool.counts.as_dict()["processed"] == 1000  # none came twice, and no lease was lost
    assert queue.counts() == (0, 0)


def test_a_busy_copy_comes_back_when_the_lease_expires(queue: Queue, run: Run) -> None:
    store = MemoryStore()
    once = Once(store)
    store.claim([ClaimRequest(once.key({"id": "a"}), 60_000)], b"another1", 2500)  # by one that dies
    queue.send({"id": "a"})
    running = run(queue.source(), store=store)
    running.until_ended(1)
    assert running.ran == ["a"]
    assert queue.counts() == (0, 0)
    once.close()


def test_the_queue_decides_how_long_a_message_is_hidden_unless_the_url_does(ministack: Ministack) -> None:
    requests: list[Any] = []
    gateway = Gateway(ministack.endpoint())
    gateway.fault = lambda name, request: (
        requests.append(request.get("VisibilityTimeout")) if name == "ReceiveMessage" else None
    )
    queue = Queue(ministack, visibility=77)
    for options in ({}, {"visibility": "9s"}):
        source = open_source(queue.source(gateway.endpoint, **options))
        source.receive(1)
        source.close()
    gateway.shutdown()
    gateway.server_close()
    assert requests == [77, 9]


# --- faults ---


def test_a_partial_failure_of_a_delete_is_tried_again(queue: Queue, gateway: Gateway, run: Run) -> None:
    refused: Counter[str] = Counter()

    def fault(name: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        if name != "DeleteMessageBatch":
            return None
        for entry in request["Entries"][1::2]:
            refused[entry["ReceiptHandle"]] += 1
        again = [entry for entry in request["Entries"][1::2] if refused[entry["ReceiptHandle"]] < 2]
        passed = [entry for entry in request["Entries"] if entry not in again]
        status, answer = gateway.pass_on(
            {_TARGET: "AmazonSQS.DeleteMessageBatch", **JSON}, {**request, "Entries": passed}
        )
        failed = [{"Id": entry["Id"], "Code": "InternalError", "SenderFault": False} for entry in again]
        return status, {**json.loads(answer), "Failed": failed}

    gateway.fault = fault
    queue.send(*events(*range(40)))
    running = run(queue.source(gateway.endpoint))
    running.until_ended(40)
    assert queue.counts() == (0, 0)
    assert refused
    assert len(running.ran) == 40


JSON = {"Content-Type": "application/x-amz-json-1.0"}
OPENING = ("GetQueueUrl", "GetQueueAttributes")  # what a source asks once, before it polls


def test_what_cannot_be_deleted_is_redelivered_as_a_duplicate(
    ministack: Ministack, gateway: Gateway, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(name: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        if name != "DeleteMessageBatch" or len(running.ran) > 30:
            return None
        failed = [{"Id": each["Id"], "Code": "InternalError", "SenderFault": False} for each in request["Entries"]]
        return 200, {"Successful": [], "Failed": failed}

    queue = Queue(ministack, visibility=1)
    # On a clock that stands still an outage is not over after some calm.
    running = run(SqsSource(queue.source(gateway.endpoint), ManualClock()))
    gateway.fault = fault
    queue.send(*events(*range(20)))
    running.until(lambda: running.pool.counts.events >= 50)
    assert sorted(set(running.ran)) == sorted(str(number) for number in range(20))
    assert len(running.ran) == 20
    gateway.fault = lambda name, request: None
    running.until(lambda: queue.counts() == (0, 0))
    assert len([each for each in outages(caplog) if "could not be deleted: InternalError" in each]) == 1


@pytest.mark.parametrize(
    "code", ["RequestThrottled", "ExpiredToken", "AccessDenied", "InternalFailure", "QueueDoesNotExist"]
)
@pytest.mark.long
def test_a_queue_that_does_not_answer_is_reported_once_and_retried_until_it_does(
    queue: Queue, gateway: Gateway, run: Run, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    caplog.set_level(logging.INFO)
    gateway.fault = lambda name, request: None if name in OPENING else wrong(code)
    running = run(queue.source(gateway.endpoint))
    queue.send(*events(*range(20)))
    running.until(lambda: len(outages(caplog)) == 1)
    before = gateway.calls.total()
    time.sleep(1)
    requests = gateway.calls.total() - before
    gateway.fault = lambda name, request: None
    running.until_ended(20)
    assert len(running.ran) == 20
    assert requests < 200, "a busy loop"
    running.until(lambda: len(outages(caplog)) == 2)
    first, last = outages(caplog)
    assert first.startswith(f"sqs://{queue.name} does not answer")
    assert code in first
    assert "answers again" in last


def test_a_queue_that_vanishes_is_waited_for(queue: Queue, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    running = run(queue.source())
    queue.send({"id": "a"})
    running.until_ended(1)
    queue.client.delete_queue(QueueUrl=queue.url)
    running.until(lambda: bool(outages(caplog)))
    queue.create()
    queue.send({"id": "b"})
    running.until_ended(2)
    assert running.ran == ["a", "b"]


def test_a_server_that_is_gone_for_a_while(
    servers: Path, run: Run, caplog: pytest.LogCaptureFixture, ministack: Ministack
) -> None:
    with Ministack(servers) as server:
        queue = Queue(server)
        running = run(queue.source())
        queue.send({"id": "a"})
        running.until_ended(1)
        server.kill()
        running.until(lambda: bool(outages(caplog)))
        server.start()
        queue.create()
        queue.send({"id": "b"})
        running.until_ended(2)
        running.pool.stop()
        running.stop()
    assert running.ran == ["a", "b"]


def test_connections_that_are_cut_are_an_outage_too(
    ministack: Ministack, queue: Queue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """botocore has other errors for them, whose answer is there and empty."""
    with FaultProxy(ministack.port) as proxy:
        running = run(queue.source(f"http://127.0.0.1:{proxy.port}"))
        queue.send({"id": "a"})
        running.until_ended(1)
        proxy.refusing = True
        proxy.cut_all()
        running.until(lambda: len(outages(caplog)) == 1)
        proxy.refusing = False
        queue.send({"id": "b"})
        running.until_ended(2)
        running.stop()
    assert running.ran == ["a", "b"]


@pytest.mark.long
def test_a_store_that_is_out_holds_the_messages_in_the_queue(
    queue: Queue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.unit.conftest import Faulty

    store = Faulty("claim")
    queue.send(*events(*range(30)))
    running = run(queue.source(), store=store)
    running.until(lambda: len(store.calls) > 6)
    assert running.pool.counts.events == 0
    assert sum(queue.counts()) == 30
    store.before.clear()
    running.until_ended(30)
    assert len(running.ran) == 30
    assert [each for each in outages(caplog) if "does not answer" in each] == [
        "the store does not answer, trying again until it does: no answer to claim"
    ]


@pytest.mark.long
def test_credentials_that_expire_are_looked_up_anew(
    queue: Queue, gateway: Gateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(name: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        return wrong("ExpiredToken") if gateway.who == "test" and name not in OPENING else None

    gateway.fault = fault  # before the first poll, which would bring messages that are sent while it waits
    running = run(queue.source(gateway.endpoint))
    queue.send(*events(*range(20)))
    running.until(lambda: gateway.calls["ReceiveMessage"] > 8)
    assert running.ran == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    running.until_ended(20)
    assert len(running.ran) == 20
    running.until(lambda: queue.counts() == (0, 0))


# --- sinks ---


class Slow(Receiver):
    """A receiver that takes its time: until something has come true, or it may take more."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: Callable[[], bool] = lambda: True
        self.limit: int | None = None
        self._served = 0
        self._cut = 0
        self._counting = threading.Lock()

    def take(self, limit: int) -> None:
        """Take so many requests and let the others wait."""
        with self._counting:
            self._served, self.limit = 0, limit

    def cut_waiting(self) -> None:
        """Close the connections of requests that wait, as their senders were killed."""
        with self._counting:
            self._cut += 1

    def serve(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        cut, whole = self._cut, len(request.body) == int(request.headers["content-length"])
        wait_until(lambda: not whole or (self.ready() and self._may_end(cut)))
        if not whole or self._cut > cut:  # its sender was killed, perhaps before it had sent all
            handler.close_connection = True
            return
        super().serve(handler, request)

    def _may_end(self, cut: int) -> bool:
        with self._counting:
            if self._cut == cut and self.limit is not None and self._served >= self.limit:
                return False
            self._served += self._cut == cut
            return True


@pytest.fixture
def receiver() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.close()


def posted(receiver: Receiver) -> Counter[tuple[str, str]]:
    """Return how often each event came, under each key."""
    return Counter((json.loads(each.body)["id"], each.headers["idempotency-key"]) for each in receiver.requests)


def test_a_sink_slower_than_the_visibility_timeout_gets_each_event_once(
    ministack: Ministack, gateway: Gateway, run: Run, receiver: Slow
) -> None:
    """And slower than the lease."""
    clock, slow, over = ManualClock(), [45_000, 45_000], threading.Event()  # together more than the lease
    store, lock = MemoryStore(clock=clock), threading.Lock()

    def all_held() -> bool:
        """Return whether all are claimed, for a whole lease from now."""
        records = store.peek([running.once.key(event) for event in events(*range(16))])
        return all(record is not None and record.lease == clock.utc() + 60_000 for record in records)

    def slower() -> bool:
        with lock:
            if slow and all_held():
                clock.sleep(slow.pop())
            hidden = len(gateway.renewed) == 16 and min(gateway.renewed.values()) > 6
            if not slow and hidden and all_held():
                over.set()
        return over.is_set()

    queue, gateway.hides, receiver.ready = Queue(ministack, visibility=1), 60, slower
    queue.send(*events(*range(16)))
    sink = open_sink(f"{receiver.url}#timeout=300s")
    running = run(queue.source(gateway.endpoint), store=store, clock=clock, sink=sink, once={"lease": "60s"})
    running.until_ended(16)
    assert running.pool.counts.as_dict()["processed"] == 16
    running.until(lambda: queue.counts() == (0, 0))
    assert sorted(posted(receiver).values()) == [1] * 16


def test_a_sink_that_hangs_loses_nothing_and_gets_the_same_key_again(
    ministack: Ministack, run: Run, receiver: Slow, tmp_path: Path
) -> None:
    queue, receiver.hanging = Queue(ministack, visibility=1), True
    queue.send(*events(*range(8)))
    running = run(queue.source(), sink=open_sink(f"{receiver.url}#timeout=100ms"), once={"max_attempts": 1000})
    running.until(lambda: len(receiver.requests) > 16)
    assert running.pool.counts.events == 0
    assert sum(queue.counts()) == 8
    receiver.hanging = False
    receiver.free.set()
    running.until_ended(8)
    assert {name for name, _ in posted(receiver)} == {str(number) for number in range(8)}
    assert len(posted(receiver)) == 8  # one key for each, however often it was tried
    assert not (tmp_path / "dead.jsonl").exists()
    running.until(lambda: queue.counts() == (0, 0))


def test_what_a_sink_refuses_is_a_dead_letter_with_its_answer(
    queue: Queue, run: Run, receiver: Slow, tmp_path: Path
) -> None:
    receiver.answers = [Answer(422, body=b"no such order")]
    queue.send({"id": "a"})
    running = run(queue.source(), sink=open_sink(receiver.url))
    running.until_ended(1)
    (letter,) = letters(tmp_path)
    assert (letter["outcome"], letter["body"]) == ("rejected", '{"id": "a"}')
    assert letter["reason"] == f"{receiver.url} answered 422: no such order"
    assert queue.counts() == (0, 0)


@pytest.mark.long
def test_a_bus_that_takes_only_some_of_a_call_gets_every_event_once(
    ministack: Ministack, gateway: Gateway, run: Run
) -> None:
    queue, behind = Queue(ministack), Queue(ministack)
    bus: Any = boto3.client("events", endpoint_url=ministack.endpoint(), region_name="us-east-1")
    bus.create_event_bus(Name=queue.name)
    bus.put_rule(Name="all", EventBusName=queue.name, EventPattern='{"source": ["shop"]}')
    arn = behind.client.get_queue_attributes(QueueUrl=behind.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    bus.put_targets(Rule="all", EventBusName=queue.name, Targets=[{"Id": "1", "Arn": arn}])
    refused: Counter[str] = Counter()

    def fault(name: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        if name != "PutEvents":
            return None
        wanted = [
            entry
            for entry in request["Entries"]
            if json.loads(entry["Detail"])["order"] % 2 or refused[entry["Detail"]] >= 5
        ]
        accepted = iter(())
        if wanted:
            target = {_TARGET: "AWSEvents.PutEvents", "Content-Type": "application/x-amz-json-1.1"}
            _, answer = gateway.pass_on(target, {**request, "Entries": wanted})
            accepted = iter(json.loads(answer)["Entries"])
        results: list[Any] = []
        for entry in request["Entries"]:
            if entry in wanted:
                results.append(next(accepted))
            else:
                refused[entry["Detail"]] += 1
                results.append({"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"})
        return 200, {"FailedEntryCount": len(request["Entries"]) - len(wanted), "Entries": results}

    gateway.fault = fault
    orders = [
        {"id": str(number), "source": "shop", "detail-type": "Order", "detail": {"order": number}}
        for number in range(30)
    ]
    queue.send(*orders, *orders)
    running = run(queue.source(), sink=open_sink(f"events://{queue.name}?region=us-east-1&endpoint={gateway.endpoint}"))
    running.until_ended(60)
    events: list[int] = []
    while messages := behind.client.receive_message(QueueUrl=behind.url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get(
        "Messages"
    ):
        events += [json.loads(each["Body"])["detail"]["order"] for each in messages]
    assert sorted(events) == list(range(30))
    assert refused
    assert queue.counts() == (0, 0)


def test_async_handlers(queue: Queue, run: Run) -> None:
    import asyncio

    queue.send(*events(*range(50)))
    running = run(queue.source(), lambda event: asyncio.sleep(0.01), is_async=True)
    running.until_ended(50)
    assert len(set(running.ran)) == len(running.ran) == 50
    assert queue.counts() == (0, 0)


# --- how it begins ---


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqs://", "names nothing"),
        ("sqs://q?wait=0s", "wait is out of range; use 1s to 20s"),
        ("sqs://q?wait=21s", "wait is out of range; use 1s to 20s"),
        ("sqs://q?visibility=13h", "visibility is out of range; use 1s to 12h"),
        ("sqs://q?visibility=0", "visibility"),
        ("sqs://q?wiat=5s", "unknown option 'wiat'"),
    ],
)
def test_a_wrong_url_is_refused_without_a_call(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_source(url)


def test_a_queue_may_be_named_with_its_account(queue: Queue) -> None:
    account = queue.url.split("/")[-2]
    source = open_source(queue.source().replace("sqs://", f"sqs://{account}/"))
    assert source.receive(1) == []
    source.close()


def test_a_missing_queue_is_reported_at_once(queue: Queue) -> None:
    with pytest.raises(SourceError, match="check its name, region and account"):
        open_source(queue.source().replace(queue.name, "no-such-queue"))


def test_a_queue_without_permission_is_reported_at_once(queue: Queue, gateway: Gateway) -> None:
    gateway.fault = lambda name, request: wrong("AccessDenied", 403)
    with pytest.raises(SourceError, match="permissions"):
        open_source(queue.source(gateway.endpoint))


# --- the command line ---

HANDLERS = """
import itertools, os, pathlib, time

LOG = os.open("effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
NUMBERS = itertools.count(1)

def handle(event):
    if next(NUMBERS) > int(os.environ["MOST"]):
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
    os.write(LOG, event.id.encode() + b"\\n")

def hang(event):
    os.write(LOG, event.id.encode() + b"\\n")
    time.sleep(600)
"""


class Cli:
    """Workers as processes, in a folder of their own.

    Claims and messages last for a minute. What a killed worker had is redelivered after `lasts`.
    """

    lasts = "60s"
    store = "sqlite:///store.db"

    def __init__(self, folder: Path, queue: Queue) -> None:
        self.folder = folder
        self.queue = queue
        (folder / "handlers.py").write_text(HANDLERS)
        (folder / "effects.log").touch()
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, *options: str, name: str = "handle", most: int = 1_000_000) -> "subprocess.Popen[str]":
        """A worker whose handler goes on after so many events only when it may."""
        settings = f'store = "{self.store}"\nlease = "{self.lasts}"\nbatch = 10\nthreads = 3\n'
        (self.folder / "pipeline.toml").write_text(settings)
        source = ("--source", self.queue.source(visibility=self.lasts), "--sink", f"python:handlers:{name}")
        # A shell that runs tests in the background has SIGINT ignored, and that is inherited.
        program = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
            "os.execv(sys.executable, [sys.executable, '-m', 'eventonce', *sys.argv[1:]])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program, "run", "pipeline.toml", *source, *options],
            cwd=self.folder,
            env={**os.environ, "MOST": str(most)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.begun.append(process)
        return process

    def go_on(self) -> None:
        (self.folder / "go").touch()

    def effects(self) -> list[str]:
        return (self.folder / "effects.log").read_text().split()


@pytest.fixture
def cli(tmp_path: Path, queue: Queue) -> Iterator[Cli]:
    made = Cli(tmp_path, queue)
    yield made
    for process in made.begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for_line(process: "subprocess.Popen[str]", part: str) -> str:
    """Read the lines of a process up to one with this part, and return them."""
    assert process.stderr is not None
    output = ""
    while part not in output:
        line = process.stderr.readline()
        assert line, output
        output += line
    return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_worker_that_is_stopped_loses_and_doubles_nothing(cli: Cli, number: signal.Signals) -> None:
    cli.queue.send(*events(*range(100)))
    first = cli.start("--json", most=11)
    wait_until(lambda: len(cli.effects()) > 10)
    first.send_signal(number)
    wait_for_line(first, "a second signal stops at once")
    cli.go_on()
    _, output = first.communicate(timeout=120)
    assert first.returncode == 0, output
    counts = json.loads(output.splitlines()[-1])
    assert counts["processed"] == len(cli.effects()) < 100
    assert sum(cli.queue.counts()) == 100 - counts["processed"]  # acked is what is done, and nothing else

    second = cli.start("--json")
    wait_until(lambda: cli.queue.counts() == (0, 0))
    second.send_signal(number)
    _, output = second.communicate(timeout=120)
    assert second.returncode == 0, output
    assert sorted(cli.effects()) == sorted(str(number) for number in range(100))
    assert json.loads(output.splitlines()[-1])["duplicate"] == 0


def test_a_handler_that_hangs_is_left_after_the_grace_time(cli: Cli) -> None:
    cli.queue.send({"id": "a"})
    worker = cli.start("--grace", "500ms", name="hang")
    wait_until(lambda: cli.effects() == ["a"])
    worker.send_signal(signal.SIGTERM)
    _, output = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "not finished in time, and will be redelivered: 1 event" in output
    assert "Traceback" not in output
    assert sum(cli.queue.counts()) == 1


def test_a_second_signal_stops_at_once(cli: Cli) -> None:
    cli.queue.send({"id": "a"})
    worker = cli.start("--grace", "10m", name="hang")
    wait_until(lambda: cli.effects() == ["a"])
    worker.send_signal(signal.SIGTERM)
    wait_for_line(worker, "a second signal stops at once")
    worker.send_signal(signal.SIGTERM)
    _, output = worker.communicate(timeout=60)
    assert worker.returncode == 143
    assert "Traceback" not in output
    assert sum(cli.queue.counts()) == 1


def test_a_sink_that_vanishes_ends_the_worker_and_nothing_is_acked(cli: Cli, ministack: Ministack) -> None:
    sink = Queue(ministack)
    where = f"sqs://{sink.name}?region=us-east-1&endpoint={sink.endpoint}"
    cli.queue.send({"id": "a"})
    worker = cli.start("--sink", where)
    wait_until(lambda: cli.queue.counts() == (0, 0))
    sink.client.delete_queue(QueueUrl=sink.url)
    cli.queue.send(*events(*range(20)))
    _, output = worker.communicate(timeout=120)
    assert worker.returncode == 2
    assert f"sqs://{sink.name} cannot be used" in output
    assert "no event was lost" in output
    assert "Traceback" not in output
    assert sum(cli.queue.counts()) == 20


def test_a_letter_that_is_too_large_for_its_queue_ends_no_worker(cli: Cli, ministack: Ministack) -> None:
    """Whoever may send to the queue could stop all of its workers with one message else."""
    dead = Queue(ministack)
    noise = "{" + base64.b64encode(b"".join(sha256(b"%d" % each).digest() for each in range(24_574))).decode()
    cli.queue.send(noise)
    worker = cli.start("--dead-letter", f"sqs://{dead.name}?region=us-east-1&endpoint={dead.endpoint}")
    wait_for_line(worker, "even when compressed")
    cli.queue.send({"id": "a"}, '{"id": ', {"id": "b"})
    wait_until(lambda: dead.counts() == (1, 0) or worker.poll() is not None)
    wait_until(lambda: sorted(cli.effects()) == ["a", "b"] or worker.poll() is not None)
    assert worker.poll() is None
    wait_until(lambda: cli.queue.counts() == (0, 1))  # it was not acked, and rests before its redelivery
    worker.send_signal(signal.SIGTERM)
    _, output = worker.communicate(timeout=60)
    assert worker.returncode == 0, output
    assert "Traceback" not in output


@pytest.mark.long
def test_kills_in_the_middle_of_sending_lose_nothing_and_keep_the_key(cli: Cli, receiver: Slow) -> None:
    cli.lasts = "2s"
    cli.queue.send(*events(*range(60)))
    for _ in range(3):
        before = len(receiver.requests)
        receiver.take(12)
        worker = cli.start("--sink", receiver.url)
        wait_until(lambda before=before: len(receiver.requests) > before + 10)  # type: ignore[misc]
        worker.kill()
        worker.communicate()
        receiver.cut_waiting()
    receiver.limit = None
    last = cli.start("--sink", receiver.url)
    wait_until(lambda: cli.queue.counts() == (0, 0))
    last.send_signal(signal.SIGTERM)
    last.communicate(timeout=60)
    assert {name for name, _ in posted(receiver)} == {str(number) for number in range(60)}
    assert len(posted(receiver)) == 60  # a receiver that honours the key has each once


@pytest.mark.long
def test_kills_lose_nothing_and_ack_nothing_too_early(cli: Cli) -> None:
    cli.lasts = "2s"
    names = {str(number) for number in range(600)}
    cli.queue.send(*events(*names))
    for _ in range(6):
        before = len(cli.effects())
        worker = cli.start(most=40)
        wait_until(lambda before=before: len(cli.effects()) > before + 20)  # type: ignore[misc]
        worker.kill()
        worker.communicate()
        assert sum(cli.queue.counts()) >= 600 - len(set(cli.effects()))
    last = cli.start()
    wait_until(lambda: cli.queue.counts() == (0, 0))
    last.send_signal(signal.SIGTERM)
    last.communicate(timeout=60)
    assert set(cli.effects()) == names


@pytest.mark.parametrize("lease", ["2s", "60s"], ids=["longer than a lease", "shorter than a lease"])
@pytest.mark.long
def test_a_store_that_is_killed_is_waited_for_and_that_is_reported_once(
    cli: Cli, redis_server: Redis, lease: str
) -> None:
    names = {f"{uuid.uuid4()}" for _ in range(200)}  # the server lives on after the test
    cli.queue.send(*events(*names))
    cli.store, cli.lasts = redis_server.url(), lease
    worker = cli.start("--json", most=21)
    wait_until(lambda: len(cli.effects()) > 20 or worker.poll() is not None)
    redis_server.kill()
    cli.go_on()
    output = wait_for_line(worker, "the store does not answer")
    if lease == "2s":
        time.sleep(3)
    redis_server.start()
    wait_until(lambda: cli.queue.counts() == (0, 0))
    worker.send_signal(signal.SIGTERM)
    output += worker.communicate(timeout=60)[1]
    assert worker.returncode == 0, output
    assert set(cli.effects()) == names
    assert json.loads(output.splitlines()[-1])["processed"] == 200
    assert len([line for line in output.splitlines() if "the store does not answer" in line]) == 1, output


def test_a_queue_that_is_not_there_is_one_sentence_and_exit_2(cli: Cli) -> None:
    cli.queue.name = "no-such-queue"
    worker = cli.start()
    _, output = worker.communicate(timeout=60)
    assert worker.returncode == 2
    *banner, sentence = output.splitlines()
    assert banner[0].startswith("eventonce 0.")
    assert sentence.partition("eventonce: ")[2].startswith("sqs://no-such-queue: cannot be read")
