"""The store of `EVENTONCE_DISABLED=1`: every claim is won and nothing is remembered, so that handlers run plainly."""

import os
from collections.abc import Callable, Sequence

from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token, Won
from eventonce.errors import ConfigError
from eventonce.event.keys import KEY_BYTES, Key
from eventonce.ports import Store, Swept, Transaction, Transactional

_LEASE = 60_000  # milliseconds
_WINDOW = 1  # millisecond


class DisabledStore:
    """Remembers nothing. `open_configured` opens the store that is used for nothing but `ctx.tx`."""

    def __init__(self, open_configured: Callable[[], Store]) -> None:
        self._open_configured = open_configured
        self._opened: Store | None = None

    def claim(self, requests: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        return [Won(1) for _ in requests]

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        return [True for _ in claims]

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        return [True for _ in commits]

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return [True for _ in releases]

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return [None for _ in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return [False for _ in keys]

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        return Swept(0, None)

    def begin(self, claim: Claim) -> "PlainTransaction":
        """Begin a transaction of the configured store, for a key that nobody else has."""
        store = self._opened = self._opened or self._open_configured()
        if not isinstance(store, Transactional):
            raise ConfigError("ctx.tx: the store has no transactions; use sqlite:///FILE, postgresql:// or dynamodb://")
        key = Key(os.urandom(KEY_BYTES))
        store.claim([ClaimRequest(key, _WINDOW)], claim.token, _LEASE)
        return PlainTransaction(store.begin(claim._replace(key=key)), key)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class PlainTransaction:
    """A transaction whose record nobody looks for."""

    def __init__(self, transaction: Transaction, key: Key) -> None:
        self._transaction = transaction
        self._key = key
        self.handle = transaction.handle
        self.holds = transaction.holds

    def commit(self, commit: Commit) -> bool:
        return self._transaction.commit(commit._replace(key=self._key, window=_WINDOW, version=None, memo=None))

    def rollback(self) -> None:
        self._transaction.rollback()
