"""The worker on real streams: Kinesis and DynamoDB Streams, with a split in the middle, and the sink of Kinesis."""

import hashlib
import json
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from eventonce import Once
from eventonce.clock import SystemClock
from eventonce.dead_letters import open_dead_letters
from eventonce.errors import SourceError, StoreError
from eventonce.event import Event
from eventonce.ports import Store
from eventonce.settings import load
from eventonce.sinks import open_sink
from eventonce.sources import open_source, shard_source
from eventonce.sources.shard_leases import ShardLeases
from eventonce.stores import open_store
from eventonce.stores.dynamodb.store import DynamoDBStore
from eventonce.stores.memory import MemoryStore
from eventonce.wire import Pipeline
from eventonce.worker import WorkerPool
from tests.conftest import running
from tests.servers import Dynoxide, Ministack, Postgres, Redis, ServerProcess
from tests.servers.process import find

GRACE = 60_000


class Kinesalite(ServerProcess):
    """Kinesis alone, with shards that can be split and still be read."""

    def command(self) -> list[str]:
        quick = [f"--{name}StreamMs=10" for name in ("create", "update", "delete")]
        return [find("kinesalite"), "--port", str(self.port), *quick]

    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="session")
def kinesalite(servers: Path) -> Iterator[Kinesalite]:
    yield from running(lambda: Kinesalite(servers))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a minute are renewed, shared and given up as often as if they lasted for two seconds."""
    monkeypatch.setattr(shard_source, "_BEATS", 180)


class Stream:
    """One stream of a server, seen from outside."""

    def __init__(self, endpoint: str, shards: int = 1) -> None:
        self.name = f"s-{uuid.uuid4().hex}"
        self.endpoint = endpoint
        self.client: Any = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_stream(StreamName=self.name, ShardCount=shards)
        self.settle()

    def settle(self) -> None:
        wait_until(lambda: self._summary()["StreamStatus"] == "ACTIVE")

    def _summary(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.describe_stream_summary(StreamName=self.name)
        summary: dict[str, Any] = answer["StreamDescriptionSummary"]
        return summary

    def arn(self) -> str:
        return str(self._summary()["StreamARN"])

    def url(self, **options: str) -> str:
        defaults = {"region": "us-east-1", "endpoint": self.endpoint, "wait": "200ms", "lease": "60s", **options}
        return f"kinesis://{self.name}?" + "&".join(f"{name}={value}" for name, value in defaults.items())

    def put(self, *names: object, partition: str | None = None) -> None:
        for name in names:
            self.put_bytes(json.dumps({"id": str(name)}).encode(), partition or str(name))

    def put_bytes(self, data: bytes, partition: str = "p") -> str:
        answer = self.client.put_record(StreamName=self.name, Data=data, PartitionKey=partition)
        return f"{answer['ShardId']}:{answer['SequenceNumber']}"

    def split(self, shard: str) -> None:
        half = str(2**127)
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=half)
        self.settle()

    def merge(self, shard: str, other: str) -> None:
        self.client.merge_shards(StreamName=self.name, ShardToMerge=shard, AdjacentShardToMerge=other)
        self.settle()

    def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        for shard in self.client.list_shards(StreamName=self.name)["Shards"]:
            position = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = self.client.get_shard_iterator(StreamName=self.name, **position)["ShardIterator"]
            records += self.client.get_records(ShardIterator=iterator)["Records"]
        return records


class Running:
    """A crew at work in a thread, and what its handler was given."""

    def __init__(self, url: str, folder: Path, store: Store, handler: Any = None, batch: int = 10) -> None:
        self.ran: list[str] = []
        self.once = Once(store, lease="60s", max_attempts=3)
        self.source: Any = open_source(url, store=lambda: store)
        self.letters = open_dead_letters(str(folder / "dead.jsonl"))
        self.handler: Any = handler or (lambda event: None)
        self.pool = WorkerPool(self.once, self.source, self._handle, self.letters, batch=batch)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _handle(self, event: Event) -> Any:
        self.ran.append(event.id)
        return self.handler(event)

    def _run(self) -> None:
        try:
            self.pool.run(GRACE)
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


Run = Callable[..., Running]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts a crew on a stream."""
    made: list[Running] = []

    def start(url: str, store: Store, handler: Any = None, **more: Any) -> Running:
        made.append(Running(url, tmp_path, store, handler, **more))
        return made[-1]

    yield start
    for each in made:
        each.stop()


def numbers(ran: list[str]) -> list[int]:
    return [int(name) for name in ran]


# --- Kinesis ---


def test_every_record_of_every_shard_once(ministack: Ministack, run: Run) -> None:
    stream = Stream(ministack.endpoint(), shards=3)
    stream.put(*range(40), *range(20))
    pool = run(stream.url(), MemoryStore())
    pool.until_ended(60)
    stream.put(*range(40, 50))
    pool.until_ended(70)
    assert sorted(numbers(pool.ran)) == list(range(50))


