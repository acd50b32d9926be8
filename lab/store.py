"""A store as one process of the simulation reaches it: over a link on which anything may happen to a call."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.errors import LeaseLost, StoreError
from eventonce.event.keys import Key
from eventonce.ports import Store, Swept, Transaction
from eventonce.stores.memory import MemoryStore
from lab.model import Model
from lab.scheduler import Killed, SimulatedProcess, World

Result = TypeVar("Result")
Write = tuple[str, Sequence[Key]]  # an event whose effect is written in a transaction, and its keys
FAULT_PERCENT = 6  # of the calls, while there are faults left
_BEFORE = ("lost", "late", "dies", "freezes", "astray", "twice")  # what may happen to a call on its way there
_AFTER = ("lost", "late", "dies", "freezes")  # and to its answer


class StoreLink:
    """The link to a store. Every call is a point. It or its answer may be lost or late, and its caller may die."""

    def __init__(self, world: World, process: SimulatedProcess, store: Store, model: Model, lease: int) -> None:
        self._world = world
        self._process = process
        self._store = store
        self._model = model
        self._late = lease * 3 // 2
        self.tokens: set[Token] = set()  # of this process

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        self.tokens.add(token)

        def operation() -> list[Answer]:
            answers = self._store.claim(wants, token, lease)
            self._model.claimed(wants, token, lease, answers, self._world.now)
            return answers

        return self._call("claim", operation)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def operation() -> list[bool]:
            answers = self._store.extend(claims, lease)
            self._model.extended(claims, lease, answers, self._world.now)
            return answers

        return self._call("extend", operation)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        def operation() -> list[bool]:
            answers = self._store.commit(finishes)
            self._model.committed(finishes, answers, self._world.now)
            return answers

        # The task that commits a batch has its lock, and the others of the process wait.
        self._process.committing = self._world.task
        try:
            return self._call("commit", operation)
        finally:
            self._process.committing = None

    def release(self, releases: Sequence[Release]) -> list[bool]:
        def operation() -> list[bool]:
            answers = self._store.release(releases)
            self._model.released(releases, answers)
            return answers

        return self._call("release", operation)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._call("peek", lambda: self._store.peek(keys))

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._call("forget", lambda: self._store.forget(keys))

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return self._store.sweep(limit, cursor)

    def close(self) -> None:
        """The store outlives a process."""

    def _call(self, verb: str, operation: Callable[[], Result]) -> Result:
        if self._process.dead:
            raise Killed
        before, after = self._faults() if self._world.fault(FAULT_PERCENT) else ("", "")
        self._suffer(verb, before, operation)
        answer = operation()
        self._world.log(f"{verb}: {_short(answer)}{', and its answer is lost' if after == 'lost' else ''}")
        self._suffer(verb, after, operation)
        return answer

    def _faults(self) -> tuple[str, str]:
        """Return what happens on the way there, and on the way back."""
        chosen = self._world.choices.below(len(_BEFORE) + len(_AFTER))
        return (_BEFORE[chosen], "") if chosen < len(_BEFORE) else ("", _AFTER[chosen - len(_BEFORE)])

    def _suffer(self, verb: str, fault: str, operation: Callable[[], object]) -> None:
        self._process.harmed |= bool(fault)
        if fault == "dies":
            self._world.kill(self._process)
        if fault == "freezes":
            self._world.freeze(self._late)
        if fault in ("late", "astray", "twice"):
            self._world.log(f"{verb} is late" if fault == "late" else f"{verb} goes {fault}")
        if fault == "astray":  # its caller gives up, and then it arrives
            self._world.start(
                SimulatedProcess("network"), lambda: self._arrive(verb, operation), self._world.now + self._late
            )
        if fault == "twice":  # its answer is lost, and the client repeats it by itself
            operation()
        self._world.sleep(self._late if fault == "late" else 0)
        if fault in ("lost", "astray"):
            raise StoreError(f"the connection was lost in a {verb}")

    def _arrive(self, verb: str, operation: Callable[[], object]) -> None:
        self._world.log(f"{verb} arrives: {_short(operation())}")


class TransactionalStoreLink(StoreLink):
    """The link to a store whose transactions have effects too."""

    def begin(self, claim: Claim) -> Transaction:
        self._world.point()
        if not isinstance(self._store, TransactionalMemory):
            raise TypeError("this store has no transactions")
        return _Transaction(self, self._store, claim)

    def settle(self, finish: Commit, operation: Callable[[], bool], effects: Sequence[Write]) -> bool:
        """Commit a transaction: the effects and their record in one call, or nothing."""
        written = list(effects)

        def together() -> bool:
            accepted = operation()
            if accepted:  # if the call is repeated, the effects exist already
                for event, keys in written:
                    self._model.took_effect(event, keys, finish.token, self._world.now)
                written.clear()
            self._model.committed([finish], [accepted], self._world.now)
            return accepted

        return self._call("transaction", together)


class TransactionalMemory(MemoryStore):
    """A memory store that checks the owner of an effect when it writes it, as DynamoDB's transactions do."""

    def holds(self, claim: Claim) -> bool:
        record = protocol.live(self._records.get(claim.key), self.clock.utc())
        return record is not None and record.lease > 0 and record.token == claim.token


class _Transaction:
    holds = False

    def __init__(self, link: TransactionalStoreLink, store: TransactionalMemory, claim: Claim) -> None:
        if not store.holds(claim):
            raise LeaseLost
        self._link = link
        self._store = store
        self.handle: list[Write] = []

    def commit(self, finish: Commit) -> bool:
        return self._link.settle(finish, lambda: self._store.commit([finish])[0], self.handle)

    def rollback(self) -> None:
        self.handle.clear()


def _short(answer: object) -> str:
    return ", ".join(
        str(each) if isinstance(each, bool) else type(each).__name__
        for each in (answer if isinstance(answer, list) else [answer])
    )
