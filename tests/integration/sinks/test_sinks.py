"""The sinks of AWS over the wire: on ministack, through a proxy that loses answers, and against a bus of our own."""

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once, Rule
from eventonce.claims.outcome import OutcomeKind
from eventonce.clients.aws import client
from eventonce.errors import SinkDown, SinkError
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.ports import Sink
from eventonce.settings import settings
from eventonce.sinks import open_sink
from eventonce.sinks.sns import SnsSink
from eventonce.testing.proxy import FaultProxy
from eventonce.wire import Pipeline
from eventonce.worker import Worker
from tests.new_bus import NewBus
from tests.servers import Ministack


class Account:
    """Queues, topics and buses with names of their own, and clients to look at them."""

    def __init__(self, server: Ministack) -> None:
        self.server = server
        self.unique = uuid.uuid4().hex[:12]
        self.where = f"region=us-east-1&endpoint={server.endpoint()}"
        self._clients: dict[str, Any] = {}
        self._sinks: list[Sink] = []

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = client(service, region="us-east-1", endpoint=self.server.endpoint())
        return self._clients[service]

    def sink(self, url: str) -> Sink:
        opened = open_sink(f"{url}{'&' if '?' in url else '?'}{self.where}")
        assert isinstance(opened, Sink)
        self._sinks.append(opened)
        return opened

    def queue(self, ending: str = "") -> str:
        name = f"queue-{self.unique}{ending}"
        self.client("sqs").create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if ending else {})
        return name

    def topic(self, queue: str, ending: str = "") -> str:
        """A topic with this queue behind it."""
        name = f"topic-{self.unique}{ending}"
        arn = self.client("sns").create_topic(Name=name, Attributes={"FifoTopic": "true"} if ending else {})["TopicArn"]
        raw = {"RawMessageDelivery": "true"}
        self.client("sns").subscribe(TopicArn=arn, Protocol="sqs", Endpoint=self.arn(queue), Attributes=raw)
        return name

    def bus(self, queue: str) -> str:
        """A bus with this queue behind it."""
        name, events = f"bus-{self.unique}", self.client("events")
        events.create_event_bus(Name=name)
        events.put_rule(Name="all", EventBusName=name, EventPattern=json.dumps({"account": [{"exists": True}]}))
        events.put_targets(Rule="all", EventBusName=name, Targets=[{"Id": "1", "Arn": self.arn(queue)}])
        return name

    def arn(self, queue: str) -> str:
        sqs = self.client("sqs")
        response = sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=["QueueArn"])
        return str(response["Attributes"]["QueueArn"])

    def url(self, queue: str) -> str:
        return str(self.client("sqs").get_queue_url(QueueName=queue)["QueueUrl"])

    def messages(self, queue: str, wait: int = 1) -> list[dict[str, Any]]:
        """All that is in a queue by now."""
        messages: list[dict[str, Any]] = []
        while (
            received := self.client("sqs")
            .receive_message(
                QueueUrl=self.url(queue),
                MaxNumberOfMessages=10,
                WaitTimeSeconds=wait,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            )
            .get("Messages")
        ):
            for message in received:
                self.client("sqs").delete_message(QueueUrl=self.url(queue), ReceiptHandle=message["ReceiptHandle"])
            messages += received
        return messages

    def close(self) -> None:
        for each in (*self._sinks, *self._clients.values()):
            each.close()


@pytest.fixture
def account(ministack: Ministack) -> Iterator[Account]:
    account = Account(ministack)
    yield account
    account.close()


def order(number: int, customer: str = "c-1") -> Event:
    envelope = {
        "id": f"e-{number}",
        "source": "com.example.shop",
        "detail-type": "Order Placed",
        "time": "2026-01-31T12:00:00Z",
        "resources": [],
        "detail": {"order": number, "customer": customer},
    }
    return read_event(json.dumps(envelope).encode())


def orders(count: int) -> list[Event]:
    return [order(number) for number in range(count)]


def keys(count: int) -> list[str]:
    return [f"key-{number}" for number in range(count)]


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [json.loads(message["Body"])["detail"]["order"] for message in messages]


# --- SQS ---


