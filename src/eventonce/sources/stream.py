"""The contract of a stream: shards that are read in order, each from a position."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from eventonce.errors import SourceError


class StreamAway(SourceError):
    """The stream did not answer. A retry may help."""

    retryable = True


class IteratorExpired(StreamAway):
    """The iterator is too old. Request a new one."""


class Trimmed(StreamAway):
    """The stream has dropped the next records, because they are too old."""


class Shard(NamedTuple):
    """A part of a stream. The records of its parents come before its own."""

    id: str
    parents: tuple[str, ...] = ()


class StreamRecord(NamedTuple):
    """One record of a shard."""

    sequence: str
    name: str  # as Lambda names it, so that an event without an id has the same one in Lambda and in a worker
    body: bytes
    sent: datetime | None = None  # when it was added to the stream


class Page(NamedTuple):
    """The result of one read."""

    records: Sequence[StreamRecord]
    iterator: str | None  # of the next read; None at the end of a closed shard
    behind: bool = False  # whether there is more to read at once


class Stream(Protocol):
    """A stream of AWS. Internal: for any other stream, write a `Source`.

    Every call raises `StreamAway` if the stream does not answer. Threads may share it.
    """

    name: str  # as in its URL
    arn: str  # as Lambda names it
    identity: str  # changes if the stream is deleted and created again, as its sequence numbers do
    start: int | None  # the time from which a new consumer reads, or None for all records

    def shards(self) -> list[Shard]: ...
    def iterator(self, shard: str, after: str | None, start: int | None) -> str: ...
    def read(self, shard: str, iterator: str) -> Page: ...
    def close(self) -> None: ...
