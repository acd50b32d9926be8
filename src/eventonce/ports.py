"""All contracts on one page: the duties of a store, a source, a sink and the other parts that anyone may write.

Each is a protocol, so your own part derives from nothing. Only `Hook` is a base class. A store's requests and answers
are in `claims/protocol.py`, and `eventonce.testing` has a test suite for stores. A part takes its time from a `Clock`
(`clock.py`) if its tests need another one.

Stores:        `Store`, and if it can: `Transactional` with its `Transaction`, `Checkable`
Sources:       `Source`, and if it can: `Measured`
Sinks:         `Sink`
Dead letters:  `DeadLetterSink` writes them, and `DeadLetterBox` reads them back as `DeadLetter`
Requests:      `Auth`, which returns what it has `Admitted`
Publishing:    `Carrier`, with `Sendable`, `BatchEntry`, `CallLimits`, `EntryAccepted`, `EntryRefusal`, `BatchRefused`
Watching:      `Hook`, with `AttemptDetails`, `OutcomeDetails`, `StoreCallDetails` and `RelayDetails`
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from eventonce.claims.outcome import Outcome
from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.errors import EventRejected, SinkError
from eventonce.event import Delivery, Event
from eventonce.event.keys import Key

# --- stores ---


class Swept(NamedTuple):
    """The number of records that a sweep removed, and the cursor to continue from, or None at the end."""

    removed: int
    cursor: bytes | None


class Store(Protocol):
    """Where keys are remembered. Each verb takes a batch and is one atomic step per key (see `claims/protocol.py`).

    Durations are milliseconds. A store raises `StoreError` if it cannot answer, and then nothing is certain: the caller
    repeats the call with the same token, which is harmless. If only some of its servers did not answer, a `StorePartly`
    has the answers of the others. A key that is repeated in one call gets the same answer. Threads may share a store.
    """

    def claim(self, requests: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]: ...
    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]: ...
    def commit(self, commits: Sequence[Commit]) -> list[bool]: ...
    def release(self, releases: Sequence[Release]) -> list[bool]: ...
    def peek(self, keys: Sequence[Key]) -> list[Record | None]: ...
    def forget(self, keys: Sequence[Key]) -> list[bool]: ...
    def sweep(self, limit: int, cursor: bytes = b"") -> Swept: ...
    def close(self) -> None: ...


class Transaction(Protocol):
    """The store's own transaction, begun for one claim. It holds the claim's key until it ends."""

    handle: Any  # through which the handler writes
    holds: bool  # nobody can take the claim over while it lasts

    def commit(self, commit: Commit) -> bool: ...  # the effect and its record, together or not at all
    def rollback(self) -> None: ...


@runtime_checkable
class Transactional(Protocol):
    """A store whose transactions can hold the handler's own writes."""

    def begin(self, claim: Claim) -> Transaction: ...  # raises LeaseLost if the token no longer owns the claim


@runtime_checkable
class Checkable(Protocol):
    """A store with a server, whose settings may break promises."""

    def check(self) -> list[str]: ...  # returns warnings; raises StoreError if it cannot be used at all
    def close(self) -> None: ...


# --- sources ---


class Source(Protocol):
    """Where events come from. Only the engine settles a delivery, and once."""

    def receive(self, limit: int) -> Sequence[Delivery]: ...  # waits for at least one; empty at the end
    def ack(self, deliveries: Sequence[Delivery]) -> None: ...
    def retry(self, delivery: Delivery, delay: int) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Measured(Protocol):
    """A source with an end and a position, so that progress can be shown."""

    @property
    def size(self) -> int | None: ...  # None if it is unknown, as for a pipe
    @property
    def position(self) -> int: ...  # in the same unit, such as bytes


# --- sinks ---


@runtime_checkable
class Sink(Protocol):
    """Where events go. It sends them together and returns None or an error for each. Threads may share it."""

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]: ...
    def close(self) -> None: ...


# --- dead letters ---


