"""The contract of a stream: shards that are read in order, each from a position on."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from eventonce.errors import SourceError


class StreamAway(SourceError):
    """The stream did not answer; try again later."""

    retryable = True


class IteratorOver(StreamAway):
    """Too much time went by since the last read; ask for a new iterator."""


class Trimmed(StreamAway):
    """What comes next has become too old, and the stream has dropped it."""


class Shard(NamedTuple):
    """A part of a stream. What its parents hold comes before what it holds."""

    id: str
    parents: tuple[str, ...] = ()


class StreamRecord(NamedTuple):
    """One record of a shard."""

    sequence: str
    name: str  # as Lambda names it, so that an event without an id has the same one either way
    body: bytes
    sent: datetime | None = None  # when the stream had it


class Page(NamedTuple):
    """What one read gave."""

    records: Sequence[StreamRecord]
    iterator: str | None  # where to go on; None at the end of a closed shard
    behind: bool = False  # there is more to read at once


class Stream(Protocol):
    """A stream of AWS. Internal: for another one write a `Source`.

    Every call raises `StreamAway` where it is not answered. Threads may share it.
    """

    name: str  # as in its URL
    arn: str  # as Lambda names it
    identity: str  # another one for a stream that was deleted and made again: its sequence numbers are others
    start: int | None  # the moment from which a consumer that is new reads, or None for all there is

    def shards(self) -> list[Shard]: ...
    def iterator(self, shard: str, after: str | None, start: int | None) -> str: ...
    def read(self, shard: str, iterator: str) -> Page: ...
    def close(self) -> None: ...
