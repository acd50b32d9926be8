"""Outboxes in DynamoDB: one transaction with the change, and relays by the stream, in a worker and in Lambda."""

import io
import json
import threading
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventonce
from eventonce import ConfigError, EventRejected, Once
from eventonce.clients.aws import client
from eventonce.errors import StoreError, StoreUnusable
from eventonce.outbox import Outbox, PublishKind, Relay, stream
from eventonce.outbox import decision as verdict
from eventonce.sources import shard_source
from eventonce.stores.dynamodb.transaction import TransactionRefused
from eventonce.testing.proxy import FaultProxy
from tests.integration.outboxes import PATIENCE, Receiver, event, running
from tests.servers import Dynoxide, Ministack


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a minute are renewed, shared and given up as often as if they lasted for a second."""
    monkeypatch.setattr(shard_source, "_BEATS", 360)


class Bench:
    """An outbox and a table of rides."""

    def __init__(self, server: Dynoxide, folder: Path, port: int | None = None) -> None:
        name = uuid.uuid4().hex[:12]
        self.rides = f"rides-{name}"
        self.url = server.url(f"outbox-{name}")
        self.outbox = Outbox(server.url(f"outbox-{name}", port))
        self.folder = folder
        self.client: Any = client("dynamodb", endpoint=server.endpoint())
        self.client.create_table(
            TableName=self.rides,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
        self.outbox.create()

    def ride(self, number: int, **more: Any) -> dict[str, Any]:
        return {"Put": {"TableName": self.rides, "Item": {"id": {"S": f"r{number}"}}, **more}}

    def add(self, *numbers: int, group: str | None = None) -> None:
        for number in numbers:
            self.outbox.transact([self.ride(number)], event(number), group=group)

    def count(self) -> int:
        count: int = self.client.scan(TableName=self.rides, ConsistentRead=True)["Count"]
        return count

    def pending(self) -> list[str]:
        return sorted(key.identity for key in self.outbox.table.scan())

    def relay(self, receiver: Receiver, **settings: Any) -> Relay:
        return Relay(self.outbox, receiver, dead_letter=str(self.folder / "dead.jsonl"), lease="60s", **settings)

    def letters(self) -> list[dict[str, Any]]:
        file = self.folder / "dead.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def close(self) -> None:
        self.outbox.close()
        self.client.close()


@pytest.fixture(params=["dynoxide_in_memory", "ministack"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(request.getfixturevalue(request.param), tmp_path)
    yield made
    made.close()


@pytest.fixture
def streaming(ministack: Ministack, tmp_path: Path) -> Iterator[Bench]:
    """On a server whose stream can be read from where one left off."""
    made = Bench(ministack, tmp_path)
    yield made
    made.close()


# --- the transaction ---


def test_a_change_and_its_event_are_written_together_or_not_at_all(bench: Bench) -> None:
    bench.add(1)
    condition = bench.ride(1, ConditionExpression="attribute_not_exists(id)")
    with pytest.raises(TransactionRefused, match=r"items\[1\], the Put on table 'rides-.*condition did not hold"):
        bench.outbox.transact([bench.ride(2), condition], event(2))
    assert bench.count() == 1
    assert bench.pending() == ["e1"]
    receiver = Receiver()
    assert bench.relay(receiver).drain() == 0
    assert [(each.identity, each.event.data) for each in receiver.got] == [("e1", {"n": 1})]
    assert bench.pending() == []


def test_an_identity_that_was_used_before_is_refused_and_nothing_is_written(bench: Bench) -> None:
    bench.outbox.transact([bench.ride(1)], event(1), identity="same")
    with pytest.raises(TransactionRefused, match="'same' was used before"):
        bench.outbox.transact([bench.ride(2)], event(2), identity="same")
    assert bench.count() == 1
    assert bench.relay(Receiver()).drain() == 0


def test_one_identity_may_be_used_in_two_outboxes(bench: Bench, tmp_path: Path) -> None:
    other = Outbox(bench.url.replace("outbox-", "other-"))
    other.create()
    for outbox in (bench.outbox, other):
        assert outbox.transact([], event(1), identity="same") == "same"
    other.close()


def test_limits_are_checked_before_anything_is_sent(bench: Bench) -> None:
    big = {"Put": {"TableName": bench.rides, "Item": {"id": {"S": "x"}, "b": {"S": "x" * 401 * 1024}}}}
    many = [
        {"Put": {"TableName": bench.rides, "Item": {"id": {"S": str(n)}, "b": {"S": "x" * 399_000}}}} for n in range(11)
    ]
    with pytest.raises(TransactionRefused, match="100 items are too many; use at most 99 beside the event"):
        bench.outbox.transact([bench.ride(number) for number in range(100)], event(1))
    with pytest.raises(TransactionRefused, match=r"items\[1\] takes 410,\d+ bytes"):
        bench.outbox.transact([bench.ride(1), big], event(1))
    with pytest.raises(TransactionRefused, match="4 MB"):
        bench.outbox.transact(many, event(1))
    with pytest.raises(EventRejected, match=r"takes 420,\d+ bytes in the outbox, over the 409,600 of a DynamoDB item"):
        bench.outbox.transact([], {"n": "x" * 420_000})
    with pytest.raises(ConfigError, match=r"items\[0\] is none of Put"):
        bench.outbox.transact([{"Item": {}}], event(1))
    with pytest.raises(ConfigError, match="not typed"):
        bench.outbox.transact([{"Put": {"TableName": bench.rides, "Item": {"id": "r1"}}}], event(1))
    with pytest.raises(ConfigError, match="takes a list"):
        bench.outbox.transact({"Put": {}}, event(1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use transact"):
        bench.outbox.add(bench.client, event(1))
    assert bench.count() == 0
    assert bench.pending() == []


def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_token(
    dynoxide_in_memory: Dynoxide, tmp_path: Path
) -> None:
    with FaultProxy(dynoxide_in_memory.port) as proxy:
        bench = Bench(dynoxide_in_memory, tmp_path, proxy.port)
        counter = {
            "Update": {
                "TableName": bench.rides,
                "Key": {"id": {"S": "counter"}},
                "UpdateExpression": "ADD n :one",
                "ExpressionAttributeValues": {":one": {"N": "1"}},
            }
        }
        proxy.cut_answers(2)
        bench.outbox.transact([counter], event(1))
        assert proxy.cut > 0
        item = bench.client.get_item(TableName=bench.rides, Key={"id": {"S": "counter"}})["Item"]
        assert item["n"] == {"N": "1"}
        assert bench.pending() == ["e1"]
        bench.close()


def test_another_transaction_in_the_way_is_told_apart_and_waited_for(bench: Bench) -> None:
    """No server here gives a conflict, so its answer is put in its place."""
    calls: list[bytes] = []
    table: Any = bench.outbox.table
    conflict = {
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": "Transaction cancelled, please refer cancellation reasons for specific reasons",
        "CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict", "Message": "is ongoing"}],
    }

    def interfere(request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse
        from botocore.compat import HTTPHeaders

        calls.append(request.body)
        if len(calls) > failing:
            return None
        return AWSResponse(request.url, 400, HTTPHeaders(), Raw(conflict))

    table._client.client().meta.events.register("before-send.dynamodb.TransactWriteItems", interfere)
    failing = 2
    bench.add(1)
    assert len(calls) == 3
    assert len(set(calls)) == 1, "asked again with the same token and items"
    assert bench.count() == 1
    failing = 1_000
    table.address.timeout = 300
    with pytest.raises(StoreError, match="nothing was written: TransactionConflict"):
        bench.add(2)
    assert bench.count() == 1


class Raw:
    """A body as botocore reads one."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._body = json.dumps(document).encode()

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._body


