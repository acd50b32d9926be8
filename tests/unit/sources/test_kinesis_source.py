"""Shards: who holds them, in which order their records come, and what is left after a handover or a fault."""

import json
import threading
from base64 import b85encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import pytest

from eventonce import Once, Rule
from eventonce.claims.outcome import OutcomeKind
from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Token
from eventonce.dead_letters.queue import DeadQueue
from eventonce.errors import ConfigError, StoreError, StoreUnusable
from eventonce.event import Delivery
from eventonce.sources import check_source, open_source
from eventonce.sources.shard_leases import ShardLeases
from eventonce.sources.shard_reader import SHARD_END, ShardReader
from eventonce.sources.shard_source import ShardSource
from eventonce.sources.stream import IteratorExpired, Page, Shard, StreamAway, StreamRecord, Trimmed
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from eventonce.worker import Worker

LEASE = 30_000
BEAT = LEASE // 6


class Stream:
    """A stream whose records, shards and faults a test decides on."""

    name = "kinesis://orders"
    arn = identity = "arn:orders"
    start: int | None = None

    def __init__(self, *shards: str) -> None:
        self.listed = {shard: Shard(shard) for shard in shards}
        self.records: dict[str, list[str]] = {shard: [] for shard in shards}
        self.closed: set[str] = set()
        self.fault: Exception | None = None
        self.requests: list[tuple[str, str | None, int | None]] = []  # for iterators

    def put(self, shard: str, *names: str) -> None:
        self.records[shard] += names

    def reshard(self, parents: Sequence[str], *children: str) -> None:
        self.closed.update(parents)
        for child in children:
            self.listed[child] = Shard(child, tuple(parents))
            self.records[child] = []

    def shards(self) -> list[Shard]:
        self._fail()
        return list(self.listed.values())

    def iterator(self, shard: str, after: str | None, start: int | None) -> str:
        self._fail()
        self.requests.append((shard, after, start))
        return str(0 if after is None else int(after) + 1)

    def read(self, shard: str, iterator: str) -> Page:
        self._fail()
        at, names = int(iterator), self.records[shard]
        deliveries = [StreamRecord(str(n), f"{shard}:{n}", body(names[n])) for n in range(at, len(names))]
        return Page(deliveries, None if shard in self.closed else str(len(names)))

    def close(self) -> None: ...

    def _fail(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault


def body(name: str) -> bytes:
    return json.dumps({"id": name}).encode()


class Troubled(MemoryStore):
    """A store that fails, before or after a call takes effect."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.before: dict[str, Exception] = {}
        self.after: dict[str, Exception] = {}

    def _around(self, verb: str, call: Callable[[], Any]) -> Any:
        if verb in self.before:
            raise self.before[verb]
        answer = call()
        if verb in self.after:
            raise self.after.pop(verb)
        return answer

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        deliveries: list[Answer] = self._around("claim", lambda: MemoryStore.claim(self, wants, token, lease))
        return deliveries

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        deliveries: list[bool] = self._around("commit", lambda: MemoryStore.commit(self, finishes))
        return deliveries

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        deliveries: list[bool] = self._around("extend", lambda: MemoryStore.extend(self, claims, lease))
        return deliveries


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Troubled:
    return Troubled(clock)


@pytest.fixture
def stream() -> Stream:
    return Stream("s0")


Open = Callable[..., ShardSource]


@pytest.fixture
def opened(stream: Stream, store: Troubled, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a worker's source, whose beats the test makes."""
    monkeypatch.setattr(ShardSource, "_beat_until_stopped", lambda self: None)

    def open_one(consumer: str = "billing") -> ShardSource:
        return ShardSource(stream, store, consumer, wait=200, lease=LEASE, clock=clock)

    return open_one


def names(deliveries: Sequence[Delivery]) -> list[str]:
    return [json.loads(delivery.body)["id"] for delivery in deliveries]


def got(source: ShardSource, clock: ManualClock, limit: int = 10) -> list[str]:
    """Receive what there is and ack it."""
    clock.sleep(1000)
    deliveries = source.receive(limit)
    source.ack(deliveries)
    return names(deliveries)


def rest(source: ShardSource, clock: ManualClock, shards: int = 1) -> list[str]:
    """All that comes, until every shard has been looked at."""
    return [name for _ in range(2 * shards + 2) for name in got(source, clock)]


def beat(clock: ManualClock, *sources: ShardSource) -> None:
    clock.sleep(BEAT)
    for source in sources:
        source.beat()


# --- the order of a shard ---


def test_records_come_in_order_and_none_while_others_are_unsettled(
    stream: Stream, opened: Open, clock: ManualClock
) -> None:
    stream.put("s0", "a", "b", "c")
    source = opened()
    source.beat()
    first = source.receive(2)
    assert names(first) == ["a", "b"]
    assert [(each.group, each.origin["message"]) for each in first] == [("s0", "s0:0"), ("s0", "s0:1")]
    assert source.receive(2) == []
    source.ack(first[:1])
    assert source.receive(2) == []
    source.ack(first[1:])
    assert got(source, clock) == ["c"]


def test_a_retry_is_redelivered_with_all_later_records_and_not_before_its_time(
    stream: Stream, opened: Open, clock: ManualClock
) -> None:
    stream.put("s0", "a", "b", "c", "d")
    source = opened()
    source.beat()
    deliveries = source.receive(3)
    source.ack(deliveries[:1])
    source.retry(deliveries[2], 0)  # it waited for the one before it
    source.retry(deliveries[1], 5000)
    assert source.receive(10) == []
    clock.sleep(5000)
    again = source.receive(10)
    assert names(again) == ["b", "c", "d"]
    assert [each.receive_count for each in again] == [2, 1, 1]


def test_a_checkpoint_stays_before_what_is_not_done(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a", "b", "c")
    source = opened()
    source.beat()
    deliveries = source.receive(3)
    source.ack([deliveries[0], deliveries[2]])
    source.retry(deliveries[1], 60_000)
    source.close()
    other = opened()
    other.beat()
    assert rest(other, clock) == ["b", "c"]


def test_a_record_whose_letter_cannot_be_kept_holds_up_its_own_shard(
    stream: Stream, opened: Open, clock: ManualClock
) -> None:
    stream.reshard([], "s1")
    noise = "!" + "".join(b85encode(sha256(b"%d" % each).digest()).decode() for each in range(26_000))
    stream.put("s0", "a", noise, "b")
    stream.put("s1", "c")
    source, ran, letters = opened(), [], DeadQueue("sqs://dead?region=eu-west-1")
    rules = Rule(name="noise", match={"id": [{"prefix": "!"}]}, key=["detail.nothing"])
    with Once(MemoryStore(clock=clock), rules=rules, clock=clock) as once:
        worker = Worker(once, source, lambda event: ran.append(event.id), letters, batch=10, endless=True, clock=clock)
        source.beat()
        for _ in range(3):
            clock.sleep(1000)
            worker.work(source.receive(10))
    letters.close()
    assert sorted(ran) == ["a", "c"]
    assert {shard: each.position for shard, each in source._readers.items()} == {"s0": "0", "s1": "0"}
    for _ in range(60_000 // BEAT):
        beat(clock, source)
    assert [name for _ in range(4) for name in names(source.receive(10))] == [noise, "b"]


def test_shards_take_turns(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.reshard([], "s1")
    stream.put("s0", *"abcd")
    stream.put("s1", *"wxyz")
    source = opened()
    source.beat()
    batches = [got(source, clock, 2) for _ in range(4)]
    assert sorted(map(str, batches[:2])) == ["['a', 'b']", "['w', 'x']"]
    assert sorted(map(str, batches[2:])) == ["['c', 'd']", "['y', 'z']"]


# --- splits and merges ---


def test_children_come_after_all_of_their_parent(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a", "b")
    source = opened()
    source.beat()
    assert got(source, clock) == ["a", "b"]
    stream.put("s0", "c")
    stream.reshard(["s0"], "s1", "s2")
    stream.put("s1", "d")
    stream.put("s2", "e")
    beat(clock, source)
    clock.sleep(1000)
    deliveries = source.receive(10)
    assert names(deliveries) == ["c"]
    for _ in range(10):
        beat(clock, source)
        assert source.receive(10) == []
    source.ack(deliveries)
    beat(clock, source)
    assert sorted(rest(source, clock, 2)) == ["d", "e"]


def test_a_child_of_two_waits_for_both(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.reshard([], "s1")
    stream.put("s0", "a")
    stream.put("s1", "b")
    stream.reshard(["s0", "s1"], "s2")
    stream.put("s2", "c")
    source = opened()
    source.beat()
    first, second = source.receive(10), source.receive(10)
    source.ack(first)
    beat(clock, source)
    assert got(source, clock) == []
    source.ack(second)
    beat(clock, source)
    assert rest(source, clock) == ["c"]


def test_a_shard_that_ended_stays_ended_for_the_next_worker(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a")
    stream.reshard(["s0"], "s1")
    stream.put("s1", "b")
    source = opened()
    source.beat()
    assert rest(source, clock) == ["a"]
    source.close()
    other = opened()
    other.beat()
    assert rest(other, clock) == ["b"]


def test_a_parent_that_the_stream_has_dropped_holds_nothing_up(
    stream: Stream, opened: Open, clock: ManualClock
) -> None:
    stream.put("s0", "a")
    source = opened()
    source.beat()
    stream.reshard(["s0"], "s1")
    stream.put("s1", "b")
    del stream.listed["s0"]
    for _ in range(8):
        beat(clock, source)
    assert rest(source, clock) == ["b"]


# --- several workers ---


def test_each_shard_is_with_one_worker_and_all_have_as_many(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.reshard([], "s1", "s2", "s3")
    for shard in stream.records:
        stream.put(shard, f"{shard}-a")
    first = opened()
    first.beat()
    assert sorted(rest(first, clock, 4)) == ["s0-a", "s1-a", "s2-a", "s3-a"]
    second = opened()
    for _ in range(3):
        beat(clock, first, second)
    for shard in stream.records:
        stream.put(shard, f"{shard}-b")
    mine, theirs = rest(first, clock, 4), rest(second, clock, 4)
    assert (len(mine), len(theirs)) == (2, 2)
    assert sorted(mine + theirs) == ["s0-b", "s1-b", "s2-b", "s3-b"]


def test_a_shard_with_unsettled_records_is_not_released(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.reshard([], "s1")
    stream.put("s0", "a")
    stream.put("s1", "b")
    first, second = opened(), opened()
    first.beat()
    deliveries = [*first.receive(10), *first.receive(10)]
    for _ in range(3):
        beat(clock, first, second)
    assert rest(second, clock) == []
    first.ack(deliveries)
    for _ in range(3):
        beat(clock, first, second)
    stream.put("s0", "c")
    stream.put("s1", "d")
    mine, theirs = rest(first, clock), rest(second, clock)
    assert (len(mine), len(theirs)) == (1, 1)
    assert sorted(mine + theirs) == ["c", "d"]


def test_more_workers_than_shards_stand_by(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a")
    first, second = opened(), opened()
    for _ in range(3):
        beat(clock, first, second)
    assert (rest(first, clock), rest(second, clock)) == (["a"], [])
    first.close()
    stream.put("s0", "b")
    beat(clock, second)
    assert rest(second, clock) == ["b"]


def test_a_dead_worker_whose_clock_was_ahead_holds_up_no_shard(
    stream: Stream, opened: Open, clock: ManualClock
) -> None:
    stream.reshard([], "s1")
    stream.put("s0", "a")
    stream.put("s1", "b")
    year = 365 * 86_400_000
    clock.sleep(year)
    opened().beat()  # and then it dies, and the clock is set right
    clock.sleep(-year)
    second = opened()
    for _ in range(3):
        beat(clock, second)
    assert sorted(rest(second, clock, 2)) == ["a", "b"]


def test_a_dead_workers_shard_goes_on_from_its_checkpoint(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a", "b", "c")
    first, second = opened(), opened()
    first.beat()
    assert got(first, clock, 1) == ["a"]
    beat(clock, first)
    assert got(first, clock, 1) == ["b"]  # and then it dies, before it can say so
    beat(clock, second)
    assert rest(second, clock) == []
    clock.sleep(LEASE)
    second.beat()
    beat(clock, second)
    assert rest(second, clock) == ["b", "c"]


def test_a_worker_that_comes_back_late_changes_nothing(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a", "b", "c")
    late, other = opened(), opened()
    late.beat()
    deliveries = late.receive(1)
    clock.sleep(LEASE + 1)
    other.beat()
    beat(clock, other)
    assert rest(other, clock) == ["a", "b", "c"]
    beat(clock, other)
    late.ack(deliveries)
    assert late.receive(10) == []  # it knows that its lease has expired
    late.beat()
    late.close()
    other.close()
    third = opened()
    third.beat()
    assert rest(third, clock) == []


def test_two_consumers_both_get_every_record(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a")
    for consumer in ("billing", "mail"):
        source = opened(consumer)
        source.beat()
        assert rest(source, clock) == ["a"]


def test_a_stream_that_was_made_again_is_another(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a")
    source = opened()
    source.beat()
    assert rest(source, clock) == ["a"]
    source.close()
    stream.identity = "arn:orders, made later"
    other = opened()
    other.beat()
    assert rest(other, clock) == ["a"]


def test_all_workers_begin_at_the_moment_at_which_the_first_one_did(
    stream: Stream, opened: Open, clock: ManualClock
) -> None:
    stream.start = clock.utc()
    first = opened()
    first.beat()
    first.receive(1)
    stream.reshard([], "s1")
    clock.sleep(LEASE + 1)  # the first one dies, and had done nothing yet
    started_at, stream.start = stream.start, clock.utc()
    second = opened()
    second.beat()
    beat(clock, second)
    second.receive(1)
    second.receive(1)
    assert {(after, start) for _, after, start in stream.requests} == {(None, started_at)}


# --- a store that fails ---


def test_checkpoints_wait_for_the_store_and_nothing_is_lost(
    stream: Stream, opened: Open, store: Troubled, clock: ManualClock
) -> None:
    stream.put("s0", "a", "b")
    source = opened()
    source.beat()
    assert got(source, clock, 1) == ["a"]
    store.before["commit"] = StoreError("away")
    for _ in range(3):
        with pytest.raises(StoreError):
            beat(clock, source)
    assert got(source, clock, 1) == ["b"]
    store.before.clear()
    beat(clock, source)  # sends what it could not send before
    beat(clock, source)
    source.close()
    other = opened()
    other.beat()
    assert rest(other, clock) == []


def test_the_end_of_a_shard_is_saved_also_where_an_earlier_checkpoint_is_still_on_its_way(
    stream: Stream, opened: Open, store: Troubled, clock: ManualClock
) -> None:
    stream.put("s0", "a", "b")
    source = opened()
    source.beat()
    assert got(source, clock, 1) == ["a"]
    store.before["commit"] = StoreError("away")
    with pytest.raises(StoreError):
        beat(clock, source)
    stream.reshard(["s0"], "s1")
    stream.put("s1", "c")
    assert rest(source, clock) == ["b"]
    store.before.clear()
    beat(clock, source)
    beat(clock, source)
    assert rest(source, clock) == ["c"]
    assert len(stream.requests) == 2  # each shard was read once


@pytest.mark.parametrize("verb", ["commit", "claim", "extend"])
def test_a_lost_answer_costs_no_shard_and_no_record(
    stream: Stream, opened: Open, store: Troubled, clock: ManualClock, verb: str
) -> None:
    stream.put("s0", "a")
    source = opened()
    source.beat()
    assert got(source, clock) == ["a"]
    store.after[verb] = StoreError("the answer was lost")
    with pytest.raises(StoreError):
        beat(clock, source)
    stream.put("s0", "b")
    beat(clock, source)
    assert rest(source, clock) == ["b"]
    source.close()
    other = opened()
    other.beat()
    assert rest(other, clock) == []


def test_while_the_store_is_out_for_longer_than_a_lease_nothing_is_received(
    stream: Stream, opened: Open, store: Troubled, clock: ManualClock
) -> None:
    stream.put("s0", "a")
    source = opened()
    source.beat()
    store.before["extend"] = StoreError("away")
    clock.sleep(LEASE)
    with pytest.raises(StoreError):
        source.beat()
    assert source.receive(10) == []
    store.before.clear()
    source.beat()
    assert rest(source, clock) == ["a"]


def test_a_store_that_cannot_be_used_stops_the_worker(stream: Stream, store: Troubled, clock: ManualClock) -> None:
    store.before["claim"] = StoreUnusable("no such table")
    source = ShardSource(stream, store, "billing", wait=200, lease=LEASE, clock=clock)

    def receive_until_it_says_so() -> None:
        while not source.receive(10):
            pass

    with pytest.raises(StoreUnusable):
        receive_until_it_says_so()
    source.close()


def test_a_failing_store_at_the_end_only_costs_repeats(
    stream: Stream, opened: Open, store: Troubled, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put("s0", "a")
    source = opened()
    source.beat()
    assert got(source, clock) == ["a"]
    store.before["commit"] = StoreError("away")
    source.close()
    assert "could not release its shards: away" in caplog.text
    store.before.clear()
    clock.sleep(LEASE)
    other = opened()
    other.beat()
    beat(clock, other)
    assert rest(other, clock) == ["a"]


def test_what_is_settled_as_a_retry_while_the_worker_ends_is_not_taken_for_done(
    stream: Stream, opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.put("s0", "a")
    stream.closed.add("s0")
    source = opened()
    source.beat()
    clock.sleep(1000)
    (delivery,) = source.receive(10)
    closing = threading.Thread(target=source.close)
    settle = ShardReader._end_batch

    def close_meanwhile(reader: ShardReader, now: int) -> None:
        closing.start()
        closing.join(0.2)
        settle(reader, now)

    monkeypatch.setattr(ShardReader, "_end_batch", close_meanwhile)
    source.retry(delivery, 0)
    closing.join()
    monkeypatch.undo()
    other = ShardSource(stream, source._store, "billing", wait=200, lease=LEASE, clock=clock)
    other.beat()
    assert "s0" in other._readers
    other.close()


# --- a stream that fails ---


def test_a_stream_that_does_not_answer_is_asked_again(stream: Stream, opened: Open, clock: ManualClock) -> None:
    stream.put("s0", "a")
    source = opened()
    stream.fault = StreamAway("away")
    source.beat()
    beat(clock, source)
    stream.fault = StreamAway("away")
    assert got(source, clock) == []
    stream.fault = IteratorExpired("five minutes")
    assert got(source, clock) == []
    assert rest(source, clock) == ["a"]


def test_what_was_dropped_before_it_was_read_is_reported(
    stream: Stream, opened: Open, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put("s0", "a")
    source = opened()
    source.beat()
    stream.fault = Trimmed("a day has passed")
    assert rest(source, clock) == ["a"]
    assert "dropped records before they were read" in caplog.text
    assert stream.requests[-1] == ("s0", None, None)


# --- with a worker ---


class Letters:
    name = "letters"

    def __init__(self) -> None:
        self.written: list[tuple[str, OutcomeKind]] = []

    def write(self, dead: Sequence[tuple[Delivery, Any]], now: int) -> None:
        self.written += [(delivery.origin["message"], outcome.kind) for delivery, outcome in dead]

    def close(self) -> None: ...


def test_a_poison_record_at_the_head_of_a_shard_is_kept_and_the_others_follow_in_order(
    stream: Stream, opened: Open, store: Troubled, clock: ManualClock
) -> None:
    stream.put("s0", "poison", "a", "b")
    ran: list[str] = []

    def handle(event: Any) -> None:
        ran.append(event.id)
        if event.id == "poison":
            raise ValueError("never")

    source, letters = opened(), Letters()
    source.beat()
    once = Once(store, max_attempts=3, clock=clock)
    worker = Worker(once, source, handle, letters, batch=10, endless=True, clock=clock)
    for _ in range(10):
        clock.sleep(30_000)
        source.beat()
        worker.work(source.receive(10))
    assert ran == ["poison"] * 3 + ["a", "b"]
    assert letters.written == [("s0:0", OutcomeKind.FAILED)]
    once.close()
    source.close()
    other = opened()
    other.beat()
    assert rest(other, clock) == []


# --- leases ---


def test_a_checkpoint_never_goes_back(store: Troubled, clock: ManualClock) -> None:
    old, new = (ShardLeases(store, "billing", "orders", LEASE, clock) for _ in range(2))
    old.look(["s0"])
    old.take(["s0"], 1)
    clock.sleep(LEASE)
    new.look(["s0"])
    assert new.take(["s0"], 1) == {"s0": None}
    assert new.keep({"s0": "5"}, ()) == {"s0"}
    assert old.keep({"s0": "3"}, ()) == set()
    assert new.look(["s0"]) == {"s0": "5"}
    new.close({"s0": SHARD_END})
    assert old.look(["s0"]) == {"s0": SHARD_END}


# --- URLs ---


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kinesis://orders?start=now", "unknown start 'now'; use trim_horizon or latest"),
        ("dynamodbstreams://orders?start=latest", "unknown option 'start'"),
        ("kinesis://orders?wait=10ms", "wait is out of range; use 200ms"),
        ("kinesis://orders?lease=2h", "lease is out of range; use 1s to 1h"),
        ("kinesis://", "names nothing; write kinesis://NAME"),
        ("kafka://orders", "kafka:// is not supported; use a file .file:NAME., -, sqs://QUEUE, kinesis://STREAM"),
    ],
)
def test_a_wrong_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_source(url)


def test_a_stream_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="read it with eventonce run"):
        open_source("kinesis://orders")
