"""`Once`: what becomes of events, one and many, `def` and `async def`."""

import asyncio
import concurrent.futures
import functools
import gc
import itertools
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from eventonce import (
    Action,
    ConfigError,
    Context,
    Event,
    EventBusy,
    EventExpired,
    EventRejected,
    EventStale,
    LeaseLost,
    Once,
    Outcome,
    OutcomeKind,
    ResultUnavailable,
    Rule,
    StoreError,
    TooManyAttempts,
)
from eventonce.claims.protocol import Claim, ClaimRequest
from eventonce.errors import SinkDown
from eventonce.event import Delivery
from eventonce.event.formats import read_event
from eventonce.event.keys import Key
from eventonce.ports import Hook
from eventonce.stores import open_store
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing import ManualClock
from tests.interrupts import Interrupt
from tests.unit.conftest import Bench, Faulty
from tests.until import until

A = {"id": "a", "source": "s", "detail-type": "t", "detail": {"n": 1}}
A2 = {**A, "id": "a2", "time": "2026-01-01T00:00:00Z"}
B = {"id": "b", "source": "s", "detail-type": "t", "detail": {"n": 2}}


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind.value for outcome in outcomes]


def fail(event: Event) -> None:
    raise ValueError(f"no {event.id}")


def ok(event: Event) -> str:
    return event.id


# --- the two doors ---


def test_a_decorated_handler_runs_once(bench: Bench) -> None:
    ran: list[str] = []

    @bench.once(key="content")
    def handle(event: Any) -> None:
        """Charge."""
        ran.append(event.id)

    handle(A)
    handle(A2)
    handle(B)
    assert ran == ["a", "b"]
    assert (handle.__name__, handle.__doc__) == ("handle", "Charge.")


def test_an_async_handler_runs_once(bench: Bench) -> None:
    ran: list[str] = []

    @bench.once(key="content", remember="result")
    async def handle(event: Any) -> str:
        ran.append(event.id)
        return "done"

    async def main() -> list[str | None]:
        return [await handle(A), await handle(A2)]

    assert asyncio.run(main()) == ["done", "done"]
    assert ran == ["a"]


def test_many_give_one_outcome_each_in_order(bench: Bench) -> None:
    outcomes = bench.once(key="content").run([A, B, A2, b"[]", B], ok)
    assert kinds(outcomes) == ["processed", "processed", "duplicate", "rejected", "duplicate"]
    assert [outcome.result for outcome in outcomes[:2]] == ["a", "b"]
    assert {outcome.rule for outcome in outcomes} == {"r", None}


def test_more_than_one_batch(bench: Bench) -> None:
    events = [{"id": str(number % 700)} for number in range(1500)]
    assert kinds(bench.once().run(iter(events), ok)).count("processed") == 700


def test_run_is_for_def_and_arun_for_async_def(bench: Bench) -> None:
    async def later(event: Event) -> None: ...

    once = bench.once()
    with pytest.raises(ConfigError, match=re.escape("the handler is async def; use await once.arun(events, handler)")):
        once.run([A], later)
    for handler in (ok, once.prepare(ok)):
        with pytest.raises(ConfigError, match=re.escape("the handler is not async def; use once.run(events, handler)")):
            asyncio.run(once.arun([A], handler))  # type: ignore[arg-type]
    assert kinds(asyncio.run(once.arun([A], once.prepare(later)))) == ["processed"]


def test_many_async(bench: Bench) -> None:
    at_once = most = 0

    async def handle(event: Any) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.005)
        at_once -= 1
        return str(event.id)

    events = [{"id": str(number)} for number in range(30)]
    outcomes = asyncio.run(bench.once(concurrency=7).arun(events, handle))
    assert [outcome.result for outcome in outcomes] == [event["id"] for event in events]
    assert most == 7


def test_a_decorated_handler_passed_to_run_claims_once(bench: Bench) -> None:
    once = bench.once()
    handle = once(lambda event: event.id)
    assert kinds(once.run([A], handle)) == ["processed"]


def test_events_come_as_bytes_text_mappings_or_events(bench: Bench) -> None:
    forms = [b'{"id": "1"}', '{"id": "2"}', {"id": "3"}, Event(id="4", data={}), bytearray(b'{"id": "5"}')]
    assert [outcome.result for outcome in bench.once().run(forms, ok)] == ["1", "2", "3", "4", "5"]


class Callme:
    def __call__(self, event: Event, ctx: Context) -> int:
        return ctx.attempt

    def method(self, event: Event, context: Context) -> int:
        return context.attempt

    async def amethod(self, event: Event, *, ctx: Context) -> int:
        return ctx.attempt


def plus(factor: int, event: Event, ctx: Context) -> int:
    return factor * ctx.attempt


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (Callme(), 1),
        (Callme().method, 1),
        (functools.partial(plus, 3), 3),
        (lambda event, ctx: ctx.attempt, 1),
        (lambda event, more=5: more, 5),
        (lambda event: 0, 0),
    ],
)
def test_a_handler_may_want_its_context(bench: Bench, handler: Any, result: int) -> None:
    assert bench.once().run([A], handler)[0].result == result


def test_an_async_method_is_async(bench: Bench) -> None:
    calls: list[Any] = []

    async def spy(event: Event, ctx: Context) -> None:
        calls.append(await Callme().amethod(event, ctx=ctx))

    asyncio.run(bench.once().arun([A], spy))
    assert calls == [1]


def test_what_cannot_be_called_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="pass a function"):
        bench.once().run([A], 42)  # type: ignore[arg-type]


def three(event: Event, ctx: Context, more: int) -> None:
    """Take more arguments than there are."""


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (lambda: None, r"the handler takes \(\), .*: too many positional arguments"),
        (lambda **named: None, "too many positional arguments"),
        (lambda *, ctx: None, "too many positional arguments"),
        (three, "missing a required argument: 'more'"),
        (lambda event, *, more: None, "missing a required argument: 'more'"),
    ],
)
def test_a_handler_that_cannot_take_an_event_is_refused(bench: Bench, handler: Any, why: str) -> None:
    for use in (lambda: bench.once()(handler), lambda: bench.once().run([A], handler)):
        with pytest.raises(ConfigError, match=why):
            use()


@pytest.mark.parametrize("handler", [print, str, type, [].append, functools.partial(three, more=1), lambda *all: all])
def test_a_handler_with_a_fitting_or_unknown_signature_is_accepted(bench: Bench, handler: Any) -> None:
    assert kinds(bench.once().run([A], handler)) == ["processed"]


# --- what a call returns or raises ---