def test_records_of_a_shard_run_in_order_and_a_poisoned_one_does_not_stop_it(
    ministack: Ministack, run: Run, tmp_path: Path
) -> None:
    stream = Stream(ministack.endpoint())
    poison = stream.put_bytes(b'{"id": "poison"}')
    broken = stream.put_bytes(b'{"id": ')
    stream.put(*range(30))

    def handle(event: Event) -> None:
        if event.id == "poison":
            raise ValueError("never")

    pool = run(stream.url(), MemoryStore(), handle)
    pool.until_ended(32)
    assert pool.ran == ["poison"] * 3 + [str(number) for number in range(30)]
    letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert {letter["message"] for letter in letters} == {poison, broken}


def test_a_record_without_an_id_is_named_as_lambda_names_it(ministack: Ministack, run: Run) -> None:
    stream = Stream(ministack.endpoint())
    name = stream.put_bytes(b'{"n": 1}')
    pool = run(stream.url(), MemoryStore())
    pool.until_ended(1)
    assert pool.ran == [name]
    data = b64encode(b'{"n": 1}').decode()
    record = {"eventID": name, "eventSource": "aws:kinesis", "eventSourceARN": stream.arn()}
    copy = {**record, "kinesis": {"sequenceNumber": name, "data": data}}
    assert pool.once.aws_lambda(pool.ran.append)({"Records": [copy]}, None) == {"batchItemFailures": []}
    assert pool.ran == [name]


def test_an_aggregate_is_taken_apart(ministack: Ministack, run: Run) -> None:
    stream = Stream(ministack.endpoint())
    records = b"".join(b"\x1a\x0f\x08\x00\x1a\x0b" + b'{"id": "%d"}' % number for number in range(5))
    message = b"\x0a\x01p" + records
    stream.put_bytes(b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest())
    stream.put(4, 5)
    pool = run(stream.url(), MemoryStore())
    pool.until_ended(7)
    assert pool.ran == ["0", "1", "2", "3", "4", "5"]


def test_the_next_worker_goes_on_where_the_last_one_stopped(ministack: Ministack, run: Run, tmp_path: Path) -> None:
    stream = Stream(ministack.endpoint(), shards=2)
    stream.put(*range(20))
    url = f"sqlite:///{tmp_path}/claims.db"
    first = run(stream.url(), open_store(url))
    first.until_ended(20)
    first.stop()
    stream.put(*range(20, 25))
    second = run(stream.url(), open_store(url))
    second.until_ended(5)
    assert sorted(numbers(second.ran)) == list(range(20, 25))
    assert second.pool.counts.as_dict()["duplicate"] == 0


def test_workers_share_a_stream_and_a_handover_loses_and_repeats_nothing(ministack: Ministack, run: Run) -> None:
    stream, store = Stream(ministack.endpoint(), shards=4), MemoryStore()
    stream.put(*range(40))
    first = run(stream.url(), store)
    first.until_ended(20)
    second = run(stream.url(), store)
    for start in range(40, 4000, 10):  # until both have had some
        stream.put(*range(start, start + 10))
        if second.ran and start >= 100:
            break
        time.sleep(0.3)
    end = start + 10
    wait_until(lambda: len(first.ran) + len(second.ran) >= end)
    assert sorted(numbers(first.ran + second.ran)) == list(range(end))
    assert second.ran
    first.stop()
    stream.put(*range(end, end + 40))
    wait_until(lambda: len(first.ran) + len(second.ran) >= end + 40)
    assert sorted(numbers(first.ran + second.ran)) == list(range(end + 40))


def test_latest_leaves_out_what_was_there(ministack: Ministack, run: Run) -> None:
    stream = Stream(ministack.endpoint())
    stream.put("old")
    time.sleep(1.1)  # arrival times may be whole seconds
    pool = run(stream.url(start="latest"), MemoryStore())
    time.sleep(1.1)
    stream.put("new")
    pool.until_ended(1)
    assert pool.ran == ["new"]


def test_a_pipeline_reads_a_stream_and_its_store_knows_how_far(ministack: Ministack, tmp_path: Path) -> None:
    stream = Stream(ministack.endpoint())
    options = {"source": stream.url(), "store": f"sqlite:///{tmp_path}/claims.db", "sink": str(tmp_path / "out.jsonl")}
    settings = load(None, dead_letter=str(tmp_path / "dead.jsonl"), **options)
    for name in ("first", "second"):
        stream.put(name)
        parts = Pipeline(settings)
        pool = WorkerPool(parts.once, parts.source, parts.handler, parts.dead_letters, batch=10)
        thread = threading.Thread(target=pool.run, args=(GRACE,))
        thread.start()
        wait_until(lambda pool=pool: pool.counts.events == 1)  # type: ignore[misc]
        pool.stop()
        thread.join(60)
        parts.close()
    written = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in written] == ["first", "second"]


