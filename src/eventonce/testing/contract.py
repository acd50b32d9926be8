"""The contract of every store. Ours pass it unchanged, and so can yours:

    class TestMyStore(StoreContract):
        features = Features(processes=True, durable=True)

        @pytest.fixture
        def opener(self, tmp_path):
            return functools.partial(MyStore, tmp_path / "claims")    # each call opens the same data

With `processes` the opener must be picklable. No test looks inside a store or changes its clock. Leases that must last
are long, and leases that must expire are short and waited for. So no test fails because a machine is slow.
"""

import functools
import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pytest

from eventonce.claims.outcome import Action, OutcomeKind
from eventonce.claims.protocol import (
    FURTHEST_LEASE,
    LONGEST_LEASE,
    Answer,
    Busy,
    Claim,
    Done,
    Finish,
    Record,
    Release,
    Stale,
    Token,
    Want,
    Won,
)
from eventonce.engine import Once
from eventonce.errors import LeaseLost
from eventonce.event.keys import Key
from eventonce.ports import Store, Transactional
from eventonce.rules.rule import Rule
from eventonce.stores.memory import MemoryStore

LONG, SHORT = 60_000, 40  # leases and windows, in milliseconds
OVER = 0.08  # seconds after which SHORT has surely expired
VERY_LONG = 10 * LONG  # for steps that may take as long as LONG on a busy machine
WINDOWS = (160, 2000, 20_000)  # that must last for a moment and then expire: the first that is long enough is used
Opener = Callable[[], Store]


class Features(NamedTuple):
    """The optional features of a store."""

    processes: bool = False  # several processes can share the data
    durable: bool = False  # commits survive a kill of their process
    transactions: bool = False  # it has `begin`; the tests need `effect` and `effects`


def key(number: int) -> Key:
    return Key(number.to_bytes(16, "big"))


def keys(count: int) -> list[Key]:
    return [key(number) for number in range(count)]


def claim(store: Store, number: int, token: Token = b"token--1", lease: int = LONG, **want: Any) -> Answer:
    """Claim one key."""
    return store.claim([Want(key(number), want.pop("window", LONG), **want)], token, lease)[0]


def finish(store: Store, number: int, token: Token = b"token--1", window: int = LONG, **more: Any) -> bool:
    """Commit one key."""
    return store.commit([Finish(key(number), token, window, **more)])[0]


def release(store: Store, number: int, token: Token = b"token--1", error: str | None = None) -> bool:
    """Release one key."""
    return store.release([Release(key(number), token, LONG, error)])[0]


