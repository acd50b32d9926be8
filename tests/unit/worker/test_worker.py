"""The worker on a queue: what is acked, what is redelivered, how it stops, and what it says of outages."""

import asyncio
import gzip
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eventonce import Context, EventRejected, Once
from eventonce.backoff import backoff
from eventonce.claims.protocol import ClaimRequest
from eventonce.cli.log_filter import Repeats
from eventonce.clock import SystemClock
from eventonce.dead_letters.file import DeadFile
from eventonce.dead_letters.letter import letter_deliveries, read_letter
from eventonce.errors import SinkError, SourceError, StoreUnusable
from eventonce.event import Delivery, Event
from eventonce.event.reading import split_events
from eventonce.observe.outage import Outage
from eventonce.sinks.file import FileSink
from eventonce.sources.file import FileSource
from eventonce.sources.visibility import MAX_VISIBILITY, Visibility, VisibilityChange
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from eventonce.worker import WorkerPool
from eventonce.worker.stop_guard import guard
from eventonce.worker.worker import Worker
from tests.unit.conftest import Bench, Faulty

GRACE = 60_000


class Away(SourceError):
    retryable = True


class Queue:
    """Messages in memory, and what was done to them. It stops its pool when all were settled."""

    def __init__(self, *bodies: Any, group: str | None = None, again: bool = False) -> None:
        self.waiting = [
            Delivery(
                body=body if isinstance(body, bytes) else json.dumps(body).encode(),
                origin={"source": "sqs://orders", "message": f"m-{number}"},
                group=group,
                handle=f"h-{number}",
            )
            for number, body in enumerate(bodies)
        ]
        self.messages = {delivery.handle: structs.replace(delivery) for delivery in self.waiting}
        self.left = len(self.waiting)
        self.offered_again = again
        self.acked: list[str] = []
        self.retried: list[tuple[str, int]] = []
        self.limits: list[int] = []
        self.troubles: list[Exception] = []
        self.done: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def receive(self, limit: int) -> Sequence[Delivery]:
        self.limits.append(limit)
        with self._lock:
            if self.troubles:
                raise self.troubles.pop(0)
            found, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.acked += dict.fromkeys(delivery.handle for delivery in deliveries)
        self._settled(len({delivery.handle for delivery in deliveries}))

    def retry(self, delivery: Delivery, delay: int) -> None:
        self.retried.append((delivery.handle, delay))
        if self.offered_again:
            message = self.messages[delivery.handle]
            message.receive_count += 1
            self.waiting.append(structs.replace(message))
        else:
            self._settled(1)

    def _settled(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done()

    def close(self) -> None: ...


@pytest.fixture
def pool(bench: Bench, tmp_path: Path) -> Iterator[Callable[..., WorkerPool]]:
    """Makes a pool of one thread, which stops when its queue is settled."""
    letters = DeadFile(str(tmp_path / "dead.jsonl"))

    def make(queue: Queue, handler: Any, once: Once | None = None, **more: Any) -> WorkerPool:
        made = WorkerPool(once or bench.once(), queue, handler, letters, **{"batch": 10, "threads": 1, **more})
        queue.done = made.stop
        return made

    yield make
    letters.close()


def dead(folder: Path) -> list[dict[str, Any]]:
    file = folder / "dead.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


Make = Callable[..., WorkerPool]


class Fails:
    """A handler that fails for some, as often as said."""

    def __init__(self, **times: int) -> None:
        self.times = times
        self.ran: list[str] = []

    def __call__(self, event: Event) -> None:
        self.ran.append(event.id)
        self.times[event.id] = self.times.get(event.id, 0) - 1
        if self.times[event.id] >= 0:
            raise ValueError("no")


# --- what is acked ---


def test_what_is_done_is_acked_and_what_failed_comes_again(pool: Make) -> None:
    queue = Queue({"id": "a"}, {"id": "b"}, {"id": "a"})
    made = pool(queue, Fails(b=1))
    assert made.run(GRACE) == 0
    assert queue.acked == ["h-0", "h-2"]
    assert [handle for handle, _ in queue.retried] == ["h-1"]
    assert made.counts.as_dict()["processed"] == made.counts.as_dict()["duplicate"] == 1


def test_a_message_with_several_events_is_acked_when_all_are_done(pool: Make, tmp_path: Path) -> None:
    handler = Fails(y=2)
    queue = Queue(records("x", "y", "z"), again=True)
    made = pool(queue, handler)
    made.run(GRACE)
    assert queue.acked == ["h-0"]
    assert [handle for handle, _ in queue.retried] == ["h-0", "h-0"]
    assert sorted(handler.ran) == ["x", "y", "y", "y", "z"]
    assert made.counts.events == 3


def test_a_dead_part_is_kept_once_when_its_message_ends(pool: Make, tmp_path: Path) -> None:
    def handle(event: Event) -> None:
        if event.id == "x":
            raise EventRejected("never")
        fails(event)

    fails = Fails(z=2)
    queue = Queue(records("x", "y", "z"), again=True)
    pool(queue, handle).run(GRACE)
    assert queue.acked == ["h-0"]
    (letter,) = dead(tmp_path)
    assert (letter["reason"], letter["message"], letter["record"]) == ("never", "m-0", 1)
    assert json.loads(letter["body"])["id"] == "x"


def test_in_an_ordered_message_what_is_behind_a_dead_part_goes_on(pool: Make, tmp_path: Path) -> None:
    def handle(event: Event) -> None:
        if event.id in "xy":
            raise EventRejected("never")
        fails(event)

    fails = Fails(z=1)
    queue = Queue(records("w", "x", "y", "z", "end"), {"id": "next"}, group="g", again=True)
    pool(queue, handle).run(GRACE)
    assert queue.acked == ["h-0", "h-1"]
    assert fails.ran == ["w", "z", "z", "end", "next"]
    assert len(dead(tmp_path)) == 2


def test_nothing_is_acked_that_could_not_be_kept_as_a_dead_letter(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise SinkError("the disk is full")

    monkeypatch.setattr(DeadFile, "write", refuse)
    queue = Queue(b"{", {"id": "a"})
    with pytest.raises(SinkError):
        pool(queue, Fails()).run(GRACE)
    assert queue.acked == []
    assert sorted(queue.retried) == [("h-0", 0), ("h-1", 0)]


def test_what_cannot_be_read_is_kept_with_its_bytes_and_the_others_go_on(pool: Make, tmp_path: Path) -> None:
    broken = [
        b'{"id": ',
        b'{"Type": "Notification", "TopicArn": "t", "MessageId": "s-1", "Message": "{\\"id\\": "}',
        b'{"Records": [{"eventSource": "aws:kinesis", "eventID": "1", "kinesis": {"data": "%%%"}}]}',
        b'{"awslogs": {"data": "H4sIAAAAAAAA"}}',
        b'{"id": "\xff"}',
        b"[]",
    ]
    queue = Queue({"id": "a"}, *broken, {"id": "b"})
    handler = Fails()
    pool(queue, handler).run(GRACE)
    assert handler.ran == ["a", "b"]
    assert len(queue.acked) == len(broken) + 2
    assert [letter["message"] for letter in dead(tmp_path)] == [f"m-{number}" for number in range(1, len(broken) + 1)]
    assert [letter.get("body", "").encode() for letter in dead(tmp_path) if "body" in letter] == broken[:4] + [b"[]"]
    assert all(letter["reason"].startswith("in the SQS message: ") for letter in dead(tmp_path))


def test_a_pointer_of_an_extended_client_is_a_dead_letter_and_never_handed_on(pool: Make, tmp_path: Path) -> None:
    pointer = b'["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k"}]'
    queue, handler = Queue(pointer, {"id": "a"}), Fails()
    pool(queue, handler).run(GRACE)
    (letter,) = dead(tmp_path)
    assert (handler.ran, letter["message"], letter["body"].encode()) == (["a"], "m-0", pointer)
    assert "read it with that client and pass the payload to once.run" in letter["reason"]


def log_batch(*lines: str, packed: bool) -> bytes:
    names = {"messageType": "DATA_MESSAGE", "owner": "1", "logGroup": "g", "logStream": "s"}
    events = [{"id": f"l-{line}", "timestamp": 1767603600000, "message": line} for line in lines]
    raw = json.dumps({**names, "logEvents": events}).encode()
    return gzip.compress(raw) if packed else raw


@pytest.mark.parametrize("packed", [True, False])
def test_a_record_of_logs_is_acked_when_all_its_log_events_have_ended(
    pool: Make, bench: Bench, tmp_path: Path, packed: bool
) -> None:
    handler = Fails(**{"l-b": 9})
    queue = Queue(log_batch("a", "b", packed=packed), again=True)
    pool(queue, handler, bench.once(max_attempts=2)).run(GRACE)
    assert queue.acked == ["h-0"]
    assert sorted(handler.ran) == ["l-a", "l-b", "l-b"]
    (letter,) = dead(tmp_path)
    (again,) = letter_deliveries(read_letter(json.dumps(letter).encode()))
    assert again.event is not None
    assert (again.event.id, again.event.data, again.event.source) == ("l-b", "b", "g")
    assert list(again.event.named_by) == letter["named_by"] != []


def test_the_id_of_a_message_serves_where_its_event_has_none(pool: Make) -> None:
    found: list[tuple[str, Any]] = []
    queue = Queue(b"hello", b"hello", {"n": 1}, {"id": "own"}, {"Records": [s3("k1", ""), s3("k2", "")]})
    pool(queue, lambda event: found.append((event.id, event.data))).run(GRACE)
    names = [each for each, _ in found]
    assert names[:4] == ["m-0", "m-1", "m-2", "own"]
    assert len(set(names)) == 6


def records(*names: str) -> dict[str, Any]:
    return {
        "Records": [{"messageId": "-", "body": json.dumps({"id": name}), "eventSource": "aws:sqs"} for name in names]
    }


def s3(key: str, name: str) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "responseElements": {"x-amz-request-id": name},
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, "sequencer": name or key}},
    }