class DeadLetterSink(Protocol):
    """Where dead letters are written. They are stored for good once `write` returns. Else it raises `SinkError`.

    If some can never be stored there, such as those that are too large, it raises `LettersNotKept`.
    """

    @property
    def name(self) -> str: ...
    def write(self, dead: Sequence[tuple[Delivery, Outcome]], now: int) -> None: ...
    def close(self) -> None: ...


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter as it is read back, whoever wrote it.

    `id` names it and stays the same however often it is redriven. `fields` is the letter as we wrote it, empty if
    somebody else did. `unreadable` is the reason if it cannot be redriven.
    """

    id: str
    body: bytes = b""
    outcome: str = ""
    reason: str = ""
    attempts: int = 0
    rule: str | None = None
    key: str | None = None
    time: datetime | None = None
    origin: Mapping[str, Any] = {}
    event_id: str = ""
    named_by: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}
    unreadable: str | None = None
    handle: Any = None  # by which its box finds it

    @property
    def replay_name(self) -> str:
        """Return the name of the replay that its event belongs to if it is reprocessed."""
        return f"redrive:{self.id}"

    @property
    def location(self) -> str:
        """Return where the event was first found, in short."""
        return Delivery(b"", self.origin).location


class DeadLetterBox(Protocol):
    """Where dead letters are redriven from. A redrive that is killed leaves every letter that is not settled."""

    @property
    def name(self) -> str: ...
    def letters(self) -> Iterator[DeadLetter]: ...  # the oldest first; read them at once, as a worker may wait
    def hidden(self) -> int: ...  # about how many other processes have received, or had until they died
    def remove(self, letters: Sequence[DeadLetter]) -> None: ...  # their events are done
    def keep(self, letters: Sequence[DeadLetter]) -> None: ...  # with their fields after another failure
    def close(self) -> None: ...  # leaves all others as they were


# --- requests ---


class Admitted(NamedTuple):
    """What may be read of a request: the headers and the body that its sender has signed or sent with a token."""

    headers: Mapping[str, str]
    body: bytes
    name: str = ""  # the delivery's name if no header has one


class Auth(Protocol):
    """A check of who may send, and of what in a request is theirs."""

    async def admit(self, headers: Mapping[str, str], body: bytes) -> Admitted | str:
        """Return what may be read, or a word for a request that was not an event and needs nothing more.

        Raise `RequestRefused` for a stranger. The names of headers are in lower case.
        """
        ...


# --- publishing: services that take several events in a call ---


class BatchEntry(NamedTuple):
    """One event as an API takes it."""

    body: dict[str, Any]
    size: int  # as the service counts it
    group: str | None = None  # entries of one group keep their order


class CallLimits(NamedTuple):
    """The limits of one call."""

    entries: int
    together: int  # bytes
    alone: int  # bytes of a larger entry that is sent by itself; the service may refuse it all the same


class EntryAccepted(NamedTuple):
    """The result for an entry that a service has accepted."""

    id: str | None  # the service's own id for it
    repeated: bool = False  # the service says that it had the event already


class EntryRefusal(NamedTuple):
    """Why a service refused an entry, or a whole call."""

    code: str
    message: str


class BatchRefused(Exception):
    """A call was refused as a whole, and one of its entries may be to blame."""

    def __init__(self, refusal: EntryRefusal) -> None:
        self.refusal = refusal


class Sendable(Protocol):
    """An event from which a carrier makes an entry."""

    @property
    def key(self) -> str: ...  # the idempotency key, the same at every attempt
    @property
    def group(self) -> str | None: ...  # if the caller names one; else the carrier may read it from the event
    def next_event(self) -> Event: ...  # the event as this attempt sends it


class Carrier(Protocol):
    """A service whose calls take several entries and return a result for each. Threads may share it.

    `put` is one call, made once. It raises `BatchRefused` or `SinkError`. An error that lasts until someone acts is a
    `SinkUnusable`, one that is not the event's fault a `SinkDown`.
    """

    label: str  # its name in errors

    @property
    def limits(self) -> CallLimits: ...
    def ready(self) -> None: ...  # prepares once what calls need; raises SinkError
    def entry(self, item: Sendable) -> BatchEntry: ...  # raises EventRejected
    def put(self, entries: Sequence[BatchEntry]) -> Sequence[EntryAccepted | EntryRefusal]: ...
    def judge(self, refusal: EntryRefusal) -> EventRejected | SinkError: ...  # the error that a refusal means
    def rejected(self, refusal: EntryRefusal) -> EventRejected: ...  # the same if this event alone is refused
    def close(self) -> None: ...


# --- watching ---


class AttemptDetails(NamedTuple):
    """One event that a handler is about to run, or a sink to send."""

    event: Event
    rule: str
    key: Key
    number: int  # 1 at first


class OutcomeDetails(NamedTuple):
    """What became of one event, for now or for good."""

    event: Event | None  # None if it could not be read
    outcome: Outcome
    origin: Mapping[str, Any]  # of its delivery


class StoreCallDetails(NamedTuple):
    """One call of the store."""

    verb: str
    keys: int
    seconds: float
    error: Exception | None


class RelayDetails(NamedTuple):
    """What a relay did, or what waits in its outbox."""

    outbox: str
    counts: Mapping[str, int]  # events by result: published, deduplicated, refused, failed
    waited: Sequence[float]  # seconds from adding each event to its end
    pending: int | None = None  # events that wait, if they were counted
    lag: float | None = None  # seconds that the first of these has waited


class Hook:
    """An observer, which changes nothing. An exception that it raises is logged once and goes no further.

    It is a base class, so that a hook defines only the methods that it needs and still works if more are added. Threads
    share a hook, and it runs on their time.
    """

    def around_run(self, attempts: Sequence[AttemptDetails]) -> AbstractContextManager[object]:
        """Return a context that is entered around the run of one event, or around the sending of several."""
        return nullcontext()

    def after_store_call(self, details: StoreCallDetails) -> None:
        """Observe a call of the store."""

    def after_settle(self, details: Sequence[OutcomeDetails]) -> None:
        """Observe the outcomes of a batch."""

    def after_relay(self, details: RelayDetails) -> None:
        """Observe a relay that has published, or has counted what waits."""
