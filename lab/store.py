"""A store as one process of the simulation reaches it: over a line on which anything may happen to a call."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.errors import LeaseLost, StoreError
from eventonce.event.keys import Key
from eventonce.ports import Store, Swept, Transaction
from eventonce.stores.memory import MemoryStore
from lab.model import Model
from lab.scheduler import Killed, SimulatedProcess, World

Result = TypeVar("Result")
Write = tuple[str, Sequence[Key]]  # an event whose effect is written in a transaction, and its keys
TROUBLE = 6  # percent of the calls, while there is trouble left
_BEFORE = ("lost", "late", "dies", "still", "astray", "twice")  # what may happen to a call on its way there
_AFTER = ("lost", "late", "dies", "still")  # and to its answer


class Line:
    """The way to a store. Every call is a point; it may be lost, or only its answer, or be late, or the caller dies."""

    def __init__(self, world: World, process: SimulatedProcess, store: Store, model: Model, lease: int) -> None:
        self._world = world
        self._process = process
        self._store = store
        self._model = model
        self._late = lease * 3 // 2
        self.tokens: set[Token] = set()  # of this process

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        self.tokens.add(token)

        def act() -> list[Answer]:
            answers = self._store.claim(wants, token, lease)
            self._model.claimed(wants, token, lease, answers, self._world.now)
            return answers

        return self._call("claim", act)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def act() -> list[bool]:
            answers = self._store.extend(claims, lease)
            self._model.extended(claims, lease, answers, self._world.now)
            return answers

        return self._call("extend", act)

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        def act() -> list[bool]:
            answers = self._store.commit(finishes)
            self._model.committed(finishes, answers, self._world.now)
            return answers

        # Whoever commits a batch holds its lock, and the others of the process wait.
        self._process.committing = self._world.task
        try:
            return self._call("commit", act)
        finally:
            self._process.committing = None

    def release(self, releases: Sequence[Release]) -> list[bool]:
        def act() -> list[bool]:
            answers = self._store.release(releases)
            self._model.released(releases, answers)
            return answers

        return self._call("release", act)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._call("peek", lambda: self._store.peek(keys))

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._call("forget", lambda: self._store.forget(keys))

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return self._store.sweep(limit, cursor)

    def close(self) -> None:
        """The store outlives a process."""

    def _call(self, verb: str, act: Callable[[], Result]) -> Result:
        if self._process.dead:
            raise Killed
        before, after = self._fate() if self._world.trouble(TROUBLE) else ("", "")
        self._happen(verb, before, act)
        answer = act()
        self._world.tell(f"{verb}: {_short(answer)}{', and its answer is lost' if after == 'lost' else ''}")
        self._happen(verb, after, act)
        return answer

    def _fate(self) -> tuple[str, str]:
        """What happens on the way there, and on the way back."""
        chosen = self._world.choices.below(len(_BEFORE) + len(_AFTER))
        return (_BEFORE[chosen], "") if chosen < len(_BEFORE) else ("", _AFTER[chosen - len(_BEFORE)])

    def _happen(self, verb: str, what: str, act: Callable[[], object]) -> None:
        self._process.harmed |= bool(what)
        if what == "dies":
            self._world.kill(self._process)
        if what == "still":
            self._world.stand_still(self._late)
        if what in ("late", "astray", "twice"):
            self._world.tell(f"{verb} is late" if what == "late" else f"{verb} goes {what}")
        if what == "astray":  # its caller gives up, and then it arrives
            self._world.start(
                SimulatedProcess("network"), lambda: self._arrive(verb, act), self._world.now + self._late
            )
        if what == "twice":  # its answer is lost, and the client asks again by itself
            act()
        self._world.sleep(self._late if what == "late" else 0)
        if what in ("lost", "astray"):
            raise StoreError(f"the connection was lost in a {verb}")

    def _arrive(self, verb: str, act: Callable[[], object]) -> None:
        self._world.tell(f"{verb} arrives: {_short(act())}")


class TransactionalLine(Line):
    """The same to a store whose transactions hold effects too."""

    def begin(self, claim: Claim) -> Transaction:
        self._world.point()
        if not isinstance(self._store, TransactionalMemory):
            raise TypeError("this store has no transactions")
        return _Transaction(self, self._store, claim)

    def settle(self, finish: Finish, act: Callable[[], bool], effects: Sequence[Write]) -> bool:
        """Commit a transaction: the effects and their record in one call, or nothing."""
        written = list(effects)

        def together() -> bool:
            held = act()
            if held:  # if it was only asked again, the effects are there already
                for event, keys in written:
                    self._model.took_effect(event, keys, finish.token, self._world.now)
                written.clear()
            self._model.committed([finish], [held], self._world.now)
            return held

        return self._call("transaction", together)


class TransactionalMemory(MemoryStore):
    """A memory store that checks the owner of an effect in the moment it writes it, as DynamoDB's transactions do."""

    def holds(self, claim: Claim) -> bool:
        record = protocol.live(self._records.get(claim.key), self.clock.utc())
        return record is not None and record.lease > 0 and record.token == claim.token


class _Transaction:
    holds = False

    def __init__(self, line: TransactionalLine, store: TransactionalMemory, claim: Claim) -> None:
        if not store.holds(claim):
            raise LeaseLost
        self._line = line
        self._store = store
        self.handle: list[Write] = []

    def commit(self, finish: Finish) -> bool:
        return self._line.settle(finish, lambda: self._store.commit([finish])[0], self.handle)

    def rollback(self) -> None:
        self.handle.clear()


def _short(answer: object) -> str:
    return ", ".join(
        str(each) if isinstance(each, bool) else type(each).__name__
        for each in (answer if isinstance(answer, list) else [answer])
    )
