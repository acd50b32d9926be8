"""Publishing over the wire: on ministack through a proxy that loses answers, and onto a new bus of our own."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once
from eventonce.clients.aws import client
from eventonce.clock import SystemClock
from eventonce.event import Event
from eventonce.outbox import Message, Publisher, PublishKind, PublishResult
from eventonce.settings import settings
from eventonce.testing.clock import ManualClock
from eventonce.testing.proxy import FaultProxy
from eventonce.wire import Pipeline
from eventonce.worker import Worker
from tests.new_bus import NewBus
from tests.servers import Ministack


class Between(SystemClock):
    """The machine's clock, which does something at the pause between two tries."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def sleep(self, duration: int) -> None:
        self._action()


class Cloud:
    """A bus, a topic and queues with names of their own, behind a proxy."""

    def __init__(self, server: Ministack, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.unique = uuid.uuid4().hex[:12]
        self.direct = f"region=us-east-1&endpoint={server.endpoint()}"
        self.options = f"region=us-east-1&endpoint={server.endpoint(proxy.port)}"
        self.clients = {
            name: client(name, region="us-east-1", endpoint=server.endpoint()) for name in ("sqs", "sns", "events")
        }

    def queue(self, ending: str = "") -> str:
        """A queue, and its name."""
        name = f"queue-{self.unique}{ending}"
        self.clients["sqs"].create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if ending else {})
        return name

    def bus(self, queue: str) -> str:
        """A bus whose events all go into a queue."""
        name, events = f"bus-{self.unique}", self.clients["events"]
        events.create_event_bus(Name=name)
        events.put_rule(Name="all", EventBusName=name, EventPattern=json.dumps({"account": [{"exists": True}]}))
        events.put_targets(Rule="all", EventBusName=name, Targets=[{"Id": "1", "Arn": self._arn(queue)}])
        return name

    def topic(self, queue: str) -> str:
        """A FIFO topic whose messages all go into a queue."""
        name, sns = f"topic-{self.unique}.fifo", self.clients["sns"]
        arn = sns.create_topic(Name=name, Attributes={"FifoTopic": "true"})["TopicArn"]
        raw = {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=self._arn(queue), Attributes=raw)
        return name

    def _url(self, queue: str) -> str:
        return str(self.clients["sqs"].get_queue_url(QueueName=queue)["QueueUrl"])

    def _arn(self, queue: str) -> str:
        response = self.clients["sqs"].get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=["QueueArn"])
        return str(response["Attributes"]["QueueArn"])

    def bodies(self, queue: str) -> list[dict[str, Any]]:
        """Receive and delete all messages of a queue, and return their bodies."""
        bodies: list[dict[str, Any]] = []
        request = {"QueueUrl": self._url(queue), "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
        while received := self.clients["sqs"].receive_message(**request).get("Messages"):
            for message in received:
                self.clients["sqs"].delete_message(QueueUrl=request["QueueUrl"], ReceiptHandle=message["ReceiptHandle"])
            bodies += [json.loads(message["Body"]) for message in received]
        return bodies

    def close(self) -> None:
        for each in self.clients.values():
            each.close()


@pytest.fixture
def cloud(ministack: Ministack) -> Iterator[Cloud]:
    with FaultProxy(ministack.port) as proxy:
        cloud = Cloud(ministack, proxy)
        yield cloud
        cloud.close()


def order(number: int, customer: str = "c-1") -> dict[str, Any]:
    detail = {"order": number, "customer": customer}
    return {"id": f"e-{number}", "source": "com.example.shop", "detail-type": "Order Placed", "detail": detail}


def kinds(results: list[PublishResult]) -> set[str]:
    return {each.kind.value for each in results}


def stamp(body: dict[str, Any]) -> tuple[str, int]:
    return body["detail"]["_eventonce"]["id"], body["detail"]["_eventonce"]["attempt"]


def test_events_arrive_with_their_identity(cloud: Cloud) -> None:
    queue = cloud.queue()
    with Publisher(f"events://{cloud.bus(queue)}?{cloud.options}") as publisher:
        results = publisher.send(map(order, range(12)))

    assert kinds(results) == {"published"}
    bodies = cloud.bodies(queue)
    assert {body["id"] for body in bodies} == {each.id for each in results}
    assert sorted(map(stamp, bodies)) == sorted((each.identity, 1) for each in results)


def test_put_events_that_times_out_after_accepting_runs_once(cloud: Cloud, tmp_path: Path) -> None:
    queue = cloud.queue()
    bus = cloud.bus(queue)

    def mend() -> None:
        cloud.proxy.delay = 0

    with Publisher(f"events://{bus}?timeout=3s&{cloud.options}", clock=Between(mend)) as publisher:
        assert kinds(publisher.send([order(0)])) == {"published"}
        cloud.proxy.delay = 60_000
        results = publisher.send(map(order, range(1, 4)))

    assert kinds(results) == {"published"}
    assert [each.attempts for each in results] == [2, 2, 2]
    ran: list[tuple[int, str]] = []
    twice = cloud.bodies(queue)
    assert sorted(map(stamp, twice)) == sorted(
        [("e-0", 1)] + [(f"e-{number}", attempt) for number in (1, 2, 3) for attempt in (1, 2)]
    )
    assert len({body["id"] for body in twice}) == 7  # the bus sees seven events

    def handle(event: Event) -> None:
        ran.append((event.data["order"], event.id))

    with Once(f"sqlite:///{tmp_path / 'store.db'}") as once:
        outcomes = [outcome.kind.value for outcome in once.run(twice, handle)]
    assert sorted(number for number, _ in ran) == [0, 1, 2, 3]  # and its consumer four
    assert sorted(outcomes) == ["duplicate"] * 3 + ["processed"] * 4


def test_the_worker_runs_it_once_too(cloud: Cloud, tmp_path: Path) -> None:
    queue = cloud.queue()
    with Publisher(f"events://{cloud.bus(queue)}?{cloud.options}") as publisher:
        publisher.send([order(0)])
        cloud.proxy.cut_answers()
        (result,) = publisher.send([order(1)])
    assert (result.kind, result.attempts, cloud.proxy.cut) == (PublishKind.PUBLISHED, 2, 1)

    wired = settings(
        {
            "store": f"sqlite:///{tmp_path / 'store.db'}",
            "source": f"sqs://{queue}?{cloud.direct}",
            "sink": str(tmp_path / "seen.jsonl"),
            "dead_letter": str(tmp_path / "dead.jsonl"),
        },
        "test",
    )
    pipeline = Pipeline(wired)
    worker = Worker(pipeline.once, pipeline.source, pipeline.handler, pipeline.dead_letters, batch=10)
    outcomes: list[str] = []
    while len(outcomes) < 3:  # the bus has three events
        outcomes += [outcome.kind.value for outcome in worker.work(pipeline.source.receive(10))]
    pipeline.close()
    assert sorted(outcomes) == ["duplicate", "processed", "processed"]
    seen = map(json.loads, (tmp_path / "seen.jsonl").read_text().splitlines())
    assert sorted(body["detail"]["order"] for body in seen) == [0, 1]


@pytest.mark.parametrize("carrier", ["sqs", "sns"])
def test_a_fifo_carrier_drops_what_it_had_and_keeps_order(cloud: Cloud, carrier: str) -> None:
    queue = cloud.queue(".fifo")
    url = f"sqs://{queue}" if carrier == "sqs" else f"sns://{cloud.topic(queue)}"
    with Publisher(f"{url}?group=detail.customer&{cloud.options}", clock=Between(lambda: None)) as publisher:
        publisher.send([order(0, "c-0")])
        cloud.proxy.cut_answers(2)
        results = publisher.send(order(number, f"c-{number % 3}") for number in range(1, 9))

    assert kinds(results) == {"published"}
    assert max(each.attempts for each in results) == 3
    groups: dict[str, list[int]] = {}
    for body in cloud.bodies(queue):
        groups.setdefault(body["detail"]["customer"], []).append(body["detail"]["order"])
    assert groups == {"c-0": [0, 3, 6], "c-1": [1, 4, 7], "c-2": [2, 5, 8]}


def test_a_second_run_of_the_whole_program_changes_nothing_on_a_fifo_queue(cloud: Cloud) -> None:
    queue = cloud.queue(".fifo")
    for _ in range(2):
        with Publisher(f"sqs://{queue}?{cloud.options}") as publisher:
            assert kinds(publisher.send(map(order, range(3)))) == {"published"}

    assert [body["detail"]["order"] for body in cloud.bodies(queue)] == [0, 1, 2]


def test_an_unreachable_carrier_fails_and_a_retry_may_succeed(cloud: Cloud) -> None:
    queue = cloud.queue()
    url = f"sqs://{queue}?timeout=60s&{cloud.options}"
    with Publisher(url, max_attempts=2, clock=ManualClock()) as publisher:
        cloud.proxy.refusing = True
        (failed,) = publisher.send([order(1)])
        cloud.proxy.refusing = False
        (result,) = publisher.send([Message(order(1), identity=failed.identity, attempts=failed.attempts)])

    assert (failed.kind, failed.identity) == (PublishKind.FAILED, "e-1")
    assert result.kind is PublishKind.PUBLISHED
    assert [stamp(body) for body in cloud.bodies(queue)] == [("e-1", result.attempts)]


# --- the command line ---


def run(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eventonce", "publish", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_file_is_published_and_a_second_run_changes_nothing(cloud: Cloud, tmp_path: Path) -> None:
    queue = cloud.queue(".fifo")
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(order(number)) + "\n" for number in range(12)))
    for _ in range(2):
        done = run(tmp_path, "orders.jsonl", "--to", f"sqs://{queue}?{cloud.options}")
        assert done.stderr == "12 published\n"

    assert [body["detail"]["order"] for body in cloud.bodies(queue)] == list(range(12))


