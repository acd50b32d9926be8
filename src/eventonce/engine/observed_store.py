"""A store that reports its calls to hooks."""

import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.engine.hooks import Hooks
from eventonce.event.keys import Key
from eventonce.ports import Store, StoreCallDetails, Swept

P = ParamSpec("P")
Result = TypeVar("Result")


def call_observed(
    hooks: Hooks, verb: str, keys: int, call: Callable[P, Result], *args: P.args, **named: P.kwargs
) -> Result:
    """Call the store, and report how long that took and how it ended."""
    started_at = time.perf_counter()
    try:
        answer = call(*args, **named)
    except Exception as error:
        hooks.after_store_call(StoreCallDetails(verb, keys, time.perf_counter() - started_at, error))
        raise
    hooks.after_store_call(StoreCallDetails(verb, keys, time.perf_counter() - started_at, None))
    return answer


class ObservedStore:
    """Passes every verb on to a store, and reports each call."""

    def __init__(self, store: Store, hooks: Hooks) -> None:
        self._store = store
        self._hooks = hooks

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        return call_observed(self._hooks, "claim", len(wants), self._store.claim, wants, token, lease)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return call_observed(self._hooks, "extend", len(claims), self._store.extend, claims, lease)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return call_observed(self._hooks, "commit", len(finishes), self._store.commit, finishes)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return call_observed(self._hooks, "release", len(releases), self._store.release, releases)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return call_observed(self._hooks, "peek", len(keys), self._store.peek, keys)

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return call_observed(self._hooks, "forget", len(keys), self._store.forget, keys)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return call_observed(self._hooks, "sweep", 0, self._store.sweep, limit, cursor)

    def close(self) -> None:
        self._store.close()