def test_a_missing_stream_is_reported(ministack: Ministack) -> None:
    stream = Stream(ministack.endpoint())
    with pytest.raises(SourceError, match="check its name, region and account"):
        open_source(stream.url().replace(stream.name, "no-such-stream"), store=MemoryStore)


# --- splits, and a store that fails ---


def test_a_split_and_a_merge_in_the_middle_of_a_run(kinesalite: Kinesalite, run: Run) -> None:
    stream = Stream(kinesalite.endpoint())
    stream.put(*range(10))
    pool = run(stream.url(), MemoryStore(), batch=3)
    pool.until(lambda: len(pool.ran) >= 3)
    stream.split("shardId-000000000000")
    stream.put(*range(10, 30))
    pool.until_ended(20)
    stream.merge("shardId-000000000001", "shardId-000000000002")
    stream.put(*range(30, 40))
    pool.until_ended(40)
    ran = numbers(pool.ran)
    assert ran[:10] == list(range(10))
    assert sorted(ran[10:30]) == list(range(10, 30))
    assert ran[30:] == list(range(30, 40))


def test_workers_come_and_go_while_shards_do(kinesalite: Kinesalite, run: Run) -> None:
    stream, store = Stream(kinesalite.endpoint(), shards=2), MemoryStore()
    stream.put(*range(20))
    first = run(stream.url(), store, batch=2)
    first.until(lambda: len(first.ran) >= 4)
    second = run(stream.url(), store, batch=2)
    stream.merge("shardId-000000000000", "shardId-000000000001")
    stream.put(*range(20, 40))
    first.stop()
    stream.split("shardId-000000000002")
    stream.put(*range(40, 60))
    wait_until(lambda: len(first.ran) + len(second.ran) >= 60)
    assert sorted(numbers(first.ran + second.ran)) == list(range(60))


class NoCheckpoints(MemoryStore):
    """A store in which no shard can be written down, while it lasts."""

    lasts = True

    def commit(self, finishes: Any) -> list[bool]:
        if self.lasts and any(finish.version is not None for finish in finishes):
            raise StoreError("no checkpoint today")
        return super().commit(finishes)


