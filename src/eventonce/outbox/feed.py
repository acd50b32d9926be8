"""What a relay is fed from, and how it says what became of each event."""

import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eventonce.outbox.rows import PendingRow


class Back(NamedTuple):
    """A row that is given back, not to be taken for a while."""

    row: PendingRow
    rest: int  # milliseconds
    blame: bool = False  # whether that counts as one of its attempts


class Backlog(NamedTuple):
    """What waits in an outbox."""

    pending: int  # counted no further than to `MOST_COUNTED`
    lag: int  # milliseconds that the first of it has waited


MOST_COUNTED = 100_000
SWEPT = 1000  # rows that are removed at a time


class OutboxFeed(Protocol):
    """A relay's way to the rows of an outbox. Internal: an outbox is opened by URL.

    What was taken is held until it is settled, and nobody else has rows of the same group meanwhile. Where the outbox
    does not answer, a `StoreError` says so.
    """

    name: str

    def take(self, most: int) -> list[PendingRow]: ...  # what may be published now, the rows of a group in order
    def hold(self) -> None: ...  # what was taken is still at work; called by another thread
    def settle(self, done: Sequence[PendingRow], back: Sequence[Back]) -> None: ...  # all that was taken
    def wait(self, duration: int, stop: threading.Event) -> None: ...  # until there may be more, at most so long
    def tidy(self) -> bool: ...  # remove some of what need not be kept any longer; whether there is more
    def backlog(self) -> Backlog: ...
    def close(self) -> None: ...
