"""Mutants: the product with one bug each, planted on purpose. A simulation that does not find them proves nothing.

Each is a bug that a system in use has, or that one changed line of ours would make.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec import structs

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import (
    Answer,
    Busy,
    Claim,
    ClaimRequest,
    Commit,
    Done,
    Record,
    Release,
    Stale,
    Token,
    Won,
)
from eventonce.engine import Once, endings
from eventonce.engine.handler import Handler
from eventonce.engine.jobs import Chain, Effect, Ended, Job
from eventonce.engine.keeper import OpenClaims
from eventonce.engine.order import Order
from eventonce.engine.results import Results
from eventonce.engine.steps import Batch
from eventonce.errors import StoreError
from eventonce.event import Delivery
from eventonce.event.keys import Key
from eventonce.ports import Swept
from eventonce.stores.memory import MemoryStore
from eventonce.worker import Worker
from lab.scheduler import NEVER, World
from lab.simulation import LEASE, Setup, StoreClock, TaskKeeper
from lab.store import TransactionalMemory


class _NoTokenCheck(MemoryStore):
    """Commit and extend act for whoever asks, as a plain UPDATE does."""

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return super().commit([each._replace(token=self._owner(each.key, each.token)) for each in finishes])

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return super().extend([each._replace(token=self._owner(each.key, each.token)) for each in claims], lease)

    def _owner(self, key: Key, default: Token) -> Token:
        record = self._records.get(key)
        return record.token if record else default


class _ReleaseWithoutToken(_NoTokenCheck):
    """A release deletes any record, as a plain DELETE does."""

    commit = MemoryStore.commit
    extend = MemoryStore.extend

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return super().release([each._replace(token=self._owner(each.key, each.token)) for each in releases])


class _MarkBeforeEffect(MemoryStore):
    """Seen is seen: the claim marks the key as done, as SET NX before the work does."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        won = [want for want, answer in zip(wants, answers, strict=True) if isinstance(answer, Won)]
        super().commit([Commit(want.key, token, want.window) for want in won])
        return answers


class _ReadThenWrite(MemoryStore):
    """The claim looks first and writes later, as get and put do."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=StoreClock(world))
        self._world = world

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        records = {want.key: self._records.get(want.key) for want in wants}
        self._world.point()
        for key, record in records.items():
            self._put_back(key, record)
        return super().claim(wants, token, lease)

    def _put_back(self, key: Key, record: Record | None) -> None:
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record


class _WorkersClock(StoreClock):
    """The end of a lease is decided by the clock of the worker that claims."""

    def utc(self) -> int:
        return super().utc() + self._world.process.skew


class _BusyIsDone(MemoryStore):
    """A key that another worker runs is answered as done."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        pairs = zip(wants, answers, strict=True)
        return [Done(self._records[want.key]) if isinstance(answer, Busy) else answer for want, answer in pairs]


class _LeaseNeverEnds(MemoryStore):
    """A claim without a lease: a worker that dies blocks the key for the whole window."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        return super().claim(wants, token, 1000 * lease)


class _Credulous(Worker):
    """Takes an outcome of one kind for a duplicate."""

    kind: OutcomeKind

    def _outcomes(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        outcomes = super()._outcomes(deliveries)
        return [
            structs.replace(each, kind=OutcomeKind.DUPLICATE) if each.kind is self.kind else each for each in outcomes
        ]


class _AcksBusy(_Credulous):
    """A copy of what runs elsewhere is acked, as if it were done."""

    kind = OutcomeKind.BUSY


class _DropsUnknown(_Credulous):
    """An event for which the store does not answer is acked."""

    kind = OutcomeKind.UNKNOWN


class _AcksFailed(_Credulous):
    """A failed event is acked, because its handler was called."""

    kind = OutcomeKind.FAILED


class _AcksFirst(Worker):
    """A message is acked as soon as it is received."""

    def work(self, received: Sequence[Delivery]) -> list[Outcome]:
        self._source.ack(received)
        return super().work(received)


class _HeartbeatWithoutToken(_NoTokenCheck):
    """Any worker that sends a heartbeat has the lease."""

    commit = MemoryStore.commit


class _TransactionWithoutToken(_NoTokenCheck, TransactionalMemory):
    """Effects are written for any worker, as in a transaction that does not look at the claim."""


class _SweepsAll(MemoryStore):
    """A sweep that does not look at the time."""

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        self._records.clear()
        return Swept(0, None)


class _Windows(MemoryStore):
    """A window of another length."""

    factor: float

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return super().commit([each._replace(window=int(each.window * self.factor)) for each in finishes])


class _WindowNeverEnds(_Windows):
    factor = 100


class _WindowEndsEarly(_Windows):
    factor = 0.1


class _Claims(MemoryStore):
    """A claim with another request than it should send."""

    change: ClassVar[dict[str, Any]]

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        return super().claim([want._replace(**self.change) for want in wants], token, lease)


class _BlamesTheBatch(_Claims):
    """An owner that died with several claims counts against each of them."""

    change: ClassVar = {"shared": False}


class _NoVersions(_Claims):
    """A newer version of a key that is done is a duplicate."""

    change: ClassVar = {"version": None}


class _OldVersionsRun(MemoryStore):
    """An older version than the one done runs, and becomes the one done."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        stale = {want.key for want, answer in zip(wants, answers, strict=True) if isinstance(answer, Stale)}
        for key in stale:
            del self._records[key]
        return super().claim(wants, token, lease) if stale else answers