def test_a_standard_queue(account: Account) -> None:
    queue = account.queue()

    assert account.sink(f"sqs://{queue}").send(orders(25), keys(25)) == [None] * 25
    messages = account.messages(queue)
    assert sorted(numbers(messages)) == list(range(25))
    named = {
        json.loads(each["Body"])["id"]: each["MessageAttributes"]["eventonce-key"]["StringValue"] for each in messages
    }
    assert named == {f"e-{number}": f"key-{number}" for number in range(25)}


def test_a_fifo_queue_keeps_order_and_drops_what_comes_twice(account: Account) -> None:
    queue = account.queue(".fifo")
    sink = account.sink(f"sqs://{queue}?group=detail.customer")
    events = [order(number, f"c-{number % 3}") for number in range(9)]

    assert sink.send(events, keys(9)) == [None] * 9
    assert sink.send(events, keys(9)) == [None] * 9
    messages = account.messages(queue)
    groups: dict[str, list[int]] = {}
    for each in messages:
        groups.setdefault(each["Attributes"]["MessageGroupId"], []).extend(numbers([each]))
    assert groups == {"c-0": [0, 3, 6], "c-1": [1, 4, 7], "c-2": [2, 5, 8]}
    assert account.messages(queue) == []


def test_a_queue_that_is_missing(account: Account) -> None:
    with pytest.raises(SinkError, match=r"^sqs://nowhere cannot be used .*NonExistentQueue"):
        account.sink("sqs://nowhere").send(orders(1), keys(1))


def test_a_queue_that_is_deleted_meanwhile(account: Account) -> None:
    queue = account.queue()
    sink = account.sink(f"sqs://{queue}")
    assert sink.send(orders(1), keys(1)) == [None]
    account.client("sqs").delete_queue(QueueUrl=account.url(queue))

    with pytest.raises(SinkError, match="cannot be used"):
        sink.send(orders(1), keys(1))


def test_a_lost_answer_is_asked_for_again_under_the_same_key(account: Account) -> None:
    queue = account.queue(".fifo")
    with FaultProxy(account.server.port) as proxy:
        sink = open_sink(f"sqs://{queue}?region=us-east-1&endpoint=http://127.0.0.1:{proxy.port}")
        assert isinstance(sink, Sink)
        assert sink.send([order(1)], ["key-1"]) == [None]
        proxy.cut_answers()
        assert sink.send([order(2)], ["key-2"]) == [None]
        sink.close()

    assert proxy.cut == 1
    assert numbers(account.messages(queue)) == [1, 2]


def test_a_service_that_is_away_is_an_answer_and_comes_back(account: Account) -> None:
    queue = account.queue()
    with FaultProxy(account.server.port) as proxy:
        sink = open_sink(f"sqs://{queue}?region=us-east-1&timeout=60s&endpoint=http://127.0.0.1:{proxy.port}")
        assert isinstance(sink, Sink)
        proxy.refusing = True
        answers = sink.send(orders(3), keys(3))
        assert {type(answer) for answer in answers} == {SinkDown}
        assert "did not answer" in str(answers[0])

        proxy.refusing = False
        assert sink.send(orders(3), keys(3)) == [None] * 3
        sink.close()


def test_a_service_that_hangs_is_not_waited_for(account: Account) -> None:
    queue = account.queue()
    with FaultProxy(account.server.port) as proxy:
        sink = open_sink(f"sqs://{queue}?region=us-east-1&timeout=100ms&endpoint=http://127.0.0.1:{proxy.port}")
        assert isinstance(sink, Sink)
        proxy.delay = 5000
        (answer,) = sink.send(orders(1), keys(1))
        sink.close()

    assert str(answer) == f"sqs://{queue} did not answer (ReadTimeoutError); trying again later may help"


# --- SNS ---


def test_a_topic(account: Account) -> None:
    queue = account.queue()
    topic = account.topic(queue)

    assert account.sink(f"sns://{topic}").send(orders(12), keys(12)) == [None] * 12
    messages = account.messages(queue)
    assert sorted(numbers(messages)) == list(range(12))
    assert {each["MessageAttributes"]["eventonce-key"]["StringValue"] for each in messages} == set(keys(12))


def test_a_fifo_topic_drops_what_comes_twice(account: Account) -> None:
    queue = account.queue(".fifo")
    topic = account.topic(queue, ".fifo")
    for _ in range(2):
        assert account.sink(f"sns://{topic}").send(orders(3), keys(3)) == [None] * 3

    assert numbers(account.messages(queue)) == [0, 1, 2]