def test_the_rules_of_a_pipeline_make_the_identity(cloud: Cloud, tmp_path: Path) -> None:
    queue = cloud.queue(".fifo")
    (tmp_path / "pipeline.toml").write_text('[[rule]]\nname = "orders"\nkey = ["detail.order"]\n')
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps({**order(1), "id": each}) + "\n" for each in "ab"))
    to = f"sqs://{queue}?{cloud.options}"
    done = run(tmp_path, "pipeline.toml", "orders.jsonl", "--to", to, "--json")

    first, second = map(json.loads, done.stdout.splitlines())
    assert first["identity"] == second["identity"]
    assert (first["kind"], first["attempts"], first["place"]) == ("published", 1, "orders.jsonl:1")
    assert len(cloud.bodies(queue)) == 1


def test_what_is_refused_is_reported_and_kept(cloud: Cloud, tmp_path: Path) -> None:
    queue = cloud.queue()
    lines = [json.dumps(order(1)), "garbage", json.dumps({"id": "no source"})]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    to = f"events://{cloud.bus(queue)}?{cloud.options}"
    done = run(tmp_path, "orders.jsonl", "--to", to, "--dead-letter", "dead.jsonl", code=1)

    assert done.stderr.splitlines()[-1] == "1 published, 2 refused"
    assert "orders.jsonl:2: refused: is not JSON" in done.stderr
    assert "orders.jsonl:3: refused: has no source of its own" in done.stderr
    letters = [json.loads(line)["body"] for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert letters[0] == "garbage"
    assert json.loads(letters[1])["id"] == "no source"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["orders.jsonl", "--to", "https://x"], "unsupported URL 'https://x'; use events://BUS"),
        (["missing.jsonl", "--to", "events://default"], "missing.jsonl: "),
        (["orders.jsonl", "--to", "events://default", "-p", "no.toml"], "no.toml"),
    ],
)
def test_a_wrong_option_is_exit_2(tmp_path: Path, arguments: list[str], reason: str) -> None:
    (tmp_path / "orders.jsonl").write_text("")
    assert reason in run(tmp_path, *arguments, code=2).stderr