class _BusyIsAnAttempt(MemoryStore):
    """A copy that has to wait uses up an attempt."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        for want, answer in zip(wants, answers, strict=True):
            if isinstance(answer, Busy):
                record = self._records[want.key]
                self._records[want.key] = record._replace(tries=record.tries + 1)
        return answers


class _OwnClaimIsBusy(MemoryStore):
    """A claim that is repeated meets its own token, and takes it for another's."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        own = {want.key for want in wants if want.key in self._records and self._records[want.key].token == token}
        answers = zip(wants, super().claim(wants, token, lease), strict=True)
        return [Busy(self._records[want.key].lease) if want.key in own else answer for want, answer in answers]


class _CommitOnlyOnce(MemoryStore):
    """A repeated commit is fenced."""

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        done = {each.key for each in finishes if each.key in self._records and not self._records[each.key].lease}
        pairs = zip(finishes, super().commit(finishes), strict=True)
        return [committed and each.key not in done for each, committed in pairs]


class _Unsuspecting(MemoryStore):
    """An event that killed its last batch runs in a batch again."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        return [each._replace(suspect=False) if isinstance(each, Won) else each for each in answers]


class _NoHeartbeat(TaskKeeper):
    """Leases expire, although their owner is alive."""

    def _extend(self, batches: list[OpenClaims]) -> None:
        """Nothing is extended."""


class _DeafHeartbeat(TaskKeeper):
    """Heartbeats are sent, and the answer that the claim is another's is ignored."""

    def _extend(self, batches: list[OpenClaims]) -> None:
        super()._extend(batches)
        for claim in (claim for claims in batches for claim in claims.due(NEVER)):
            claim.until = self._clock.steady() + LEASE


class _CommitsAtTheEnd(TaskKeeper):
    """An effect is recorded when the whole batch is done, however long that takes."""

    def _try(self, action: str, step: Callable[[], object]) -> None:  # type: ignore[override]
        if action != "commit":
            super()._try(action, step)


class _FencedBatch(Batch):
    def _end(self, effect: Effect, results: Results, error: StoreError | None) -> Ended:
        super()._end(effect, results, error)
        return endings.processed(effect)


class _FencedIsDone(Once):
    """The answer of the store to a commit is ignored."""

    batch_type = _FencedBatch


class _CopiesOrder(Order):
    def _ends_by_another(self, job: Job, leader: Job | None) -> bool:
        if (first := self._first_of(job)) is None:
            return super()._ends_by_another(job, leader)
        self._end(Ended(job, structs.replace(first.outcome, kind=OutcomeKind.DUPLICATE)))
        return True


class _CopiesBatch(Batch):
    order_type = _CopiesOrder


class _CopiesAreDone(Once):
    """Copies in a batch are duplicates, whatever became of the first."""

    batch_type = _CopiesBatch


class _OvertakingOrder(Order):
    def _free(self) -> list[Job]:
        free = super()._free()
        some_wait = self._suspects and self._busy and not free
        return [job for job in self._waiting if job not in self._busy][:1] if some_wait else free


class _OvertakingBatch(Batch):
    order_type = _OvertakingOrder


class _Overtakes(Once):
    """An event behind a busy one runs as soon as a suspect before both has ended well."""

    batch_type = _OvertakingBatch


class _PressesOn(Once):
    """A failure does not stop its group."""

    def prepare(self, handler: Any = None) -> Handler:
        return handler if isinstance(handler, Handler) else _WholeChains(handler, 1)


class _WholeChains(Handler):
    def run_chain(self, results: Results, chain: Chain) -> None:
        for runnable in chain:
            super().run_chain(results, [runnable])


def _store(kind: Any) -> Setup:
    return Setup(lambda world: kind(clock=StoreClock(world)))


MUTANTS = {
    "no token check": _store(_NoTokenCheck),
    "mark before effect": _store(_MarkBeforeEffect),
    "release without token": _store(_ReleaseWithoutToken),
    "read then write": Setup(_ReadThenWrite),
    "lease from the worker's clock": Setup(lambda world: MemoryStore(clock=_WorkersClock(world))),
    "a busy key taken for done": _store(_BusyIsDone),
    "a lease without end": _store(_LeaseNeverEnds),
    "ack of a busy copy": Setup(worker=_AcksBusy),
    "unknown taken for a duplicate": Setup(worker=_DropsUnknown),
    "ack of a failure": Setup(worker=_AcksFailed),
    "ack before the work": Setup(worker=_AcksFirst),
    "heartbeat without token": _store(_HeartbeatWithoutToken),
    "transaction without token": Setup(
        lambda world: _TransactionWithoutToken(clock=StoreClock(world)), transactional=True
    ),
    "no heartbeat": Setup(keeper=_NoHeartbeat),
    "a heartbeat that hears nothing": Setup(keeper=_DeafHeartbeat),
    "commits at the end of a long batch": Setup(keeper=_CommitsAtTheEnd),
    "a fenced commit taken for done": Setup(once=_FencedIsDone),
    "copies of a failure taken for done": Setup(once=_CopiesAreDone),
    "a group that goes on behind a failure": Setup(once=_PressesOn),
    "a group that goes on behind a busy one": Setup(once=_Overtakes),
    "a sweep of what is still needed": _store(_SweepsAll),
    "a window without end": _store(_WindowNeverEnds),
    "a window that ends early": _store(_WindowEndsEarly),
    "a newer version taken for a duplicate": _store(_NoVersions),
    "an older version that runs": _store(_OldVersionsRun),
    "a wait counted as an attempt": _store(_BusyIsAnAttempt),
    "a death held against the whole batch": _store(_BlamesTheBatch),
    "what killed a batch in a batch again": _store(_Unsuspecting),
    "one's own claim taken for another's": _store(_OwnClaimIsBusy),
    "a repeated commit refused": _store(_CommitOnlyOnce),
}
