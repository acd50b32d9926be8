"""Order from end to end: outbox, relays, an SNS FIFO topic, two SQS FIFO queues, and a worker on each."""

import json
import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from eventonce import Event, Once, Rule
from eventonce.clients.aws import client
from eventonce.dead_letters.file import DeadFile
from eventonce.outbox import Publisher, Relay
from eventonce.sources import open_source
from eventonce.worker import WorkerPool
from tests.integration.outboxes import PATIENCE, Database, postgres_database, running, sqlite_database
from tests.servers import Ministack

RIDES = [f"r-{number}" for number in range(6)]
VERSIONS = range(1, 9)
IN_ORDER = {name: list(VERSIONS) for name in RIDES}
TOTAL = len(RIDES) * len(VERSIONS)
BY_VERSION = [Rule(name="rides", key=["detail.rideId"], version="detail.version")]
Handler = Callable[[Event], None]


def ride(name: str, version: int) -> dict[str, Any]:
    detail = {"rideId": name, "version": version}
    return {"id": f"{name}/{version}", "source": "com.example.rides", "detail-type": "Ride", "detail": detail}


class Cloud:
    """A FIFO topic with FIFO queues behind it."""

    def __init__(self, server: Ministack, folder: Path) -> None:
        self.folder = folder
        self.where = f"region=us-east-1&endpoint={server.endpoint()}"
        self.sqs, self.sns = (client(name, region="us-east-1", endpoint=server.endpoint()) for name in ("sqs", "sns"))
        self.topic = f"rides-{uuid.uuid4().hex[:12]}.fifo"
        self._arn = self.sns.create_topic(Name=self.topic, Attributes={"FifoTopic": "true"})["TopicArn"]

    def queue(self) -> str:
        name = f"q-{uuid.uuid4().hex[:12]}.fifo"
        url = self.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
        response = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        raw = {"RawMessageDelivery": "true"}
        arn = response["Attributes"]["QueueArn"]
        self.sns.subscribe(TopicArn=self._arn, Protocol="sqs", Endpoint=arn, Attributes=raw)
        return name

    def publish_again(self, event: dict[str, Any]) -> None:
        """Publish an event again, as if SNS and SQS had forgotten it, which they do after five minutes."""
        self.sns.publish(
            TopicArn=self._arn,
            Message=json.dumps(event),
            MessageGroupId=event["detail"]["rideId"],
            MessageDeduplicationId=uuid.uuid4().hex,
        )

    def messages(self, queue: str) -> list[tuple[str, dict[str, Any]]]:
        """All that is in a queue, with the group of each, in the order in which it is handed out."""
        url, messages = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"], []
        request = {"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["MessageGroupId"]}
        while received := self.sqs.receive_message(WaitTimeSeconds=1, **request).get("Messages"):
            for each in received:
                messages.append((each["Attributes"]["MessageGroupId"], json.loads(each["Body"])["detail"]))
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        return messages

    def close(self) -> None:
        self.sqs.close()
        self.sns.close()


class Consumer:
    """A worker with four threads on one of the queues, in a scope of its own, and what it has done."""

    def __init__(self, cloud: Cloud, queue: str, name: str, handler: Handler, rules: Sequence[Rule] = ()) -> None:
        self.done: dict[str, list[int]] = defaultdict(list)
        self._handler = handler
        self._parts = ExitStack()
        once = Once("memory:", consumer=name, rules=rules)
        source = open_source(f"sqs://{queue}?wait=1s&{cloud.where}")
        letters = DeadFile(str(cloud.folder / f"{name}-dead.jsonl"))
        for part in (once, source, letters):
            self._parts.callback(part.close)
        self._pool = WorkerPool(once, source, self._handle, letters, batch=10, threads=4)
        self._thread = threading.Thread(target=self._pool.run, args=(60_000,))
        self._thread.start()

    @property
    def counts(self) -> dict[str, int]:
        return self._pool.counts.as_dict()

    def _handle(self, event: Event) -> None:
        self._handler(event)
        self.done[event.data["rideId"]].append(event.data["version"])

    def wait(self, events: int) -> None:
        """Wait until a number of events are settled."""
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.05)):
            if self.counts["events"] >= events:
                return
            pause.wait(0.05)
        raise AssertionError(self.counts)

    def close(self) -> None:
        self._pool.stop()
        self._thread.join(PATIENCE)
        self._parts.close()


