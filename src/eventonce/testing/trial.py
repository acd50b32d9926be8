"""A trial of a handler: its effects under copies, races, crashes, lost leases, replays and redrives.

    report = try_handler(charge, order, effects=lambda: charges, reset=charges.clear)
    assert report.good, report

One undisturbed run shows the effects of one event. Under every scenario there must be the same effects, no more and no
fewer. Effects through `ctx.tx` and effects that overwrite themselves pass everywhere. Others happen twice if a worker
dies or loses its lease between the effect and its commit, which no store can prevent.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

from msgspec import structs

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import Claim, Commit, Release
from eventonce.engine import Once
from eventonce.engine.context import HandlerFunction, is_async
from eventonce.errors import LeaseLost, StoreError, StoreUnusable
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.ports import Store, Transaction, Transactional
from eventonce.rules.rule import Rule
from eventonce.stores import open_store

Effects = Callable[[], Iterable[Hashable]]
Rules = Rule | Sequence[Rule] | str | Path
_LEASE = 0.3  # seconds: short, because trials wait for it
_LONG_LEASE = 60.0  # for scenarios without a lost lease, on a machine that may pause
_RACERS = 4
_TIMEOUT = 10.0  # seconds after which a scenario goes on without the other worker
_TAKEOVER_TIMEOUT = 4.0  # seconds after which the first worker goes on if the store allows no takeover
_UNLIMITED = 2**31 - 1


class Difference(NamedTuple):
    """The difference between the effects of one scenario and those of an undisturbed run."""

    scenario: str
    twice: Counter[Hashable]  # effects that happened more often, and how much more
    missing: Counter[Hashable]  # effects that happened less often or not at all
    expected: Counter[Hashable]  # the effects of one undisturbed run

    def __str__(self) -> str:
        descriptions = [self._describe(effect, more) for effect, more in self.twice.items()]
        descriptions += [self._describe(effect, -fewer) for effect, fewer in self.missing.items()]
        return f"{self.scenario}: {', '.join(descriptions)}"

    def _describe(self, effect: Hashable, more: int) -> str:
        expected = self.expected[effect]
        if expected + more == 0:
            return f"{effect!r} did not happen"
        instead = f" instead of {_times(expected)}" if expected > 1 else "" if expected else " and should not"
        return f"{effect!r} happened {_times(expected + more)}{instead}"


class TrialReport(NamedTuple):
    """The differences that a trial found. `str(report)` describes them."""

    differences: Sequence[Difference]
    scenarios: Sequence[str]

    @property
    def good(self) -> bool:
        """Return whether every scenario had the effects of one run."""
        return not self.differences

    def __str__(self) -> str:
        if self.good:
            return f"the same effects in all of: {', '.join(self.scenarios)}"
        advice = "write through ctx.tx, pass ctx.idempotency_key on, or make the effect overwrite itself"
        return "\n".join([*map(str, self.differences), f"({advice})"])


class Trial:
    """A handler and an event, on a store of your choice under a consumer of its own."""

    def __init__(
        self,
        handler: HandlerFunction,
        event: object,
        *,
        effects: Effects,
        reset: Callable[[], object],
        store: str = "memory:",
        rules: Rules = (),
    ) -> None:
        self._handler: Any = getattr(handler, "eventonce_handler", handler)
        self._event = read_event(event)
        self._effects = effects
        self._reset = reset
        self._rules = rules
        self._store = open_store(store)
        self._consumer = f"trial {uuid4().hex}"
        self._expected = self._effects_of(lambda: self._deliver(self._once(lease=_LONG_LEASE)))
        if not self._expected:
            raise ValueError("one run of the handler has no effects; `effects` must return what it did")

    def run(self, scenario: str) -> Difference | None:
        """Run one scenario. Return its difference, or None if it had the effects of one run."""
        if scenario not in SCENARIOS:
            raise ValueError(f"scenarios: unknown scenario {scenario!r}; use {', '.join(SCENARIOS)}")
        effects = self._effects_of(lambda: SCENARIOS[scenario](self))
        twice, missing = effects - self._expected, self._expected - effects
        return Difference(scenario, twice, missing, self._expected) if twice or missing else None

    def close(self) -> None:
        self._store.close()

    # --- scenarios ---

    def copy_after_it(self) -> None:
        for _ in range(2):
            self._deliver(self._once())

    def copies_in_one_batch(self) -> None:
        with self._once() as once:
            _run(once, [self._event, self._event], self._handler)

    def copies_at_the_same_time(self) -> None:
        together = threading.Barrier(_RACERS)

        def race() -> None:
            once = self._once()
            together.wait()
            self._deliver(once)

        _in_threads([race] * _RACERS)

    def crash_before_the_commit(self) -> None:
        with _ignore_crash():
            self._deliver(self._once(_crashing(self._store)))
        self._deliver(self._once())

    def lost_lease(self) -> None:
        """Cut a worker off after its effect, while another one takes over and commits."""
        effected, taken_over = threading.Event(), threading.Event()

        def slow() -> None:
            def hold() -> None:
                effected.set()
                taken_over.wait(_TAKEOVER_TIMEOUT)

            slow_handler = _after(self._handler, hold)
            with self._once(_cut_off(self._store)) as once:
                _run(once, [self._event], slow_handler)

        def quick() -> None:
            effected.wait(_TIMEOUT)
            self._deliver(self._once())
            taken_over.set()

        _in_threads([slow, quick])

    def replay(self) -> None:
        self._deliver(self._once())
        self._deliver(self._once(), self._replayed())

    def redrive(self) -> None:
        """Fail before the effect, so that the event is dead-lettered. Then redrive it, and deliver a late copy."""
        with self._once(attempts=1) as once:
            _run(once, [self._event], _failing(self._handler))
        for _ in range(2):
            self._deliver(self._once(attempts=_UNLIMITED))

    # --- running ---

    def _once(self, store: Store | None = None, attempts: int = 5, lease: float = _LEASE) -> Once:
        return Once(
            store or self._store,
            consumer=self._consumer,
            rules=self._rules,
            lease=timedelta(seconds=lease),
            max_attempts=attempts,
        )

    def _deliver(self, once: Once, event: Event | None = None) -> None:
        """Deliver the event as a queue does: again while another worker may have it or the store is unavailable."""
        deadline = time.monotonic() + _TIMEOUT
        with once:
            while time.monotonic() < deadline:
                outcome = _run(once, [event or self._event], self._handler)[0]
                retry = outcome.kind in (OutcomeKind.BUSY, OutcomeKind.UNKNOWN) or isinstance(outcome.error, LeaseLost)
                failed = outcome.kind in (OutcomeKind.REJECTED, OutcomeKind.UNROUTED, OutcomeKind.FAILED) and not retry
                if outcome.error is not None and (failed or isinstance(outcome.error, StoreUnusable)):
                    raise outcome.error
                if not retry:
                    return
                time.sleep(_LEASE / 10)
        if outcome.kind is OutcomeKind.UNKNOWN and outcome.error is not None:
            raise outcome.error

    def _effects_of(self, operation: Callable[[], object]) -> Counter[Hashable]:
        """Return the effects of an operation. Reset them before it, and forget the keys of the event after it."""
        self._reset()
        operation()
        with self._once() as once:
            copies = (self._event, self._replayed())
            self._store.forget([key for copy in copies for key in once._rules.key(copy).keys])
        try:
            return Counter(self._effects())
        except TypeError as error:
            raise TypeError(f"effects must return hashable values, such as strings or tuples: {error}") from error

    def _replayed(self) -> Event:
        return structs.replace(self._event, replay="trial")


SCENARIOS: dict[str, Callable[[Trial], None]] = {
    "a copy after it": Trial.copy_after_it,
    "copies in one batch": Trial.copies_in_one_batch,
    "copies at the same time": Trial.copies_at_the_same_time,
    "a crash between effect and commit": Trial.crash_before_the_commit,
    "a lost lease": Trial.lost_lease,
    "a replay": Trial.replay,
    "a redrive": Trial.redrive,
}


def try_handler(
    handler: HandlerFunction,
    event: object,
    *,
    effects: Effects,
    reset: Callable[[], object],
    store: str = "memory:",
    rules: Rules = (),
    scenarios: Iterable[str] = tuple(SCENARIOS),
) -> TrialReport:
    """Try a handler, `def` or `async def`, in every scenario.

    `effects` returns all that the handler has done so far, each effect as a hashable value, and `reset` undoes it.
    A handler with `ctx.tx` needs a store with transactions, such as `sqlite:///FILE`.
    """
    trial = Trial(handler, event, effects=effects, reset=reset, store=store, rules=rules)
    try:
        names = [scenarios] if isinstance(scenarios, str) else scenarios
        differences = {scenario: trial.run(scenario) for scenario in names}
    finally:
        trial.close()
    return TrialReport([each for each in differences.values() if each is not None], list(differences))


# --- workers that crash, are cut off, fail or are slow ---


class Crash(BaseException):
    """The worker has crashed."""


class _Wrapped:
    """An object that passes everything on to another one."""

    def __init__(self, store: Store) -> None:
        self._inner: Any = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Crashing(_Wrapped):
    """The store of a worker that crashes at its first commit, so that it changes nothing after that."""

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        raise Crash

    def release(self, releases: Sequence[Release]) -> list[bool]:
        raise Crash


class _CrashingTransactional(_Crashing):
    def begin(self, claim: Claim) -> Transaction:
        transaction: Any = _CrashingTransaction(self._inner.begin(claim))
        return cast(Transaction, transaction)


class _CrashingTransaction(_Wrapped):
    def commit(self, finish: Commit) -> bool:
        self._inner.rollback()  # as the database does for a client that has gone
        raise Crash


class _CutOff(_Wrapped):
    """The store of a worker whose heartbeats do not arrive."""

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        raise StoreError("the trial cut the worker off")


class _CutOffTransactional(_CutOff):
    def begin(self, claim: Claim) -> Transaction:
        transaction: Transaction = self._inner.begin(claim)
        return transaction


def _crashing(store: Store) -> Store:
    return cast(Store, (_CrashingTransactional if isinstance(store, Transactional) else _Crashing)(store))


def _cut_off(store: Store) -> Store:
    return cast(Store, (_CutOffTransactional if isinstance(store, Transactional) else _CutOff)(store))


@contextmanager
def _ignore_crash() -> Iterator[None]:
    try:
        yield
    except Crash:
        return


def _after(handler: Any, operation: Callable[[], object]) -> HandlerFunction:
    """Return a handler that also calls a function before it returns."""

    def wrapper(*args: Any, **named: Any) -> Any:
        result = handler(*args, **named)
        operation()
        return result

    async def async_wrapper(*args: Any, **named: Any) -> Any:
        result = await handler(*args, **named)
        await asyncio.to_thread(operation)
        return result

    return _with_signature_of(handler, async_wrapper if is_async(handler) else wrapper)


def _failing(handler: Any) -> HandlerFunction:
    def wrapper(*args: Any, **named: Any) -> Any:
        raise RuntimeError("the trial let it fail before its effect")

    async def async_wrapper(*args: Any, **named: Any) -> Any:
        wrapper()

    return _with_signature_of(handler, async_wrapper if is_async(handler) else wrapper)


def _with_signature_of(handler: Any, wrapper: Any) -> HandlerFunction:
    wrapper.__wrapped__ = handler  # its parameters decide how it is called
    return cast(HandlerFunction, wrapper)


def _run(once: Once, events: Sequence[Event], handler: HandlerFunction) -> list[Outcome]:
    prepared = once.prepare(handler)
    return asyncio.run(once.arun(events, prepared)) if prepared.is_async else once.run(events, prepared)


def _in_threads(operations: Sequence[Callable[[], None]]) -> None:
    """Run functions at the same time, and raise the first error among them."""
    errors: list[BaseException] = []

    def collect_error(operation: Callable[[], None]) -> None:
        try:
            operation()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=collect_error, args=(operation,)) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