# --- what is redelivered, and when ---


def test_a_part_of_a_document_that_comes_again_is_what_it_was(bench: Bench, tmp_path: Path) -> None:
    file, attempts = tmp_path / "events.jsonl", []
    file.write_text(json.dumps({"Records": [s3("a", "1"), s3("b", "2")]}) + "\n")

    def handle(event: Event, ctx: Context) -> None:
        attempts.append((event.data["s3"].pop("object")["key"], ctx.attempt))
        raise ValueError

    once = bench.once(key="content", max_attempts=3)
    source = FileSource(str(file), clock=ManualClock())
    with closing(source), closing(DeadFile(str(tmp_path / "dead.jsonl"))) as letters:
        Worker(once, source, handle, letters, batch=10).run()
    assert sorted(attempts) == [(name, attempt) for name in "ab" for attempt in (1, 2, 3)]
    assert [letter["attempts"] for letter in dead(tmp_path)] == [3, 3]


def test_the_end_of_a_file_reports_ignored_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"n": 1}\n{"n": 2}\n')
    with (
        Once("memory:", key="content", ignore=["at"]) as once,
        closing(FileSource(str(file))) as source,
        closing(DeadFile(str(tmp_path / "dead.jsonl"))) as letters,
        caplog.at_level(logging.WARNING, "eventonce"),
    ):
        Worker(once, source, lambda event: None, letters, batch=10).run()
    assert [record.getMessage() for record in caplog.records] == [
        "rule content: ignore: at leaves nothing out of its 2 events; check the path"
    ]


