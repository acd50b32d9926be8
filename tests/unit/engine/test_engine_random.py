"""Random histories: no batch runs anything behind a failed one of its group, and a plain call equals the steps."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from eventonce import Event, EventRejected, Once, Outcome, OutcomeKind, Rule, StoreError
from eventonce.claims.outcome import Action
from eventonce.claims.protocol import Answer, ClaimRequest, Commit, Record, Release, Token
from eventonce.errors import SinkDown, StoreBusy, StorePartly, StoreUnusable
from eventonce.event import Delivery
from eventonce.event.keys import Key
from eventonce.rules.rule import OnStoreError, Remember
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock

BATCHES, MORE_BATCHES = range(600), range(600, 1500)
HISTORIES, MORE_HISTORIES = range(900), range(900, 2500)
LONG = 10**9  # milliseconds of a window
ANOTHER = b"another!"  # a worker's token
_GROUPS: tuple[tuple[str | None, ...], ...] = (("g",), ("g", "h"), ("g", None))
_REMEMBER: tuple[Remember, ...] = ("seen", "seen", "note", "result")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Fault(NamedTuple):
    """A fault of a store call: before it, after it, or in place of some of its answers."""

    when: str
    error: BaseException


class FaultyStore(MemoryStore):
    """A store whose next calls of a verb fail as planned."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.plan: dict[str, list[Fault | None]] = {}
        self.calls: list[str] = []

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        return self._call("claim", lambda: super(FaultyStore, self).claim(wants, token, lease))

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return self._call("commit", lambda: super(FaultyStore, self).commit(finishes))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._call("release", lambda: super(FaultyStore, self).release(releases))

    def _call(self, verb: str, call: Callable[[], list[Any]]) -> list[Any]:
        self.calls.append(verb)
        assert len(self.calls) < 1000, "the batch has no end"
        fault = self.plan[verb].pop(0) if self.plan.get(verb) else None
        if fault is None:
            return call()
        if fault.when == "partly":
            raise StorePartly("x", [None if index % 2 else answer for index, answer in enumerate(call())])
        if fault.when == "after":
            call()
        raise fault.error


# --- nothing runs behind the first of its group that did not end well ---


class Sink:
    def __init__(self, handle: Callable[[Event], object]) -> None:
        self._handle = handle

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> list[Exception | None]:
        return [self._error(event) for event in events]

    def close(self) -> None: ...

    def _error(self, event: Event) -> Exception | None:
        try:
            self._handle(event)
        except Exception as error:
            return error
        return None


