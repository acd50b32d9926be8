"""All contracts on one page: what a store, a source, a sink and the other parts must do that others may write.

Each is a protocol, so a part of your own derives from nothing; only `Hook` is a base class. What a store is asked and
answers stands in `claim.py`, and `eventonce.testing` has a test suite for stores. A part takes its time from a `Clock`
(`clock.py`) if its tests need another one.

Stores:        `Store`, and if it can: `Transactional` with its `Transaction`, `Checkable`
Sources:       `Source`, and if it can: `Measured`
Sinks:         `Sink`
Dead letters:  `DeadLetters` writes them; `DeadLetterBox` reads them back, as `DeadLetter`
Requests:      `Auth`, and what it has `Admitted`
Publishing:    `Carrier`, with `Sendable`, `BatchEntry`, `CallLimits`, `EntryAccepted`, `EntryRefusal`, `BatchRefused`
Watching:      `Hook`, with `Attempt`, `Seen`, `Called` and `Relayed`
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from eventonce.claims.outcome import Outcome
from eventonce.claims.protocol import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.errors import EventRejected, SinkError
from eventonce.event import Delivery, Event
from eventonce.event.keys import Key

# --- stores ---


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

    def claim(self, requests: Sequence[Want], token: Token, lease: int) -> list[Answer]: ...
    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]: ...
    def commit(self, commits: Sequence[Finish]) -> list[bool]: ...
    def release(self, releases: Sequence[Release]) -> list[bool]: ...
    def peek(self, keys: Sequence[Key]) -> list[Record | None]: ...
    def forget(self, keys: Sequence[Key]) -> list[bool]: ...
    def sweep(self, limit: int, cursor: bytes = b"") -> Swept: ...
    def close(self) -> None: ...


class Transaction(Protocol):
    """The store's own transaction, begun for one claim and holding its key until it ends."""

    handle: Any  # what the handler writes through
    holds: bool  # whether nobody can take the claim over while it lasts

    def commit(self, commit: Finish) -> bool: ...  # the effect and its record, together or not at all
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


# --- sources ---


class Source(Protocol):
    """Where events come from. Only the engine settles a delivery, and once."""

    def receive(self, limit: int) -> Sequence[Delivery]: ...  # waits for at least one; empty at the end
    def ack(self, deliveries: Sequence[Delivery]) -> None: ...
    def retry(self, delivery: Delivery, delay: int) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Measured(Protocol):
    """A source that has an end and knows how far it is, so that progress can be shown."""

    @property
    def size(self) -> int | None: ...  # None if it cannot be known, as for a pipe
    @property
    def position(self) -> int: ...  # in the same unit, such as bytes


# --- sinks ---


@runtime_checkable
class Sink(Protocol):
    """Where events go. It sends them in one go and returns None or an error for each. Threads may share it."""

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]: ...
    def close(self) -> None: ...


# --- dead letters ---


class DeadLetters(Protocol):
    """Where dead letters are written. They are kept for good when `write` returns; else it raises `SinkError`.

    If some of them can never be kept there, such as those that are too large, it raises `LettersNotKept`.
    """

    @property
    def name(self) -> str: ...
    def write(self, dead: Sequence[tuple[Delivery, Outcome]], now: int) -> None: ...
    def close(self) -> None: ...


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter as it is read back, whoever wrote it.

    `id` names it and stays the same however often it is redriven. `fields` is the letter as we wrote it, empty if
    another did. With `trouble` it cannot be redriven.
    """

    id: str
    body: bytes = b""
    outcome: str = ""
    reason: str = ""
    attempts: int = 0
    rule: str | None = None
    key: str | None = None
    time: datetime | None = None
    where: Mapping[str, Any] = {}
    event_id: str = ""
    named_by: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}
    trouble: str | None = None
    handle: Any = None  # what its box finds it by

    @property
    def replay_name(self) -> str:
        """The name of the replay that its event belongs to, if it is to run whatever is remembered."""
        return f"redrive:{self.id}"

    @property
    def place(self) -> str:
        """Where the event was found at first, in short."""
        return Delivery(b"", self.where).location


class DeadLetterBox(Protocol):
    """Where dead letters are redriven from. A redrive that is killed leaves every letter that is not settled."""

    @property
    def name(self) -> str: ...
    def letters(self) -> Iterator[DeadLetter]: ...  # the oldest first; to be read at once, a worker may wait
    def hidden(self) -> int: ...  # about how many other processes have received, or had until they died
    def remove(self, letters: Sequence[DeadLetter]) -> None: ...  # their events are done
    def keep(self, letters: Sequence[DeadLetter]) -> None: ...  # with the fields they have after another failure
    def close(self) -> None: ...  # and leave all others as they were


# --- requests ---


class Admitted(NamedTuple):
    """What may be read of a request: the headers and the body that its sender vouches for, and nothing else."""

    headers: Mapping[str, str]
    body: bytes
    name: str = ""  # what the delivery is called if no header names it


class Auth(Protocol):
    """Decides who may send, and what of a request is theirs."""

    async def admit(self, headers: Mapping[str, str], body: bytes) -> Admitted | str:
        """Return what may be read, or a word for what was no event and is done with; raise `Refusal` for a stranger.

        The names of headers are in small letters.
        """
        ...


# --- publishing: services that take several events in a call ---


class BatchEntry(NamedTuple):
    """One event as an API takes it."""

    body: dict[str, Any]
    size: int  # as the service counts it
    group: str | None = None  # entries of one group keep their order


class CallLimits(NamedTuple):
    """What a call can hold."""

    entries: int
    together: int  # bytes
    alone: int  # bytes of an entry that is larger than that and goes by itself; the service may refuse it all the same


class EntryAccepted(NamedTuple):
    """A service has the event."""

    id: str | None  # as the service names it
    repeated: bool = False  # it had the event already, and says so


class EntryRefusal(NamedTuple):
    """Why a service refused an entry, or a whole call."""

    code: str
    message: str


class BatchRefused(Exception):
    """A call was refused as a whole, and one of its entries may be to blame."""

    def __init__(self, refusal: EntryRefusal) -> None:
        self.refusal = refusal


class Sendable(Protocol):
    """An event that a carrier makes an entry of."""

    @property
    def key(self) -> str: ...  # the idempotency key, the same at every attempt
    @property
    def group(self) -> str | None: ...  # if the caller names one; else the carrier may find it in the event
    def next_event(self) -> Event: ...  # the event as this attempt carries it


class Carrier(Protocol):
    """A service whose calls take several entries and return a result for each. Threads may share it.

    `put` is one call, made once. It raises `BatchRefused` or `SinkError`. An error that lasts until someone acts is a
    `SinkUnusable`, one that is not the event's fault a `SinkDown`.
    """

    label: str  # its name in errors

    @property
    def limits(self) -> CallLimits: ...
    def ready(self) -> None: ...  # finds out once what calls need; raises SinkError
    def entry(self, item: Sendable) -> BatchEntry: ...  # raises EventRejected
    def put(self, entries: Sequence[BatchEntry]) -> Sequence[EntryAccepted | EntryRefusal]: ...
    def judge(self, refusal: EntryRefusal) -> EventRejected | SinkError: ...  # the error that a refusal means
    def rejected(self, refusal: EntryRefusal) -> EventRejected: ...  # the same, where this event alone is refused
    def close(self) -> None: ...


# --- watching ---


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

    def called(self, details: Called) -> None:
        """The store was called."""

    def settled(self, details: Sequence[Seen]) -> None:
        """A batch has come to its end."""

    def relayed(self, details: Relayed) -> None:
        """A relay has published, or looked at what waits."""