def test_a_busy_copy_comes_back_when_the_lease_could_be_over(pool: Make, bench: Bench) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    once = bench.once(store, clock=clock)
    store.claim([ClaimRequest(once.key({"id": "a"}), 60_000)], b"another1", 45_000)
    queue = Queue({"id": "a"})
    pool(queue, Fails(), once, clock=clock).run(GRACE)
    assert queue.retried == [("h-0", 45_000)]


def test_what_waits_for_its_group_comes_back_with_it(pool: Make) -> None:
    queue = Queue({"id": "a"}, {"id": "b"}, {"id": "c"}, group="g")
    pool(queue, Fails(b=1)).run(GRACE)
    assert queue.acked == ["h-0"]
    (failed, delay), *waiting = queue.retried
    assert failed == "h-1"
    assert delay > 0
    assert waiting == [("h-2", 0)]


def test_what_the_store_did_not_answer_to_rests_and_is_never_dead(
    pool: Make, bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Faulty("claim")
    queue = Queue({"id": "a"}, {"id": "b"}, again=True)
    made = pool(queue, Fails(), bench.once(store))
    queue.left = 10**6

    def receive(limit: int) -> Sequence[Delivery]:
        if len(queue.retried) > 20:
            made.stop()
        return Queue.receive(queue, limit)

    queue.receive = receive  # type: ignore[method-assign]
    made._stopping.wait = lambda timeout=None: made._stopping.is_set()  # type: ignore[method-assign]  # no pauses
    made.run(GRACE)
    assert queue.acked == []
    assert dead(tmp_path) == []
    assert min(delay for _, delay in queue.retried[:20]) >= 5000
    assert set(queue.limits[1:-1]) == {1}  # one message is enough to see
    assert [record.message for record in caplog.records if record.name == "eventonce.outage"] == [
        "the store does not answer, trying again until it does: no answer to claim"
    ]


def test_a_store_that_needs_someone_to_act_stops_the_crew(pool: Make, bench: Bench) -> None:
    class Unusable(MemoryStore):
        def claim(self, *_: Any) -> Any:
            raise StoreUnusable("log in first")

    queue = Queue({"id": "a"})
    with pytest.raises(StoreUnusable):
        pool(queue, Fails(), bench.once(Unusable()), threads=3).run(GRACE)
    assert (queue.acked, queue.retried) == ([], [("h-0", 0)])


def test_backoff_doubles_with_jitter_up_to_a_bound() -> None:
    for tries, most in [(1, 100), (2, 200), (5, 1600), (9, 25_600), (10, 30_000), (5000, 30_000)]:
        found = {backoff(tries) for _ in range(200)}
        assert most // 2 <= min(found) <= max(found) <= most
        assert len(found) > 5


# --- stopping ---


def test_what_a_poll_brings_after_the_stop_is_given_back_at_once(pool: Make) -> None:
    queue = Queue({"id": "a"}, {"id": "b"})
    handler = Fails()
    made = pool(queue, handler)
    plain = queue.receive

    def receive(limit: int) -> Sequence[Delivery]:
        made.stop()
        return plain(limit)

    queue.receive = receive  # type: ignore[method-assign]
    assert made.run(GRACE) == 0
    assert (handler.ran, queue.acked) == ([], [])
    assert queue.retried == [("h-0", 0), ("h-1", 0)]


@pytest.mark.parametrize("kind", ["plain", "with ctx", "async"])
def test_the_event_in_hand_is_finished_and_the_rest_is_not_begun(pool: Make, bench: Bench, kind: str) -> None:
    queue = Queue(*({"id": str(number)} for number in range(40)))
    ran: list[str] = []
    store = MemoryStore()
    once = bench.once(store)

    def handle(event: Event) -> None:
        made.stop()
        ran.append(event.id)

    async def handle_async(event: Event) -> None:
        made.stop()
        await asyncio.sleep(0.01)
        ran.append(event.id)

    handlers = {"plain": handle, "with ctx": lambda event, ctx: handle(event), "async": handle_async}
    made = pool(queue, handlers[kind], once, batch=40)
    assert made.run(GRACE) == 0
    assert ran == ["0"]
    assert queue.acked == ["h-0"]
    assert len(queue.retried) == 39
    assert store.peek([once.key({"id": "1"})]) == [None]  # no attempt is held against it


def test_a_handler_that_hangs_is_left_and_its_message_is_not_acked(pool: Make) -> None:
    begun, release = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        begun.set()
        release.wait()

    queue = Queue({"id": "a"})
    made = pool(queue, handle, threads=2)

    def stop() -> None:
        begun.wait()
        made.stop()

    threading.Thread(target=stop).start()
    assert made.run(50) == 1
    assert (queue.acked, queue.retried) == ([], [])
    release.set()


def test_an_async_handler_that_hangs_is_cancelled_and_gives_its_claim_back(pool: Make, bench: Bench) -> None:
    async def handle(event: Event) -> None:
        made.stop()
        await asyncio.sleep(600)

    store = MemoryStore()
    once = bench.once(store)
    queue = Queue({"id": "a"})
    made = pool(queue, handle, once)
    assert made.run(50) == 1
    assert (queue.acked, queue.retried) == ([], [("h-0", 0)])
    assert store.peek([once.key({"id": "a"})]) == [None]


def test_async_handlers_of_all_threads_share_one_loop(pool: Make) -> None:
    loops: set[int] = set()
    together = 0
    most = 0

    async def handle(event: Event) -> None:
        nonlocal together, most
        loops.add(id(asyncio.get_running_loop()))
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.005)
        together -= 1

    queue = Queue(*({"id": str(number)} for number in range(60)))
    pool(queue, handle, threads=3, batch=5).run(GRACE)
    assert len(queue.acked) == 60
    assert len(loops) == 1
    assert 1 < most <= 15


