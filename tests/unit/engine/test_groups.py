"""Deliveries of one group run in order, and none behind one that did not end well."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from eventonce import Once, Rule
from eventonce.claims.outcome import OutcomeKind
from eventonce.claims.protocol import Answer, ClaimRequest, Token
from eventonce.errors import StorePartly
from eventonce.event import Delivery, Event
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from tests.unit.conftest import Bench, Faulty
from tests.until import until


def deliver(text: str, **more: Any) -> list[Delivery]:
    """Return deliveries: `"a1 b1 a2"` is events 1 and 2 of group a, and one of group b. "9" is in no group."""
    return [
        Delivery(body=b'{"id": "%s"}' % each.encode(), group=each[0] if each[0].isalpha() else None, **more)
        for each in text.split()
    ]


class Handler:
    """A handler that fails for some events."""

    def __init__(self, *fails: str) -> None:
        self.fails = set(fails)
        self.ran: list[str] = []

    def __call__(self, event: Event) -> None:
        self.ran.append(event.id)
        if event.id in self.fails:
            raise ValueError("no")

    async def later(self, event: Event) -> None:
        await asyncio.sleep(0.01 if event.id.endswith("1") else 0)
        self(event)


class Sink:
    """A sink that fails for some events."""

    def __init__(self, *fails: str) -> None:
        self.fails = set(fails)
        self.sent: list[list[str]] = []

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> list[Exception | None]:
        self.sent.append([event.id for event in events])
        return [ValueError("no") if event.id in self.fails else None for event in events]

    def close(self) -> None: ...


def kinds(outcomes: Sequence[Any]) -> list[str]:
    return [str(outcome.kind) for outcome in outcomes]


def test_nothing_runs_behind_a_failure_and_other_groups_go_on(bench: Bench) -> None:
    handler, once = Handler("a2"), bench.once()
    outcomes = once.run(deliver("a1 a2 b1 a3 9 b2 a4"), handler)
    assert kinds(outcomes) == ["processed", "failed", "processed", "busy", "processed", "processed", "busy"]
    assert sorted(handler.ran) == ["9", "a1", "a2", "b1", "b2"]
    assert [outcome.action for outcome in outcomes][3] == "retry"
    handler.fails.clear()
    again = once.run(deliver("a1 a2 b1 a3 9 b2 a4"), handler)
    assert kinds(again) == ["duplicate", "processed", "duplicate", "processed", "duplicate", "duplicate", "processed"]
    assert again[3].attempt == 1  # it had not run before
    assert [each for each in handler.ran if each[0] == "a"] == ["a1", "a2", "a2", "a3", "a4"]


def test_what_runs_without_a_claim_overtakes_nothing_of_its_group(bench: Bench) -> None:
    class Partly(MemoryStore):
        """A store with several servers, of which one does not answer for the keys of some events."""

        def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
            answers = super().claim(wants, token, lease)
            if silent.isdisjoint(want.key for want in wants):
                return answers
            pairs = zip(wants, answers, strict=True)
            raise StorePartly("no answer", [None if want.key in silent else answer for want, answer in pairs])

    handler, once = Handler(), bench.once(Partly(), on_store_error="process")
    silent = {once.key({"id": name}) for name in ("a2", "b1", "b3")}
    outcomes = once.run(deliver("a1 a2 a3 b1 b2 b3"), handler)
    assert kinds(outcomes) == ["processed", "busy", "busy", "processed", "processed", "busy"]
    assert handler.ran == ["b1", "a1", "b2"]


@pytest.mark.parametrize("busy_wait", ["0s", "50ms"])
def test_nothing_runs_behind_a_busy_one_when_a_suspect_before_it_has_run(bench: Bench, busy_wait: str) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    handler, once = Handler(), bench.once(store, clock=clock, busy_wait=busy_wait)
    first, second = (once.key({"id": name}) for name in ("a1", "a2"))
    store.claim([ClaimRequest(first, 10_000, shared=True)], b"dead", 1)
    store.claim([ClaimRequest(second, 10_000)], b"another", 10_000)
    clock.sleep(10)
    assert kinds(once.run(deliver("a1 a2 a3"), handler)) == ["processed", "busy", "busy"]
    assert handler.ran == ["a1"]


def test_async_handlers_keep_the_order_of_a_group(bench: Bench) -> None:
    handler, once = Handler("b2"), bench.once()
    outcomes = asyncio.run(once.arun(deliver("a1 a2 a3 b1 b2 b3"), handler.later))
    assert kinds(outcomes) == ["processed"] * 3 + ["processed", "failed", "busy"]
    assert [each for each in handler.ran if each[0] == "a"] == ["a1", "a2", "a3"]


def test_a_sink_is_sent_one_of_each_group_at_a_time(bench: Bench) -> None:
    sink, once = Sink("a2"), bench.once()
    outcomes = once.run(deliver("a1 a2 a3 b1 b2 9 8"), sink)
    assert kinds(outcomes) == ["processed", "failed", "busy", "processed", "processed", "processed", "processed"]
    assert sink.sent == [["a1", "b1", "9", "8"], ["a2", "b2"]]


def test_what_cannot_be_read_stops_its_group(bench: Bench) -> None:
    handler, once = Handler(), bench.once()
    deliveries = deliver("a1 a2 a3 b1")
    deliveries[1].body = b"{"
    assert kinds(once.run(deliveries, handler)) == ["processed", "rejected", "busy", "processed"]
    assert sorted(handler.ran) == ["a1", "b1"]


def test_a_busy_one_stops_its_group_until_it_is_free(bench: Bench) -> None:
    store = Faulty()
    handler, once = Handler(), bench.once(store)
    other = once.key({"id": "a2"})
    store.claim([ClaimRequest(other, 60_000)], b"another1", 600_000)
    assert kinds(once.run(deliver("a1 a2 a3"), handler)) == ["processed", "busy", "busy"]
    assert handler.ran == ["a1"]

    waiting, claims = Once(store, busy_wait="300s"), store.calls.count("claim")

    def free_it() -> None:
        until(lambda: store.calls.count("claim") > claims + 1)  # it found the key busy, and has claimed again
        store.forget([other])

    threading.Thread(target=free_it).start()
    assert kinds(waiting.run(deliver("a1 a2 a3"), handler)) == ["duplicate", "processed", "processed"]
    assert handler.ran == ["a1", "a2", "a3"]
    waiting.close()


def test_a_failure_is_not_waited_for(bench: Bench) -> None:
    handler = Handler("a1")
    once = bench.once(busy_wait="60s")
    assert kinds(once.run(deliver("a1 a2"), handler)) == ["failed", "busy"]


def test_what_a_worker_may_have_died_of_runs_alone_and_in_its_place(bench: Bench) -> None:
    store = MemoryStore()
    handler, once = Handler(), bench.once(store)
    store.claim([ClaimRequest(once.key({"id": "a2"}), 60_000, shared=True)], b"another1", 0)
    assert kinds(once.run(deliver("a1 a2 a3 b1"), handler)) == ["processed"] * 4
    assert [each for each in handler.ran if each[0] == "a"] == ["a1", "a2", "a3"]


def test_versions_of_one_key_keep_the_order_of_their_group() -> None:
    ran: list[tuple[str, int]] = []
    rule = Rule(name="r", key=["detail.k"], version="detail.v")
    once = Once("memory:", rules=rule)
    pairs = [("x", 1), ("y", 1), ("x", 2), ("z", 1), ("x", 3)]
    deliveries = [Delivery(body=b'{"k": "%s", "v": %d}' % (key.encode(), v), group="g") for key, v in pairs]
    outcomes = once.run(deliveries, lambda event: ran.append((event.data["k"], event.data["v"])))
    assert kinds(outcomes) == ["processed"] * 5
    assert ran == pairs
    once.close()


def test_a_copy_of_what_failed_in_another_group_stops_its_own(bench: Bench) -> None:
    handler, once = Handler("x"), bench.once()
    deliveries = deliver("x x b2")
    deliveries[0].group, deliveries[1].group, deliveries[2].group = "a", "b", "b"
    assert kinds(once.run(deliveries, handler)) == ["failed", "failed", "busy"]
    assert handler.ran == ["x"]


def test_more_than_one_batch(bench: Bench) -> None:
    handler, once = Handler("a0100"), bench.once()
    outcomes = once.run(deliver(" ".join(f"a{number:04}" for number in range(1200))), handler)
    assert kinds(outcomes) == ["processed"] * 100 + ["failed"] + ["busy"] * 1099
    assert len(handler.ran) == 101


# --- messages that are redelivered after they were passed on ---


def test_a_redelivered_message_is_passed_on_again(bench: Bench) -> None:
    handler, once = Handler(), bench.once()
    assert kinds(once.run(deliver("1", message_id="m-1"), handler)) == ["processed"]
    assert kinds(once.run(deliver("1", message_id="m-1"), handler)) == ["processed"]
    assert kinds(once.run(deliver("1", message_id="m-2"), handler)) == ["duplicate"]
    assert kinds(once.run(deliver("1"), handler)) == ["duplicate"]
    assert handler.ran == ["1", "1"]


def test_a_redelivered_message_may_fail(bench: Bench) -> None:
    handler, once = Handler(), bench.once()
    once.run(deliver("1", message_id="m-1"), handler)
    handler.fails.add("1")
    assert kinds(once.run(deliver("1", message_id="m-1"), handler)) == ["failed"]
    handler.fails.clear()
    assert kinds(once.run(deliver("1", message_id="m-1"), handler)) == ["processed"]


@pytest.mark.parametrize("remember", ["seen", "note", "result"])
def test_a_message_id_goes_with_every_way_to_remember(bench: Bench, remember: str) -> None:
    once = bench.once(remember=remember, key="id")
    assert once.run(deliver("1", message_id="m-1"), lambda event: 7)[0].result == 7
    assert once.run(deliver("1", message_id="m-1"), lambda event: 8)[0].result == 8


def test_what_is_to_run_alone_waits_for_a_failure_before_it() -> None:
    """Found by the simulator: the second event of a group had killed a worker, and the first one fails now."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    ran: list[str] = []

    def handle(event: Event) -> None:
        ran.append(event.id)
        if event.id == "1":
            raise ValueError("not yet")

    with Once(store, lease="1s", clock=clock) as once:
        first, second = (Delivery(b"", event=Event(id=name, data={}), group="g") for name in ("1", "2"))
        store.claim(
            [ClaimRequest(once.key(second.event), 10_000, shared=True)], b"token--1", 1000
        )  # by a worker that died
        clock.sleep(2000)
        kinds = [outcome.kind for outcome in once.run([first, second], handle)]

    assert ran == ["1"]
    assert kinds == [OutcomeKind.FAILED, OutcomeKind.BUSY]


def test_what_waited_and_then_runs_without_a_claim_has_run() -> None:
    """An event waits for a busy one before it. If the store stops answering meanwhile, both run without a claim."""
    store, handler = Faulty(), Handler()

    class Clock(ManualClock):
        def sleep(self, duration: int) -> None:  # between two looks at what is busy
            store.before = ["claim"]
            super().sleep(duration)

    with Once(store, on_store_error="process", busy_wait="5s", clock=Clock()) as once:
        first, _ = events = deliver("a1 a2")
        store.claim([ClaimRequest(once.key(first.body), 60_000)], b"another!", 60_000)
        outcomes = once.run(events, handler)
    assert handler.ran == ["a1", "a2"]
    assert kinds(outcomes) == ["processed", "processed"]
