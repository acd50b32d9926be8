"""An outbox in a SQLite file. Every change is one IMMEDIATE transaction, and a single writer cannot race."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from eventonce.clock import Clock
from eventonce.errors import ConfigError, StoreUnusable
from eventonce.files import identity, is_in_place, moved
from eventonce.forks import register_for_forks
from eventonce.outbox.connections import execute
from eventonce.outbox.feed import MAX_COUNTED, SWEEP_LIMIT, Backlog, ReleasedRow
from eventonce.outbox.rows import OutboxRow, PendingRow
from eventonce.outbox.schema import VERSIONS, Schema, absent
from eventonce.stores.sqlite import LOCK_TIMEOUT, in_transaction, translate_error
from eventonce.stores.url import options, redact_url
from eventonce.urls import refuse_fragment

_DEPTH = 100  # rows of one group that are taken together
_TICK = 0.02  # seconds between two checks of the file for a change, which cost microseconds
_SCHEMA = Schema("sqlite_sql")
_ADD, _TAKE = _SCHEMA.statement("add"), _SCHEMA.statement("take")
_LEASE = "UPDATE eventonce_outbox SET token = ?, since = ?, until = ? WHERE id = ?"
_EXTEND = "UPDATE eventonce_outbox SET since = ?, until = ? WHERE id = ? AND token = ?"
_KEEP = (
    "INSERT INTO eventonce_outbox_published (id, added, published, grp, identity, event) "
    "SELECT id, added, ?, grp, identity, event FROM eventonce_outbox WHERE id = ? AND token = ?"
)
_REMOVE = "DELETE FROM eventonce_outbox WHERE id = ? AND token = ?"
_RELEASE = (
    "UPDATE eventonce_outbox SET token = NULL, since = ?, until = ?, failures = failures + ? WHERE id = ? AND token = ?"
)
_SWEEP = (
    "DELETE FROM eventonce_outbox_published WHERE id IN "
    "(SELECT id FROM eventonce_outbox_published WHERE published <= ? ORDER BY published LIMIT ?)"
)
_BACKLOG = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM eventonce_outbox LIMIT ?)), "
    "(SELECT added FROM eventonce_outbox ORDER BY id LIMIT 1)"
)
Result = TypeVar("Result")


class SQLiteTable:
    """`sqlite:///FILE`: the database of the user's own tables."""

    streamed = False

    def __init__(self, url: str, clock: Clock) -> None:
        parts = urlsplit(url)
        refuse_fragment(url, f"outbox: {redact_url(url)}")
        options(url)
        file = unquote(parts.path[1:])
        if parts.netloc or not file or file == ":memory:":
            raise ConfigError(f"outbox: {url!r} names no file; use sqlite:///FILE or sqlite:////ABSOLUTE/FILE")
        self._file = str(Path(file).absolute())
        self._clock = clock
        self.name = f"sqlite:///{file}"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: os.stat_result | None = None  # of the file that was opened first
        self._missing = absent(self.name)
        register_for_forks(self)

    # --- the user's side ---

    def insert(self, connection: Any, row: OutboxRow) -> None:
        """Add a row in the transaction that is open on the user's connection."""
        execute(connection, _ADD, {**row._asdict(), "added": self._clock.utc()}, "sqlite", self._missing)

    def create(self) -> None:
        """Create or upgrade the tables, under the write lock."""

        def operation(connection: sqlite3.Connection) -> None:
            for statement in _SCHEMA.missing(_version(connection)):
                connection.execute(statement)

        self._change(operation)

    def check(self) -> None:
        """Raise `StoreUnusable` unless the tables exist in the latest version."""
        if not Path(self._file).exists():
            raise StoreUnusable(f"{self.name}: there is no such file; check its name")
        _SCHEMA.check(self._use(_version), self.name)

    @staticmethod
    def schema() -> str:
        return ";\n".join([*_SCHEMA.missing(0), ""])

    # --- the relay's side ---

    def take(self, token: str, after: str, limit: int, lease: int) -> tuple[list[PendingRow], str, int]:
        """Take rows of the groups after `after`. Return them, the last group examined, and the number examined."""

        def operation(connection: sqlite3.Connection) -> tuple[list[Any], int]:
            now = self._clock.utc()  # not earlier: it may have waited for the write lock
            parameters = {"after": after, "most": limit, "depth": _DEPTH, "now": now}
            rows = connection.execute(_TAKE, parameters).fetchall()
            leases = [(token, now, now + lease, row[2]) for row in rows if row[2] is not None]
            connection.executemany(_LEASE, leases)
            return rows, now

        if self._identity is not None and not is_in_place(self._identity, self._file):
            raise moved(self._file)  # events are added to another file now
        rows, now = self._change(operation)
        pending = [_pending(row[2:], now) for row in rows if row[2] is not None]
        return pending, rows[0][1] or "", rows[0][0]

    def extend(self, token: str, numbers: Sequence[int], lease: int) -> int:
        def operation(connection: sqlite3.Connection) -> int:
            now = self._clock.utc()
            leases = [(now, now + lease, number, token) for number in numbers]
            return connection.executemany(_EXTEND, leases).rowcount

        return self._change(operation)

    def settle(
        self, token: str, done: Sequence[PendingRow], released: Sequence[ReleasedRow], keep: int, timeout: int
    ) -> int:
        """Remove and release rows. Return how many were still this relay's."""

        def operation(connection: sqlite3.Connection) -> int:
            now = self._clock.utc()
            releases = [
                (now, now + release.delay, int(release.blame), release.row.number, token) for release in released
            ]
            if keep:
                connection.executemany(_KEEP, [(now, row.number, token) for row in done])
            removed = connection.executemany(_REMOVE, [(row.number, token) for row in done]).rowcount
            return max(0, removed) + max(0, connection.executemany(_RELEASE, releases).rowcount)

        return self._change(operation)

    def sweep(self, keep: int) -> int:
        now = self._clock.utc()
        return self._change(lambda connection: connection.execute(_SWEEP, (now - keep, SWEEP_LIMIT)).rowcount)

    def backlog(self) -> Backlog:
        count, added = self._use(lambda connection: connection.execute(_BACKLOG, (MAX_COUNTED,)).fetchone())
        return Backlog(count, 0 if added is None else max(0, self._clock.utc() - added))

    def listener(self) -> SQLiteListener:
        """Return a listener for changes of the file."""
        return SQLiteListener(lambda: self._use(_data_version))

    def close(self) -> None:
        with self._lock:
            self._drop()

    # --- the connection ---

    def _change(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        return self._use(lambda connection: in_transaction(connection, lambda: operation(connection)))

    def _use(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                    self._identity = self._identity or identity(self._file)
                return operation(self._connection)
            except sqlite3.Error as error:
                if "no such table: eventonce_outbox" in str(error):
                    raise StoreUnusable(self._missing) from error
                raise translate_error(error, self._file) from error

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
        # With a write-ahead log, NORMAL may lose the last commits of a relay in a power cut. Their events are published
        # again under the same identities. The user's own connections decide how the user's commits are synced.
        has_wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if has_wal else 'FULL'}")
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def before_fork(self) -> None:
        self._lock.acquire()
        self._drop()

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()


class SQLiteListener:
    """Waits until another connection changes the file."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._last: int | None = None

    def listen(self) -> bool:
        """Note the version of the file. Return True if none was noted before, so a change may have been missed."""
        first = self._last is None
        if first:
            self._last = self._version()
        return first

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait for a change of the file, the stop, or the timeout."""
        for _ in range(max(1, round(seconds / _TICK))):
            with suppress(StoreUnusable):  # the relay's next query raises it
                version = self._version()
                if version != self._last:
                    self._last = version
                    return
            if stop.wait(_TICK):
                return

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _version(connection: sqlite3.Connection) -> int:
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSIONS,)).fetchone()
    return int(connection.execute(f"SELECT max(version) FROM {VERSIONS}").fetchone()[0] or 0) if exists else 0


def _pending(row: Sequence[Any], now: int) -> PendingRow:
    number, identity, grp, event, failures, added = row
    return PendingRow(number, identity, grp, event, failures, max(0, now - added))