# --- the new bus: its stand-in checks what botocore's model allows, and deduplicates as AWS documents it ---


def test_a_new_bus_drops_what_a_lost_answer_makes_the_publisher_repeat() -> None:
    with NewBus() as bus, Publisher(bus.url("&timeout=60s"), clock=Between(lambda: None)) as publisher:
        bus.trouble.append("lost")
        results = publisher.send(map(order, range(3)))

    assert [(each.kind, each.attempts) for each in results] == [(PublishKind.DEDUPLICATED, 2)] * 3
    assert [json.loads(event["Detail"])["order"] for event in bus.events] == [0, 1, 2]
    assert [event["id"] for event in bus.events] == [each.id for each in results]


def test_a_new_bus_takes_two_hundred_and_fifty_in_three_calls() -> None:
    with NewBus() as bus, Publisher(bus.url("&group=detail.customer")) as publisher:
        results = publisher.send(order(number, f"c-{number}") for number in range(250))

    assert kinds(results) == {"published"}
    assert [len(call) for call in bus.calls] == [100, 100, 50]
    assert bus.events[249]["SystemMetadata"]["EventGroupId"] == "c-249"


def test_after_five_minutes_a_new_bus_takes_it_again() -> None:
    clock = ManualClock()
    with NewBus(clock) as bus, Publisher(bus.url()) as publisher:
        first, second = (publisher.send([order(1)])[0] for _ in range(2))
        clock.sleep(300_000)
        (third,) = publisher.send([order(1)])

    assert [each.kind.value for each in (first, second, third)] == ["published", "deduplicated", "published"]
    stamps = [json.loads(event["Detail"])["_eventonce"]["id"] for event in bus.events]
    assert stamps == ["e-1", "e-1"]  # which is what consumers tell them by


@pytest.mark.parametrize("code", ["ThrottlingException", "InternalException"])
def test_trouble_of_a_new_bus_that_passes(code: str) -> None:
    with NewBus() as bus, Publisher(bus.url(), clock=ManualClock()) as publisher:
        bus.trouble.extend([code] * 3 + [{1: code}])
        results = publisher.send(map(order, range(3)))

    assert [(each.kind, each.attempts) for each in results] == [
        (PublishKind.PUBLISHED, 4),
        (PublishKind.PUBLISHED, 5),
        (PublishKind.PUBLISHED, 4),
    ]


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "InvalidStateException", "AccessDeniedException"])
def test_an_error_of_a_new_bus_that_needs_a_fix(code: str) -> None:
    with NewBus() as bus, Publisher(bus.url(), clock=ManualClock()) as publisher:
        bus.trouble.extend([code] * 4)
        results = publisher.send(map(order, range(3)))

    assert {(each.kind, each.code) for each in results} == {(PublishKind.FAILED, code)}
    assert bus.events == []


def test_one_entry_that_spoils_the_call_for_all() -> None:
    with NewBus() as bus, Publisher(bus.url(), clock=ManualClock()) as publisher:
        bus.trouble.extend(["InvalidInputException", None, "InvalidInputException", None])
        results = publisher.send(map(order, range(3)))

    assert [each.kind.value for each in results] == ["published", "refused", "published"]
    assert results[1].code == "InvalidInputException"
