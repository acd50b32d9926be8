"""A store that records each call of a worker, with the request and the answer."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.event.keys import Key
from eventonce.ports import Store, Swept, Transaction, Transactional
from lab.torture.history import History, now

Result = TypeVar("Result")


class Recorded:
    """A store with a history of its calls."""

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._history = history

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        owners = [(want.key, token) for want in wants]
        return self._call("claim", lambda: self._store.claim(wants, token, lease), owners, lease=lease)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return self._call("extend", lambda: self._store.extend(claims, lease), claims, lease=lease)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return self._call("commit", lambda: self._store.commit(finishes), _owners(finishes))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        self._history.write("gives", owners=_in_hex(_owners(releases)))
        return self._call("release", lambda: self._store.release(releases), _owners(releases))

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._store.peek(keys)

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._store.forget(keys)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return self._store.sweep(limit, cursor)

    def close(self) -> None:
        self._store.close()

    def _call(
        self, verb: str, call: Callable[[], list[Result]], owners: Sequence[tuple[Key, Token]], **more: Any
    ) -> list[Result]:
        started_at = now()
        names: list[str] | None = None
        try:
            answers = call()
            names = [str(each) if isinstance(each, bool) else type(each).__name__ for each in answers]
            return answers
        finally:
            self._history.write(verb, began=started_at, owners=_in_hex(owners), answers=names, **more)


class RecordedTransactional(Recorded):
    """A store with a history, whose transactions have effects too."""

    def begin(self, claim: Claim) -> Transaction:
        assert isinstance(self._store, Transactional)
        return _Transaction(self._store.begin(claim), self._history)


class _Transaction:
    def __init__(self, inner: Transaction, history: History) -> None:
        self._inner = inner
        self._history = history
        self.handle = inner.handle
        self.holds = inner.holds

    def commit(self, finish: Commit) -> bool:
        committed: bool | None = None
        started_at = now()
        try:
            committed = self._inner.commit(finish)
            return committed
        finally:
            owners = _in_hex([(finish.key, finish.token)])
            answers = None if committed is None else [str(committed)]
            self._history.write("commit", began=started_at, owners=owners, answers=answers)

    def rollback(self) -> None:
        self._inner.rollback()


def recorded(store: Store, history: History) -> Store:
    """Return the store with a history, and with transactions if it has them."""
    return (RecordedTransactional if isinstance(store, Transactional) else Recorded)(store, history)


def _owners(requests: Sequence[Commit] | Sequence[Release]) -> list[tuple[Key, Token]]:
    return [(request.key, request.token) for request in requests]


def _in_hex(owners: Sequence[tuple[Key, Token]]) -> list[list[str]]:
    return [[key.hex(), token.hex()] for key, token in owners]
