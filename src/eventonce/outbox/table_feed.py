"""A relay's way to a table of SQL: rows are taken for a while, and held until they are settled."""

import logging
import threading
import uuid
from collections.abc import Sequence
from typing import Protocol

from eventonce.outbox.feed import SWEPT, Back, Backlog
from eventonce.outbox.rows import PendingRow

_log = logging.getLogger("eventonce")


class ChangeListener(Protocol):
    """Rings when something may have been added. Internal."""

    def listen(self) -> bool: ...
    def wait(self, seconds: float, stop: threading.Event) -> None: ...
    def close(self) -> None: ...


class OutboxTable(Protocol):
    """The rows of an outbox in a database that has SQL. Internal."""

    name: str

    def take(self, token: str, after: str, most: int, lease: int) -> tuple[list[PendingRow], str, int]: ...
    def extend(self, token: str, numbers: Sequence[int], lease: int) -> int: ...
    def settle(self, token: str, done: Sequence[PendingRow], back: Sequence[Back], keep: int, within: int) -> int: ...
    def sweep(self, keep: int) -> int: ...
    def backlog(self) -> Backlog: ...
    def bell(self) -> ChangeListener: ...
    def close(self) -> None: ...


class TableFeed:
    """Walks from group to group, round and round, so that none waits for ever behind busy ones.

    A relay that dies leaves its rows to others when `lease` is over. No transaction is open while events are being
    sent: one would keep the database from cleaning up, and its locks, for as long as the receiver takes.
    """

    def __init__(self, table: OutboxTable, *, lease: int, keep: int) -> None:
        self._table = table
        self._lease = lease
        self._keep = keep
        self._after = ""
        self._token = ""
        self._held: tuple[int, ...] = ()
        self._bell = table.bell()
        self.name = table.name

    def take(self, most: int) -> list[PendingRow]:
        self._bell.listen()  # before the look, so that nothing comes between unheard
        whole = self._after == ""
        found = self._step(most)
        return found if found or whole else self._step(most)

    def _step(self, most: int) -> list[PendingRow]:
        """Look at the next groups; where others have just taken all of them, at the ones behind."""
        looked = most
        found: list[PendingRow] = []
        while not found and looked == most:
            self._token = uuid.uuid4().hex
            found, last, looked = self._table.take(self._token, self._after, most, self._lease)
            self._after = last if looked == most else ""
        self._held = tuple(row.number for row in found)
        return found

    def hold(self) -> None:
        token, held = self._token, self._held
        if held:
            self._table.extend(token, held, self._lease)

    def settle(self, done: Sequence[PendingRow], back: Sequence[Back]) -> None:
        held, self._held = self._held, ()  # first, so that nothing is held any longer that is given back
        ours = self._table.settle(self._token, done, back, self._keep, self._lease)
        if ours < len(held):
            _log.warning(
                "%s: %d of %d events were taken over by another relay, and may be published twice under one identity; "
                "give relays a longer lease if that goes on",
                self.name,
                len(held) - ours,
                len(held),
            )

    def wait(self, duration: int, stop: threading.Event) -> None:
        if not self._bell.listen():
            self._bell.wait(duration / 1000, stop)

    def tidy(self) -> bool:
        return self._table.sweep(self._keep) >= SWEPT

    def backlog(self) -> Backlog:
        return self._table.backlog()

    def close(self) -> None:
        self._bell.close()