def test_a_call_raises_what_the_handler_raised(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no a"):
        bench.once()(fail)(A)


def test_a_call_raises_for_what_was_not_processed(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(version="detail.n", key=["id"], max_age="1h", clock=clock)
    handle: Any = once(lambda event: None)
    now = {"time": "2026-01-01T00:00:00Z"}
    handle({**A, **now, "detail": {"n": 5}})
    with pytest.raises(EventStale, match="version 5 was processed before version 4"):
        handle({**A, **now, "detail": {"n": 4}})
    with pytest.raises(EventExpired, match="over the max_age of rule 'r'"):
        handle({**B, "time": "2025-01-01T00:00:00Z"})
    with pytest.raises(EventRejected, match=r"has no detail\.n"):
        handle({**B, **now, "detail": {}})


def test_a_busy_event_raises(bench: Bench) -> None:
    store = MemoryStore()
    once = bench.once(store)
    store.claim([ClaimRequest(once.key(A), 1000)], b"another!", 60_000)
    with pytest.raises(EventBusy, match="another worker is running it"):
        once(ok)(A)


def test_run_never_raises_for_an_event(bench: Bench) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no string either")

    def handle(event: Event) -> None:
        raise Odd

    assert kinds(bench.once().run([A], handle)) == ["failed"]


# --- results ---

RESULTS: list[Any] = [
    None, False, True, 0, 0.0, 1.5, "", "ü\ud800", b"", b"\x00\xff", [], {}, (), (1, [2, (3,)], {"a": ()}), {"$": "x"},
    {"$": {"$": 1}, "v": 2}, 10**40, -0.0, Decimal("1.10"), [None, {"deep": [{}]}],
]  # fmt: skip


@pytest.mark.parametrize("result", RESULTS, ids=repr)
def test_a_duplicate_gets_exactly_what_was_returned(bench: Bench, result: Any) -> None:
    handle = bench.once(remember="result")(lambda event: result)
    first, again = handle(A), handle(A2)
    assert first is result
    assert repr(again) == repr(result)
    assert type(again) is type(result)


def test_a_remembered_result_is_nobody_elses(bench: Bench) -> None:
    handle: Any = bench.once(remember="result")(lambda event: {"list": [1]})
    handle(A)["list"].append(2)
    handle(A)["list"].append(3)
    assert handle(A) == {"list": [1]}


@pytest.mark.parametrize(
    "result", ["x" * 101, {1: 2}, object(), {"a": {1}}, 10**5000], ids=["long", "names", "object", "set", "huge"]
)
def test_duplicates_learn_that_a_result_could_not_be_remembered(bench: Bench, result: Any) -> None:
    handle = bench.once(remember="result", max_result=100)(lambda event: result)
    assert handle(A) is result
    with pytest.raises(ResultUnavailable, match="processed before, but"):
        handle(A2)


def test_without_result_a_duplicate_only_knows_that_it_ran(bench: Bench) -> None:
    handle: Any = bench.once(remember="note")(lambda event: "secret")
    assert handle(A) == "secret"
    assert handle(A2) is None


def test_copies_in_one_batch_get_the_result_too(bench: Bench) -> None:
    outcomes = bench.once(remember="result").run([A, A2], lambda event: {"of": event.id})
    assert [outcome.result for outcome in outcomes] == [{"of": "a"}, {"of": "a"}]


def test_a_note_tells_of_the_first_copy_and_whether_this_one_differs(bench: Bench) -> None:
    once = bench.once(remember="note", key=["source"])
    first, same, other = once.run([A2, A, B], ok)
    assert first.first is None
    assert same.first is not None
    assert other.first is not None
    assert (same.first.id, same.first.time, same.first.differs) == ("a2", "2026-01-01T00:00:00+00:00", False)
    assert other.first.differs is True
    assert once.run([B], ok)[0].first.differs is True  # type: ignore[union-attr]


def test_the_first_copy_tells_when_and_how_often(bench: Bench) -> None:
    once = bench.once()
    once.run([A], fail)
    once.run([A], ok)
    first = once.run([A], ok)[0].first
    assert first is not None
    assert first.attempts == 2
    assert abs(first.at.timestamp() - time.time()) < 60
    assert (first.id, first.differs) == (None, None)


# --- failure ---


def test_failures_are_counted_until_the_dead_letter(bench: Bench) -> None:
    once = bench.once(max_attempts=3)
    outcomes = [once.run([A], fail)[0] for _ in range(4)]
    assert [outcome.action for outcome in outcomes] == [Action.RETRY] * 2 + [Action.DEAD_LETTER] * 2
    assert [outcome.attempt for outcome in outcomes[:3]] == [1, 2, 3]
    assert isinstance(outcomes[3].error, TooManyAttempts)
    assert str(outcomes[3].error) == "failed 3 times; the last one ended with ValueError: no a"


def test_a_failure_that_succeeds_later_is_forgotten(bench: Bench) -> None:
    once = bench.once(max_attempts=2)
    assert kinds(once.run([A], fail) + once.run([A], ok) + once.run([A], fail)) == ["failed", "processed", "duplicate"]


def test_a_handler_may_reject(bench: Bench) -> None:
    def handle(event: Event) -> None:
        raise EventRejected("no such customer")

    (outcome,) = bench.once().run([A], handle)
    assert (outcome.kind, outcome.action, str(outcome.error)) == ("rejected", "dead-letter", "no such customer")


def test_one_failure_does_not_touch_the_others(bench: Bench) -> None:
    def handle(event: Event) -> None:
        if event.id == "a":
            raise ValueError

    assert kinds(bench.once().run([A, B], handle)) == ["failed", "processed"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_batch_commits_what_was_done_and_releases_the_rest(
    bench: Bench, stop: type[BaseException]
) -> None:
    store = MemoryStore()
    once = bench.once(store)

    def handle(event: Event) -> None:
        if event.id == "b":
            raise stop

    events = [A, B, {"id": "c"}]
    with pytest.raises(stop):
        once.run(events, handle)
    assert [record is None for record in store.peek([once.key(event) for event in events])] == [False, True, True]
    assert kinds(once.run(events, ok)) == ["duplicate", "processed", "processed"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_anywhere_behind_an_async_handler_strands_nothing(bench: Bench, stop: type[BaseException]) -> None:
    once, nth, raised = bench.once(concurrency=1), 0, True
    warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine that was made and never awaited
    while raised:
        nth += 1
        one, two, three = events = [{"id": f"{name}-{nth}"} for name in ("one", "two", "three")]
        interrupt = Interrupt(nth, stop)

        async def handle(event: Event, interrupt: Interrupt = interrupt, two: str = two["id"]) -> None:
            interrupt.armed = event.id == two

        with interrupt, suppress(stop):
            asyncio.run(once.arun(events, handle))
            assert not interrupt.raised
        raised = interrupt.raised
        first, _, third = once.peek([once.key(event) for event in (one, two, three)])
        assert first is not None
        assert first.done_at
        assert (third is None) == raised
        assert "busy" not in kinds(once.run(events, ok))
    gc.collect()
    assert nth > 10


@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_anywhere_behind_a_plain_handler_strands_nothing(bench: Bench, stop: type[BaseException]) -> None:
    nth, raised = 0, True
    while raised:
        nth += 1
        interrupt, event, once = Interrupt(nth, stop), {"id": str(nth)}, bench.once()

        def handle(event: Event, interrupt: Interrupt = interrupt) -> None:
            interrupt.armed = True

        with interrupt, suppress(stop):
            once(handle)(event)
            assert not interrupt.raised
        raised = interrupt.raised
        (record,) = once.peek([once.key(event)])
        assert record is not None
        assert record.done_at  # the handler had returned
        assert kinds(once.run([event], ok)) == ["duplicate"]
    assert nth > 10


@pytest.mark.parametrize("hooks", [[], [Hook()]])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit])
def test_what_a_sink_has_sent_is_committed_wherever_an_interrupt_comes(
    bench: Bench, stop: type[BaseException], hooks: list[Hook]
) -> None:
    class Bin:
        def __init__(self, interrupt: Interrupt) -> None:
            self._interrupt = interrupt

        def send(self, events: Sequence[Event], keys: Sequence[str]) -> list[Exception | None]:
            self._interrupt.armed = True
            return [None] * len(events)

        def close(self) -> None: ...

    nth, raised = 0, True
    while raised:
        nth += 1
        interrupt, once = Interrupt(nth, stop), bench.once(hooks=hooks)
        events = [{"id": f"{number}-{nth}"} for number in range(3)]
        with interrupt, suppress(stop):
            once.run(events, Bin(interrupt))
            assert not interrupt.raised
        raised = interrupt.raised
        assert kinds(once.run(events, ok)) == ["duplicate"] * 3
    assert nth > 10


def test_no_error_while_cleaning_up_hides_an_interrupt(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        def commit(self, *args: Any) -> Any:
            raise TypeError("a mistake of this store")

    def handle(event: Event) -> None:
        if event.id == "b":
            raise KeyboardInterrupt

    store = Broken()
    once = bench.once(store)
    with pytest.raises(KeyboardInterrupt):
        once.run([A, B], handle)
    assert store.peek([once.key(B)]) == [None]
    assert "could not commit what was done after an interruption" in caplog.text


def test_an_interrupted_claim_is_released(bench: Bench) -> None:
    class Interrupted(MemoryStore):
        def claim(self, *args: Any) -> Any:
            super().claim(*args)
            raise KeyboardInterrupt

    store = Interrupted()
    once = bench.once(store)
    with pytest.raises(KeyboardInterrupt):
        once.run([A, B], ok)
    assert store.peek([once.key(A), once.key(B)]) == [None, None]


class SlowStore(MemoryStore):
    """A store of which one verb answers when the test lets it."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self.verb, self.reached, self.go_on = verb, threading.Event(), threading.Event()

    def claim(self, *args: Any) -> Any:
        return self._answer("claim", super().claim(*args))

    def commit(self, *args: Any) -> Any:
        return self._answer("commit", super().commit(*args))

    def _answer(self, verb: str, answer: Any) -> Any:
        if verb == self.verb:
            self.reached.set()
            self.go_on.wait()
        return answer


async def turns_of_the_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("slow", ["claim", "commit", "handler"])
def test_a_cancelled_run_releases_its_claims(bench: Bench, slow: str) -> None:
    store = SlowStore(slow)
    once = bench.once(store, clock=ManualClock())  # which stands still, so that nothing is done in the background

    async def handle(event: Event) -> None:
        if slow == "handler":
            store.reached.set()
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.ensure_future(once.arun([A, B], handle))
        await asyncio.to_thread(store.reached.wait)
        task.cancel()
        await turns_of_the_loop()  # it has heard of that, and waits for the store
        assert task.done() is (slow == "handler")
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    records = store.peek([once.key(A), once.key(B)])
    assert [record is not None and record.lease for record in records] == ([0, 0] if slow == "commit" else [False] * 2)


def test_a_cancelled_batch_commits_what_was_done_and_releases_the_rest(bench: Bench) -> None:
    once = bench.once(concurrency=1)

    async def main() -> None:
        at_b = asyncio.Event()

        async def handle(event: Event) -> None:
            if event.id == "b":
                at_b.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(once.arun([A, B, {"id": "c"}], handle))
        await at_b.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert kinds(once.run([A, B, {"id": "c"}], ok)) == ["duplicate", "processed", "processed"]


def test_a_handler_that_ends_cancelled_by_itself_has_failed(bench: Bench) -> None:
    async def handle(event: Event) -> None:
        if event.id == "a":
            raise asyncio.CancelledError

    assert kinds(asyncio.run(bench.once().arun([A, B], handle))) == ["failed", "processed"]


# --- lease and heartbeat ---

DIES_AHEAD = """
import os, sys
from eventonce import Once
from eventonce.clock import SystemClock

class Ahead(SystemClock):
    def utc(self):
        return super().utc() + 365 * 86_400_000

Once(sys.argv[1], clock=Ahead()).run([{"id": "a"}], lambda event: os._exit(9))
"""


@pytest.mark.parametrize("store", ["sqlite:///{}/s", "journal:///{}/j"])
def test_a_worker_that_died_with_its_clock_ahead_keeps_no_event_busy(tmp_path: Path, store: str) -> None:
    url = store.format(tmp_path)
    assert subprocess.run([sys.executable, "-c", DIES_AHEAD, url], check=False, timeout=60).returncode == 9
    with Once(url) as once:
        (outcome,) = once.run([{"id": "a"}], lambda event: "ran")
    assert (outcome.kind, outcome.result, outcome.attempt) == (OutcomeKind.PROCESSED, "ran", 2)


def test_a_clock_before_1970_takes_what_is_done_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: -50_000_000_000)
    once = Once("memory:")
    assert kinds([*once.run([A], ok), *once.run([A], ok)]) == ["processed", "duplicate"]


def test_what_is_busy_says_until_when_with_the_date() -> None:
    store, clock = MemoryStore(clock=ManualClock()), ManualClock()
    once = Once(store, clock=clock)
    store.claim([ClaimRequest(once.key(A), 60_000)], b"another-", 86_400_000)
    (outcome,) = once.run([A], ok)
    assert str(outcome.error) == "another worker is running it; its lease lasts until 2026-01-02 00:00:00 UTC"


def renewed(clock: ManualClock, ctx: Context) -> bool:
    """Let most of a lease of a minute pass, and wait for the heartbeat that extends it."""
    before = ctx.deadline
    assert before is not None
    clock.sleep(45_000)
    until(lambda: ctx.deadline is not None and ctx.deadline > before)
    return True


def lost(ctx: Context) -> bool:
    try:
        ctx.check()
    except LeaseLost:
        return True
    return False


def test_a_slow_handler_keeps_its_claim(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(bench.url, lease="60s", clock=clock)
    other = bench.once(bench.url, lease="60s", clock=clock)
    busy: list[str] = []

    def handle(event: Event, ctx: Context) -> None:
        for _ in range(5):
            assert renewed(clock, ctx)
            busy.extend(kinds(other.run([A], ok)))
            ctx.check()

    assert kinds(once.run([A], handle)) == ["processed"]
    assert busy == ["busy"] * 5


def test_a_slow_async_handler_keeps_its_claim(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(bench.url, lease="60s", clock=clock)
    other = bench.once(bench.url, lease="60s", clock=clock)

    async def main() -> tuple[list[str], list[str]]:
        long, seen = asyncio.Event(), asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            for _ in range(3):
                await asyncio.to_thread(renewed, clock, ctx)
            long.set()
            await seen.wait()
            ctx.check()

        running = asyncio.ensure_future(once.arun([A], handle))
        await long.wait()
        meanwhile = await asyncio.to_thread(other.run, [A], ok)
        seen.set()
        return kinds(meanwhile), kinds(await running)

    assert asyncio.run(main()) == (["busy"], ["processed"])


def test_a_worker_that_lost_its_claim_learns_so_and_cannot_commit(bench: Bench) -> None:
    clock = ManualClock()
    store = on(clock)
    once = bench.once(store, lease="60s", clock=clock)
    stolen: list[Key] = []

    def handle(event: Event, ctx: Context) -> None:
        stolen.append(once.key(event))
        store.forget(stolen)
        store.claim([ClaimRequest(stolen[0], 60_000)], b"thief---", 60_000)
        clock.sleep(45_000)  # its lease is not over, but is to be renewed
        until(lambda: lost(ctx))

    (outcome,) = once.run([A], handle)
    assert (outcome.kind, outcome.action) == ("failed", "retry")
    assert isinstance(outcome.error, LeaseLost)
    assert store.extend([Claim(stolen[0], b"thief---")], 1000) == [True]


def test_the_lease_is_counted_on_our_own_clock_when_the_store_is_silent(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(Faulty("extend"), clock=clock)

    def handle(event: Event, ctx: Context) -> None:
        ctx.check()
        clock.sleep(60_000)
        ctx.check()

    (outcome,) = once.run([A], handle)
    assert isinstance(outcome.error, LeaseLost)


def test_an_effect_is_committed_within_a_second_while_the_next_handler_is_slow(bench: Bench) -> None:
    clock = ManualClock()
    store = on(clock)
    once = bench.once(store, clock=clock)
    seen: list[bool] = []

    def done() -> bool:
        (record,) = store.peek([once.key(A)])
        return bool(record and record.done_at)

    def handle(event: Event) -> None:
        if event.id == "b":
            seen.append(done())
            clock.sleep(1000)
            until(done)
            seen.append(done())

    assert kinds(once.run([A, B], handle)) == ["processed", "processed"]
    assert seen == [False, True]


def test_commits_of_a_batch_go_out_together(bench: Bench) -> None:
    store = Faulty()
    bench.once(store).run([{"id": str(number)} for number in range(100)], ok)
    assert store.calls == ["claim", "commit"]


def test_a_busy_copy_may_wait_for_the_end_of_the_other(bench: Bench) -> None:
    store = Faulty()
    once = bench.once(store, key="content", remember="result", busy_wait="300s")
    results: list[Any] = []
    started = threading.Event()

    def slow(event: Event) -> str:
        started.set()
        until(lambda: store.calls.count("claim") > 2)  # the other found it busy, and has claimed again
        return "by the first"

    first = threading.Thread(target=lambda: results.append(once(slow)(A)))
    first.start()
    started.wait()
    results.append(once.run([A2], ok)[0].result)
    first.join()
    assert results == ["by the first", "by the first"]


def test_a_busy_copy_waits_no_longer_than_busy_wait(bench: Bench) -> None:
    store, clock = MemoryStore(), ManualClock()
    once = bench.once(store, busy_wait="5s", clock=clock)
    store.claim([ClaimRequest(once.key(A), 1000)], b"another!", 60_000)
    (outcome,) = once.run([A], ok)
    assert outcome.kind is OutcomeKind.BUSY
    assert outcome.retry_at is not None
    assert clock.steady() == 5000


# --- windows, versions, age, replay ---


def on(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def test_a_fixed_window_ends_and_a_sliding_one_slides(bench: Bench) -> None:
    clock = ManualClock()
    for refresh, last in ((False, "processed"), (True, "duplicate")):
        once = bench.once(on(clock), window="10s", refresh=refresh, clock=clock)
        outcomes = []
        for _ in range(3):
            outcomes += kinds(once.run([A], ok))
            clock.sleep(6000)
        assert outcomes == ["processed", "duplicate", last]


def test_versions_in_one_batch_and_after(bench: Bench) -> None:
    ran: list[int] = []
    once = bench.once(key=["id"], version="v")

    def handle(event: Event) -> None:
        ran.append(event.data["v"])

    outcomes = once.run([{"id": "x", "v": v} for v in (1, 3, 2, 3, 1, 4)], handle)
    assert kinds(outcomes) == ["processed", "processed", "stale", "duplicate", "duplicate", "processed"]
    assert ran == [1, 3, 4]
    assert kinds(once.run([{"id": "x", "v": v} for v in (3, 4, 5)], handle)) == ["stale", "duplicate", "processed"]


@pytest.mark.parametrize(
    ("lower", "higher"),
    [(1, 2), (1.0, 2), ("9", "10"), ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00.5+00:30"), (-5, 0)],
)
def test_versions_are_numbers_or_times(bench: Bench, lower: Any, higher: Any) -> None:
    once = bench.once(key=["id"], version="v")
    assert kinds(once.run([{"id": "x", "v": higher}, {"id": "x", "v": lower}], ok)) == ["processed", "stale"]


@pytest.mark.parametrize("more", [{}, {"version_ahead": "1d"}, {"version_ahead": 10}])
@pytest.mark.parametrize("version", [None, True, "", "x", math.nan, [1], 2**63, "1" * 5000])
def test_an_invalid_version_is_rejected(bench: Bench, version: Any, more: Any) -> None:
    assert kinds(bench.once(key=["id"], version="v", **more).run([{"id": "x", "v": version}], ok)) == ["rejected"]


def test_a_fraction_is_a_time_and_not_a_count(bench: Bench) -> None:
    for more, expected in (
        ({}, "rejected"),
        ({"version_ahead": 9}, "rejected"),
        ({"version_ahead": "1d"}, "processed"),
    ):
        assert kinds(bench.once(key=["id"], version="v", **more).run([{"id": "x", "v": 1.5}], ok)) == [expected]


# --- how far ahead a version may be ---

_NOW = 1_767_225_600  # when a ManualClock begins: 2026-01-01, in seconds
_DAY = 86_400


@pytest.mark.parametrize("version", [2**63 - 1, str(2**63 - 1), "9999-12-31T00:00:00Z", "2026-01-31T12:00:00Z"])
@pytest.mark.parametrize("more", [{}, {"version_ahead": "1d"}, {"version_ahead": "29d"}])
def test_one_version_cannot_make_all_later_ones_stale(bench: Bench, version: Any, more: Any) -> None:
    once = bench.once(key=["id"], version="v", clock=ManualClock(), **more)
    outcomes = once.run([{"id": "x", "v": version}, {"id": "x", "v": "2026-01-01T00:00:00Z"}], ok)
    assert kinds(outcomes) == ["rejected", "processed"]
    assert (outcomes[0].rule, outcomes[0].key) == ("r", outcomes[1].key)
    assert "which no clock gives before" in str(outcomes[0].error)
    assert "give rule 'r' another version_ahead" in str(outcomes[0].error)


@pytest.mark.parametrize("version", ["9999-12-31T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-01-31"])
def test_a_text_that_is_a_time_cannot_be_ahead_of_the_clock_where_versions_are_counts(
    bench: Bench, version: str
) -> None:
    once = bench.once(key=["id"], version="v", version_ahead=100, clock=ManualClock())
    assert kinds(once.run([{"id": "x", "v": version}, {"id": "x", "v": 6}], ok)) == ["rejected", "processed"]
    snowflake = {"id": "y", "v": 2**62}
    assert kinds(once.run([snowflake], ok)) == ["processed"]


def test_what_a_forged_first_count_does(bench: Bench) -> None:
    """There is nothing to compare it with, as docs/rules.md says."""
    once = bench.once(key=["id"], version="v", version_ahead=100, clock=ManualClock())
    for name, forged, outcome in (("high", 10**6, "stale"), ("low", 0, "rejected")):
        outcomes = once.run([{"id": name, "v": forged}, {"id": name, "v": 500}], ok)
        assert kinds(outcomes) == ["processed", outcome]


def test_a_number_cannot_be_far_ahead_of_times_that_others_write_as_text(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(key=["id"], version="v", clock=clock)
    forged, genuine = {"id": "x", "v": (_NOW + _DAY) * 10**9}, {"id": "x", "v": "2026-01-02T00:00:01Z"}
    clock.sleep(2000)
    assert kinds(once.run([forged, genuine], ok)) == ["processed", "processed"]


def test_times_that_mean_nothing_are_the_lowest_versions(bench: Bench) -> None:
    once = bench.once(key=["id"], version="v", clock=ManualClock())
    events = [{"id": "x", "v": each} for each in ("0001-01-01T00:00:00Z", "1601-01-01T00:00:00Z", "1970-01-01")]
    assert kinds(once.run(events, ok)) == ["processed", "duplicate", "processed"]


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9], ids=["s", "ms", "us", "ns"])
def test_numbers_since_1970_are_versions_in_any_unit(bench: Bench, unit: int) -> None:
    clock = ManualClock()
    for more in ({}, {"version_ahead": "1d"}, {"version_ahead": 2 * unit}):
        once = bench.once(key=["id"], version="v", clock=clock, **more)
        events = [{"id": "x", "v": _NOW * unit + each} for each in (0, 1, unit)]
        assert set(kinds(once.run(events, ok))) == {"processed"} if unit > 1 else {"processed", "duplicate"}


@pytest.mark.parametrize(
    "version", [1, -1, 20260131235959, 20260131235959123, 24_000_000_000_000, (_NOW + _DAY) * 10**9]
)
def test_counts_and_numbers_of_other_kinds_are_not_taken_for_times(bench: Bench, version: int) -> None:
    once = bench.once(key=["id"], version="v", clock=ManualClock())
    assert kinds(once.run([{"id": "x", "v": version}], ok)) == ["processed"]


@pytest.mark.parametrize("more", [{}, {"version_ahead": "1d"}])
def test_a_time_may_be_a_day_ahead_of_the_clock(bench: Bench, more: Any) -> None:
    clock = ManualClock()
    once = bench.once(key=["id"], version="v", clock=clock, **more)
    events = [{"id": "x", "v": "2026-01-02T00:00:00Z"}, {"id": "x", "v": "2026-01-02T00:00:00.001Z"}]
    assert kinds(once.run(events, ok)) == ["processed", "rejected"]
    clock.sleep(1)
    assert kinds(once.run(events, ok)) == ["duplicate", "processed"]


def test_times_of_one_rule_are_compared_whatever_their_unit(bench: Bench) -> None:
    """A forger cannot use a finer unit than the genuine sender to be ahead."""
    once = bench.once(key=["id"], version="v", version_ahead="1d", clock=ManualClock())
    now = [_NOW, (_NOW + 1) * 10**3, (_NOW + 2) * 10**6, str((_NOW + 3) * 10**9), "2026-01-01T00:00:04Z", _NOW + 5.5]
    assert kinds(once.run([{"id": "x", "v": each} for each in now], ok)) == ["processed"] * 6
    assert kinds(once.run([{"id": "x", "v": each} for each in now[:5]], ok)) == ["stale"] * 5
    assert kinds(once.run([{"id": "y", "v": (_NOW + 2 * _DAY) * 10**3}], ok)) == ["rejected"]


def test_a_count_may_be_so_far_ahead_of_the_last_one_done(bench: Bench) -> None:
    store = MemoryStore()
    once = bench.once(store, key=["id"], version="v", version_ahead=10)

    def run(*versions: int) -> list[str]:
        return kinds(once.run([{"id": "x", "v": version} for version in versions], ok))

    assert run(2**62) == ["processed"]  # nothing is remembered to compare it with
    store.forget([once.key({"id": "x", "v": 1})])
    assert run(5, 15, 26, 16, 25) == ["processed", "processed", "rejected", "processed", "processed"]
    assert run(36, 2**63 - 1) == ["rejected", "rejected"]
    assert once.preview({"id": "x", "v": 36}).kind is OutcomeKind.REJECTED
    assert once.preview({"id": "x", "v": 35}).kind is OutcomeKind.PROCESSED
    (outcome,) = once.run([{"id": "x", "v": 36}], ok)
    assert "v is 36, and the last one done is 25, which is further than the version_ahead" in str(outcome.error)


def test_a_count_is_compared_under_the_old_key_too(bench: Bench) -> None:
    store = MemoryStore()
    bench.once(store, name="old", key=["id"], version="v").run([{"id": "x", "v": 5}], ok)
    once = bench.once(store, name="new", key=["id"], version="v", version_ahead=10, replaces="old")
    assert kinds(once.run([{"id": "x", "v": 100}, {"id": "x", "v": 6}], ok)) == ["rejected", "processed"]


def test_a_count_that_is_not_believed_stops_its_group(bench: Bench) -> None:
    once = bench.once(key=["detail.id"], version="detail.v", version_ahead=10)
    once.run([Event(data={"id": "x", "v": 1})], ok)
    deliveries = [
        Delivery(b"", event=Event(id=str(number), data={"id": name, "v": version}), group=group)
        for number, (name, version, group) in enumerate([("x", 100, "g"), ("y", 1, "g"), ("z", 1, "h")])
    ]
    assert kinds(once.run(deliveries, ok)) == ["rejected", "busy", "processed"]


def test_an_event_comes_back_if_the_store_does_not_answer_what_was_done_last(bench: Bench) -> None:
    class Away(MemoryStore):
        away = True

        def peek(self, keys: Sequence[Key]) -> Any:
            if self.away:
                raise StoreError("no answer")
            return super().peek(keys)

    store, ran = Away(), []
    once = bench.once(store, key=["id"], version="v", version_ahead=10)
    assert kinds(once.run([{"id": "x", "v": 1}], lambda event: ran.append(event.id))) == ["unknown"]
    store.away = False
    assert kinds(once.run([{"id": "x", "v": 1}], ok)) == ["processed"]
    assert ran == []


@pytest.mark.parametrize("ahead", [0, -1, True, 1.5, "soon", 2**63])
def test_how_far_ahead_is_a_duration_or_a_count(ahead: Any) -> None:
    with pytest.raises(ConfigError, match="version_ahead"):
        Rule(name="r", version="v", version_ahead=ahead)
    with pytest.raises(ConfigError, match="only means something with a version"):
        Rule(name="r", version_ahead="1d")


def test_a_rule_with_an_age_needs_a_time(bench: Bench) -> None:
    once = bench.once(max_age="1h", clock=ManualClock())
    outcomes = once.run([A, {**B, "time": "2026-01-01T00:00:00Z"}, {**B, "time": "2025-12-31T00:00:00Z"}], ok)
    assert kinds(outcomes) == ["rejected", "processed", "expired"]
    assert [outcome.action for outcome in outcomes] == [Action.DEAD_LETTER, Action.ACK, Action.ACK]


def test_a_replay_is_a_duplicate_unless_the_rule_says_otherwise(bench: Bench) -> None:
    replayed = [A, {**A, "replay-name": "one"}, {**A, "replay-name": "one"}, {**A, "replay-name": "two"}]
    by_mode = {mode: kinds(bench.once(replay=mode).run(replayed, ok)) for mode in ("dedupe", "reprocess")}
    assert by_mode["dedupe"] == ["processed", "duplicate", "duplicate", "duplicate"]
    assert by_mode["reprocess"] == ["processed", "processed", "duplicate", "processed"]


def test_two_consumers_both_get_every_event(bench: Bench) -> None:
    store = MemoryStore()
    assert kinds(bench.once(store, consumer="one").run([A], ok)) == ["processed"]
    assert kinds(bench.once(store, consumer="two").run([A], ok)) == ["processed"]


def test_the_first_rule_that_matches_wins_and_identity_is_last(bench: Bench) -> None:
    rules = [
        Rule(name="orders", match={"source": ["s"], "detail": {"n": [{"numeric": [">", 1]}]}}, key="content"),
        Rule(name="all of s", match={"source": ["s"]}, key=["source"]),
    ]
    outcomes = bench.once(rules=rules).run([A, B, {**A, "id": "z"}, {**B, "id": "z"}, {"id": "z"}], ok)
    assert [outcome.rule for outcome in outcomes] == ["all of s", "orders", "all of s", "orders", "id"]
    assert kinds(outcomes) == ["processed", "processed", "duplicate", "duplicate", "processed"]


# --- store trouble ---


def test_a_silent_store_means_retry_and_nothing_ran(bench: Bench) -> None:
    ran: list[Any] = []
    (outcome,) = bench.once(Faulty("claim")).run([A], ran.append)
    assert (outcome.kind, outcome.action, ran) == ("unknown", "retry", [])
    with pytest.raises(StoreError, match="no answer to claim"):
        bench.once(Faulty("claim"))(ok)(A)


def test_a_rule_may_say_to_run_without_a_claim(bench: Bench) -> None:
    once = bench.once(Faulty("claim"), on_store_error="process")
    first, copy, other = once.run([A, A2, B], ok)
    assert kinds([first, copy, other]) == ["processed", "duplicate", "processed"]
    assert isinstance(first.error, StoreError)
    assert once(ok)(A) == "a"
    assert kinds(once.run([A], fail)) == ["failed"]


def test_an_effect_that_could_not_be_recorded_is_unknown(bench: Bench) -> None:
    assert kinds(bench.once(Faulty("commit"), clock=ManualClock()).run([A], ok)) == ["unknown"]
    (outcome,) = bench.once(Faulty("commit"), on_store_error="process", clock=ManualClock()).run([A], ok)
    assert outcome.kind is OutcomeKind.PROCESSED
    assert isinstance(outcome.error, StoreError)


def test_a_lost_answer_to_a_commit_is_not_a_loss(bench: Bench) -> None:
    store = Faulty(after=["commit"])
    once = bench.once(store, clock=ManualClock())
    assert kinds(once.run([A], ok)) == ["unknown"]
    store.after.clear()
    assert kinds(once.run([A], ok)) == ["duplicate"]


def test_a_release_that_fails_leaves_the_outcome(bench: Bench) -> None:
    assert kinds(bench.once(Faulty("release")).run([A], fail)) == ["failed"]


# --- attempts that nobody finished ---


class Death(BaseException):
    """Stands for a process that is killed: nothing is released."""


def die(once: Once, store: MemoryStore, events: list[Any], clock: ManualClock) -> None:
    token = os.urandom(8)
    store.claim([ClaimRequest(once.key(event), 10**9, shared=len(events) > 1) for event in events], token, 1000)
    clock.sleep(2000)


def test_an_event_is_never_given_up_on_before_it_has_run(bench: Bench) -> None:
    clock = ManualClock()
    store = on(clock)
    once = bench.once(store, max_attempts=1, clock=clock)
    for _ in range(10):
        die(once, store, [A, B], clock)
    assert kinds(once.run([A, B], ok)) == ["processed", "processed"]


def test_what_may_have_killed_a_worker_runs_alone(bench: Bench) -> None:
    clock = ManualClock()
    store = on(clock)
    once = bench.once(store, clock=clock)
    die(once, store, [A, B], clock)
    open_claims: list[int] = []

    def handle(event: Event) -> None:
        records = store.peek([once.key(each) for each in (A, B, {"id": "c"})])
        open_claims.append(sum(bool(record and record.lease) for record in records))

    assert kinds(once.run([A, B, {"id": "c"}], handle)) == ["processed"] * 3
    assert open_claims == [1, 1, 1]


def test_an_event_that_kills_its_worker_each_time_is_given_up_on(bench: Bench) -> None:
    clock = ManualClock()
    store = on(clock)
    once = bench.once(store, max_attempts=3, clock=clock)
    die(once, store, [A, B], clock)
    for _ in range(3):
        die(once, store, [A], clock)
    (outcome,) = once.run([A], ok)
    assert (outcome.kind, outcome.action) == ("failed", "dead-letter")
    assert str(outcome.error) == "failed 3 times; its worker died each time"


# --- sharing ---


def test_threads_that_share_a_handler_do_not_see_each_other(bench: Bench) -> None:
    once = bench.once(remember="result", key=["id"])

    @once
    def handle(event: Any, ctx: Any) -> str:
        time.sleep(0.001)
        return f"{event.id} {ctx.idempotency_key}"

    results: dict[str, set[str]] = {str(number): set() for number in range(40)}

    def work() -> None:
        for number, got in results.items():
            try:
                got.add(handle({"id": number}))
            except EventBusy:
                got.add(f"{number} {once.key({'id': number}).hex()}")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: {f"{number} {once.key({'id': number}).hex()}"} for number in results}


def test_the_idempotency_key_is_stable_and_knows_the_version(bench: Bench) -> None:
    seen: list[str] = []

    def handle(event: Event, ctx: Context) -> None:
        seen.append(ctx.idempotency_key)
        assert len(ctx.token) == 16
        raise ValueError

    once = bench.once(key=["id"], version="v")
    for version in (1, 1, 2):
        once.run([{"id": "x", "v": version}], handle)
    assert seen == [f"{once.key({'id': 'x', 'v': 1}).hex()}-{version}" for version in (1, 1, 2)]


# --- transactions ---


def test_a_transaction_needs_a_store_that_has_them(bench: Bench) -> None:
    (outcome,) = bench.once().run([A], lambda event, ctx: ctx.tx)
    assert isinstance(outcome.error, ConfigError)
    assert "MemoryStore has none" in str(outcome.error)


def test_a_transaction_is_not_for_async_handlers(bench: Bench) -> None:
    async def handle(event: Event, ctx: Context) -> None:
        ctx.tx.execute("SELECT 1")

    (outcome,) = asyncio.run(bench.once(bench.url).arun([A], handle))
    assert isinstance(outcome.error, ConfigError)
    assert "def instead of async def" in str(outcome.error)


def test_a_transaction_without_a_claim_is_refused(bench: Bench) -> None:
    class Silent(SQLiteStore):
        def claim(self, *args: Any) -> Any:
            raise StoreError("no answer")

    store = Silent(bench.url.removeprefix("sqlite:///"))
    (outcome,) = bench.once(store, on_store_error="process").run([A], lambda event, ctx: ctx.tx)
    assert outcome.kind is OutcomeKind.UNKNOWN
    store.close()


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"consumer": ""}, "consumer: '' is not a non-empty string"),
        ({"consumer": 5}, "consumer: 5 is not a non-empty string"),
        ({"rules": {"name": "orders"}}, "rules: {'name': 'orders'} is not a rule; use a Rule"),
        ({"rules": [{"name": "orders"}]}, "is not a rule; use a Rule"),
        ({"rules": None}, "rules: None is not a rule"),
        ({"lease": "0s"}, "lease: 0 would let"),
        ({"lease": 60}, "lease: 60 has no unit; write"),
        ({"lease": "soon"}, "lease: 'soon' is not a duration"),
        ({"lease": "25h"}, "lease: 1d1h is longer than a day"),
        ({"busy_wait": 1}, "busy_wait: 1 has no unit"),
        ({"window": 14}, "window: 14 has no unit"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_attempts": 2.5}, "max_attempts: 2.5 is not a whole number from 1 on"),
        ({"max_attempts": True}, "max_attempts: True is not a whole number from 1 on"),
        ({"max_attempts": "3"}, "max_attempts: '3' is not a whole number from 1 on"),
        ({"concurrency": "3"}, "concurrency: '3' is not a whole number from 1 on"),
        ({"max_bytes": "1MB"}, "max_bytes: '1MB' is not a whole number from 1 on"),
        ({"max_result": None}, "max_result: None is not a whole number from 1 on"),
        ({"hooks": print}, "hooks: <built-in function print> is not a list; pass hooks in a list, such as"),
        ({"hooks": Hook()}, "hooks: .* is not a list; pass hooks in a list, such as"),
        ({"ignroe": ["at"]}, "^Once: unknown setting 'ignroe'; did you mean 'ignore'"),
        ({"xyz": 1}, "^Once: unknown setting 'xyz'; use store, consumer, rules, key"),
        ({"store_password": b"secret"}, "^store_password: is of type bytes; pass a string"),
        ({"window": "40000d"}, "window: '40000d' is over the limit of 36500d; use a shorter one"),
        ({"rules": "missing.toml"}, "missing.toml: cannot be read"),
        ({"rules": [Rule(name="a"), Rule(name="a")]}, "rule 'a' exists twice"),
        ({"rules": Rule(name="a", match={"source": "no list"})}, "rule 'a': match: source"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Once("memory:", **settings)


def test_settings_have_names() -> None:
    with pytest.raises(
        ConfigError, match=r"^Once: only the store goes without a name; name the others, such as consum"
    ):
        Once("memory:", "billing")  # type: ignore[call-arg]
    with pytest.raises(
        ConfigError, match=r'^Rule: name each setting, such as Rule\(name="orders", key=\["detail.orderId'
    ):
        Rule("id")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^Rule: unknown setting 'ignroe'; did you mean 'ignore'"):
        Rule(key="content", ignroe=["at"])  # type: ignore[call-arg]


def test_events_and_handler_in_the_wrong_order(bench: Bench) -> None:
    async def handle(event: Any) -> None: ...

    message = r"^run and map take many events, not <function .*; pass a list of them first, and the handler after it"
    with pytest.raises(ConfigError, match=message):
        bench.once().run(ok, [A])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        asyncio.run(bench.once().arun(handle, [A]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^run and map take many events, not 5; pass a list of them first$"):
        bench.once()(ok).map(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 1}, "not a string"),
        ({"key": "contents"}, "unknown key 'contents'"),
        ({"key": []}, "at least one path"),
        ({"key": ["a..b"]}, "is not a path"),
        ({"key": "id", "ignore": ["a"]}, "ignore only means something"),
        ({"window": "0s"}, "window of 0"),
        ({"window": 14}, 'rule \'r\': window: 14 has no unit; write "14s" for seconds or "14d" for days'),
        ({"max_age": 900}, "max_age: 900 has no unit"),
        ({"window": "14 dayz"}, "window"),
        ({"max_age": "x"}, "max_age"),
        ({"remember": "all"}, "remember: 'all' is not one of seen, note, result"),
        ({"replay": "x"}, "replay"),
        ({"on_store_error": "drop"}, "on_store_error"),
        ({"version": "a b"}, "version"),
        ({"version": 5}, "rule 'r': version: 5 is not a path"),
        ({"refresh": 1}, "rule 'r': refresh: 1 is neither True nor False"),
    ],
)
def test_wrong_rules_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rule(**{"name": "r", **fields})


def test_an_engine_that_is_no_longer_used_ends_its_thread() -> None:
    before = set(threading.enumerate())
    once = Once("memory:")
    once.run([A], ok)
    (thread,) = set(threading.enumerate()) - before
    assert thread.is_alive()
    del once
    until(lambda: not thread.is_alive())


# --- the handler's own copy ---


def _write(event: Event) -> None:
    """Write into an event, as handlers do."""
    event.data["order"]["lines"].append("shipping")
    event.data["order"].pop("id", None)
    event.data["at"] = "now"


def _order() -> dict[str, Any]:
    return {"order": {"id": "o-1", "lines": ["book"]}, "at": None}


_SHAPES: dict[str, Callable[[], Any]] = {
    "a dict": _order,
    "an Event": lambda: Event(id="1", data=_order()),
    "an Event that was read": lambda: read_event(b'{"order": {"id": "o-1", "lines": ["book"]}, "at": null}'),
    "an envelope": lambda: {"id": "1", "source": "s", "detail-type": "t", "detail": _order()},
    "a CloudEvent": lambda: {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": _order()},
    "a delivery": lambda: Delivery(b"", event=Event(id="1", data=_order())),
    "a tuple inside": lambda: {**_order(), "more": ({"n": [1]},)},
}


@pytest.mark.parametrize("make", _SHAPES.values(), ids=_SHAPES)
@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_handler_writes_into_a_copy_of_its_own(bench: Bench, make: Callable[[], Any], how: str) -> None:
    once, event, ran = bench.once(key=["detail.order || order"], otherwise="content"), make(), []

    def handle(copy: Event) -> None:
        ran.append(copy.data["order"]["lines"])
        _write(copy)

    async def handle_async(event: Event) -> None:
        handle(event)

    for _ in range(2):
        outcomes = (
            once.run([event, event], handle) if how == "def" else asyncio.run(once.arun([event, event], handle_async))
        )
        assert kinds(outcomes) in (["processed", "duplicate"], ["duplicate", "duplicate"])
    assert len(ran) == 1
    assert event == make()


def test_one_event_many_times_runs_once(bench: Bench) -> None:
    outcomes = bench.once(key="content").run([_order()] * 501, _write)
    assert kinds(outcomes) == ["processed"] + ["duplicate"] * 500


def test_copies_in_one_batch_share_nothing(bench: Bench) -> None:
    order, seen = _order(), []
    once = bench.once(key=["detail.n || n"])
    mine: list[Any] = []

    def handle(event: Event) -> None:
        seen.append(event.data["shared"]["order"]["lines"][:])
        mine.append(event.data["shared"])
        _write(Event(data=event.data["shared"]))

    events: list[Any] = [{"n": number, "shared": order} for number in (1, 2)]
    events.append(Event(data={"n": 3, "shared": order}, attributes=MappingProxyType({"tags": order["order"]["lines"]})))
    assert kinds(once.run(events, handle)) == ["processed"] * 3
    assert seen == [["book"]] * 3
    assert len({id(each) for each in (*mine, order)}) == 4


def test_attributes_are_the_handlers_own_too(bench: Bench) -> None:
    event = Event(id="1", data={}, attributes={"headers": {"x": "1"}})

    def handle(event: Event) -> None:
        event.attributes["headers"]["x"] = "2"

    bench.once(key=["headers.x"]).run([event], handle)
    assert event.attributes == {"headers": {"x": "1"}}


def test_a_failing_handler_keeps_one_key(bench: Bench) -> None:
    once, order, attempts = bench.once(key="content", max_attempts=3), _order(), []

    def handle(event: Event, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        event.data["order"].pop("lines")
        raise ValueError

    assert [once.run([order], handle)[0].action for _ in range(3)] == [Action.RETRY, Action.RETRY, Action.DEAD_LETTER]
    assert attempts == [1, 2, 3]


def test_an_effect_in_a_transaction_happens_once_whatever_the_handler_does_to_its_event(bench: Bench) -> None:
    once, order = bench.once(bench.url, key="content"), _order()

    def handle(event: Event, ctx: Context) -> None:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT)")
        ctx.tx.execute("INSERT INTO orders VALUES (?)", (event.data["order"].pop("id", "again"),))

    charge = once(handle)
    charge(order)
    charge(order)
    with closing(sqlite3.connect(bench.url.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [("o-1",)]


@dataclass
class _Typed:
    lines: list[str]


class _Struct(msgspec.Struct):
    lines: list[str]


@pytest.mark.parametrize("kind", [_Typed, _Struct])
def test_a_handler_gets_typed_values_as_json_says_them(bench: Bench, kind: Any) -> None:
    value = kind(["book"])
    handle = lambda event: event.data["typed"]["lines"].append("shipping")  # noqa: E731
    assert kinds(bench.once(key="id").run([{"id": "1", "typed": value}], handle)) == ["processed"]
    assert value.lines == ["book"]
    clear = lambda event: event.data["lines"].clear()  # noqa: E731
    assert kinds(bench.once(key="id").run([Event(id="1", data=value)], clear)) == ["processed"]
    assert value.lines == ["book"]


def test_what_json_cannot_say_is_rejected_with_its_path(bench: Bench) -> None:
    around: dict[str, Any] = {"id": "1"}
    around["self"] = around
    lock, loop = bench.once(key="id").run([{"id": "1", "locks": [threading.Lock()]}, around], ok)
    assert str(lock.error) == (
        "locks[0] is of type lock, which has no spelling in JSON; use plain data, or a model of fields"
    )
    assert "holds itself" in str(loop.error)


def test_a_view_of_other_data_is_copied_as_that_data(bench: Bench) -> None:
    lines = ["book"]
    event = {"id": "1", "lines": MappingProxyType({"of": lines}), "bytes": memoryview(b"ab")}
    handle = lambda event: (event.data["lines"]["of"].append("shipping"), event.data["bytes"])[1]  # noqa: E731
    (outcome,) = bench.once(key="id").run([event], handle)
    assert (outcome.kind, outcome.result, lines) == (OutcomeKind.PROCESSED, "YWI=", ["book"])


# --- what reviews found ---


def test_a_handler_that_only_makes_a_coroutine_has_not_run(bench: Bench) -> None:
    ran: list[str] = []

    async def real(event: Event) -> None:
        ran.append(event.id)

    (outcome,) = bench.once().run([A], lambda event: real(event))  # noqa: PLW0108
    assert outcome.kind is OutcomeKind.FAILED
    assert isinstance(outcome.error, ConfigError)
    assert ran == []


def _coroutine() -> Any:
    async def later() -> None: ...

    return later()


def _async_generator() -> Any:
    async def several() -> AsyncIterator[int]:
        yield 1

    return several()


class _Awaitable:
    def __await__(self) -> Iterator[None]:
        yield


_UNRUN: dict[str, tuple[Callable[[], Any], str]] = {
    "Future of a thread": (concurrent.futures.Future, "Future, which may not be done yet; wait for it"),
    "Future of a cluster": (type("Future", (), {"add_done_callback": print}), "Future, which may not be done yet"),
    "coroutine": (_coroutine, "coroutine, which is never awaited; write the handler with async def"),
    "awaitable": (_Awaitable, "_Awaitable, which is never awaited; write the handler with async def"),
    "generator": (lambda: (each for each in "ab"), "generator, which never runs; iterate over it"),
    "async generator": (_async_generator, "async_generator, which never runs; iterate over it"),
    "map": (lambda: map(str, "ab"), "map, which never runs; iterate over it"),
    "filter": (lambda: filter(str, "ab"), "filter, which never runs; iterate over it"),
    "zip": (lambda: zip(map(str, "ab"), strict=True), "zip, which never runs; iterate over it"),
    "chain": (lambda: itertools.chain(map(str, "ab")), "chain, which never runs; iterate over it"),
    "result of multiprocessing": (
        type("AsyncResult", (), dict.fromkeys(("get", "ready", "wait"), print)),
        "AsyncResult, which may not be done yet; wait for it",
    ),
}
_INSIDE: dict[str, Callable[[Any], Any]] = {
    "itself": lambda made: made,
    "in a list": lambda made: [1, made],
    "in a tuple": lambda made: (made, None),
    "in a dict": lambda made: {"sent": made},
}


@pytest.mark.parametrize("inside", _INSIDE.values(), ids=_INSIDE)
@pytest.mark.parametrize(("make", "message"), _UNRUN.values(), ids=_UNRUN)
def test_what_has_not_run_is_not_done(
    bench: Bench, make: Callable[[], Any], message: str, inside: Callable[[Any], Any]
) -> None:
    async def handle_async(event: Event) -> Any:
        return inside(make())

    once = bench.once(max_attempts=5)
    for (outcome,) in (once.run([A], lambda event: inside(make())), asyncio.run(once.arun([A], handle_async))):
        assert outcome.kind is OutcomeKind.FAILED
        assert isinstance(outcome.error, ConfigError)
        assert str(outcome.error).startswith(f"the handler returned an object of type {message}")
    assert kinds(once.run([A], ok)) == ["processed"]


def test_a_task_of_asyncio_is_not_done(bench: Bench) -> None:
    async def main() -> list[Outcome]:
        async def handle(event: Event) -> Any:
            return asyncio.ensure_future(asyncio.sleep(0))

        outcomes: list[Outcome] = await bench.once().arun([A], handle)
        return outcomes

    (outcome,) = asyncio.run(main())
    assert outcome.kind is OutcomeKind.FAILED
    assert "type Task, which may not be done yet" in str(outcome.error)


def test_a_job_that_a_handler_leaves_to_a_pool_is_not_done(bench: Bench) -> None:
    done, begin = [], threading.Event()

    def work(event: Event) -> None:
        begin.wait()
        done.append(event.id)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        outcomes = bench.once().run([A], lambda event: pool.submit(work, event))
        assert (kinds(outcomes), done) == (["failed"], [])
        begin.set()


def test_a_generator_is_not_a_handler(bench: Bench) -> None:
    def handle(event: Event) -> Any:
        yield event

    async def handle_async(event: Event) -> Any:
        yield event

    for handler in (handle, handle_async):
        with pytest.raises(ConfigError, match="is a generator"):
            bench.once().run([A], handler)
    assert kinds(bench.once().run([A], lambda event: (each for each in "ab"))) == ["failed"]


def test_a_handler_does_not_start_on_a_claim_that_was_lost_before(bench: Bench) -> None:
    clock = ManualClock()
    store = on(clock)
    once = bench.once(store, clock=clock)
    ran: list[str] = []

    def handle(event: Event) -> None:
        ran.append(event.id)
        clock.sleep(61_000)  # longer than the lease, and no heartbeat meanwhile

    assert kinds(once.run([A, B], handle)) == ["processed", "failed"]
    assert ran == ["a"]


def test_a_commit_is_repeated_while_the_claim_is_ours(bench: Bench) -> None:
    class Blip(MemoryStore):
        blips = 2

        def commit(self, *args: Any) -> Any:
            if self.blips:
                self.blips -= 1
                raise StoreError("a blip")
            return super().commit(*args)

    assert kinds(bench.once(Blip()).run([A], ok)) == ["processed"]


def test_a_claim_whose_answer_was_lost_is_released(bench: Bench) -> None:
    store = Faulty(after=["claim"])
    once = bench.once(store, max_attempts=1)
    for _ in range(3):
        assert kinds(once.run([A], ok)) == ["unknown"]
    store.after.clear()
    assert kinds(once.run([A], ok)) == ["processed"]


def test_versions_that_fail_in_turns_are_given_up_on(bench: Bench) -> None:
    once = bench.once(key=["id"], version="v", max_attempts=3)
    actions = [once.run([{"id": "x", "v": 1 + turn % 2}], fail)[0].action for turn in range(8)]
    assert actions[-2:] == [Action.DEAD_LETTER, Action.DEAD_LETTER]


def test_failures_outlive_a_short_window(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(on(clock), window="1s", max_attempts=2, clock=clock)
    actions = []
    for _ in range(3):
        actions.append(once.run([A], fail)[0].action)
        clock.sleep(5000)
    assert actions == [Action.RETRY, Action.DEAD_LETTER, Action.DEAD_LETTER]


@pytest.mark.parametrize("url", [None, "sqlite"])
def test_an_error_with_half_a_surrogate_can_be_remembered(bench: Bench, url: str | None) -> None:
    def handle(event: Event) -> None:
        raise ValueError("\ud800")

    once = bench.once(bench.url if url else None, max_attempts=1)
    once.run([A], handle)
    assert "ud800" in str(once.run([A], handle)[0].error)


def test_the_identity_of_plain_events_keeps_distinct_ones_apart(bench: Bench) -> None:
    distinct: list[Any] = [
        {"id": 1},
        {"id": "1"},
        {"id": 1, "type": "order"},
        {"id": 1, "type": "customer"},
        {"id": 1, "source": "a"},
        {"id": "1", "source": "a", "detail-type": "", "detail": {}},
        {"id": "1", "source": "a", "type": "", "specversion": "1.0"},
    ]
    assert kinds(bench.once().run(distinct, ok)) == ["processed"] * len(distinct)
    assert kinds(bench.once().run([{"id": []}, {"id": {}}, {"id": None}, {"id": ""}], ok)) == ["rejected"] * 4


def test_a_rule_whose_key_was_changed_does_not_meet_its_old_keys(bench: Bench) -> None:
    store = MemoryStore()
    for path in ("detail.order", "detail.customer"):
        once = bench.once(store, key=[path])
        assert kinds(once.run([{**A, "detail": {"order": "x", "customer": "x"}}], ok)) == ["processed"]


def test_a_time_without_a_zone_is_utc(bench: Bench) -> None:
    clock = ManualClock()
    once = bench.once(max_age="1m", clock=clock)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    assert kinds(once.run([Event(id="1", data={}, time=naive)], ok)) == ["processed"]


def test_events_made_by_hand_are_checked(bench: Bench) -> None:
    bad: list[Any] = [Event(id=1, data={}), Event(id="1", data={}, time="now")]  # type: ignore[arg-type]
    assert kinds(bench.once(remember="note").run(bad, ok)) == ["rejected", "rejected"]


def test_a_closed_engine_runs_nothing(bench: Bench) -> None:
    once = bench.once()
    once.close()
    with pytest.raises(ConfigError, match="has been closed"):
        once.run([A], ok)


def test_a_context_by_name_alone(bench: Bench) -> None:
    def handle(event: Event, *, ctx: Context) -> int:
        return ctx.attempt

    assert bench.once().run([A], handle)[0].result == 1


def test_results_were_not_remembered_then(bench: Bench) -> None:
    store = MemoryStore()
    bench.once(store, remember="seen").run([A], ok)
    with pytest.raises(ResultUnavailable, match="did not remember results then"):
        bench.once(store, remember="result")(ok)(A)


class Broken:
    """A sink that fails as a whole."""

    def send(self, events: Any, idempotency_keys: Any) -> Any:
        raise OSError("no route")

    def close(self) -> None: ...


def test_a_sink_that_fails_as_a_whole_fails_its_events(bench: Bench) -> None:
    assert kinds(bench.once().run([A, B], Broken())) == ["failed", "failed"]


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
def test_a_child_does_not_keep_its_parents_claims_alive(bench: Bench, store: str) -> None:
    once = bench.once(bench.url if store == "sqlite" else store)
    beats: list[int] = []

    def handle(event: Event) -> None:
        child = os.fork()
        if not child:
            os._exit(len(once._engine.keeper._batches) + bool(once._engine.keeper._thread))
        beats.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert kinds(once.run([A], handle)) == ["processed"]
    assert beats == [0]


# --- rules that replace others ---


def test_a_renamed_rule_honours_the_old_keys_and_is_honoured_by_old_workers(bench: Bench) -> None:
    store = MemoryStore()
    old = bench.once(store, name="old")
    new = bench.once(store, name="new", replaces="old")
    assert kinds(old.run([A], ok)) == ["processed"]
    assert kinds(new.run([A2, B], ok)) == ["duplicate", "processed"]
    assert kinds(old.run([B], ok)) == ["duplicate"]
    assert kinds(bench.once(store, name="new").run([B, A], ok)) == ["duplicate", "processed"]


def test_a_changed_rule_says_what_it_was(bench: Bench) -> None:
    store = MemoryStore()
    bench.once(store, name="r", key=["detail.n"]).run([A], ok)
    new = bench.once(store, name="r2", key="content", replaces={"name": "r", "key": ["detail.n"]})
    assert kinds(new.run([A, B, {"id": "c"}], ok)) == ["duplicate", "processed", "processed"]


@pytest.mark.parametrize("together", [True, False])
def test_what_shares_an_old_key_is_one_in_a_batch_and_apart(bench: Bench, *, together: bool) -> None:
    # given a rule that tells more apart than the one it replaces
    once = bench.once(name="new", key=["detail.n", "detail.state"], replaces={"name": "old", "key": ["detail.n"]})
    events = [{"id": state, "n": 1, "state": state} for state in ("on", "off")]

    # then, as long as the old key counts, its word is the same however the events come
    batches = [events] if together else [[event] for event in events]
    assert [kind for batch in batches for kind in kinds(once.run(batch, ok))] == ["processed", "duplicate"]


def test_what_shares_an_old_key_with_one_that_fails_comes_back(bench: Bench) -> None:
    once = bench.once(name="new", key=["detail.n", "detail.state"], replaces={"name": "old", "key": ["detail.n"]})
    events = [{"id": state, "n": 1, "state": state} for state in ("on", "off")]
    assert kinds(once.run(events, fail)) == ["failed", "failed"]
    assert kinds(once.run(events[1:], ok)) == ["processed"]


def test_an_old_worker_at_work_makes_the_new_one_wait(bench: Bench) -> None:
    store = MemoryStore()
    old = bench.once(store, name="old")
    store.claim([ClaimRequest(old.key(A), 60_000)], b"old-----", 60_000)
    new = bench.once(store, name="new", replaces="old")
    assert kinds(new.run([A], ok)) == ["busy"]
    assert store.peek([new.key(A)]) == [None]


def test_a_rule_that_replaces_another_fails_and_commits_with_both_keys(bench: Bench) -> None:
    once = bench.once(bench.url, name="new", replaces="old", max_attempts=2)
    assert kinds(once.run([A], fail)) == ["failed"]
    assert kinds(once.run([A], lambda event, ctx: ctx.tx.execute("SELECT 1"))) == ["processed"]
    records = once.peek([once.key(A), bench.once(name="old").key(A)])
    assert [bool(record and record.done_at and not record.lease) for record in records] == [True, True]


def test_what_a_transaction_records_counts_for_workers_with_the_replaced_rule(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a worker that dies as soon as its transaction has committed
    store = open_store(bench.url)
    new, old = bench.once(store, name="new", replaces="old"), bench.once(store, name="old")
    monkeypatch.setattr(store, "commit", _die)
    monkeypatch.setattr(store, "release", _die)
    with pytest.raises(KeyboardInterrupt):
        new.run([A], lambda event, ctx: ctx.tx.execute("SELECT 1"))
    monkeypatch.undo()

    # then a worker of either rule knows
    assert kinds(old.run([A], ok)) == kinds(new.run([A], ok)) == ["duplicate"]
    store.close()


def test_a_fenced_transaction_marks_neither_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    once = bench.once(bench.url, name="new", replaces="old")
    monkeypatch.setattr("eventonce.stores.sqlite.SQLiteTransaction._commit", lambda self, finish: False)

    (outcome,) = once.run([A], lambda event, ctx: ctx.tx.execute("SELECT 1"))

    assert (outcome.kind, type(outcome.error)) == (OutcomeKind.FAILED, LeaseLost)
    records = once.peek([once.key(A), bench.once(name="old").key(A)])
    assert [record and record.done_at for record in records] == [0, 0]


def test_attempts_under_the_replaced_rule_count(bench: Bench) -> None:
    store = MemoryStore()
    bench.once(store, name="old").run([A], fail)
    attempts: list[int] = []
    bench.once(store, name="new", replaces="old").run([A], lambda event, ctx: attempts.append(ctx.attempt))
    assert attempts == [2]


def _die(*_: object) -> list[bool]:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "replaces", [{}, {"key": "id"}, {"name": "old", "window": "1d"}, {"name": "old", "key": "ids"}]
)
def test_what_a_rule_replaces_must_be_a_rule(replaces: Any) -> None:
    with pytest.raises(ConfigError, match="rule"):
        Rule(name="r", replaces=replaces)


@pytest.mark.parametrize("replaces", [5, {"name": 5}, {"name": "old", "key": "ids"}, {"name": "old", "ignore": "a"}])
def test_what_is_wrong_with_replaces_names_the_rule(replaces: Any) -> None:
    with pytest.raises(ConfigError, match=r"^rule 'r': replaces: "):
        Rule(name="r", replaces=replaces)


@pytest.mark.parametrize("setting", [{"key": ["floor_time(at, '1s')"]}, {"version": "floor_time(at, '1s')"}])
def test_what_cannot_be_read_as_a_time_is_named(bench: Bench, setting: Any) -> None:
    unread, missing = bench.once(**setting).run([{"id": "1", "at": "xyz"}, {"id": "2"}], ok)
    assert "cannot read 'xyz' as a time in floor_time(at, '1s'), which is " in str(unread.error)
    assert str(missing.error).startswith("has no floor_time(at, '1s'), which is ")


@pytest.mark.parametrize(
    "path",
    [
        "detail.{a: orderID}",
        "detail.[orderID, none]",
        "[detail.orderID, detail.none]",
        "to_string(detail.orderID)",
        "detail.items[*].ID",
        "detail.items[*].[ID, none]",
        "detail.items[?id==`9`].id",
        "detail.empty",
        "detail.nothing",
        "detail.blank",
    ],
)
def test_an_expression_that_finds_nothing_is_no_key(bench: Bench, path: str) -> None:
    fields = {"items": [{"id": 1}, {"id": 2}], "empty": [], "nothing": {"a": [None, {}]}, "blank": " \n"}
    events = [{"id": str(number), "orderId": number, **fields} for number in range(3)]
    for outcome in bench.once(key=[path]).run(events, ok):
        assert outcome.kind is OutcomeKind.REJECTED
        assert str(outcome.error) == f"has no {path}, which is in the key of rule 'r'"
    by_id = bench.once(key=[path], otherwise="id")
    assert kinds(by_id.run(events, ok)) == ["processed"] * 3


def test_a_part_of_an_expression_may_be_missing(bench: Bench) -> None:
    events = [{"a": [None, 1], "b": False}, {"a": [None, 2], "b": False}, {"a": [None, 1], "b": False, "c": 0}]
    once = bench.once(key=["[a, c, none]", "to_string(b)"])
    assert kinds(once.run([*events, events[0]], ok)) == ["processed", "processed", "processed", "duplicate"]


@pytest.mark.parametrize("event_id", [True, False, "  ", "", None])
@pytest.mark.parametrize(
    "envelope",
    [
        {},
        {"source": "s", "detail-type": "t", "detail": {}},
        {"source": "s", "detail-type": "t", "detail": {}, "version": "0", "account": "1", "region": "r",
         "resources": [], "time": "2026-01-01T00:00:00Z"},
        {"specversion": "1.0", "source": "s", "type": "t"},
    ],
)  # fmt: skip
def test_what_identifies_nothing_is_no_id(bench: Bench, envelope: Any, event_id: Any) -> None:
    (outcome,) = bench.once().run([msgspec.json.encode({**envelope, "id": event_id, "n": 1})], ok)
    assert outcome.kind is OutcomeKind.REJECTED
    assert "id" in str(outcome.error)


def test_a_missing_part_may_be_replaced(bench: Bench) -> None:
    events = [{"id": "1", "n": 1}, {"id": "2", "n": 1}, {"id": "1", "key": "k"}, {"id": "2", "key": "k"}]
    by_content = bench.once(key=["key"], otherwise="content", ignore=["id"])
    assert kinds(by_content.run(events, ok)) == ["processed", "duplicate", "processed", "duplicate"]
    by_id = bench.once(key=["key"], otherwise="id")
    assert kinds(by_id.run(events, ok)) == ["processed", "processed", "processed", "duplicate"]
    assert kinds(bench.once(key=["key"]).run([events[0], {"id": "3", "key": ""}], ok)) == ["rejected", "rejected"]


def test_a_second_handler_needs_a_consumer_of_its_own(bench: Bench) -> None:
    once = bench.once()
    once(ok)
    once(ok)
    with pytest.raises(ConfigError, match=r"decorates .*ok already, and .*fail would split"):
        once(fail)


@pytest.mark.parametrize(
    "fields",
    [{"ignore": "ts"}, {"ignore": [1]}, {"key": 5}, {"key": [1]}, {"version": 3}, {"refresh": "no"}, {"name": 5}],
)
def test_rules_written_in_python_are_checked_too(fields: Any) -> None:
    with pytest.raises(ConfigError, match="rule"):
        Rule(**{"name": "r", "key": "content", **fields})


def test_a_rejected_event_tells_its_rule(bench: Bench) -> None:
    (outcome,) = bench.once(name="orders", key=["detail.order"]).run([A], ok)
    assert (outcome.kind, outcome.rule) == (OutcomeKind.REJECTED, "orders")


@pytest.mark.parametrize("one", [{"id": "1"}, '{"id": "1"}', b'{"id": "1"}', Event(id="1", data={})])
def test_run_takes_many(bench: Bench, one: Any) -> None:
    with pytest.raises(ConfigError, match="pass a list"):
        bench.once().run(one, ok)


@pytest.mark.parametrize("store", [5, object()])
def test_a_store_is_a_store(store: Any) -> None:
    with pytest.raises(ConfigError, match="neither a URL nor a store"):
        Once(store)


def test_a_sink_that_is_down_costs_no_attempts(bench: Bench) -> None:
    class Down:
        def __init__(self) -> None:
            self.error: Exception | None = SinkDown("nobody listens")

        def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> list[Exception | None]:
            return [self.error] * len(events)

        def close(self) -> None: ...

    sink, once = Down(), bench.once(max_attempts=2)
    for _ in range(5):
        (outcome,) = once.run([{"id": "1"}], sink)
        assert (outcome.kind, outcome.final, outcome.attempt) == (OutcomeKind.FAILED, False, 1)
    sink.error = None
    assert once.run([{"id": "1"}], sink)[0].kind is OutcomeKind.PROCESSED
