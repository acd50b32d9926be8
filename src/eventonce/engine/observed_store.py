"""A store that reports its calls to hooks."""

from collections.abc import Sequence

from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.engine.hooks import Hooks
from eventonce.event.keys import Key
from eventonce.ports import Store, Swept


class ObservedStore:
    """Passes every verb on to a store, and reports each call."""

    def __init__(self, store: Store, hooks: Hooks) -> None:
        self._store = store
        self._hooks = hooks

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        return self._hooks.observe_call("claim", len(wants), self._store.claim, wants, token, lease)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return self._hooks.observe_call("extend", len(claims), self._store.extend, claims, lease)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return self._hooks.observe_call("commit", len(finishes), self._store.commit, finishes)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._hooks.observe_call("release", len(releases), self._store.release, releases)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._hooks.observe_call("peek", len(keys), self._store.peek, keys)

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._hooks.observe_call("forget", len(keys), self._store.forget, keys)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return self._hooks.observe_call("sweep", 0, self._store.sweep, limit, cursor)

    def close(self) -> None:
        self._store.close()