def test_a_crew_of_threads_runs_each_event_once(pool: Make) -> None:
    handler = Fails()
    queue = Queue(*({"id": str(number % 50)} for number in range(200)), again=True)
    pool(queue, handler, threads=8, batch=7).run(GRACE)
    assert sorted(handler.ran) == sorted(str(number) for number in range(50))
    assert len(queue.acked) == 200


def test_a_file_gets_every_line_whole(pool: Make, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out.jsonl"))
    queue = Queue(*({"id": str(number), "more": "x" * 20_000} for number in range(400)))
    pool(queue, sink, threads=8, batch=5).run(GRACE)
    sink.close()
    written = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(written, key=int) == [str(number) for number in range(400)]


def test_a_mistake_in_one_thread_stops_all_and_is_told(pool: Make) -> None:
    queue = Queue({"id": "a"})
    queue.troubles = [ZeroDivisionError("a mistake")]
    with pytest.raises(ZeroDivisionError):
        pool(queue, Fails(), threads=4).run(GRACE)


def test_a_queue_that_is_away_is_asked_again(pool: Make) -> None:
    queue = Queue({"id": "a"})
    queue.troubles = [Away("no"), Away("no"), Away("no")]
    pool(queue, Fails()).run(GRACE)
    assert queue.acked == ["h-0"]
    assert len(queue.limits) >= 4


@pytest.mark.parametrize("closed", [False, True])
def test_a_guard_calls_as_its_handler_wants_to_be_called(bench: Bench, closed: bool) -> None:
    called: list[str] = []

    class Object:
        def __call__(self, event: Event, ctx: Any) -> None:
            called.append(f"{event.id} {ctx.attempt}")

    def named(event: Event, *, ctx: Any) -> None:
        called.append(f"{event.id} {ctx.attempt}")

    decorated: Any = bench.once(consumer="other")(lambda event: called.append(f"{event.id} 1"))
    once = bench.once()
    handlers: list[Any] = [Object(), named, decorated]
    for number, handler in enumerate(handlers):
        (outcome,) = once.run([{"id": str(number)}], guard(handler, lambda: closed))
        assert outcome.kind == ("failed" if closed else "processed")
    assert called == ([] if closed else ["0 1", "1 1", "2 1"])


# --- visibility ---


class Changes:
    """What a queue was asked to change."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.calls: list[list[VisibilityChange]] = []
        self.gone: set[str] = set()
        self.away = False
        self.visibility = Visibility(self._change, 30_000, self.clock)
        self.visibility._thread = threading.Thread()  # beats come from the test

    def _change(self, changes: Sequence[VisibilityChange]) -> set[str]:
        if self.away:
            raise SourceError("away")
        self.calls.append(list(changes))
        return self.gone

    def beat_after(self, pause: int) -> list[VisibilityChange]:
        """What a heartbeat changes after so many milliseconds."""
        self.clock.sleep(pause)
        self.calls = []
        self.visibility.beat()
        return [change for call in self.calls for change in call]


def test_messages_are_extended_at_a_third_of_the_timeout() -> None:
    changes = Changes()
    changes.visibility.hold(["a", "b"])
    assert changes.beat_after(9_999) == []
    assert changes.beat_after(1) == [("a", 30), ("b", 30)]
    assert changes.beat_after(9_999) == []
    changes.visibility.drop(["a"])
    assert changes.beat_after(1) == [("b", 30)]


def test_they_are_extended_ten_in_a_call() -> None:
    changes = Changes()
    changes.visibility.hold(str(number) for number in range(1000))
    assert len(changes.beat_after(10_000)) == 1000
    assert {len(call) for call in changes.calls} == {10}


def test_several_of_these_calls_are_under_way_at_a_time() -> None:
    together = threading.Barrier(8)
    changes = Changes()

    def change(some: Sequence[VisibilityChange]) -> set[str]:
        together.wait(60)  # breaks where no seven others come
        return changes._change(some)

    changes.visibility._change = change
    changes.visibility.hold(str(number) for number in range(160))
    assert len(changes.beat_after(10_000)) == 160
    assert changes.beat_after(9_999) == []


def test_a_queue_that_is_away_is_not_asked_for_every_ten() -> None:
    changes = Changes()
    asked: list[Sequence[VisibilityChange]] = []

    def change(some: Sequence[VisibilityChange]) -> set[str]:
        asked.append(some)
        raise SourceError("away")

    changes.visibility._change = change
    changes.visibility.hold(str(number) for number in range(1000))
    changes.beat_after(10_000)
    assert 1 <= len(asked) <= 8


def test_a_mistake_in_one_of_many_calls_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    changes, mistaken = Changes(), threading.Event()

    def change(some: Sequence[VisibilityChange]) -> set[str]:
        if threading.current_thread() is not threading.main_thread():
            mistaken.set()
            raise ZeroDivisionError
        assert mistaken.wait(60)
        return changes._change(some)

    changes.visibility._change = change
    changes.visibility.hold(str(number) for number in range(1000))
    assert len(changes.beat_after(10_000)) >= 930
    assert "ZeroDivisionError" in caplog.text


def test_what_is_let_go_is_hidden_until_its_time_and_no_longer_held() -> None:
    changes = Changes()
    changes.visibility.hold(["a", "b", "c"])
    changes.visibility.retry("a", 0)
    changes.visibility.retry("b", 4_100)
    changes.visibility.retry("unknown", 0)
    assert changes.beat_after(100) == [("a", 0), ("b", 4)]
    assert changes.beat_after(10_000) == [("c", 30)]


def test_what_is_let_go_just_as_a_beat_begins_is_not_hidden_for_a_second_more(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes()
    changes.visibility.hold(["a"])
    steady, began = changes.clock.steady, threading.Event()

    def meanwhile() -> int:
        now = steady()
        if not began.is_set():
            began.set()
            changes.clock.sleep(1)
            changes.visibility.retry("a", 0)
        return now

    monkeypatch.setattr(changes.clock, "steady", meanwhile)
    assert changes.beat_after(0) == [("a", 0)]


def test_a_queue_that_is_away_is_told_later_and_what_is_let_go_shows_up_by_itself() -> None:
    changes = Changes()
    changes.visibility.hold(["a", "b"])
    changes.visibility.retry("a", 0)
    changes.away = True
    assert changes.beat_after(20_000) == []
    changes.away = False
    assert changes.beat_after(10_001) == [("b", 30)]


def test_a_message_that_is_gone_is_not_extended_again() -> None:
    changes = Changes()
    changes.visibility.hold(["a", "b"])
    changes.gone = {"a"}
    assert changes.beat_after(10_000) == [("a", 30), ("b", 30)]
    assert changes.beat_after(10_000) == [("b", 30)]


def test_nothing_is_hidden_for_longer_than_the_queue_can() -> None:
    changes = Changes()
    changes.visibility.hold(["a"])
    for _ in range(MAX_VISIBILITY // 10_000 - 3):
        assert changes.beat_after(10_000) == [("a", 30)]
    assert changes.beat_after(10_000) == [("a", 20)]
    assert changes.beat_after(10_000) == [("a", 10)]
    assert changes.beat_after(10_000) == []


def test_a_stop_lets_go_and_extends_no_more() -> None:
    changes = Changes()
    visibility = Visibility(changes._change, 1000, changes.clock)
    visibility.hold(["a", "b"])
    visibility.retry("a", 0)
    visibility.stop()
    assert [change for call in changes.calls for change in call] == [("a", 0)]


def test_a_mistake_does_not_end_the_keeping(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)

    def change(changes: Sequence[VisibilityChange]) -> set[str]:
        called.release()
        raise ZeroDivisionError

    visibility = Visibility(change, 300, SystemClock())
    visibility.hold(["a"])
    assert called.acquire(timeout=60)
    assert called.acquire(timeout=60)
    visibility.stop()
    assert "messages could not be kept hidden" in caplog.text


# --- outages ---


def test_a_log_says_a_thing_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    repeats, said = Repeats(), []
    for second in range(0, 150, 10):
        now = float(second)
        for number in range(5):
            record = logging.LogRecord("eventonce", logging.WARNING, "", 0, "lost %d", (number,), None)
            said += [second] if repeats.filter(record) else []
    assert said == [0, 60, 120]


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    outage = Outage("sqs://orders", clock)
    outage.worked()
    for _ in range(1000):
        outage.failed(ValueError("throttled"))
        clock.sleep(100)
        outage.worked()  # others get through
    clock.sleep(5000)
    outage.worked()
    outage.worked()
    assert [record.getMessage() for record in caplog.records] == [
        "sqs://orders does not answer, trying again until it does: throttled",
        "sqs://orders answers again, after 105 seconds",
    ]
    outage.failed(None)
    assert len(caplog.records) == 3


def test_what_cannot_be_read_in_a_message_is_kept_once_however_much_it_is() -> None:
    body = json.dumps([{"id": "1"}] + [1] * 5000).encode()
    parts = split_events(Delivery(body=body, origin={"source": "sqs://q", "message": "m"}, handle="h"))
    assert [part.event.id for part in parts if part.event] == ["1"]
    (broken,) = [part for part in parts if part.unreadable]
    assert "4,999 more" in str(broken.unreadable)
    assert sum(len(part.body) for part in parts) < 2 * len(body)