def test_a_handler_publishes_in_the_transaction_that_records_its_event(bench: Bench) -> None:
    server = bench.url.partition("?")[2]
    store = f"dynamodb://claims-{uuid.uuid4().hex[:8]}?{server}"
    bench.client.create_table(
        TableName=store.partition("?")[0].removeprefix("dynamodb://"),
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    receiver = Receiver()
    with Once(store) as once:

        @once
        def handle(ride: Any, ctx: Any) -> None:
            bench.outbox.add(ctx.tx, event(ride.data["n"]), group="g")
            if ride.data["n"] == 2:
                raise ValueError("in vain")

        once.run([{"id": str(n), "n": n} for n in (1, 2, 1, 3)], handle)
    assert bench.relay(receiver).drain() == 0
    assert sorted(receiver.numbers()) == [1, 3]


def test_a_wrong_table_is_refused(bench: Bench) -> None:
    missing = Outbox(bench.url.replace("outbox-", "missing-"))
    wrong = Outbox(bench.url.replace("outbox-", "rides-"))
    for run in ("drain", "run"):
        arguments = [threading.Event()] if run == "run" else []
        with pytest.raises(StoreUnusable, match=r"has no outbox; .*outbox\.create\(\)"):
            getattr(Relay(missing, Receiver(), dead_letter="-"), run)(*arguments)
    with pytest.raises(StoreUnusable, match="not an outbox, as its key is id"):
        Relay(wrong, Receiver(), dead_letter="-").drain()
    with pytest.raises(StoreUnusable, match="does not exist"):
        missing.transact([], event(1))
    missing.close()
    wrong.close()


# --- the relay ---


def test_drain_keeps_the_order_of_groups_and_leaves_what_fails(bench: Bench) -> None:
    for number in range(30):
        bench.add(number, group=f"g{number % 3}")
        time.sleep(0.002)  # the order of leftovers is that of the clock
    receiver = Receiver(lambda each: PublishKind.FAILED if each.identity == "e4" else PublishKind.PUBLISHED)
    assert bench.relay(receiver, batch=7).drain() == 9
    assert receiver.by_group() == {"g0": list(range(0, 30, 3)), "g1": [1], "g2": list(range(2, 30, 3))}
    receiver.kind_of = lambda _: PublishKind.PUBLISHED
    assert bench.relay(receiver).drain() == 0
    assert receiver.by_group()["g1"] == list(range(1, 30, 3))
    assert [each.attempts for each in receiver.sent if each.identity == "e4"] == [0, 1]


def test_a_worker_publishes_what_the_stream_announces(streaming: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "FIRST_REST", 4)
    monkeypatch.setattr(verdict, "LONGEST_REST", 20)
    failing = iter(range(1_000))
    receiver = Receiver(
        lambda each: PublishKind.FAILED if each.identity == "e5" and next(failing) < 3 else PublishKind.PUBLISHED
    )
    streaming.add(*range(10), group="before")
    with running(streaming.relay(receiver, batch=4)):
        streaming.add(*range(10, 20), group="while")
        receiver.wait(20)
        deadline = time.monotonic() + PATIENCE
        while streaming.pending():
            assert time.monotonic() < deadline
    assert receiver.by_group() == {"before": list(range(10)), "while": list(range(10, 20))}
    assert streaming.letters() == []


@pytest.mark.usefixtures("ministack")
def test_poison_in_a_stream_becomes_a_dead_letter(streaming: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "FIRST_REST", 4)
    monkeypatch.setattr(verdict, "LONGEST_REST", 20)
    receiver = Receiver(
        lambda each: {"e1": PublishKind.FAILED, "e3": PublishKind.REFUSED}.get(
            str(each.identity), PublishKind.PUBLISHED
        )
    )
    streaming.add(1, 2, 3, 4, group="bad")
    with running(streaming.relay(receiver, max_attempts=3, batch=2)):
        deadline, number = time.monotonic() + PATIENCE, 10
        while len(receiver.by_group().get("bad", [])) < 2:  # attempts count only while others get through
            assert time.monotonic() < deadline
            streaming.add(number, group="good")
            number += 1
    assert receiver.by_group()["bad"] == [2, 4]
    assert [(letter["identity"], letter["outcome"]) for letter in streaming.letters()] == [
        ("e1", "failed"),
        ("e3", "rejected"),
    ]


def test_what_a_relay_left_behind_is_found_in_the_table(streaming: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay has died after it skipped a late group. The next relay sends that group in order."""
    store = f"sqlite:///{streaming.folder / 'shards.db'}"
    receiver = Receiver(lambda each: PublishKind.FAILED if each.identity == "e1" else PublishKind.PUBLISHED)
    streaming.add(1, 2, group="late")
    with running(streaming.relay(receiver, store=store)):
        streaming.add(3, group="other")
        receiver.wait(1)
        streaming.add(4, group="late")
        streaming.add(5, group="other")
        receiver.wait(2)
    assert receiver.numbers() == [3, 5]
    receiver.kind_of = lambda _: PublishKind.PUBLISHED
    monkeypatch.setattr(stream, "LEFT_BEHIND", 0)
    with running(streaming.relay(receiver, store=store)):
        receiver.wait(5)
    assert receiver.by_group() == {"other": [3, 5], "late": [1, 2, 4]}


def test_news_of_a_group_does_not_overtake_what_is_late(streaming: Bench) -> None:
    store = f"sqlite:///{streaming.folder / 'shards.db'}"
    receiver = Receiver(lambda each: PublishKind.FAILED if each.identity == "e1" else PublishKind.PUBLISHED)
    streaming.add(1, group="late")
    with running(streaming.relay(receiver, store=store)):
        streaming.add(2)
        receiver.wait(1)
    receiver.kind_of = lambda _: PublishKind.PUBLISHED
    streaming.add(3, group="late")
    with running(streaming.relay(receiver, store=store)):
        receiver.wait(3)
    assert receiver.by_group()["late"] == [1, 3]


# --- Lambda ---


def records(bench: Bench, *numbers: int, group: str = "g") -> list[dict[str, Any]]:
    """Return records in the form that Lambda gets."""
    places = {key.identity: key.place for key in bench.outbox.table.scan()}
    return [
        {
            "eventID": str(number),
            "eventName": "INSERT",
            "eventSource": "aws:dynamodb",
            "dynamodb": {
                "Keys": {"grp": {"S": f"={group}"}, "place": {"S": places[f"e{number}"]}},
                "SequenceNumber": f"{number:021}",
                "StreamViewType": "KEYS_ONLY",
            },
        }
        for number in numbers
    ]


def failures(*numbers: int) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": f"{number:021}"} for number in numbers]}


def test_lambda_gets_the_first_unpublished_item_and_the_rest_is_not_sent_twice(bench: Bench) -> None:
    bench.add(1, 3, 5, group="g")
    bench.add(2, 4, 6, group="h")
    by_number = dict(zip((1, 3, 5), records(bench, 1, 3, 5), strict=True))
    by_number |= dict(zip((2, 4, 6), records(bench, 2, 4, 6, group="h"), strict=True))
    removed = {**by_number[1], "eventName": "REMOVE"}
    batch = {"Records": [by_number[1], by_number[2], removed, by_number[3], by_number[4], by_number[5], by_number[6]]}
    receiver = Receiver(lambda each: PublishKind.FAILED if each.identity == "e3" else PublishKind.PUBLISHED)
    handler = bench.relay(receiver, batch=2).aws_lambda()
    assert handler(batch, None) == failures(3)
    assert receiver.by_group() == {"g": [1], "h": [2, 4, 6]}
    receiver.kind_of = lambda _: PublishKind.PUBLISHED
    assert handler({"Records": batch["Records"][3:]}, None) == failures()
    assert receiver.by_group() == {"g": [1, 3, 5], "h": [2, 4, 6]}
    assert handler(batch, None) == failures()
    assert len(receiver.got) == 6
    assert bench.pending() == []


def test_lambda_stops_where_nothing_gets_through(bench: Bench) -> None:
    bench.add(*range(10), group="g")
    receiver = Receiver(lambda _: PublishKind.FAILED)
    handler = bench.relay(receiver, batch=3).aws_lambda()
    batch = {"Records": records(bench, *range(10))}
    assert handler(batch, None) == failures(0)
    assert len(receiver.sent) == 1
    receiver.kind_of = lambda _: PublishKind.PUBLISHED
    assert handler(batch, None) == failures()
    assert receiver.numbers() == list(range(10))


@pytest.mark.parametrize(
    "payload",
    [None, [], {}, {"Records": [{"eventSource": "aws:sqs", "body": "{}"}]}, {"Records": "x"}, {"Records": [7]}],
)
def test_a_function_that_no_stream_invoked_is_refused(bench: Bench, payload: Any) -> None:
    with pytest.raises(EventRejected, match="stream"):
        bench.relay(Receiver()).aws_lambda()(payload, None)


def test_a_table_that_does_not_answer_brings_the_whole_batch_again(
    dynoxide_in_memory: Dynoxide, tmp_path: Path
) -> None:
    with FaultProxy(dynoxide_in_memory.port) as proxy:
        bench = Bench(dynoxide_in_memory, tmp_path, proxy.port)
        bench.add(1, group="g")
        receiver, table = Receiver(), bench.outbox.table
        table.address.timeout = 200
        batch = {"Records": records(bench, 1)}
        proxy.refusing = True
        proxy.cut_all()
        handler = bench.relay(receiver).aws_lambda()
        with pytest.raises(StoreError):
            handler(batch, None)
        assert receiver.sent == []
        proxy.refusing = False
        table.address.timeout = 60_000
        assert handler(batch, None) == failures()
        assert receiver.numbers() == [1]
        bench.close()


APP = """
from eventonce.outbox import Outbox, Relay
from eventonce.outbox.plain import PlainPublisher
from eventonce.sinks import open_sink

relay = Relay(Outbox({url!r}), PlainPublisher(open_sink({file!r})), dead_letter={dead!r})
handler = relay.aws_lambda()
"""


def test_lambda_behind_a_mapping_of_the_stream(streaming: Bench, ministack: Ministack, tmp_path: Path) -> None:
    """The whole of it: a transaction, the stream, the mapping, the function, and a file that it publishes to."""
    file, service = tmp_path / "published.jsonl", client("lambda", endpoint=ministack.endpoint())
    app = APP.format(url=streaming.url, file=str(file), dead=str(tmp_path / "dead.jsonl"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", app)
        for library in (eventonce, *(__import__(name) for name in ("msgspec", "jmespath"))):
            folder = Path(str(library.__file__)).parent
            for each in folder.rglob("*"):
                if each.is_file() and "__pycache__" not in each.parts:
                    archive.write(each, f"{folder.name}/{each.relative_to(folder)}")
    function = service.create_function(
        FunctionName=f"relay-{uuid.uuid4().hex[:8]}",
        Runtime="python3.11",
        Role="arn:aws:iam::000000000000:role/lambda",
        Handler="app.handler",
        Code={"ZipFile": packed.getvalue()},
        Timeout=30,
        Environment={"Variables": {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}},
    )["FunctionArn"]
    arn = streaming.client.describe_table(TableName=streaming.outbox.table.address.name)["Table"]["LatestStreamArn"]
    service.create_event_source_mapping(
        EventSourceArn=arn,
        FunctionName=function,
        StartingPosition="TRIM_HORIZON",
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    service.close()
    streaming.add(*range(5), group="g")
    deadline = time.monotonic() + PATIENCE
    while streaming.pending():
        assert time.monotonic() < deadline, "the function did not run"
        time.sleep(0.1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["detail"]["n"] for line in lines] == list(range(5))
    assert [line["detail"]["_eventonce"]["id"] for line in lines] == [f"e{number}" for number in range(5)]
