"""Waiting: calls of a key that runs already follow that run."""

import asyncio
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from eventonce import ConfigError, EventBusy, LeaseLost, Once, OutcomeKind, current
from eventonce.claims.protocol import ClaimRequest
from eventonce.engine.calls.waiting import MAX_THREADS, RunningCalls
from eventonce.ports import Hook
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from tests.unit.conftest import Bench
from tests.until import until


class Gate:
    """A function that waits in its run until it may go on."""

    def __init__(self) -> None:
        self.runs = 0
        self.entered = threading.Event()
        self.free = threading.Event()
        self.end: Callable[[], Any] = lambda: self.runs

    def run(self) -> Any:
        self.runs += 1
        self.entered.set()
        assert self.free.wait(30)
        return self.end()


def running(once: Once) -> RunningCalls:
    return once._workshop().running


def waiting(once: Once, count: int) -> Callable[[], bool]:
    return lambda: running(once)._threads == count


# --- threads ---


def test_threads_follow_the_run_of_their_key(bench: Bench) -> None:
    gate, once = Gate(), bench.once()

    @once(key="n", remember="result", name="one")
    def one(n: int) -> Any:
        return gate.run()

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(one, 1) for _ in range(6)]
        until(waiting(once, 5))
        gate.free.set()
        assert [future.result() for future in futures] == [1] * 6


@pytest.mark.parametrize("remember", ["seen", "note"])
def test_those_that_waited_are_duplicates(bench: Bench, remember: Any) -> None:
    gate, once = Gate(), bench.once()
    one: Any = once(key="n", remember=remember, name="one")(lambda n: gate.run())
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(one.outcome, 1) for _ in range(3)]
        until(waiting(once, 2))
        gate.free.set()
        outcomes = [future.result() for future in futures]
    assert sorted(outcome.kind for outcome in outcomes) == ["duplicate", "duplicate", "processed"]
    assert [outcome.result for outcome in outcomes if outcome.kind == "duplicate"] == [None, None]


def test_those_that_waited_fail_as_the_run_did_and_make_no_attempts(bench: Bench) -> None:
    gate, once = Gate(), bench.once(max_attempts=2)
    gate.end = lambda: 1 / 0
    one: Any = once(key="n", name="one")(lambda n: gate.run())
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(one, 1) for _ in range(5)]
        until(waiting(once, 4))
        gate.free.set()
        for future in futures:
            with pytest.raises(ZeroDivisionError):
                future.result()
    assert gate.runs == 1


