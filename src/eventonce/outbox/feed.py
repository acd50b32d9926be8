"""The contract of a feed: where a relay takes rows of an outbox and settles them."""

import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eventonce.outbox.rows import PendingRow


class ReleasedRow(NamedTuple):
    """A row that stays in the outbox, and is not taken again for a while."""

    row: PendingRow
    delay: int  # milliseconds
    blame: bool = False  # whether this counts as one of its attempts


class Backlog(NamedTuple):
    """The events that wait in an outbox."""

    pending: int  # at most `MAX_COUNTED`
    lag: int  # milliseconds that the first of them has waited


MAX_COUNTED = 100_000
SWEEP_LIMIT = 1000  # rows per sweep


class OutboxFeed(Protocol):
    """The rows of an outbox, for a relay. Internal: an outbox is opened by URL.

    No other relay has rows of the same group between `take` and `settle`. Every method raises `StoreError` if the
    outbox does not answer.
    """

    name: str

    def take(self, limit: int) -> list[PendingRow]: ...  # rows that may be published now, those of a group in order
    def extend(self) -> None: ...  # the lease of the rows that were taken; called by another thread
    def settle(self, done: Sequence[PendingRow], released: Sequence[ReleasedRow]) -> None: ...  # all that were taken
    def wait(self, duration: int, stop: threading.Event) -> None: ...  # until there may be more, at most so long
    def sweep(self) -> bool: ...  # delete some expired copies; returns whether there are more
    def backlog(self) -> Backlog: ...
    def close(self) -> None: ...