class RandomBatch:
    """Up to nine events with groups, copies, versions, replaced rules, message ids, and keys that others have had."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self._rng = rng = random.Random(seed)
        self._clock = ManualClock()
        self._store = FaultyStore(self._clock)
        self._keys = "abcd"[: rng.randint(1, 4)]
        self._once = self._open(faults=faults)
        groups = _GROUPS[rng.randrange(3)]
        self.deliveries = [self._delivery(number, rng.choice(groups)) for number in range(rng.randint(2, 9))]
        self._bad = {number for number in range(len(self.deliveries)) if rng.random() < 0.25}
        self.ran: list[int] = []
        for key in self._keys:
            self._remember(key)
        self._clock.sleep(50)
        if faults:
            self._store.plan = {verb: self._faults() for verb in ("claim", "commit", "release") if rng.random() < 0.3}

    def run(self) -> list[Outcome]:
        handler = self._handle if self._rng.random() < 0.7 else Sink(self._handle)
        with self._once:
            return self._once.run(self.deliveries, handler)

    def _open(self, *, faults: bool) -> Once:
        rng = self._rng
        rule = Rule(
            name="r",
            key=["detail.k"],
            version="detail.v" if rng.random() < 0.4 else None,
            remember=_REMEMBER[rng.randrange(4)],
            replaces={"name": "old", "key": ["detail.w"]} if rng.random() < 0.25 else None,
            on_store_error="process" if faults and rng.random() < 0.3 else "retry",
        )
        wait = rng.choice(["0s", "0s", "300ms"])
        return Once(self._store, clock=self._clock, rules=rule, max_attempts=rng.choice([1, 2, 5]), busy_wait=wait)

    def _delivery(self, number: int, group: str | None) -> Delivery:
        rng = self._rng
        body = _body(rng.choice(self._keys), rng.randint(1, 3), rng.choice(self._keys), number)
        message_id = rng.choice([None, None, None, "m1", "m2"])
        return Delivery(body if rng.random() > 0.05 else b"{", group=group, message_id=message_id)

    def _remember(self, key: str) -> None:
        """Do with a key what an earlier worker may have done with it."""
        before = self._rng.choice(
            ["new"] * 5 + ["done", "passed on", "busy", "busy a while", "died", "died", "died alone"]
        )
        body = _body(key, 1, key, 0)
        if before in ("done", "passed on"):
            self._once.run([Delivery(body, message_id="m1" if before == "passed on" else None)], lambda event: 0)
        elif before != "new":
            lease = {"busy": 100_000, "busy a while": 100}.get(before, 1)
            self._store.claim([ClaimRequest(self._once.key(body), LONG, 1, shared=before == "died")], ANOTHER, lease)

    def _faults(self) -> list[Fault | None]:
        error = StoreError("x")
        kinds = [Fault("before", error), Fault("after", error), Fault("partly", error), Fault("before", StoreBusy("x"))]
        return [self._rng.choice([None, *kinds]) for _ in range(self._rng.choice([1, 2, 6]))]

    def _handle(self, event: Event) -> int:
        number: int = event.data["i"]
        self.ran.append(number)
        if number in self._bad:
            raise self._rng.choice([ValueError("no"), EventRejected("no"), StoreError("no")])
        return number


def _body(key: str, version: int, old_key: str, number: int) -> bytes:
    detail = f'{{"k":"{key}","v":{version},"w":"{old_key}","i":{number}}}'
    return f'{{"source":"s","detail-type":"t","detail":{detail}}}'.encode()


@pytest.mark.parametrize("seeds", [BATCHES, pytest.param(MORE_BATCHES, marks=pytest.mark.long)])
@pytest.mark.parametrize("faults", [False, True])
def test_nothing_runs_behind_one_of_its_group_that_did_not_end_well(faults: bool, seeds: range) -> None:
    for seed in seeds:
        batch = RandomBatch(seed, faults=faults)
        outcomes = batch.run()
        for group in ("g", "h"):
            members = [position for position, delivery in enumerate(batch.deliveries) if delivery.group == group]
            ran = [number for number in batch.ran if number in members]
            assert ran == sorted(ran), f"seed {seed}: out of order"
            stopped = [position for position in members if outcomes[position].action is not Action.ACK]
            # Commits go out together, so what the store did not record was not known when the next one ran.
            first = next((each for each in stopped if not _unrecorded(outcomes[each], each in ran)), None)
            assert first is None or not [number for number in ran if number > first], f"seed {seed}: ran behind {first}"


def _unrecorded(outcome: Outcome, ran: bool) -> bool:
    return ran and outcome.kind is OutcomeKind.UNKNOWN and str(outcome.error) == "x"


# --- a plain call ends as the steps do ---


async def _coroutine() -> None: ...


def _raising(error: BaseException) -> Callable[[], object]:
    def handle() -> object:
        raise error

    return handle


class History(NamedTuple):
    """What one call showed to its caller, its store and its handler."""

    end: str
    record: Record | None
    calls: Sequence[str]
    runs: int
    time: int


def history(seed: int, kind: str, *, plainly: bool) -> History:
    rng = random.Random(seed)
    clock = ManualClock()
    store = FaultyStore(clock)
    ends = rng.choice(
        [
            *[lambda: None, lambda: 5, lambda: clock.sleep(100_000), _coroutine, lambda: [_coroutine()]],
            *map(_raising, (ValueError("no"), EventRejected("no"), StoreError("no"), SinkDown("no"))),
            *map(_raising, (KeyboardInterrupt(), GeneratorExit(), SystemExit())),
        ]
    )
    runs = 0

    def run() -> object:
        nonlocal runs
        runs += 1
        return ends()

    on_store_error: OnStoreError = rng.choice(["retry", "retry", "process"])
    rule = Rule(
        name="r",
        key="content",
        on_store_error=on_store_error,
        refresh=rng.random() < 0.3,
        max_age="1h" if rng.random() < 0.1 else None,
    )
    settings: dict[str, Any] = {"lease": rng.choice(["60s", "1s"]), "busy_wait": rng.choice(["0s", "0s", "300ms"])}
    settings |= {"on_store_error": on_store_error}
    event = rng.choice(
        [{"id": "a"}, {"id": "a"}, b"[]", _body("a", 1, "a", 1), {"id": "a", "time": "2020-01-01T00:00:00Z"}]
    )
    with Once(store, clock=clock, rules=rule, max_attempts=rng.choice([1, 2, 5]), **settings) as once:
        runs_now = [run]
        take = _takes(once, kind, lambda: runs_now[0]())  # noqa: PLW0108  # which changes meanwhile
        before = rng.choice([*["new"] * 3, "done", "busy", "failed", "died", "died alone"])
        key = _remember(
            _running(take, runs_now, lambda: None), _running(take, runs_now, lambda: 1 / 0), store, clock, event, before
        )
        store.calls.clear()
        for verb in ("claim", "commit", "release"):
            if rng.random() < 0.35:
                store.plan[verb] = [_fault(rng) for _ in range(rng.choice([1, 1, 2, 6]))]
        end = _end(lambda: take.plainly(event) if plainly else _value(take.by_steps(event)))
        record = None if key is None else once.peek([key])[0]
    return History(end, record and record._replace(token=b""), store.calls, runs, clock.steady())


class Take(NamedTuple):
    """One function of a kind: how it is run plainly, by the steps, and what its key is."""

    plainly: Callable[[Any], object]
    by_steps: Callable[[Any], Outcome]
    key: Callable[[Any], Key]


def _running(take: Take, runs_now: list[Callable[[], object]], run: Callable[[], object]) -> Take:
    """The same function while it runs something else."""

    def use(how: Callable[[Any], Any], item: Any) -> Any:
        usual, runs_now[0] = runs_now[0], run
        try:
            return how(item)
        finally:
            runs_now[0] = usual

    return Take(partial(use, take.plainly), partial(use, take.by_steps), take.key)


def _takes(once: Once, kind: str, run: Callable[[], object]) -> Take:
    if kind == "call":
        call: Any = once(key="content", name="f")(lambda event: run())
        return Take(call, lambda event: call.map([call.bind(event)])[0], call.key)
    handle: Any = (lambda event: run()) if kind == "handler" else lambda event, ctx: (ctx.check(), run())[1]
    return Take(once(handle), lambda event: once.run([event], handle)[0], once.key)


def _remember(
    returns: Take, fails: Take, store: FaultyStore, clock: ManualClock, event: object, before: str
) -> Key | None:
    try:
        key = returns.key(event)
    except EventRejected:
        return None
    if before == "done":
        returns.by_steps(event)
    elif before == "failed":
        fails.by_steps(event)
    elif before != "new":
        store.claim([ClaimRequest(key, LONG, shared=before == "died")], ANOTHER, 100_000 if before == "busy" else 1000)
        clock.sleep(2000)
    return key


def _fault(rng: random.Random) -> Fault:
    errors = (StoreError("x"), StoreBusy("x"), StoreUnusable("x"), KeyboardInterrupt("x"), GeneratorExit("x"))
    return Fault(rng.choice(["before", "after"]), rng.choice(errors))


def _value(outcome: Outcome) -> object:
    if outcome.error is not None and outcome.kind is not OutcomeKind.PROCESSED:
        raise outcome.error
    return outcome.result


def _end(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()!r}"
    except BaseException as error:
        return f"raised {type(error).__name__}: {error}"


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("seeds", [HISTORIES, pytest.param(MORE_HISTORIES, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["handler", "with context", "call"])
def test_a_plain_call_ends_as_the_steps_do(kind: str, seeds: range) -> None:
    for seed in seeds:
        assert history(seed, kind, plainly=True) == history(seed, kind, plainly=False), f"seed {seed}"
