"""The feed of an outbox in SQL: rows are taken under a lease, and the lease is extended until they are settled."""

import logging
import threading
import uuid
from collections.abc import Sequence
from typing import Protocol

from eventonce.outbox.feed import SWEEP_LIMIT, Backlog, ReleasedRow
from eventonce.outbox.rows import PendingRow
from eventonce.text import counted

_log = logging.getLogger("eventonce")


class ChangeListener(Protocol):
    """Waits until a row may have been added. Internal."""

    def listen(self) -> bool: ...
    def wait(self, seconds: float, stop: threading.Event) -> None: ...
    def close(self) -> None: ...


class OutboxTable(Protocol):
    """The rows of an outbox in an SQL database. Internal."""

    name: str

    def take(self, token: str, after: str, limit: int, lease: int) -> tuple[list[PendingRow], str, int]: ...
    def extend(self, token: str, numbers: Sequence[int], lease: int) -> int: ...
    def settle(
        self, token: str, done: Sequence[PendingRow], released: Sequence[ReleasedRow], keep: int, timeout: int
    ) -> int: ...
    def sweep(self, keep: int) -> int: ...
    def backlog(self) -> Backlog: ...
    def listener(self) -> ChangeListener: ...
    def close(self) -> None: ...


class TableFeed:
    """Walks from group to group in a circle, so that no group waits forever for busy ones.

    The rows of a relay that died are free when their `lease` expires. No transaction is open while events are sent. It
    would keep its locks, and the database from cleaning up, for as long as the receiver takes.
    """

    def __init__(self, table: OutboxTable, *, lease: int, keep: int) -> None:
        self._table = table
        self._lease = lease
        self._keep = keep
        self._after = ""
        self._token = ""
        self._numbers: tuple[int, ...] = ()  # of the rows under this relay's lease
        self._listener = table.listener()
        self.name = table.name

    def take(self, limit: int) -> list[PendingRow]:
        self._listener.listen()  # before the query, so that no row that follows it is missed
        from_first = self._after == ""
        rows = self._step(limit)
        return rows if rows or from_first else self._step(limit)

    def _step(self, limit: int) -> list[PendingRow]:
        """Take rows of the next groups. If other relays have just taken all of these, go on to the groups after."""
        groups = limit
        rows: list[PendingRow] = []
        while not rows and groups == limit:
            self._token = uuid.uuid4().hex
            rows, last, groups = self._table.take(self._token, self._after, limit, self._lease)
            self._after = last if groups == limit else ""
        self._numbers = tuple(row.number for row in rows)
        return rows

    def extend(self) -> None:
        token, numbers = self._token, self._numbers
        if numbers:
            self._table.extend(token, numbers, self._lease)

    def settle(self, done: Sequence[PendingRow], released: Sequence[ReleasedRow]) -> None:
        numbers, self._numbers = self._numbers, ()  # first, so that no released row is extended
        settled = self._table.settle(self._token, done, released, self._keep, self._lease)
        if settled < len(numbers):
            _log.warning(
                "%s: another relay took over %d of %s, which may be published twice under one identity; "
                "use a longer lease if this happens often",
                self.name,
                len(numbers) - settled,
                counted(len(numbers), "event"),
            )

    def wait(self, duration: int, stop: threading.Event) -> None:
        if not self._listener.listen():
            self._listener.wait(duration / 1000, stop)

    def sweep(self) -> bool:
        return self._table.sweep(self._keep) >= SWEEP_LIMIT

    def backlog(self) -> Backlog:
        return self._table.backlog()

    def close(self) -> None:
        self._listener.close()
