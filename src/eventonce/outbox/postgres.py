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
from eventonce.forks import tell_of_forks
from eventonce.outbox.connections import execute
from eventonce.outbox.feed import MOST_COUNTED, SWEPT, Back, Backlog
from eventonce.outbox.rows import OutboxRow, PendingRow
from eventonce.outbox.schema import VERSIONS, Schema, absent
from eventonce.stores.postgres.connection import Connection, Pool
from eventonce.stores.postgres.errors import trouble
from eventonce.stores.retry import ask
from eventonce.stores.url import patience

_LOCK = 0x65766E74_6F757462  # "evntoutb": the advisory lock under which the tables are made
_CONNECTIONS = 4
_DEPTH = 100  # rows of one group that are taken together
_SLICE = 0.25  # seconds: how soon a wait notices that it is to stop
_SCHEMA = Schema("postgres_sql")
_ADD, _TAKE, _EXTEND, _SETTLE, _SWEEP, _BACKLOG = (
    _SCHEMA.statement(name) for name in ("add", "take", "extend", "settle", "sweep", "backlog")
)
Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]


class PostgresTable:
    """`postgresql://HOST/DATABASE`; `timeout=5s` and `notify=false` are ours."""

    streamed = False

    def __init__(self, url: str, clock: Clock) -> None:
        settings, ours = libpq.read(url, "outbox", "timeout", "notify")
        self._timeout = patience(ours.get("timeout", libpq.TIMEOUT / 1000), "outbox")
        if ours.get("notify", "true") not in ("true", "false"):
            raise ConfigError(f"outbox: notify={ours['notify']!r} is neither true nor false")
        waits = {"connect_timeout": -(-self._timeout // 1000), "application_name": "eventonce"}
        self._settings = {**waits, **settings}
        self._notify = ours.get("notify") != "false"
        self._clock = clock
        self.name = libpq.place(settings)
        self._pool = Pool(self._connect, _CONNECTIONS, self._timeout / 1000)
        self._missing = absent(self.name)
        tell_of_forks(self)

    # --- the user's side ---

    def insert(self, connection: Any, row: OutboxRow) -> None:
        """Add a row to the transaction that is open on the user's connection."""
        values = {**row._asdict(), "ordered": row.ordered, "notify": self._notify}
        execute(connection, _ADD, values, "postgresql", self._missing)

    def create(self) -> None:
        """Make the tables, or bring them up to date; whoever comes second waits and finds them made."""

        def act(connection: Connection) -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                for each in _SCHEMA.missing(self._version(connection)):
                    connection.execute(each.encode())

        self._ask(act, self._timeout)

    def check(self) -> None:
        """Raise unless the tables are there and of this version."""
        _SCHEMA.check(self._ask(self._version, self._timeout), self.name)

    @staticmethod
    def schema() -> str:
        return ";\n".join([*_SCHEMA.missing(0), ""])

    @staticmethod
    def _version(connection: Connection) -> int:
        (there,) = connection.run(f"SELECT to_regclass('{VERSIONS}') IS NOT NULL").fetchone() or (False,)
        found = connection.run(f"SELECT max(version) FROM {VERSIONS}").fetchone() if there else None
        return int(found[0] or 0) if found else 0

    # --- the relay's side ---

    def take(self, token: str, after: str, most: int, lease: int) -> tuple[list[PendingRow], str, int]:
        """What is next of groups behind `after`, the last group that was looked at, and how many were."""
        asked = {"token": token, "after": after, "most": most, "depth": _DEPTH, "lease": lease}
        rows = self._ask(lambda connection: _rows(connection, _TAKE, asked), 0)
        count, last, now, *_ = rows[0]
        found = [_pending(row[3:], now) for row in rows if row[3] is not None]
        return found, last or "", count

    def extend(self, token: str, numbers: Sequence[int], lease: int) -> int:
        asked = {"token": token, "numbers": list(numbers), "lease": lease}
        return len(self._ask(lambda connection: _rows(connection, _EXTEND, asked), lease // 3))

    def settle(self, token: str, done: Sequence[PendingRow], back: Sequence[Back], keep: int, within: int) -> int:
        """Remove and give back; how many were still this relay's. May be repeated, where its answer was lost."""
        asked = {
            "token": token,
            "done": [row.number for row in done],
            "keep": keep > 0,
            "back": [each.row.number for each in back],
            "rests": [each.rest for each in back],
            "blames": [int(each.blame) for each in back],
        }
        ((count,),) = self._ask(lambda connection: _rows(connection, _SETTLE, asked), within)
        return int(count)

    def sweep(self, keep: int) -> int:
        def act(connection: Connection) -> int:
            return connection.run(_SWEEP, {"keep": keep, "most": SWEPT}).rowcount

        return self._ask(act, 0)

    def backlog(self) -> Backlog:
        ((count, waited),) = self._ask(lambda connection: _rows(connection, _BACKLOG, {"most": MOST_COUNTED}), 0)
        return Backlog(count, max(0, waited or 0))

    def bell(self) -> PostgresListener:
        """What rings when something was added."""
        return PostgresListener(self._settings)

    def close(self) -> None:
        self._pool.close()

    # --- asking ---

    def _ask(self, act: Callable[[Connection], Result], within: int) -> Result:
        return ask(lambda: self._told(act), self._clock, within)

    def _told(self, act: Callable[[Connection], Result]) -> Result:
        try:
            return self._pool.use(act)
        except psycopg.errors.UndefinedTable as error:
            raise StoreUnusable(self._missing) from error
        except psycopg.Error as error:
            if error.sqlstate is None:
                self._pool.close()  # idle connections are as dead
            raise _trouble(error, self.name) from error

    def _connect(self) -> Connection:
        connection = Connection.connect(**self._settings, autocommit=True)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.prepare_threshold = None  # so that it works behind a pooler, and plans fit a table that grows
        connection.patience = self._timeout / 1000
        return connection

    # --- forks: connections belong to the process that made them ---

    def before_fork(self) -> None:
        self._pool.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        self._pool.after_fork(in_child=in_child)


class PostgresListener:
    """Listens for notifications on a connection of its own, made again when it is lost."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None
        self._process = os.getpid()

    def listen(self) -> bool:
        """Be there to hear; True where that has begun only now, so that something may have been missed."""
        if self._connection is not None and not self._connection.closed and self._process == os.getpid():
            return False
        self._process = os.getpid()
        try:
            self._connection = psycopg.connect(**self._settings, autocommit=True)
            self._connection.execute("LISTEN eventonce_outbox")
        except psycopg.Error:  # the relay looks by itself now and then, and hears why not
            self.close()
            return False
        return True

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Until it rings, it is to stop, or so many seconds are over."""
        give_up = time.monotonic() + seconds
        while not stop.is_set() and (left := give_up - time.monotonic()) > 0:
            if self._connection is None:
                stop.wait(min(left, _SLICE))
            elif self._rang(min(left, _SLICE)):
                return

    def _rang(self, seconds: float) -> bool:
        assert self._connection is not None
        try:
            return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))
        except psycopg.Error:
            self.close()
            return True  # look at once: what was missed meanwhile nobody will tell

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


def _trouble(error: psycopg.Error, place: str) -> StoreError:
    if error.sqlstate == "42501":
        return StoreUnusable(
            f"{place}: {error.diag.message_primary}; grant the role SELECT, INSERT, UPDATE and DELETE on "
            "eventonce_outbox and eventonce_outbox_published, and SELECT on eventonce_outbox_schema"
        )
    return trouble(error, place)