def test_threads_find_a_topic_at_the_same_time(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = account.queue()
    sink = account.sink(f"sns://{account.topic(queue)}")
    assert isinstance(sink, SnsSink)
    sink.client()
    all_ask, one_asks = threading.Barrier(4), sink.address.client

    def together(service: str, **options: Any) -> Any:
        all_ask.wait(30)  # all have seen that the topic does not exist yet
        return one_asks(service, **options)

    monkeypatch.setattr(sink.address, "client", together)
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(sink.send, orders(1), [f"key-{number}"]) for number in range(4)]
        assert [each.result(60) for each in sent] == [[None]] * 4
    assert len(account.messages(queue)) == 4


def test_a_topic_that_is_missing(account: Account) -> None:
    with pytest.raises(SinkError, match=r"^sns://nowhere cannot be used \(NotFound"):
        account.sink("sns://nowhere").send(orders(1), keys(1))


# --- EventBridge ---


def test_a_classic_bus(account: Account) -> None:
    queue = account.queue()
    bus = account.bus(queue)

    assert account.sink(f"events://{bus}").send(orders(12), keys(12)) == [None] * 12
    messages = [json.loads(each["Body"]) for each in account.messages(queue)]
    assert sorted(each["detail"]["order"] for each in messages) == list(range(12))
    assert {(each["source"], each["detail-type"]) for each in messages} == {("com.example.shop", "Order Placed")}


def test_a_classic_bus_that_is_missing(account: Account) -> None:
    with pytest.raises(SinkError, match=r"^events://nowhere cannot be used \(ResourceNotFoundException"):
        account.sink("events://nowhere").send(orders(1), keys(1))


def test_a_new_bus() -> None:
    with NewBus() as bus:
        bus.trouble.append({2: "InvalidInputException"})
        sink = open_sink(bus.url())
        assert isinstance(sink, Sink)
        first, second, third = sink.send(orders(3), ["key-0", "key-0", "key-2"])
        sink.close()

    assert (first, second) == (None, None)
    assert "InvalidInputException: as told" in str(third)
    (call,) = bus.calls
    assert [entry["SystemMetadata"]["DeduplicationId"] for entry in call] == ["key-0", "key-0", "key-2"]
    assert [json.loads(event["Detail"])["order"] for event in bus.events] == [0]


# --- with the engine ---


def test_every_event_is_in_the_queue_once(account: Account, tmp_path: Path) -> None:
    queue = account.queue()
    sink = account.sink(f"sqs://{queue}")
    rule = Rule(name="orders", key=["detail.order"])
    copies = [order(number % 20) for number in range(60)]
    with Once(f"sqlite:///{tmp_path / 'store.db'}", rules=rule) as once:
        kinds = [outcome.kind for _ in range(2) for outcome in once.run(copies, sink)]

    assert kinds.count(OutcomeKind.PROCESSED) == 20
    assert kinds.count(OutcomeKind.DUPLICATE) == 100
    assert sorted(numbers(account.messages(queue))) == list(range(20))


def test_a_pipeline_from_a_file_to_a_queue(account: Account, tmp_path: Path) -> None:
    queue = account.queue(".fifo")
    source = tmp_path / "events.jsonl"
    lines = [order(number % 5).line() for number in range(15)] + [b'{"id": "no customer"}']
    source.write_bytes(b"\n".join(lines) + b"\n")
    wired = settings(
        {
            "store": f"sqlite:///{tmp_path / 'store.db'}",
            "source": str(source),
            "sink": f"sqs://{queue}?group=detail.customer&{account.where}",
            "dead_letter": str(tmp_path / "dead.jsonl"),
        },
        "test",
    )
    pipeline = Pipeline(wired)
    Worker(pipeline.once, pipeline.source, pipeline.handler, pipeline.dead_letters, batch=100).run()
    pipeline.close()

    assert numbers(account.messages(queue)) == [0, 1, 2, 3, 4]
    (dead,) = (tmp_path / "dead.jsonl").read_text().splitlines()
    assert json.loads(dead)["reason"] == "has nothing at detail.customer, which names its group in the sink"
