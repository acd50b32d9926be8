"""All contracts on one page: what a store, a source and a sink must do, and what a hook is told."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

from eventonce.claims.outcome import Outcome
from eventonce.claims.protocol import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.event import Delivery, Event
from eventonce.event.keys import Key


class Swept(NamedTuple):
    """How many records a sweep removed, and where to go on; `cursor` is None at the end."""

    removed: int
    cursor: bytes | None


class Store(Protocol):
    """What we remember. Each verb takes a batch and is one atomic step per key (see `claim.py`).

    Durations are milliseconds. A store raises `StoreError` when it cannot answer, and then nothing is
    certain: the caller asks again with the same token, which is harmless. Where only some of its servers did
    not answer, a `StorePartly` has the answers of the others. A key that stands twice in one call is answered
    alike. Stores may be shared by threads.
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
    """A way out: sends events in one go and says for each how it went (None, or why not). Threads may share it."""

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]: ...
    def close(self) -> None: ...


class Attempt(NamedTuple):
    """One event that a handler is about to run, or a sink to send."""

    event: Event
    rule: str
    key: Key
    number: int  # 1 at first


class Seen(NamedTuple):
    """What became of one event, for now or for good."""

    event: Event | None  # None where it could not be read
    outcome: Outcome
    origin: Mapping[str, Any]  # as its delivery says


class Called(NamedTuple):
    """One call of the store."""

    verb: str
    keys: int
    seconds: float
    error: Exception | None


class Relayed(NamedTuple):
    """What a relay did, or what waits in its outbox."""

    outbox: str
    counts: Mapping[str, int]  # events by what became of them: published, deduplicated, refused, failed
    waited: Sequence[float]  # seconds from the adding of each event to its end
    pending: int | None = None  # events that wait, where that was looked at
    lag: float | None = None  # seconds that the first of these has waited


class Hook:
    """Sees what happens, and changes nothing: what it raises is logged once and goes no further.

    A base class, so that a hook says only what it wants to see, and still does when there is more to be seen one day.
    Threads share a hook, and it is called on their time.
    """

    def running(self, attempts: Sequence[Attempt]) -> AbstractContextManager[object]:
        """Entered around the run of one event, or around the sending of several."""
        return nullcontext()

    def called(self, call: Called) -> None:
        """The store was called."""

    def settled(self, seen: Sequence[Seen]) -> None:
        """A batch has come to its end."""

    def relayed(self, relayed: Relayed) -> None:
        """A relay has published, or looked at what waits."""
