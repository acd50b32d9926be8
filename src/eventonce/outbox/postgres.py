"""An outbox in PostgreSQL. The server's clock decides, and `NOTIFY` wakes the relays when a transaction commits."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg

from eventonce.clients import libpq
from eventonce.clock import Clock
from eventonce.errors import ConfigError, StoreError, StoreUnusable
from eventonce.forks import register_for_forks
from eventonce.outbox.connections import execute
from eventonce.outbox.feed import MAX_COUNTED, SWEEP_LIMIT, Backlog, ReleasedRow
from eventonce.outbox.rows import OutboxRow, PendingRow
from eventonce.outbox.schema import VERSIONS, Schema, absent
from eventonce.stores.postgres.connection import Connection, Pool
from eventonce.stores.postgres.errors import translate_error
from eventonce.stores.retry import call_with_retries
from eventonce.stores.url import parse_timeout

_LOCK = 0x65766E74_6F757462  # "evntoutb": the advisory lock under which the tables are created
_CONNECTIONS = 4
_DEPTH = 100  # rows of one group that are taken together
_SLICE = 0.25  # seconds within which a wait notices a stop
_SCHEMA = Schema("postgres_sql")
_ADD, _TAKE, _EXTEND, _SETTLE, _SWEEP, _BACKLOG = (
    _SCHEMA.statement(name) for name in ("add", "take", "extend", "settle", "sweep", "backlog")
)
Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]


class PostgresTable:
    """`postgresql://HOST/DATABASE`, with our options `timeout=5s` and `notify=false`."""

    streamed = False

    def __init__(self, url: str, clock: Clock) -> None:
        settings, own_options = libpq.read(url, "outbox", "timeout", "notify")
        self._timeout = parse_timeout(own_options.get("timeout", f"{libpq.TIMEOUT}ms"), "outbox")
        if own_options.get("notify", "true") not in ("true", "false"):
            raise ConfigError(f"outbox: notify={own_options['notify']!r} is not valid; use true or false")
        defaults = {"connect_timeout": -(-self._timeout // 1000), "application_name": "eventonce"}
        self._settings = {**defaults, **settings}
        self._notify = own_options.get("notify") != "false"
        self._clock = clock
        self.name = libpq.address(settings)
        self._pool = Pool(self._connect, _CONNECTIONS, self._timeout / 1000)
        self._missing = absent(self.name)
        register_for_forks(self)

    # --- the user's side ---

    def insert(self, connection: Any, row: OutboxRow) -> None:
        """Add a row in the transaction that is open on the user's connection."""
        values = {**row._asdict(), "ordered": row.ordered, "notify": self._notify}
        execute(connection, _ADD, values, "postgresql", self._missing)

    def create(self) -> None:
        """Create or upgrade the tables. A concurrent caller waits, and has nothing left to do."""

        def operation(connection: Connection) -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                for statement in _SCHEMA.missing(self._version(connection)):
                    connection.execute(statement.encode())

        self._run(operation, self._timeout)

    def check(self) -> None:
        """Raise `StoreUnusable` unless the tables exist in the latest version."""
        _SCHEMA.check(self._run(self._version, self._timeout), self.name)

    @staticmethod
    def schema() -> str:
        return ";\n".join([*_SCHEMA.missing(0), ""])

    @staticmethod
    def _version(connection: Connection) -> int:
        (exists,) = connection.run(f"SELECT to_regclass('{VERSIONS}') IS NOT NULL").fetchone() or (False,)
        row = connection.run(f"SELECT max(version) FROM {VERSIONS}").fetchone() if exists else None
        return int(row[0] or 0) if row else 0

    # --- the relay's side ---

    def take(self, token: str, after: str, limit: int, lease: int) -> tuple[list[PendingRow], str, int]:
        """Take rows of the groups after `after`. Return them, the last group examined, and the number examined."""
        parameters = {"token": token, "after": after, "most": limit, "depth": _DEPTH, "lease": lease}
        rows = self._run(lambda connection: _rows(connection, _TAKE, parameters), 0)
        count, last, now, *_ = rows[0]
        pending = [_pending(row[3:], now) for row in rows if row[3] is not None]
        return pending, last or "", count

    def extend(self, token: str, numbers: Sequence[int], lease: int) -> int:
        parameters = {"token": token, "numbers": list(numbers), "lease": lease}
        return len(self._run(lambda connection: _rows(connection, _EXTEND, parameters), lease // 3))

    def settle(
        self, token: str, done: Sequence[PendingRow], released: Sequence[ReleasedRow], keep: int, timeout: int
    ) -> int:
        """Remove and release rows. Return how many were still this relay's. It is safe to repeat."""
        parameters = {
            "token": token,
            "done": [row.number for row in done],
            "keep": keep > 0,
            "back": [release.row.number for release in released],
            "rests": [release.delay for release in released],
            "blames": [int(release.blame) for release in released],
        }
        ((count,),) = self._run(lambda connection: _rows(connection, _SETTLE, parameters), timeout)
        return int(count)

    def sweep(self, keep: int) -> int:
        def operation(connection: Connection) -> int:
            return connection.run(_SWEEP, {"keep": keep, "most": SWEEP_LIMIT}).rowcount

        return self._run(operation, 0)

    def backlog(self) -> Backlog:
        ((count, waited),) = self._run(lambda connection: _rows(connection, _BACKLOG, {"most": MAX_COUNTED}), 0)
        return Backlog(count, max(0, waited or 0))

    def listener(self) -> PostgresListener:
        """Return a listener for new rows."""
        return PostgresListener(self._settings)

    def close(self) -> None:
        self._pool.close()

    # --- calls ---

    def _run(self, operation: Callable[[Connection], Result], timeout: int) -> Result:
        return call_with_retries(lambda: self._translate_errors(operation), self._clock, timeout)

    def _translate_errors(self, operation: Callable[[Connection], Result]) -> Result:
        try:
            return self._pool.use(operation)
        except psycopg.errors.UndefinedTable as error:
            raise StoreUnusable(self._missing) from error
        except psycopg.Error as error:
            if error.sqlstate is None:
                self._pool.close()  # the idle connections are dead too
            raise _translate_error(error, self.name) from error

    def _connect(self) -> Connection:
        connection = Connection.connect(**self._settings, autocommit=True)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.prepare_threshold = None  # works with a pooler, and plans fit a growing table
        connection.answer_timeout = self._timeout / 1000
        return connection

    # --- forks: connections belong to the process that opened them ---

    def before_fork(self) -> None:
        self._pool.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        self._pool.after_fork(in_child=in_child)


class PostgresListener:
    """Listens for notifications on a connection of its own, and opens a new one when it is lost."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None
        self._process = os.getpid()

    def listen(self) -> bool:
        """Start to listen. Return True if it was not listening before, and so may have missed a notification."""
        if self._connection is not None and not self._connection.closed and self._process == os.getpid():
            return False
        self._process = os.getpid()
        try:
            self._connection = psycopg.connect(**self._settings, autocommit=True)
            self._connection.execute("LISTEN eventonce_outbox")
        except psycopg.Error:  # the relay also polls, and reports the error then
            self.close()
            return False
        return True

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait for a notification, the stop, or the timeout."""
        deadline = time.monotonic() + seconds
        while not stop.is_set() and (remaining := deadline - time.monotonic()) > 0:
            if self._connection is None:
                stop.wait(min(remaining, _SLICE))
            elif self._was_notified(min(remaining, _SLICE)):
                return

    def _was_notified(self, seconds: float) -> bool:
        assert self._connection is not None
        try:
            return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))
        except psycopg.Error:
            self.close()
            return True  # query at once: notifications may have been missed

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(psycopg.Error):
                connection.close()


def _rows(connection: Connection, sql: str, parameters: dict[str, Any]) -> Rows:
    return connection.run(sql, parameters).fetchall()


def _pending(row: Sequence[Any], now: int) -> PendingRow:
    number, identity, grp, event, failures, added = row
    return PendingRow(number, identity, grp, bytes(event), failures, max(0, now - added))


def _translate_error(error: psycopg.Error, address: str) -> StoreError:
    if error.sqlstate == "42501":
        return StoreUnusable(
            f"{address}: {error.diag.message_primary}; grant the role SELECT, INSERT, UPDATE and DELETE on "
            "eventonce_outbox and eventonce_outbox_published, and SELECT on eventonce_outbox_schema"
        )
    return translate_error(error, address)
