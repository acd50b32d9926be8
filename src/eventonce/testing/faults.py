"""Faults that every store with a server must survive. Ours pass these tests, and so can yours:

class TestMyStoreUnderFaults(StoreFaults):
    @pytest.fixture
    def server(self, my_server): ...     # with `port`, `restart`, `freeze` and `thaw`

    @pytest.fixture
    def opener(self, server): ...        # opener(port, clock, timeout) opens the store at that port. It waits
                                         # for answers for a `timeout` of "1s" or "60s"
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import Busy, Claim, ClaimRequest, Commit, Done, Release, Token, Won
from eventonce.clock import Clock, SystemClock
from eventonce.engine import Once
from eventonce.event import Event
from eventonce.ports import Store
from eventonce.testing.clock import ManualClock
from eventonce.testing.contract import LONG, OVER, SHORT, claim, finish, keys
from eventonce.testing.proxy import FaultProxy, free_port

SKEW = 30_000
LEASE = 20_000  # shorter than the skew
MANY = pytest.mark.parametrize("many", [1, 60])
OFTEN = pytest.mark.parametrize("often", [1, 4])


class FaultyServer(Protocol):
    """A server that the tests can restart and freeze."""

    port: int

    def restart(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


class Skewed(SystemClock):
    """A system clock that is wrong by some milliseconds."""

    def __init__(self, skew: int) -> None:
        self._skew = skew

    def utc(self) -> int:
        return super().utc() + self._skew


class Patient(SystemClock):
    """A clock on which only pauses take time, so that calls are retried equally often on every machine."""

    def __init__(self) -> None:
        self._slept = 0

    def steady(self) -> int:
        return self._slept

    def sleep(self, duration: int) -> None:
        super().sleep(duration)
        self._slept += duration


StoreAt = Callable[[int, Clock, str], Store]


class StoreFaults:
    """Lost answers, restarts, slow and dead servers, and different clocks. Nothing is lost, and nothing runs twice."""

    @pytest.fixture
    def server(self) -> FaultyServer:
        raise NotImplementedError("define a fixture `server`")

    @pytest.fixture
    def opener(self) -> StoreAt:
        raise NotImplementedError("define a fixture `opener`")

    @pytest.fixture
    def proxy(self, server: FaultyServer) -> Iterator[FaultProxy]:
        with FaultProxy(server.port) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, opener: StoreAt, proxy: FaultProxy) -> Iterator[Store]:
        """A store that waits a minute for answers, so that no answer is too late unless its connection is cut."""
        store = opener(proxy.port, Patient(), "60s")
        store.peek(keys(1))  # connects
        yield store
        store.close()

    @pytest.fixture
    def hasty(self, opener: StoreAt, proxy: FaultProxy) -> Iterator[Store]:
        """A store that waits a second for answers, from a server that does not answer."""
        store = opener(proxy.port, SystemClock(), "1s")
        store.peek(keys(1))
        yield store
        store.close()

    # --- the answer is lost after the write: of one key and of many, once and more often than a driver retries ---

    @MANY
    @OFTEN
    def test_a_claim_whose_answer_is_lost_is_ours(self, store: Store, proxy: FaultProxy, many: int, often: int) -> None:
        proxy.cut_answers(often)
        assert _claim_all(store, many) == [Won(1)] * many
        assert proxy.cut == often
        assert _hold(store, many, b"token--1")

    @MANY
    @OFTEN
    def test_a_takeover_whose_answer_is_lost_is_ours(
        self, store: Store, proxy: FaultProxy, many: int, often: int
    ) -> None:
        _claim_all(store, many, lease=SHORT)
        time.sleep(OVER)
        proxy.cut_answers(often)
        answers = _claim_all(store, many, b"token--2")
        assert [answer.attempt for answer in answers] == [2] * many
        assert proxy.cut == often
        assert _hold(store, many, b"token--2")
        assert not _hold(store, many, b"token--1")

    @MANY
    @OFTEN
    def test_a_duplicate_whose_answer_is_lost_is_answered_again(
        self, store: Store, proxy: FaultProxy, many: int, often: int
    ) -> None:
        _claim_all(store, many)
        store.commit(_finishes(many))
        proxy.cut_answers(often)
        wants = [ClaimRequest(each, LONG, refresh=True) for each in keys(many)]
        assert [type(answer) for answer in store.claim(wants, b"token--2", LONG)] == [Done] * many
        assert proxy.cut == often

    @MANY
    @OFTEN
    def test_a_commit_whose_answer_is_lost_is_done(
        self, store: Store, proxy: FaultProxy, many: int, often: int
    ) -> None:
        _claim_all(store, many)
        proxy.cut_answers(often)
        assert store.commit(_finishes(many)) == [True] * many
        assert proxy.cut == often
        assert [type(answer) for answer in _claim_all(store, many, b"token--2")] == [Done] * many

    @MANY
    def test_an_extension_whose_answer_is_lost_is_made(self, store: Store, proxy: FaultProxy, many: int) -> None:
        _claim_all(store, many, lease=LONG)
        proxy.cut_answers()
        assert _hold(store, many, b"token--1")
        assert proxy.cut == 1

    @MANY
    @OFTEN
    def test_a_failure_whose_answer_is_lost_counts_once(
        self, store: Store, proxy: FaultProxy, many: int, often: int
    ) -> None:
        _claim_all(store, many)
        proxy.cut_answers(often)
        assert store.release(_releases(many, "failed")) == [True] * many
        assert proxy.cut == often
        assert _claim_all(store, many, b"token--2") == [Won(2, "failed")] * many

    @MANY
    @OFTEN
    def test_an_unused_release_whose_answer_is_lost_leaves_no_record(
        self, store: Store, proxy: FaultProxy, many: int, often: int
    ) -> None:
        _claim_all(store, many)
        proxy.cut_answers(often)
        store.release(_releases(many, None))
        assert proxy.cut == often
        assert store.peek(keys(many)) == [None] * many

    @MANY
    @OFTEN
    def test_peek_and_forget_survive_lost_answers(self, store: Store, proxy: FaultProxy, many: int, often: int) -> None:
        _claim_all(store, many)
        proxy.cut_answers(often)
        assert None not in store.peek(keys(many))
        assert proxy.cut == often
        proxy.cut_answers(often)
        store.forget(keys(many))
        assert proxy.cut == 2 * often
        assert store.peek(keys(many)) == [None] * many

    def test_a_claim_taken_over_while_our_answers_are_lost_belongs_to_the_other(
        self, opener: StoreAt, store: Store, proxy: FaultProxy, server: FaultyServer
    ) -> None:
        """The first call has claimed. Its lease expires before the retry, and another worker claims first."""
        other = opener(server.port, SystemClock(), "60s")
        _claim_all(store, 3, lease=SHORT)
        time.sleep(OVER)
        assert [answer.attempt for answer in _claim_all(other, 3, b"token--2")] == [2] * 3
        proxy.cut_answers()
        assert store.commit(_finishes(3)) == [False] * 3
        proxy.cut_answers()
        assert store.release(_releases(3, "late")) == [False] * 3
        proxy.cut_answers()
        assert store.extend([Claim(each, b"token--1") for each in keys(3)], LONG) == [False] * 3
        proxy.cut_answers()
        assert [type(answer) for answer in _claim_all(store, 3, b"token--3")] == [Busy] * 3
        assert proxy.cut == 4
        assert _hold(other, 3, b"token--2")
        other.close()

    def test_cut_connections_are_opened_again(self, store: Store, proxy: FaultProxy) -> None:
        claim(store, 1)
        proxy.cut_all()
        assert finish(store, 1)
        proxy.cut_all()
        assert isinstance(claim(store, 1, b"token--2"), Done)

    # --- restarts ---

    def test_a_server_that_restarts_in_mid_batch_costs_nothing(self, store: Store, server: FaultyServer) -> None:
        ran: list[str] = []

        def handle(event: Event) -> None:
            ran.append(event.id)
            if len(ran) == 50:
                server.restart()

        outcomes = _run(store, 200, handle)
        assert {outcome.kind for outcome in outcomes} == {OutcomeKind.PROCESSED}
        assert sorted(ran) == sorted(_ids(200))
        assert {outcome.kind for outcome in _run(store, 200, handle)} == {OutcomeKind.DUPLICATE}

    def test_a_server_that_restarts_under_load_costs_nothing(self, store: Store, server: FaultyServer) -> None:
        ran: list[str] = []
        kinds: list[OutcomeKind] = []

        def work() -> None:
            with Once(store, lease="60s") as once:
                for start in range(0, 400, 20):
                    events = [{"id": each} for each in _ids(400)[start : start + 20]]
                    kinds.extend(outcome.kind for outcome in once.run(events, lambda event: ran.append(event.id)))
                    time.sleep(0.02)

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(3):
            time.sleep(0.1)
            server.restart()
        worker.join()
        assert set(kinds) == {OutcomeKind.PROCESSED}
        assert sorted(ran) == sorted(_ids(400))

    # --- a server that does not answer ---

    # A late write of such a server may hold the keys for the rest of a lease, so the tests wait for that.

    def test_a_server_slower_than_the_lease_loses_nothing(self, hasty: Store, proxy: FaultProxy) -> None:
        ran: list[str] = []
        proxy.delay = 500
        outcomes = _run(hasty, 3, lambda event: ran.append(event.id), lease="0.2s")
        assert ran == []  # the leases expired before the answers arrived
        assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.FAILED, OutcomeKind.UNKNOWN}
        proxy.delay = 0
        assert {outcome.kind for outcome in _run(hasty, 3, lambda event: ran.append(event.id))} == {
            OutcomeKind.PROCESSED
        }
        assert sorted(ran) == _ids(3)

    def test_a_server_that_slows_down_while_we_work_loses_nothing(self, hasty: Store, proxy: FaultProxy) -> None:
        ran: list[str] = []
        clock = ManualClock()  # on which the handler starts in time and runs for most of the lease

        def handle(event: Event) -> None:
            ran.append(event.id)
            proxy.delay = 600
            clock.sleep(900)
            time.sleep(1.2)  # longer than the lease, whose extension is answered late

        (first,) = _run(hasty, 1, handle, lease="1s", clock=clock)
        proxy.delay = 0
        assert len(ran) == 1
        (second,) = _run(hasty, 1, handle)
        if (
            first.kind is OutcomeKind.PROCESSED or len(ran) == 1
        ):  # a commit may have been made although its answer was lost
            assert (second.kind, len(ran)) == (OutcomeKind.DUPLICATE, 1)
        else:
            assert (second.kind, len(ran)) == (OutcomeKind.PROCESSED, 2)

    def test_a_server_that_hangs_is_unknown_and_loses_nothing(self, hasty: Store, server: FaultyServer) -> None:
        ran: list[str] = []
        server.freeze()
        try:
            outcomes = _run(hasty, 3, lambda event: ran.append(event.id), lease="0.5s")
        finally:
            server.thaw()
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNKNOWN] * 3
        assert ran == []
        assert {outcome.kind for outcome in _run(hasty, 3, lambda event: ran.append(event.id))} == {
            OutcomeKind.PROCESSED
        }

    def test_a_missing_server_is_unknown(self, opener: StoreAt) -> None:
        ran: list[str] = []
        store = opener(free_port(), SystemClock(), "1s")
        outcomes = _run(store, 3, lambda event: ran.append(event.id), lease="0.5s")
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNKNOWN] * 3
        assert "127.0.0.1" in str(outcomes[0].error)
        assert ran == []
        store.close()

    # --- clocks ---

    def test_a_worker_whose_clock_is_wrong_takes_nothing_over(self, opener: StoreAt, server: FaultyServer) -> None:
        ahead, behind, right = (opener(server.port, Skewed(skew), "60s") for skew in (SKEW, -SKEW, 0))
        for number, (owner, others) in enumerate(
            [(right, (ahead, behind)), (ahead, (right, behind)), (behind, (right, ahead))]
        ):
            assert claim(owner, number, lease=LEASE) == Won(1)
            for other in others:
                assert isinstance(claim(other, number, b"token--2", lease=LEASE), Busy)
            assert finish(owner, number, window=LEASE)
            for other in others:
                assert isinstance(claim(other, number, b"token--2", lease=LEASE), Done)
        for store in (ahead, behind, right):
            store.close()

    @pytest.mark.parametrize("skew", [-365 * 86_400_000, -SKEW, 0, SKEW])
    def test_a_worker_whose_clock_is_wrong_waits_no_longer_for_another(
        self, opener: StoreAt, server: FaultyServer, skew: int
    ) -> None:
        """It compares the end of the lease with its own clock, so with one an hour behind it waits no hour more."""
        clock = Skewed(skew)
        right, wrong = opener(server.port, SystemClock(), "60s"), opener(server.port, clock, "60s")
        assert claim(right, 1, lease=LEASE) == Won(1)
        answer = claim(wrong, 1, b"token--2")
        assert isinstance(answer, Busy)
        assert 0 < answer.until - clock.utc() <= LEASE + 5000
        for store in (right, wrong):
            store.close()


def _ids(count: int) -> list[str]:
    return [f"e{number:04}" for number in range(count)]


def _claim_all(store: Store, count: int, token: Token = b"token--1", lease: int = LONG) -> list[Any]:
    return store.claim([ClaimRequest(key, LONG) for key in keys(count)], token, lease)


def _hold(store: Store, count: int, token: Token) -> bool:
    return store.extend([Claim(key, token) for key in keys(count)], LONG) == [True] * count


def _finishes(count: int) -> list[Commit]:
    return [Commit(key, b"token--1", LONG) for key in keys(count)]


def _releases(count: int, error: str | None) -> list[Release]:
    return [Release(key, b"token--1", LONG, error) for key in keys(count)]


def _run(
    store: Store, count: int, handle: Callable[[Event], Any], lease: str = "60s", clock: Clock | None = None
) -> list[Outcome]:
    with Once(store, lease=lease, busy_wait="60s", clock=clock) as once:
        outcomes: list[Outcome] = once.run([{"id": each} for each in _ids(count)], handle)
        return outcomes
