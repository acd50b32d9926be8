"""Mutants: the product with one bug each, planted on purpose. A simulation that does not find them proves nothing.

Each is a bug that a system in use has, or that one changed line of ours would be.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from eventonce.claim import Answer, Busy, Claim, Done, Finish, Record, Release, Token, Want, Won
from eventonce.event import Delivery
from eventonce.key import Key
from eventonce.outcome import Kind, Outcome
from eventonce.proof.simulation import Kit, StoreClock
from eventonce.proof.world import World
from eventonce.stores.memory import MemoryStore
from eventonce.worker import Worker


class _NoTokenCheck(MemoryStore):
    """Commit and extend act for whoever asks, as a plain UPDATE does."""

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        return super().commit([each._replace(token=self._owner(each.key, each.token)) for each in finishes])

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return super().extend([each._replace(token=self._owner(each.key, each.token)) for each in claims], lease)

    def _owner(self, key: Key, asks: Token) -> Token:
        record = self._records.get(key)
        return record.token if record else asks


class _ReleaseWithoutToken(_NoTokenCheck):
    """A release deletes whatever is there, as a plain DELETE does."""

    commit = MemoryStore.commit
    extend = MemoryStore.extend

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return super().release([each._replace(token=self._owner(each.key, each.token)) for each in releases])


class _MarkBeforeEffect(MemoryStore):
    """Seen is seen: the claim marks the key as done, as SET NX before the work does."""

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        won = [want for want, answer in zip(wants, answers, strict=True) if isinstance(answer, Won)]
        super().commit([Finish(want.key, token, want.window) for want in won])
        return answers


class _ReadThenWrite(MemoryStore):
    """The claim looks first and writes later, as get and put do."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=StoreClock(world))
        self._world = world

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        found = {want.key: self._records.get(want.key) for want in wants}
        self._world.point()
        for key, record in found.items():
            self._put_back(key, record)
        return super().claim(wants, token, lease)

    def _put_back(self, key: Key, record: Record | None) -> None:
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record


class _WorkersClock(StoreClock):
    """The end of a lease is decided by the clock of whoever asks."""

    def utc(self) -> int:
        return super().utc() + self._world.process.skew


class _BusyIsDone(MemoryStore):
    """What somebody else runs is said to be done."""

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        answers = super().claim(wants, token, lease)
        pairs = zip(wants, answers, strict=True)
        return [Done(self._records[want.key]) if isinstance(answer, Busy) else answer for want, answer in pairs]


class _LeaseNeverEnds(MemoryStore):
    """A claim without a lease: who dies blocks the key for the whole window."""

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        return super().claim(wants, token, 1000 * lease)


class _Credulous(Worker):
    """Takes an outcome of one kind for a duplicate."""

    takes: Kind

    def _outcomes(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        found = super()._outcomes(deliveries)
        return [structs.replace(each, kind=Kind.DUPLICATE) if each.kind is self.takes else each for each in found]


class _AcksBusy(_Credulous):
    """A copy of what runs elsewhere is acked, as if it were done."""

    takes = Kind.BUSY


class _DropsUnknown(_Credulous):
    """What the store does not answer to is acked."""

    takes = Kind.UNKNOWN


class _AcksFailed(_Credulous):
    """What failed is acked, because the handler has had it."""

    takes = Kind.FAILED


class _AcksFirst(Worker):
    """The message is acked as soon as it is here."""

    def work(self, received: Sequence[Delivery]) -> list[Outcome]:
        self._source.ack(received)
        return super().work(received)


def _store(kind: Any) -> Kit:
    return Kit(lambda world: kind(clock=StoreClock(world)))


MUTANTS = {
    "no token check": _store(_NoTokenCheck),
    "mark before effect": _store(_MarkBeforeEffect),
    "release without token": _store(_ReleaseWithoutToken),
    "read then write": Kit(_ReadThenWrite),
    "lease from the worker's clock": Kit(lambda world: MemoryStore(clock=_WorkersClock(world))),
    "a busy key taken for done": _store(_BusyIsDone),
    "a lease without end": _store(_LeaseNeverEnds),
    "ack of a busy copy": Kit(worker=_AcksBusy),
    "unknown taken for a duplicate": Kit(worker=_DropsUnknown),
    "ack of a failure": Kit(worker=_AcksFailed),
    "ack before the work": Kit(worker=_AcksFirst),
}