def test_without_checkpoints_records_are_redelivered_and_are_duplicates(
    ministack: Ministack, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    stream, store = Stream(ministack.endpoint()), NoCheckpoints()
    stream.put(*range(10))
    first = run(stream.url(lease="2s"), store)  # which it cannot give back
    first.until_ended(10)
    wait_until(lambda: "the store of checkpoints does not answer" in caplog.text)
    first.stop()
    second = run(stream.url(), store)
    second.until_ended(10)
    assert second.pool.counts.as_dict()["duplicate"] == 10
    store.lasts = False
    stream.put(*range(10, 15))
    second.until_ended(15)
    second.stop()
    third = run(stream.url(), store)
    stream.put(15)
    third.until_ended(1)
    assert numbers(first.ran + second.ran + third.ran) == list(range(16))


@pytest.fixture(params=["sqlite", "redis", "postgres", "dynamodb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(_url(request, tmp_path))
    if isinstance(opened, DynamoDBStore):
        opened.create_table()
    yield opened
    opened.close()


def _url(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/claims.db"
    if request.param == "redis":
        redis: Redis = request.getfixturevalue("redis_server")
        return redis.url()
    if request.param == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres_server")
        return postgres.url()
    dynoxide: Dynoxide = request.getfixturevalue("dynoxide")
    return dynoxide.url(f"t-{uuid.uuid4().hex}")


def test_on_every_store_a_checkpoint_never_goes_back(store: Store) -> None:
    stream = uuid.uuid4().hex
    old, new = (ShardLeases(store, "billing", stream, lease, SystemClock()) for lease in (50, 60_000))
    for leases in (old, new):
        assert (leases.look([]), leases.share(0)) == ({}, 0)
        assert leases.look(["s0"]) == {"s0": None}
        assert leases.share(2) in (1, 2)
    assert old.take(["s0"], 1) == {"s0": None}

    def takes_over() -> bool:
        new.look(["s0"])
        return bool(new.take(["s0"], 1))

    wait_until(takes_over)
    assert new.keep({"s0": "5"}, ()) == {"s0"}
    assert old.keep({"s0": "3"}, ()) == set()
    assert new.keep({"s0": "7"}, ()) == {"s0"}
    assert old.look(["s0"]) == {"s0": "7"}
    new.close({"s0": "7"})
    assert old.look(["s0"]) == {"s0": "7"}
    assert old.take(["s0"], 1) == {"s0": "7"}


# --- DynamoDB Streams ---


class Table:
    """A table with a stream."""

    def __init__(self, endpoint: str, *, stream: bool = True) -> None:
        self.name = f"t-{uuid.uuid4().hex}"
        self.endpoint = endpoint
        self.client: Any = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
        view = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        streams: dict[str, Any] = {"StreamSpecification": view} if stream else {}
        self.client.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            **streams,
        )

    def url(self, name: str | None = None) -> str:
        return f"dynamodbstreams://{name or self.name}?region=us-east-1&endpoint={self.endpoint}&wait=200ms&lease=60s"

    def put(self, *names: str) -> None:
        for name in names:
            self.client.put_item(TableName=self.name, Item={"pk": {"S": name}, "b": {"B": b"\xff"}})


def test_each_change_of_a_table_once(ministack: Ministack, run: Run) -> None:
    table, store = Table(ministack.endpoint()), MemoryStore()
    seen: list[Event] = []
    table.put("a", "b")
    table.client.delete_item(TableName=table.name, Key={"pk": {"S": "a"}})
    pool = run(table.url(), store, seen.append)
    pool.until_ended(3)
    pool.stop()
    table.put("c")
    stream = table.client.describe_table(TableName=table.name)["Table"]["LatestStreamArn"]
    other = run(table.url(stream), store, seen.append)  # the same stream by its ARN
    other.until_ended(1)
    assert [(event.type, event.data["keys"]["pk"]) for event in seen] == [
        ("INSERT", "a"),
        ("INSERT", "b"),
        ("REMOVE", "a"),
        ("INSERT", "c"),
    ]
    assert {event.source for event in seen} == {table.name}
    assert seen[0].data["new"]["b"] == {"$binary": "/w=="}
    assert seen[0].time is not None
    assert len(set(pool.ran + other.ran)) == 4


def test_a_table_without_a_stream_is_reported(ministack: Ministack) -> None:
    table = Table(ministack.endpoint(), stream=False)
    with pytest.raises(SourceError, match="the table has no stream; turn it on"):
        open_source(table.url(), store=MemoryStore)
    with pytest.raises(SourceError, match="check its name, region and account"):
        open_source(table.url("no-such-table"), store=MemoryStore)


# --- the sink of Kinesis ---


def events(*names: object) -> list[Event]:
    return [Event(id=str(name), source="shop", type="Order", data={"n": str(name)}) for name in names]


def test_events_into_a_stream(ministack: Ministack) -> None:
    stream = Stream(ministack.endpoint(), shards=2)
    sink: Any = open_sink(f"kinesis://{stream.name}?region=us-east-1&endpoint={stream.endpoint}")
    sent = events(*range(600))
    assert set(sink.send(sent, [f"key-{event.id}" for event in sent])) == {None}
    sink.close()
    records = stream.records()
    assert sorted(int(json.loads(each["Data"])["id"]) for each in records) == list(range(600))
    assert {each["PartitionKey"] for each in records} == {f"key-{number}" for number in range(600)}


def test_a_partition_keeps_its_order(ministack: Ministack) -> None:
    stream = Stream(ministack.endpoint(), shards=2)
    url = f"kinesis://{stream.name}?partition=source&region=us-east-1&endpoint={stream.endpoint}"
    sink: Any = open_sink(url)
    assert set(sink.send(events(*range(5)), [str(number) for number in range(5)])) == {None}
    (refused,) = sink.send([Event(id="6", data={})], ["6"])
    assert "has nothing at source, which names its partition" in str(refused)
    sink.close()
    records = stream.records()
    assert [json.loads(each["Data"])["id"] for each in records] == ["0", "1", "2", "3", "4"]
    assert {each["PartitionKey"] for each in records} == {"shop"}


def test_what_a_shard_does_not_take_is_sent_again_and_only_that(
    ministack: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(ministack.endpoint())
    sink: Any = open_sink(f"kinesis://{stream.name}?region=us-east-1&endpoint={stream.endpoint}")
    client, calls = sink.client(), []
    put = client.put_records

    def put_some(**request: Any) -> dict[str, Any]:
        calls.append(len(request["Records"]))
        if len(calls) > 1:
            return dict(put(**request))
        accepted = dict(put(**{**request, "Records": request["Records"][::2]}))["Records"]
        refused = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"}
        return {"FailedRecordCount": 2, "Records": [accepted[0], refused, accepted[1], refused]}

    monkeypatch.setattr(client, "put_records", put_some)
    assert list(sink.send(events(*range(4)), ["a", "b", "c", "d"])) == [None] * 4
    sink.close()
    assert calls == [4, 2]
    assert sorted(json.loads(each["Data"])["id"] for each in stream.records()) == ["0", "1", "2", "3"]