class StoreContract:
    """Every invariant of the claim protocol that one store can show."""

    features = Features()

    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError("define a fixture `opener` that returns a function which opens your store")

    @pytest.fixture
    def store(self, opener: Opener) -> Iterator[Store]:
        store = opener()
        yield store
        store.close()

    # --- one owner ---

    def test_the_first_claim_wins(self, store: Store) -> None:
        assert claim(store, 1) == Won(1)

    def test_a_second_owner_has_to_wait(self, store: Store) -> None:
        claim(store, 1)
        answer = claim(store, 1, b"token--2")
        assert isinstance(answer, Busy)
        assert 0 < answer.until - time.time() * 1000 <= LONG + 1000

    def test_a_claim_that_meets_its_own_token_is_a_success(self, store: Store) -> None:
        assert claim(store, 1) == claim(store, 1) == Won(1)
        assert finish(store, 1)

    def test_different_keys_do_not_meet(self, store: Store) -> None:
        numbers = [0, 1, 255, 256, 2**64, 2**127]
        assert [claim(store, number, bytes(8)) for number in numbers] == [Won(1)] * 6

    def test_threads_that_race_for_keys_have_one_winner_each(self, store: Store) -> None:
        winners = race(lambda token: store.claim([Want(each, LONG) for each in keys(500)], token, LONG), 16)
        assert [len(owners) for owners in winners] == [1] * 500

    def test_threads_that_race_for_an_abandoned_key_have_one_winner(self, store: Store) -> None:
        for number in range(20):
            claim(store, number, lease=SHORT)
        time.sleep(OVER)
        winners = race(lambda token: store.claim([Want(each, LONG) for each in keys(20)], token, LONG), 16)
        assert [len(owners) for owners in winners] == [1] * 20

    def test_processes_that_race_for_keys_have_one_winner_each(self, opener: Opener) -> None:
        self._need("processes")
        opener().close()
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            tokens = [f"process{number}".encode() for number in range(4)]
            answers = pool.map(functools.partial(_claim_all, opener, 500), tokens)
        assert [sum(won) for won in zip(*answers, strict=True)] == [1] * 500

    # --- lease, takeover and fencing ---

    def test_an_abandoned_claim_is_taken_over_as_the_next_attempt(self, store: Store) -> None:
        claim(store, 1, lease=SHORT)
        time.sleep(OVER)
        assert claim(store, 1, b"token--2") == Won(2, None, suspect=True)

    def test_an_abandoned_claim_among_others_does_not_count_as_an_attempt(self, store: Store) -> None:
        claim(store, 1, lease=SHORT, shared=True)
        time.sleep(OVER)
        assert claim(store, 1, b"token--2", lease=SHORT) == Won(1, None, suspect=True)
        time.sleep(OVER)
        assert claim(store, 1, b"token--3") == Won(2, None, suspect=True)

    def test_a_stale_owner_changes_nothing(self, store: Store) -> None:
        claim(store, 1, b"token--1", lease=SHORT)
        time.sleep(OVER)
        claim(store, 1, b"token--2")
        before = store.peek([key(1)])
        assert store.extend([Claim(key(1), b"token--1")], LONG) == [False]
        assert finish(store, 1, b"token--1") is False
        assert release(store, 1, b"token--1", "late") is False
        assert release(store, 1, b"token--1") is False
        assert store.peek([key(1)]) == before
        assert finish(store, 1, b"token--2")

    def test_nobody_can_end_what_was_never_claimed(self, store: Store) -> None:
        assert store.extend([Claim(key(1), b"token--1")], LONG) == [False]
        assert finish(store, 1) is False
        assert release(store, 1) is False
        assert store.peek([key(1)]) == [None]

    def test_an_extended_claim_outlives_its_first_lease(self, store: Store) -> None:
        claim(store, 1, lease=SHORT)
        assert store.extend([Claim(key(1), b"token--1")], LONG) == [True]
        time.sleep(OVER)
        assert isinstance(claim(store, 1, b"token--2"), Busy)

    def test_a_late_owner_may_commit_as_long_as_nobody_took_over(self, store: Store) -> None:
        claim(store, 1, lease=SHORT)
        time.sleep(OVER)
        assert finish(store, 1)
        assert isinstance(claim(store, 1, b"token--2"), Done)

    def test_a_lease_longer_than_any_valid_one_has_expired(self, store: Store) -> None:
        """If a clock was ahead by a year when the owner died, its key must not wait for a year."""
        claim(store, 1, lease=FURTHEST_LEASE + LONG)
        claim(store, 2, lease=LONGEST_LEASE)
        assert claim(store, 1, b"token--2") == Won(2, None, suspect=True)
        assert finish(store, 1) is False
        assert finish(store, 1, b"token--2")
        assert isinstance(claim(store, 2, b"token--2"), Busy)
        assert store.extend([Claim(key(2), b"token--1")], LONG) == [True]
        assert finish(store, 2)

    def test_a_done_key_cannot_be_extended_or_released(self, store: Store) -> None:
        claim(store, 1)
        finish(store, 1)
        assert store.extend([Claim(key(1), b"token--1")], LONG) == [False]
        assert release(store, 1, error="no") is False
        assert isinstance(claim(store, 1, b"token--2"), Done)

    def test_the_keys_of_a_killed_process_can_be_claimed_by_others(self, opener: Opener, store: Store) -> None:
        self._need("processes")
        _kill_after(functools.partial(_claim_and_hang, opener))
        assert isinstance(claim(store, 2, b"token--2"), Done)
        time.sleep(OVER)
        assert isinstance(claim(store, 1, b"token--2"), Won)

    # --- done, and for how long ---

    def test_a_done_key_is_done_for_everyone(self, store: Store) -> None:
        claim(store, 1)
        before = time.time() * 1000
        assert finish(store, 1)
        after = time.time() * 1000
        answer = claim(store, 1, b"token--2")
        assert isinstance(answer, Done)
        assert answer.record.attempts == 1
        assert before - 5000 < answer.record.done_at < after + 5000

    def test_nothing_is_done_before_its_commit(self, store: Store) -> None:
        claim(store, 1)
        (record,) = store.peek([key(1)])
        assert record is not None
        assert not record.done_at

    def test_a_repeated_commit_is_a_success(self, store: Store) -> None:
        claim(store, 1)
        assert finish(store, 1)
        assert finish(store, 1)

    def test_a_commit_after_a_release_is_fenced(self, store: Store) -> None:
        for number, error in ((1, "failed"), (2, None)):
            claim(store, number)
            release(store, number, error=error)
            assert finish(store, number) is False

    def test_the_window_ends(self, store: Store) -> None:
        claim(store, 1, window=SHORT)
        finish(store, 1, window=SHORT)
        time.sleep(OVER)
        assert store.peek([key(1)]) == [None]
        assert claim(store, 1, b"token--2") == Won(1)

    def test_a_fixed_window_is_not_moved_by_duplicates(self, store: Store) -> None:
        number, window = _duplicate_within_window(store, refresh=False)
        time.sleep(2 * window / 1000)
        assert claim(store, number, b"token--3") == Won(1)

    def test_a_sliding_window_is_restarted_by_duplicates(self, store: Store) -> None:
        number, window = _duplicate_within_window(store, refresh=True)
        time.sleep(2 * window / 1000)
        assert isinstance(claim(store, number, b"token--3"), Done)

    def test_a_memo_is_returned_unchanged(self, store: Store) -> None:
        memos = [None, b"", b"\x00\xff", "ü".encode(), bytes(range(256)) * 200]
        for number, memo in enumerate(memos):
            claim(store, number)
            finish(store, number, memo=memo)
        answers = [claim(store, number, b"token--2") for number in range(len(memos))]
        assert [answer.record.memo for answer in answers if isinstance(answer, Done)] == memos

    def test_what_was_committed_survives_a_kill(self, opener: Opener) -> None:
        self._need("durable")
        _kill_after(functools.partial(_finish_and_hang, opener))
        store = opener()
        assert isinstance(claim(store, 1, b"token--2"), Done)
        store.close()

    # --- failure ---

    def test_a_failed_attempt_is_remembered(self, store: Store) -> None:
        claim(store, 1)
        assert release(store, 1, error="Ärger: no money")
        assert claim(store, 1, b"token--2") == Won(2, "Ärger: no money")
        release(store, 1, b"token--2", "again")
        assert claim(store, 1, b"token--3") == Won(3, "again")
        finish(store, 1, b"token--3")
        answer = claim(store, 1, b"token--4")
        assert isinstance(answer, Done)
        assert answer.record.attempts == 3

    def test_a_repeated_release_is_a_success(self, store: Store) -> None:
        claim(store, 1)
        assert release(store, 1, error="failed")
        assert release(store, 1, error="failed")
        assert claim(store, 1, b"token--2") == Won(2, "failed")

    def test_a_claim_released_unused_leaves_no_record(self, store: Store) -> None:
        claim(store, 1)
        assert release(store, 1)
        assert store.peek([key(1)]) == [None]
        assert claim(store, 1, b"token--2") == Won(1)

    def test_an_unused_release_keeps_earlier_failures(self, store: Store) -> None:
        claim(store, 1)
        release(store, 1, error="failed")
        claim(store, 1, b"token--2")
        release(store, 1, b"token--2")
        assert claim(store, 1, b"token--3") == Won(2, "failed")

    # --- versions ---

    def test_versions_only_go_up(self, store: Store) -> None:
        claim(store, 1, version=5)
        finish(store, 1, version=5)
        assert claim(store, 1, b"token--2", version=4) == Stale(5)
        assert isinstance(claim(store, 1, b"token--2", version=5), Done)
        assert claim(store, 1, b"token--2", version=6) == Won(1)
        finish(store, 1, b"token--2", version=6)
        assert claim(store, 1, b"token--3", version=5) == Stale(6)

    def test_versions_may_be_large_and_negative(self, store: Store) -> None:
        for number, version in enumerate((-(2**63) + 1, -1, 2**63 - 1)):
            claim(store, 1, bytes([number] * 8), version=version)
            assert finish(store, 1, bytes([number] * 8), version=version)
        assert claim(store, 1, version=2**63 - 2) == Stale(2**63 - 1)

    def test_a_newer_version_that_fails_does_not_undo_the_older_one(self, store: Store) -> None:
        claim(store, 1, version=1)
        finish(store, 1, version=1)
        claim(store, 1, b"token--2", version=2)
        release(store, 1, b"token--2", error="failed")
        assert isinstance(claim(store, 1, b"token--3", version=1), Done)
        assert claim(store, 1, b"token--3", version=2) == Won(2, "failed")
        assert release(store, 1, b"token--3")
        assert finish(store, 1, b"token--3", version=2) is False
        assert isinstance(claim(store, 1, b"token--4", version=1), Done)

    def test_attempts_belong_to_a_version(self, store: Store) -> None:
        claim(store, 1, version=1)
        release(store, 1, error="failed")
        assert claim(store, 1, b"token--2", version=2) == Won(1)

    # --- batches ---

    def test_a_batch_is_answered_in_order(self, store: Store) -> None:
        claim(store, 1)
        finish(store, 1)
        claim(store, 2)
        claim(store, 3, version=9)
        finish(store, 3, version=9)
        wants = [Want(key(3), LONG, version=8), Want(key(4), LONG), Want(key(2), LONG), Want(key(1), LONG)]
        kinds = [type(answer) for answer in store.claim(wants, b"token--2", LONG)]
        assert kinds == [Stale, Won, Busy, Done]

    def test_a_key_that_occurs_twice_in_a_batch_has_equal_answers(self, store: Store) -> None:
        assert store.claim([Want(key(1), LONG)] * 2, b"token--1", LONG) == [Won(1), Won(1)]
        assert store.commit([Finish(key(1), b"token--1", LONG)] * 2) == [True, True]
        first, second = store.claim([Want(key(1), LONG)] * 2, b"token--2", LONG)
        assert isinstance(first, Done)
        assert first == second

    def test_a_large_batch(self, store: Store) -> None:
        all_keys = keys(3000)
        assert store.claim([Want(each, LONG) for each in all_keys], b"token--1", LONG) == [Won(1)] * 3000
        assert store.extend([Claim(each, b"token--1") for each in all_keys], LONG) == [True] * 3000
        assert store.release([Release(each, b"token--1", LONG) for each in all_keys[:1000]]) == [True] * 1000
        assert store.commit([Finish(each, b"token--1", LONG) for each in all_keys[1000:]]) == [True] * 2000
        assert [record is None for record in store.peek(all_keys)] == [True] * 1000 + [False] * 2000

    def test_an_empty_batch(self, store: Store) -> None:
        assert store.claim([], b"token--1", LONG) == []
        assert store.extend([], LONG) == []
        assert store.commit([]) == []
        assert store.release([]) == []
        assert store.peek([]) == []
        assert store.forget([]) == []

    # --- the protocol, step by step ---

    @pytest.mark.parametrize("seed", range(8))
    def test_random_histories_are_answered_as_the_protocol_says(self, store: Store, seed: int) -> None:
        model = MemoryStore()
        for step in _history(random.Random(seed), 60):
            assert (step, _timeless(step(store))) == (step, _timeless(step(model)))
            if step.waits:
                time.sleep(OVER)
            assert (step, _timeless(store.peek(keys(3)))) == (step, _timeless(model.peek(keys(3))))

    # --- by hand ---

    def test_peek_returns_the_record_and_changes_nothing(self, store: Store) -> None:
        claim(store, 1, version=7)
        finish(store, 1, version=7, memo=b"note")
        record, none = store.peek([key(1), key(2)])
        assert record is not None
        assert (record.version, record.memo, record.attempts, none) == (7, b"note", 1, None)
        assert store.peek([key(1)]) == [record]

    def test_a_forgotten_key_runs_again(self, store: Store) -> None:
        claim(store, 1)
        finish(store, 1)
        assert store.forget([key(1), key(2)]) == [True, False]
        assert claim(store, 1, b"token--2") == Won(1)

    def test_forgetting_a_running_key_fences_its_owner(self, store: Store) -> None:
        claim(store, 1)
        assert store.forget([key(1)]) == [True]
        assert finish(store, 1) is False

    def test_the_sweep_removes_expired_records_in_bounded_steps(self, store: Store) -> None:
        store.claim([Want(each, SHORT) for each in keys(50)], b"token--1", SHORT)
        store.commit([Finish(each, b"token--1", SHORT if number % 2 else LONG) for number, each in enumerate(keys(50))])
        time.sleep(OVER)
        cursor: bytes | None = b""
        for _ in range(200):
            swept = store.sweep(5, cursor or b"")
            assert 0 <= swept.removed <= 5
            cursor = swept.cursor
            if cursor is None:
                break
        assert cursor is None
        assert [record is None for record in store.peek(keys(50))] == [False, True] * 25

    # --- the engine on top: copies, failure, races ---

    def test_copies_in_one_batch_follow_the_first(self, store: Store) -> None:
        ran: list[int] = []
        once = Once(store, rules=Rule(name="r", key="content"))
        outcomes = once.run([{"n": 1}, {"n": 2}, {"n": 1}, {"n": 1}], lambda event: ran.append(event.data["n"]))
        assert [outcome.kind for outcome in outcomes] == ["processed", "processed", "duplicate", "duplicate"]
        assert ran == [1, 2]
        once.close()

    def test_copies_of_a_failed_event_are_retried_and_not_acked(self, store: Store) -> None:
        def fail(event: object) -> None:
            raise ValueError("no")

        once = Once(store, rules=Rule(name="r", key="content"))
        outcomes = once.run([{"n": 1}, {"n": 1}], fail)
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.FAILED, OutcomeKind.FAILED]
        assert [outcome.action for outcome in outcomes] == [Action.RETRY, Action.RETRY]
        assert [outcome.kind for outcome in once.run([{"n": 1}], lambda event: None)] == [OutcomeKind.PROCESSED]
        once.close()

    def test_workers_that_race_over_the_same_events_run_each_once(self, store: Store) -> None:
        ran: list[int] = []
        events = [{"id": str(number)} for number in range(50)]

        def work(token: Token) -> None:
            once = Once(store, busy_wait="30s")
            once.run(events, lambda event: ran.append(int(event.id)))
            once.close()

        race(work, 8)
        assert sorted(ran) == list(range(50))

    # --- transactions ---

    def effect(self, handle: Any, number: int) -> None:
        """Write a number through the handle of a transaction. Stores with `transactions` define this."""
        raise NotImplementedError

    def effects(self, store: Store) -> list[int]:
        """Return the numbers that were written and committed, in order."""
        raise NotImplementedError

    def test_an_effect_and_its_record_commit_together(self, store: Store) -> None:
        once = self._transactional(store)
        once.run([{"n": 1}, {"n": 2}, {"n": 1}], lambda event, ctx: self.effect(ctx.tx, event.data["n"]))
        assert self.effects(store) == [1, 2]
        once.close()

    def test_a_failing_event_rolls_back_alone(self, store: Store) -> None:
        def handle(event: Any, ctx: Any) -> None:
            self.effect(ctx.tx, event.data["n"])
            if event.data["n"] == 2:
                raise ValueError("no")

        once = self._transactional(store)
        outcomes = once.run([{"n": 1}, {"n": 2}, {"n": 3}], handle)
        assert [outcome.kind for outcome in outcomes] == [
            OutcomeKind.PROCESSED,
            OutcomeKind.FAILED,
            OutcomeKind.PROCESSED,
        ]
        assert self.effects(store) == [1, 3]
        once.close()

    def test_a_transaction_of_a_lost_claim_commits_nothing(self, opener: Opener, store: Store) -> None:
        once = self._transactional(store)

        def handle(event: Any, ctx: Any) -> None:
            store.forget([once.key(event)])
            self.effect(ctx.tx, 1)

        assert [outcome.kind for outcome in once.run([{"n": 1}], handle)] == [OutcomeKind.FAILED]
        assert self.effects(store) == []
        once.close()

    def test_a_stale_owner_commits_no_transaction(self, store: Store) -> None:
        self._need("transactions")
        assert isinstance(store, Transactional)
        claim(store, 1, lease=SHORT)
        time.sleep(OVER)
        claim(store, 1, b"token--2")
        try:
            transaction = store.begin(Claim(key(1), b"token--1"))
            self.effect(transaction.handle, 1)
            assert transaction.commit(Finish(key(1), b"token--1", LONG)) is False
        except LeaseLost:  # a store may notice it in `begin`
            pass
        assert self.effects(store) == []
        assert finish(store, 1, b"token--2")

    def _transactional(self, store: Store) -> Once:
        self._need("transactions")
        assert isinstance(store, Transactional)
        return Once(store, rules=Rule(name="r", key="content"))

    def _need(self, feature: str) -> None:
        if not getattr(self.features, feature):
            pytest.skip(f"by design: the features of this store do not name {feature!r}")


