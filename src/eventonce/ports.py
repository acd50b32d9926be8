"""All contracts on one page: what a store, a source and a sink must do."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from eventonce.claim import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.event import Delivery, Event
from eventonce.key import Key


class Swept(NamedTuple):
    """How many records a sweep removed, and where to go on; `cursor` is None at the end."""

    removed: int
    cursor: bytes | None


class Store(Protocol):
    """What we remember. Each verb takes a batch and is one atomic step per key (see `claim.py`).

    Durations are milliseconds. A store raises `StoreError` when it cannot answer, and then nothing is
    certain: the caller asks again with the same token, which is harmless. A key that stands twice in one
    call is answered alike. Stores may be shared by threads.
    """

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]: ...
    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]: ...
    def commit(self, finishes: Sequence[Finish]) -> list[bool]: ...
    def release(self, releases: Sequence[Release]) -> list[bool]: ...
    def peek(self, keys: Sequence[Key]) -> list[Record | None]: ...
    def forget(self, keys: Sequence[Key]) -> list[bool]: ...
    def sweep(self, limit: int, cursor: bytes = b"") -> Swept: ...
    def close(self) -> None: ...


class Transaction(Protocol):
    """The store's own transaction, begun for one claim and holding its key until it ends."""

    handle: Any  # what the handler writes through
    holds: bool  # whether nobody can take the claim over while it lasts

    def commit(self, finish: Finish) -> bool: ...  # the effect and its record, together or not at all
    def rollback(self) -> None: ...


@runtime_checkable
class Transactional(Protocol):
    """A store whose transactions can hold the handler's own writes."""

    def begin(self, claim: Claim) -> Transaction: ...  # raises LeaseLost where the claim is no longer held


@runtime_checkable
class Checkable(Protocol):
    """A store with a server, which may be set up in a way that breaks promises."""

    def check(self) -> list[str]: ...  # what to warn of; raises StoreError where it cannot be used at all
    def close(self) -> None: ...


class Source(Protocol):
    """A way in."""

    def receive(self, limit: int) -> Sequence[Delivery]: ...  # waits for at least one; empty at the end
    def ack(self, deliveries: Sequence[Delivery]) -> None: ...
    def retry(self, delivery: Delivery, delay: int) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Sink(Protocol):
    """A way out: sends events in one go and says for each how it went (None, or why not)."""

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]: ...
    def close(self) -> None: ...