class Coded(Exception):
    """Its message is not what it was made of."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Sealed(Exception):
    """It cannot be copied."""

    def __new__(cls, *, code: int) -> Self:
        return super().__new__(cls)

    def __init__(self, *, code: int) -> None:
        super().__init__(code)


def undecodable() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")


@pytest.mark.parametrize("make", [lambda: Coded(5), undecodable, lambda: OSError(2, "gone", "file"), KeyError])
def test_each_that_waited_raises_an_error_of_its_own(bench: Bench, make: Callable[[], Exception]) -> None:
    errors = asyncio.run(raised_by_all(bench.once(), make, 30))
    assert len(set(map(id, errors))) == 30
    assert len({(type(error), str(error), repr(vars(error))) for error in errors}) == 1
    assert all(isinstance(error.__cause__, LookupError) for error in errors)
    assert max(len(traceback.extract_tb(error.__traceback__)) for error in errors) < 20


def test_an_error_that_cannot_be_copied_is_raised_by_all_and_does_not_grow(bench: Bench) -> None:
    errors = asyncio.run(raised_by_all(bench.once(), lambda: Sealed(code=5), 30))
    assert len(set(map(id, errors))) == 1
    assert len(traceback.extract_tb(errors[0].__traceback__)) < 20


async def raised_by_all(once: Once, make: Callable[[], Exception], count: int) -> list[Exception]:
    """Return the errors that so many calls of one key raise. Each caller adds a note if the error is its own."""

    @once(key="n", name="one")
    async def one(n: int) -> None:
        await asyncio.sleep(0.01)
        raise make() from LookupError("cause")

    async def call() -> Exception:
        try:
            await one(1)
        except Exception as error:
            if not isinstance(error, Sealed):
                error.add_note("caller")
            return error
        raise AssertionError

    return list(await asyncio.gather(*[call() for _ in range(count)]))


def test_a_run_that_lost_its_claim_hands_over(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    one: Any = once(key="n", name="one")(lambda n: gate.run())

    def lose() -> int:
        if gate.runs == 1:
            raise LeaseLost
        return gate.runs

    gate.end = lose
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(one.outcome, 1) for _ in range(3)]
        until(waiting(once, 2))
        gate.free.set()
        kinds = sorted(future.result().kind for future in futures)
    assert kinds == ["duplicate", "failed", "processed"]
    assert gate.runs == 2


def test_another_version_of_the_key_waits_and_then_runs(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    one: Any = once(key="n", version="v", name="one")(lambda n, v: gate.run())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.outcome, 1, 1)
        gate.entered.wait(30)
        second = pool.submit(one.outcome, 1, 2)
        until(waiting(once, 1))
        gate.free.set()
        assert [first.result().kind, second.result().kind] == ["processed", "processed"]


def test_waiting_ends_after_busy_wait(bench: Bench) -> None:
    gate = Gate()
    for once in (bench.once(busy_wait="0s"), bench.once(busy_wait="20ms")):
        one: Any = once(key="n", name="one")(lambda n: gate.run())
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(one, 1)
            gate.entered.wait(30)
            with pytest.raises(EventBusy, match=r"a call of one with its key is (still )?running"):
                one(1)
            assert one.map([one.bind(1)])[0].kind is OutcomeKind.BUSY
            gate.free.set()
            assert first.result() is not None
        gate.entered.clear()
        gate.free.clear()


def test_only_so_many_threads_wait(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    one: Any = once(key="n", name="one")(lambda n: gate.run())
    with ThreadPoolExecutor(MAX_THREADS + 1) as pool:
        futures = [pool.submit(one, 1) for _ in range(MAX_THREADS + 1)]
        until(waiting(once, MAX_THREADS))
        with pytest.raises(EventBusy, match=f"{MAX_THREADS} threads of this process wait for calls already"):
            one(1)
        gate.free.set()
        assert [future.result() for future in futures].count(1) == 1
    assert running(once)._threads == 0


def test_many_calls_lead_what_they_can_and_then_follow(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    one: Any = once(key="n", remember="result", name="one")(lambda n: gate.run() if n < 3 else n)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.map, [one.bind(1), one.bind(1), one.bind(5)])
        gate.entered.wait(30)
        second = pool.submit(one.map, [one.bind(1), one.bind(7), one.bind(None), one.bind(5)])
        until(waiting(once, 1))
        assert one.outcome(7).kind is OutcomeKind.DUPLICATE  # which ran before it waited
        gate.free.set()
        assert [outcome.kind for outcome in first.result()] == ["processed", "duplicate", "processed"]
        assert [outcome.kind for outcome in second.result()] == ["duplicate", "processed", "rejected", "duplicate"]
        assert [outcome.result for outcome in second.result()] == [1, 7, None, 5]


def test_hooks_see_those_that_waited(bench: Bench) -> None:
    kinds: list[str] = []

    class Settled(Hook):
        def after_settle(self, details: Any) -> None:
            kinds.extend(each.outcome.kind for each in details)

    gate, once = Gate(), bench.once(hooks=[Settled()])
    one: Any = once(key="n", name="one")(lambda n: gate.run())
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(one, 1) for _ in range(3)]
        until(waiting(once, 2))
        gate.free.set()
        for future in futures:
            future.result()
    assert sorted(kinds) == ["duplicate", "duplicate", "processed"]


def test_an_interrupted_run_hands_over_and_leaves_nothing_behind(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    one: Any = once(key="n", name="one")(lambda n: gate.run())

    def stop() -> int:
        if gate.runs == 1:
            raise KeyboardInterrupt
        return gate.runs

    gate.end = stop
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one, 1)
        gate.entered.wait(30)
        second = pool.submit(one, 1)
        until(waiting(once, 1))
        gate.free.set()
        assert isinstance(first.exception(), KeyboardInterrupt)
        assert second.result() == 2
    assert running(once)._runs == {}


def test_a_leader_that_is_gone_without_a_word_hands_over(bench: Bench) -> None:
    """As if an interrupt came between the lines."""
    once = bench.once()
    one: Any = once(key="n", name="one")(lambda n: n)
    calls = running(once)
    job: Any = one._definition.runner.engine.reader.read(0, one.bind(1))
    run = calls.lead(job)
    assert run is not None
    assert calls.lead(job) is None
    step = calls.wait(job, 1000)
    assert step is not None
    gone = weakref.ref(run)
    del run
    assert gone() is None
    assert list(step._future.result(0)) == []
    assert one(1) == 1


# --- other processes ---


def test_the_run_of_another_process_is_looked_at_again_until_its_lease_expires(bench: Bench) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    one: Any = bench.once(store, clock=clock, lease="10s")(key="n", name="one")(lambda n: n)
    key = one.key(1)
    store.claim([ClaimRequest(key, 1000)], b"another!", 9_000)
    assert one(1) == 1
    assert 9_000 <= clock.steady() <= 10_000
    store.claim([ClaimRequest(one.key(2), 1000)], b"another!", 60_000)
    with pytest.raises(EventBusy, match="another worker is running it"):
        one(2)


# --- tasks ---


def test_tasks_follow_the_run_of_their_key(bench: Bench) -> None:
    runs: list[int] = []
    once = bench.once()

    @once(key="n", remember="result", name="one")
    async def one(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0.01)
        return n

    async def main() -> list[Any]:
        return await asyncio.gather(*[one(1) for _ in range(64)])

    assert asyncio.run(main()) == [1] * 64
    assert runs == [1]
    with ThreadPoolExecutor(4) as pool:  # each with a loop of its own
        futures = [pool.submit(lambda: asyncio.run(one(2))) for _ in range(4)]
        assert [future.result() for future in futures] == [2] * 4
    assert runs == [1, 2]


def test_a_cancelled_task_hands_over_and_one_that_waits_takes_nothing_along(bench: Bench) -> None:
    started: list[int] = []
    once = bench.once()

    @once(key="n", name="one")
    async def one(n: int) -> int:
        started.append(len(started))
        if len(started) == 1:
            await asyncio.sleep(60)
        return len(started)

    async def main() -> list[Any]:
        first = asyncio.create_task(one(1))
        await until_async(lambda: started)
        others = [asyncio.create_task(one(1)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others[0].cancel()
        await asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, second, *others = asyncio.run(main())
    assert [type(first), type(second)] == [asyncio.CancelledError] * 2
    assert sorted(others, key=str) == [2, None]
    assert running(once)._runs == {}


async def until_async(happened: Callable[[], object]) -> None:
    while not happened():
        await asyncio.sleep(0.001)


def test_a_task_waits_no_longer_than_busy_wait(bench: Bench) -> None:
    once = bench.once(busy_wait="20ms")

    @once(key="n", name="one")
    async def one(n: int, free: asyncio.Event) -> None:
        await free.wait()

    async def main() -> Any:
        free = asyncio.Event()
        first = asyncio.create_task(one.outcome(1, free))
        await asyncio.sleep(0)
        second = await one.outcome(1, free)
        free.set()
        return second, await first

    second, first = asyncio.run(main())
    assert [second.kind, first.kind] == ["busy", "processed"]


def test_threads_that_wait_leave_store_calls_of_tasks_a_thread(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    slow: Any = once(key="n", name="slow")(lambda n: gate.run())

    @once(key="n", name="other")
    async def other(n: int) -> int:
        return n

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(3))
        calls = [asyncio.create_task(asyncio.to_thread(slow, 1)) for _ in range(3)]
        while running(once)._threads < 2:
            await asyncio.sleep(0.001)
        assert await asyncio.wait_for(other(1), 20) == 1
        gate.free.set()
        assert sorted(await asyncio.gather(*calls), key=str) == [1, None, None]

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_threads_of_its_own_for_store_calls(bench: Bench) -> None:
    once = bench.once()

    @once(key="n", name="one")
    async def one(n: int) -> int:
        return n

    assert asyncio.run(one(1)) == 1
    child = os.fork()
    if not child:
        os._exit(asyncio.run(asyncio.wait_for(one(3), 20)) or 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert asyncio.run(one(2)) == 2


# --- one's own key ---


def test_entering_one_s_own_key_is_refused_and_another_key_nests(bench: Bench) -> None:
    once = bench.once()

    @once(key="n", name="one")
    def one(n: int, then: int | None) -> Any:
        return None if then is None else (n, one(then, None))

    with pytest.raises(ConfigError, match=r"^one is called with the key that the calling code runs under, so it would"):
        one(1, 1)
    assert one(2, 3) == (2, None)
    outer: Any = once(key="n", name="outer")(lambda n: one.map([one.bind(n, None), one.bind(n, n)])[0].kind)
    assert outer(5) == "processed"
    both: Any = once(key="n", name="both")(lambda n: both.map([both.bind(n + 1), both.bind(n)]))
    with pytest.raises(ConfigError, match=r"^both is called with the key"):
        both(1)


def test_a_function_that_calls_the_one_it_replaces_with_its_key_is_refused(bench: Bench) -> None:
    once = bench.once()
    old: Any = once(key="n", name="old")(lambda n: "old")
    new: Any = once(key="n", name="new", replaces="old")(lambda n: [old(n)])
    both: Any = once(key="n", name="back")(lambda n: [new(n)])
    other: Any = once(key="n", name="newest", replaces="new")(lambda n: [both(n)])
    for call in (new, other):
        with pytest.raises(ConfigError, match=r"^(old|new) is called with the key that the calling code runs under"):
            call(1)


def test_the_same_key_of_another_once_is_another_key(bench: Bench) -> None:
    inner: Any = bench.once()(key="n", name="one")(lambda n: "inner")
    outer: Any = bench.once()(key="n", name="one")(lambda n: [inner(n)])
    assert outer(1) == ["inner"]


def test_tasks_and_threads_of_the_run_are_part_of_it(bench: Bench) -> None:
    once = bench.once()

    @once(key="n", name="one")
    async def one(n: int, inner: Callable[[], Any]) -> Any:
        return await inner()

    async def nothing() -> int:
        return 5

    async def main(inner: Callable[[], Any]) -> Any:
        return await one(1, inner)

    for inner in (
        lambda: one(1, nothing),
        lambda: asyncio.create_task(one(1, nothing)),
        lambda: asyncio.gather(one(1, nothing)),
        lambda: asyncio.to_thread(lambda: asyncio.run(one(1, nothing))),
    ):
        with pytest.raises(ConfigError, match=r"^one is called with the key"):
            asyncio.run(main(inner))


def test_a_task_that_outlives_its_run_is_a_duplicate(bench: Bench) -> None:
    once = bench.once()
    left: list[Any] = []

    @once(key="n", name="one")
    async def one(n: int, free: asyncio.Event) -> int:
        if not left:
            left.append(asyncio.create_task(later(n, free)))
        return n

    async def later(n: int, free: asyncio.Event) -> Any:
        await free.wait()
        with pytest.raises(ConfigError, match=r"ctx.tx has ended with its handler"):
            current().tx  # noqa: B018
        return await one.outcome(n, free)

    async def main() -> Any:
        free = asyncio.Event()
        await one(1, free)
        free.set()
        return await left[0]

    assert asyncio.run(main()).kind is OutcomeKind.DUPLICATE


def test_a_run_with_an_open_transaction_waits_for_nobody(bench: Bench) -> None:
    gate, once = Gate(), bench.once()
    slow: Any = once(key="n", name="slow")(lambda n: gate.run())
    file = bench.once(bench.url)

    @file(key="n", name="writes")
    def writes(n: int) -> str:
        current().tx.execute("CREATE TABLE IF NOT EXISTS t (n)")
        return str(slow.outcome(1).kind)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow, 1)
        gate.entered.wait(30)
        assert writes(1) == "busy"
        gate.free.set()
        assert first.result() == 1


# --- forks ---


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_takes_no_runs_along(bench: Bench) -> None:
    gate, once = Gate(), bench.once(busy_wait="0s")
    one: Any = once(key="n", name="one")(lambda n: gate.run())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one, 1)
        gate.entered.wait(30)
        child = os.fork()
        if not child:
            os._exit(len(running(once)._runs))
        assert os.waitpid(child, 0)[1] == 0
        assert len(running(once)._runs) == 1
        gate.free.set()
        first.result()