def _duplicate_within_window(store: Store, *, refresh: bool) -> tuple[int, int]:
    """Claim a done key before its window expires. Return the number of the key and its window."""
    for number, window in enumerate(WINDOWS):
        claim(store, number)
        started_at = time.monotonic()
        finish(store, number, window=window)
        answer = claim(store, number, b"token--2", window=LONG, refresh=refresh)
        if time.monotonic() - started_at < window / 1000:  # else the machine may have been too slow
            break
    assert isinstance(answer, Done)
    return number, window


# --- histories ---


class VerbCall(NamedTuple):
    """One call of a verb with a batch, to be made on any store."""

    verb: str
    batch: Sequence[Any]
    more: Sequence[Any]
    waits: bool  # until SHORT has expired

    def __call__(self, store: Store) -> Any:
        return getattr(store, self.verb)(self.batch, *self.more)


def _history(rng: random.Random, steps: int) -> Iterator[VerbCall]:
    """Yield calls with few keys, tokens and versions, so that they meet in every way."""
    for _ in range(steps):
        some = rng.sample(keys(3), rng.randint(1, 3))
        token = b"token--%d" % rng.randint(1, 2)
        window, lease = (rng.choice([SHORT, VERY_LONG, VERY_LONG, VERY_LONG]) for _ in range(2))
        version = rng.choice([None, 1, 2, 3])
        error = rng.choice([None, "no", "nö"])
        refresh, shared = rng.random() < 0.2, rng.random() < 0.3
        claim = [Want(each, window, version, refresh, shared) for each in some]
        finish = [Finish(each, token, window, version, rng.choice([None, b"", b"memo"])) for each in some]
        yield rng.choice(
            [
                VerbCall("claim", claim, (token, lease), waits=lease == SHORT or (refresh and window == SHORT)),
                VerbCall("claim", claim, (token, VERY_LONG), waits=refresh and window == SHORT),
                VerbCall("commit", finish, (), waits=window == SHORT),
                VerbCall("release", [Release(each, token, window, error) for each in some], (), waits=False),
                VerbCall("extend", [Claim(each, token) for each in some], (lease,), waits=lease == SHORT),
                VerbCall("forget", some[:1], (), waits=False),
            ]
        )


