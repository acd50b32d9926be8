"""A trial of a handler: copies, races, crashes, lost leases, replays and redrives, and which effects came of them.

    report = try_handler(charge, order, effects=lambda: charges, reset=charges.clear)
    assert report.good, report

One run without any trouble says which effects one event has. Under every scenario there must be the same effects, no
more and no fewer. Effects through `ctx.tx` and effects that overwrite themselves pass everywhere; others happen twice
where a worker dies or loses its lease between the effect and its commit, which no store can prevent.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

from msgspec import structs

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import Claim, Finish, Release
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
_LONG_LEASE = 60  # where none does, and a machine may stand still
_RACERS = 4
_PATIENCE = 10.0  # seconds, after which a scenario goes on without the other worker
_TAKE_OVER = 4.0  # seconds: where the store lets nobody take over meanwhile, the first goes on after that
_NO_END = 2**31 - 1


class Difference(NamedTuple):
    """What one scenario did otherwise than one undisturbed run."""

    scenario: str
    twice: Counter[Hashable]  # effects that happened more often, and how much more
    missing: Counter[Hashable]  # effects that happened less often or not at all
    expected: Counter[Hashable]  # the effects of one undisturbed run

    def __str__(self) -> str:
        told = [self._told(effect, more) for effect, more in self.twice.items()]
        told += [self._told(effect, -less) for effect, less in self.missing.items()]
        return f"{self.scenario}: {', '.join(told)}"

    def _told(self, effect: Hashable, more: int) -> str:
        expected = self.expected[effect]
        if expected + more == 0:
            return f"{effect!r} did not happen"
        instead = f" instead of {_times(expected)}" if expected > 1 else "" if expected else " and should not"
        return f"{effect!r} happened {_times(expected + more)}{instead}"


class TrialReport(NamedTuple):
    """What a trial found; `str(report)` says it in words."""

    differences: Sequence[Difference]
    scenarios: Sequence[str]

    @property
    def good(self) -> bool:
        """Whether every scenario had the effects of one run."""
        return not self.differences

    def __str__(self) -> str:
        if self.good:
            return f"the same effects in all of: {', '.join(self.scenarios)}"
        advice = "write through ctx.tx, pass ctx.idempotency_key on, or make the effect overwrite itself"
        return "\n".join([*map(str, self.differences), f"({advice})"])


class Trial:
    """One handler and one event, on a store of your choice, under a consumer of its own there."""

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
        """Run one scenario; what came of it, if it was not the effects of one run."""
        if scenario not in SCENARIOS:
            raise ValueError(f"scenarios: {scenario!r} is none of {', '.join(SCENARIOS)}")
        found = self._effects_of(lambda: SCENARIOS[scenario](self))
        twice, missing = found - self._expected, self._expected - found
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
        with _crash():
            self._deliver(self._once(_dying(self._store)))
        self._deliver(self._once())

    def lost_lease(self) -> None:
        """A worker that is cut off after its effect, while another one takes over and is done."""
        effected, taken_over = threading.Event(), threading.Event()

        def slow() -> None:
            def hold() -> None:
                effected.set()
                taken_over.wait(_TAKE_OVER)

            held = _after(self._handler, hold)
            with self._once(_cut_off(self._store)) as once:
                _run(once, [self._event], held)

        def quick() -> None:
            effected.wait(_PATIENCE)
            self._deliver(self._once())
            taken_over.set()

        _in_threads([slow, quick])

    def replay(self) -> None:
        self._deliver(self._once())
        self._deliver(self._once(), self._replayed())

    def redrive(self) -> None:
        """It fails before its effect and becomes a dead letter, is redriven, and then a copy comes late."""
        with self._once(attempts=1) as once:
            _run(once, [self._event], _failing(self._handler))
        for _ in range(2):
            self._deliver(self._once(attempts=_NO_END))

    # --- how they are run ---

    def _once(self, store: Store | None = None, attempts: int = 5, lease: float = _LEASE) -> Once:
        return Once(
            store or self._store, consumer=self._consumer, rules=self._rules, lease=lease, max_attempts=attempts
        )

    def _deliver(self, once: Once, event: Event | None = None) -> None:
        """As a queue does: again while another worker has it or may have, or the store is away."""
        give_up = time.monotonic() + _PATIENCE
        with once:
            while time.monotonic() < give_up:
                outcome = _run(once, [event or self._event], self._handler)[0]
                again = outcome.kind in (OutcomeKind.BUSY, OutcomeKind.UNKNOWN) or isinstance(outcome.error, LeaseLost)
                hopeless = outcome.kind in (OutcomeKind.REJECTED, OutcomeKind.FAILED) and not again
                if outcome.error is not None and (hopeless or isinstance(outcome.error, StoreUnusable)):
                    raise outcome.error
                if not again:
                    return
                time.sleep(_LEASE / 10)
        if outcome.kind is OutcomeKind.UNKNOWN and outcome.error is not None:
            raise outcome.error

    def _effects_of(self, act: Callable[[], object]) -> Counter[Hashable]:
        """The effects of an act, as if nothing had been before it; the key of the event is the same in each."""
        self._reset()
        act()
        with self._once() as once:
            copies = (self._event, self._replayed())
            self._store.forget([key for copy in copies for key in once._rules.key(copy).keys])
        try:
            return Counter(self._effects())
        except TypeError as error:
            raise TypeError(f"effects must return what can be compared, such as texts or tuples: {error}") from error

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

    `effects` returns all that the handler has done so far, each effect as something that can be compared, and `reset`
    undoes it. A handler with `ctx.tx` needs a store with transactions, such as `sqlite:///FILE`.
    """
    trial = Trial(handler, event, effects=effects, reset=reset, store=store, rules=rules)
    try:
        names = [scenarios] if isinstance(scenarios, str) else scenarios
        found = {scenario: trial.run(scenario) for scenario in names}
    finally:
        trial.close()
    return TrialReport([each for each in found.values() if each is not None], list(found))