@pytest.fixture
def cloud(ministack: Ministack, tmp_path: Path) -> Iterator[Cloud]:
    with closing(Cloud(ministack, tmp_path)) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    on_sqlite = request.param == "sqlite"
    made = sqlite_database(tmp_path) if on_sqlite else postgres_database(request.getfixturevalue("postgres_server"))
    made.outbox.create()
    yield made
    made.outbox.close()


def add_all(database: Database) -> None:
    """Each ride's changes in order, each in a transaction of its own, rides mixed."""
    left = [name for name in RIDES for _ in VERSIONS]
    random.Random(7).shuffle(left)
    versions = dict.fromkeys(RIDES, 0)
    with closing(database.connect()) as connection:
        for name in left:
            versions[name] += 1
            database.outbox.add(connection, ride(name, versions[name]), group=name)
            connection.commit()


def relays(database: Database, cloud: Cloud, stack: ExitStack, count: int = 2) -> list[Relay]:
    """Relays with small batches, so that groups go to and fro between them."""
    publisher = stack.enter_context(Publisher(f"sns://{cloud.topic}?{cloud.where}", max_attempts=3))
    made = [
        Relay(database.outbox, publisher, dead_letter=str(cloud.folder / "relay-dead.jsonl"), batch=5, poll="100ms")
        for _ in range(count)
    ]
    for each in made:
        stack.callback(each.close)
    return made


def test_topic_and_queue_carry_the_group_and_its_order(database: Database, cloud: Cloud) -> None:
    queue = cloud.queue()
    add_all(database)
    with ExitStack() as stack:
        (relay,) = relays(database, cloud, stack, 1)
        assert relay.drain() == 0
    messages = cloud.messages(queue)
    assert len(messages) == TOTAL
    assert all(group == detail["rideId"] for group, detail in messages)
    for name in RIDES:
        assert [detail["version"] for group, detail in messages if group == name] == list(VERSIONS)


def test_two_consumers_run_every_ride_in_order(database: Database, cloud: Cloud) -> None:
    """Several relays, several threads, handlers that fail at first: nothing of a ride overtakes anything."""
    failed: set[str] = set()

    def fail_at_first(event: Event) -> None:
        if event.data["version"] in (3, 6) and event.id not in failed:
            failed.add(event.id)
            raise ValueError("not yet")

    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(Consumer(cloud, cloud.queue(), name, handler)))
            for name, handler in (("billing", fail_at_first), ("readmodel", lambda event: None))
        )
        with running(*relays(database, cloud, stack)):
            add_all(database)
            first.wait(TOTAL)
            second.wait(TOTAL)
        assert first.done == IN_ORDER
        assert second.done == IN_ORDER
        assert first.counts["processed"] == second.counts["processed"] == TOTAL
    assert len(failed) == 2 * len(RIDES)


def test_what_is_late_or_redelivered_is_dropped_by_its_version(database: Database, cloud: Cloud) -> None:
    with ExitStack() as stack:
        consumer = stack.enter_context(closing(Consumer(cloud, cloud.queue(), "model", lambda event: None, BY_VERSION)))
        add_all(database)
        (relay,) = relays(database, cloud, stack, 1)
        assert relay.drain() == 0
        consumer.wait(TOTAL)
        for name in RIDES:
            for version in (1, len(VERSIONS), 4):
                cloud.publish_again(ride(name, version))
        consumer.wait(TOTAL + 3 * len(RIDES))
        assert consumer.done == IN_ORDER
        assert (consumer.counts["stale"], consumer.counts["duplicate"]) == (2 * len(RIDES), len(RIDES))


def test_updated_before_created_ends_in_the_newest_state(cloud: Cloud) -> None:
    with closing(Consumer(cloud, cloud.queue(), "model", lambda event: None, BY_VERSION)) as consumer:
        for name in RIDES:
            for version in (2, 1, 2, 3, 1):
                cloud.publish_again(ride(name, version))
        consumer.wait(5 * len(RIDES))
        assert consumer.done == {name: [2, 3] for name in RIDES}
