"""A store that writes down each call of a worker, what was asked and what was answered."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from eventonce.claims.protocol import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.event.keys import Key
from eventonce.ports import Store, Swept, Transaction, Transactional
from lab.torture.history import History, now

Result = TypeVar("Result")


class Recorded:
    """The same store, with a history."""

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._history = history

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        return self._told(
            "claim", lambda: self._store.claim(wants, token, lease), [(want.key, token) for want in wants], lease=lease
        )

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return self._told("extend", lambda: self._store.extend(claims, lease), claims, lease=lease)

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        return self._told("commit", lambda: self._store.commit(finishes), _owners(finishes))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        self._history.tell("gives", owners=_named(_owners(releases)))
        return self._told("release", lambda: self._store.release(releases), _owners(releases))

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._store.peek(keys)

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._store.forget(keys)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return self._store.sweep(limit, cursor)

    def close(self) -> None:
        self._store.close()

    def _told(
        self, verb: str, act: Callable[[], list[Result]], owners: Sequence[tuple[Key, Token]], **more: Any
    ) -> list[Result]:
        began = now()
        said: list[str] | None = None
        try:
            answers = act()
            said = [str(each) if isinstance(each, bool) else type(each).__name__ for each in answers]
            return answers
        finally:
            self._history.tell(verb, began=began, owners=_named(owners), answers=said, **more)


class RecordedTransactional(Recorded):
    """The same for a store whose transactions hold effects too."""

    def begin(self, claim: Claim) -> Transaction:
        assert isinstance(self._store, Transactional)
        return _Transaction(self._store.begin(claim), self._history)


class _Transaction:
    def __init__(self, inner: Transaction, history: History) -> None:
        self._inner = inner
        self._history = history
        self.handle = inner.handle
        self.holds = inner.holds

    def commit(self, finish: Finish) -> bool:
        held: bool | None = None
        began = now()
        try:
            held = self._inner.commit(finish)
            return held
        finally:
            owners = _named([(finish.key, finish.token)])
            self._history.tell("commit", began=began, owners=owners, answers=None if held is None else [str(held)])

    def rollback(self) -> None:
        self._inner.rollback()


def recorded(store: Store, history: History) -> Store:
    """The store with a history, with transactions if it has them."""
    return (RecordedTransactional if isinstance(store, Transactional) else Recorded)(store, history)


def _owners(asked: Sequence[Finish] | Sequence[Release]) -> list[tuple[Key, Token]]:
    return [(each.key, each.token) for each in asked]


def _named(owners: Sequence[tuple[Key, Token]]) -> list[list[str]]:
    return [[key.hex(), token.hex()] for key, token in owners]