# --- workers that die, are cut off, fail or take long ---


class Crash(BaseException):
    """The worker is dead."""


class _Wrapped:
    """A store that does all that another one does."""

    def __init__(self, store: Store) -> None:
        self._inner: Any = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Dying(_Wrapped):
    """A worker's store up to its first commit: there the worker dies, and nothing more reaches anyone."""

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        raise Crash

    def release(self, releases: Sequence[Release]) -> list[bool]:
        raise Crash


class _DyingTransactional(_Dying):
    def begin(self, claim: Claim) -> Transaction:
        transaction: Any = _DyingTransaction(self._inner.begin(claim))
        return cast(Transaction, transaction)


class _DyingTransaction(_Wrapped):
    def commit(self, finish: Finish) -> bool:
        self._inner.rollback()  # as the database does for a client that is gone
        raise Crash


class _CutOff(_Wrapped):
    """A worker's store whose heartbeats do not arrive."""

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        raise StoreError("the trial cut the worker off")


class _CutOffTransactional(_CutOff):
    def begin(self, claim: Claim) -> Transaction:
        transaction: Transaction = self._inner.begin(claim)
        return transaction


def _dying(store: Store) -> Store:
    return cast(Store, (_DyingTransactional if isinstance(store, Transactional) else _Dying)(store))


def _cut_off(store: Store) -> Store:
    return cast(Store, (_CutOffTransactional if isinstance(store, Transactional) else _CutOff)(store))


@contextmanager
def _crash() -> Iterator[None]:
    try:
        yield
    except Crash:
        return


def _after(handler: Any, act: Callable[[], object]) -> HandlerFunction:
    """The handler, and then something more before it returns."""

    def called(*args: Any, **named: Any) -> Any:
        result = handler(*args, **named)
        act()
        return result

    async def called_async(*args: Any, **named: Any) -> Any:
        result = await handler(*args, **named)
        await asyncio.to_thread(act)
        return result

    return _like(handler, called_async if is_async(handler) else called)


def _failing(handler: Any) -> HandlerFunction:
    def called(*args: Any, **named: Any) -> Any:
        raise RuntimeError("the trial let it fail before its effect")

    async def called_async(*args: Any, **named: Any) -> Any:
        called()

    return _like(handler, called_async if is_async(handler) else called)


def _like(handler: Any, chosen: Any) -> HandlerFunction:
    chosen.__wrapped__ = handler  # whose arguments decide how it is called
    return cast(HandlerFunction, chosen)


def _run(once: Once, events: Sequence[Event], handler: HandlerFunction) -> list[Outcome]:
    prepared = once.prepare(handler)
    return asyncio.run(once.arun(events, prepared)) if prepared.is_async else once.run(events, prepared)


def _in_threads(acts: Sequence[Callable[[], None]]) -> None:
    """Run these at the same time, and raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
