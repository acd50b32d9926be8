"""The SQLite store: the embedded default, one file that several processes may share.

Write-ahead log with a sync on every commit, so what was committed survives a power cut. Every change is one
IMMEDIATE transaction for its whole batch: SQLite has one writer at a time, so inside it nothing can race.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from eventonce import claim as protocol
from eventonce.claim import Claim, Finish, Record
from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError, LeaseLost, StoreError, StoreUnusable
from eventonce.key import Key
from eventonce.ports import Swept
from eventonce.stores.ledger import Ledger, Records

PATIENCE = 10.0  # seconds to wait for another process's transaction
_SCHEMA = Path(__file__).with_name("sqlite_schema")
_COLUMNS = "key, token, lease, shared, tries, trying, done_at, until, took, version, memo, error, expires"
_PUT = f"INSERT OR REPLACE INTO eventonce_claims ({_COLUMNS}) VALUES ({', '.join('?' * 13)})"
_SCHEMA_TABLE = "eventonce_schema"
_CHUNK = 500  # keys in one SELECT


class SQLiteStore(Ledger):
    """Claims in a table of a SQLite file.

    `shared` allows a file that already holds other tables, so that a handler's own writes through `ctx.tx`
    commit together with the record of them.
    """

    def __init__(self, file: str | Path, *, shared: bool = False, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._file = str(file)
        self._shared = shared
        self._lock = threading.RLock()
        self._in_tx = False
        self._pid = os.getpid()
        self._connection: Connection | None = None
        with self._locked():
            pass

    # --- the verbs that are not the ledger's ---

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Look at the next `limit` keys and remove those whose time is over: a walk, so no index is needed."""
        with self._locked() as connection:
            now = self.clock.utc()
            rows = connection.execute(
                "SELECT key, coalesce(expires, until) FROM eventonce_claims WHERE key > ? ORDER BY key LIMIT ?",
                (cursor, limit),
            ).fetchall()
            over = [(key, now) for key, expires in rows if expires <= now]
            if over:
                with self._writing(connection):
                    connection.executemany(
                        "DELETE FROM eventonce_claims WHERE key = ? AND coalesce(expires, until) <= ?", over
                    )
            return Swept(len(over), rows[-1][0] if len(rows) == limit else None)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def begin(self, claim: Claim) -> SQLiteTransaction:
        """Begin the transaction that will hold a handler's writes and the record of them."""
        self._acquire()
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            record = _select(connection, [claim.key]).get(claim.key)
            if record is None or record.token != claim.token or not record.lease:
                connection.execute("ROLLBACK")
                raise LeaseLost
        except sqlite3.Error as error:
            self._lock.release()
            raise self._trouble(error) from error
        except BaseException:
            self._lock.release()
            raise
        self._in_tx = True
        return SQLiteTransaction(self, connection)

    # --- transactions ---

    @contextmanager
    def _change(self, keys: Sequence[Key]) -> Iterator[Records]:
        with self._locked() as connection, self._writing(connection):
            before = _select(connection, keys)
            after = dict(before)
            yield after
            _write(connection, before, after)

    def _read(self, keys: Sequence[Key]) -> Records:
        with self._locked() as connection:
            return _select(connection, keys)

    @contextmanager
    def _locked(self) -> Iterator[Connection]:
        self._acquire()
        try:
            yield self._connect()
        except sqlite3.Error as error:
            raise self._trouble(error) from error
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=PATIENCE):
            raise StoreError(f"{self._file}: another thread held the store for {PATIENCE:g} s; keep ctx.tx short")
        if self._in_tx:  # only the thread that holds the lock can come here: it is inside its own ctx.tx
            self._lock.release()
            raise StoreError(f"{self._file}: this thread is inside ctx.tx, so it cannot claim from the same store")

    @staticmethod
    @contextmanager
    def _writing(connection: Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _end_tx(self) -> None:
        self._in_tx = False
        self._lock.release()

    # --- opening ---

    def _connect(self) -> Connection:
        if self._connection is None or self._pid != os.getpid():  # a connection must not cross a fork
            self._pid = os.getpid()
            self._connection = self._open()
        return self._connection

    def _open(self) -> Connection:
        folder = Path(self._file).parent
        if not folder.is_dir():
            raise StoreUnusable(f"{self._file}: the folder {str(folder)!r} does not exist; create it first")
        connection = sqlite3.connect(
            self._file,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=Connection,
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        known = _migrations()
        tables = _tables(connection)  # one look, since another process may be making them right now
        if tables and _SCHEMA_TABLE not in tables and not self._shared:
            raise StoreUnusable(
                f"{self._file}: is a database of something else; name another file, or add ?shared=true "
                "to the URL to keep eventonce's tables beside the others"
            )
        version = _version(connection) if _SCHEMA_TABLE in tables else 0
        if version > len(known):
            raise StoreUnusable(f"{self._file}: was written by a newer eventonce (schema {version}); upgrade eventonce")
        self._switch_to_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        if version < len(known):
            with self._writing(connection):
                _migrate(connection, known)

    def _switch_to_wal(self, connection: Connection) -> None:
        # SQLite does not wait here when another process switches at the same moment.
        deadline = self.clock.steady() + PATIENCE * 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) not in _WAITING or self.clock.steady() > deadline:
                    raise
                self.clock.sleep(10)

    def _trouble(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        if code in _WAITING:
            return StoreError(f"{self._file}: another process held the database for {PATIENCE:g} s")
        why = _REMEDIES.get(code)
        return StoreUnusable(f"{self._file}: {error}; {why}") if why else StoreError(f"{self._file}: {error}")


class Connection(sqlite3.Connection):
    """A connection that a handler may write through but not end: the effect and its record end together."""

    lent = False

    def commit(self) -> None:
        self._refuse()
        super().commit()

    def rollback(self) -> None:
        self._refuse()
        super().rollback()

    def _refuse(self) -> None:
        if self.lent:
            raise ConfigError(
                "ctx.tx is committed by eventonce when the handler returns, and rolled back when it raises"
            )

    def lend(self) -> None:
        self.lent = True
        self.set_authorizer(_keep_open)  # for COMMIT in SQL, and for what Python commits without asking commit()

    def take_back(self) -> None:
        self.set_authorizer(None)
        self.row_factory, self.text_factory, self.lent = None, str, False


def _keep_open(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteTransaction:
    """The store's transaction around one handler's writes."""

    def __init__(self, store: SQLiteStore, connection: Connection) -> None:
        self._store = store
        self.handle = connection
        connection.lend()

    def commit(self, finish: Finish) -> bool:
        """Commit the handler's writes and the record of them; where the claim is lost, neither."""
        self.handle.take_back()
        try:
            if not self.handle.in_transaction:
                raise StoreError("SQLite rolled the transaction back by itself after an error in the handler")
            kept = protocol.commit(_select(self.handle, [finish.key]).get(finish.key), finish, self._store.clock.utc())
            if kept is None:
                self._roll_back()
                return False
            _write(self.handle, {}, {finish.key: kept})
            self.handle.execute("COMMIT")
            return True
        except sqlite3.Error as error:
            self._roll_back()
            raise self._store._trouble(error) from error
        finally:
            self._end()

    def rollback(self) -> None:
        """Undo the handler's writes."""
        self.handle.take_back()
        try:
            self._roll_back()
        finally:
            self._end()

    def _end(self) -> None:
        self.handle.isolation_level = None  # only now: setting it commits what is open
        self._store._end_tx()

    def _roll_back(self) -> None:
        if self.handle.in_transaction:  # SQLite itself has rolled back after some errors
            self.handle.execute("ROLLBACK")


# --- rows ---


@lru_cache(maxsize=64)
def _selection(count: int) -> str:
    return f"SELECT {_COLUMNS} FROM eventonce_claims WHERE key IN ({', '.join('?' * count)})"


def _select(connection: Connection, keys: Sequence[Key]) -> dict[Key, Record]:
    records = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        for row in connection.execute(_selection(len(chunk)), chunk):
            record = Record._make(row[1:])
            records[row[0]] = record if record.expires else record._replace(expires=record.until)
    return records


def _write(connection: Connection, before: dict[Key, Record], after: dict[Key, Record]) -> None:
    puts = [_row(key, record) for key, record in after.items() if before.get(key) is not record]
    gone = [(key,) for key in before.keys() - after.keys()]
    if puts:
        connection.executemany(_PUT, puts)
    if gone:
        connection.executemany("DELETE FROM eventonce_claims WHERE key = ?", gone)


def _row(key: Key, record: Record) -> tuple[object, ...]:
    return (key, *record[:-1], None if record.expires == record.until else record.expires)


# --- the schema ---


def _migrations() -> list[str]:
    return [file.read_text() for file in sorted(_SCHEMA.glob("*.sql"))]


def _tables(connection: Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _version(connection: Connection) -> int:
    found = connection.execute(f"SELECT max(version) FROM {_SCHEMA_TABLE}").fetchone()[0]
    return int(found or 0)


def _migrate(connection: Connection, known: Sequence[str]) -> None:
    # Inside the write lock: another process may have done it since we looked.
    connection.execute(f"CREATE TABLE IF NOT EXISTS {_SCHEMA_TABLE} (version INTEGER NOT NULL)")
    for number in range(_version(connection), len(known)):
        for statement in re.split(r";\s*\n", known[number]):
            connection.execute(statement)
        connection.execute(f"INSERT INTO {_SCHEMA_TABLE} VALUES (?)", (number + 1,))


# --- errors ---

_WAITING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_REMEDIES = {
    sqlite3.SQLITE_ERROR: "its tables are not as eventonce left them, so name another file",
    sqlite3.SQLITE_FULL: "free some space on the disk and run again, nothing is lost",
    sqlite3.SQLITE_IOERR: "check the disk and its free space and run again, nothing is lost",
    sqlite3.SQLITE_NOTADB: "it is no SQLite file, so name another one",
    sqlite3.SQLITE_CORRUPT: "the file is damaged, so restore it from a backup or name another one",
    sqlite3.SQLITE_CANTOPEN: "check that it is a file you may read and write",
    sqlite3.SQLITE_READONLY: "allow writing to the file and its folder",
    sqlite3.SQLITE_PERM: "allow reading and writing the file and its folder",
    sqlite3.SQLITE_AUTH: "allow reading and writing the file and its folder",
}


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