def _timeless(answers: Sequence[Any]) -> list[Any]:
    """Return answers and records without their times."""
    return [_without_times(answer) for answer in answers]


def _without_times(answer: Any) -> Any:
    if isinstance(answer, Busy):
        return "busy"
    if isinstance(answer, Done):
        return "done", _without_times(answer.record)
    if isinstance(answer, Record):
        return answer._replace(lease=answer.lease > 0, done_at=answer.done_at > 0, until=answer.until > 0, expires=0)
    return answer


# --- racing and dying ---


def race(operation: Callable[[Token], Any], threads: int) -> list[list[Token]]:
    """Call a function in several threads at once. Return the tokens that won each key."""
    barrier = threading.Barrier(threads)
    answers: dict[Token, Sequence[Answer]] = {}
    errors: list[BaseException] = []

    def run(token: Token) -> None:
        barrier.wait()
        try:
            answers[token] = operation(token) or ()
        except BaseException as error:
            errors.append(error)

    tokens = [number.to_bytes(8, "big") for number in range(1, threads + 1)]
    running = [threading.Thread(target=run, args=(token,)) for token in tokens]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not errors, errors
    columns = itertools.zip_longest(*(answers[token] for token in tokens))
    return [
        [token for token, answer in zip(tokens, column, strict=True) if isinstance(answer, Won)] for column in columns
    ]


def _claim_all(opener: Opener, count: int, token: Token) -> list[bool]:
    """Claim all keys one by one, in a separate process."""
    store = opener()
    won = [isinstance(store.claim([Want(each, LONG)], token, VERY_LONG)[0], Won) for each in keys(count)]
    store.close()
    return won


def _claim_and_hang(opener: Opener, ready: Connection) -> None:
    store = opener()
    claim(store, 2)
    finish(store, 2)
    claim(store, 1, lease=SHORT)
    _hang(ready)


def _finish_and_hang(opener: Opener, ready: Connection) -> None:
    store = opener()
    claim(store, 1)
    finish(store, 1)
    _hang(ready)


def _hang(ready: Connection) -> None:
    ready.send("ready")
    time.sleep(600)


def _kill_after(work: Callable[[Connection], None]) -> None:
    """Run a function in a separate process, and kill it with SIGKILL when it reports that it is ready."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=work, args=(sender,))
    process.start()
    assert receiver.poll(120), "the process did not get ready"
    receiver.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
