"""The SQLite store: the embedded default, one file that several processes may share.

Write-ahead log with a sync on every commit, so what was committed survives a power cut. Every change is one
IMMEDIATE transaction for its whole batch: SQLite has one writer at a time, so inside it nothing can race.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Token
from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError, EventOnceError, LeaseLost, StoreBusy, StoreError, StoreUnusable
from eventonce.event.keys import Key
from eventonce.files import identity, is_in_place, moved
from eventonce.forks import register_for_forks
from eventonce.ports import Swept
from eventonce.stores import sqlite_rows as rows
from eventonce.stores.embedded import EmbeddedStore, Records, Result
from eventonce.stores.url import flag, options

LOCK_TIMEOUT = 10.0  # seconds to wait for another process's transaction
_SCHEMA = Path(__file__).with_name("sqlite_schema")
_SCHEMA_TABLE = "eventonce_schema"
_WRITING, _READING = "BEGIN IMMEDIATE", "BEGIN"
_ROLLED_BACK = "SQLite has rolled the transaction back after an error; the handler must fail too"
# What was committed survives a power cut; pages stay in memory, since keys are random and want any of them; and the log
# grows to the usual 4 MB before it is written back.
_SETTINGS = "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 4000"
_PAGE = 1024  # bytes: keys are random, so each changes a page of its own, and all of that page is written


def open_url(url: str, clock: Clock | None, create: bool) -> SQLiteStore:
    """Open `sqlite:///FILE`. `?shared=true` allows other tables in it."""
    file = Path(unquote(urlsplit(url).path[1:]))
    query = options(url, "shared")
    if not create and file.parent.is_dir() and not file.exists():
        raise StoreUnusable(f"store: {file}: there is no such file; check its name")
    return SQLiteStore(file, shared=flag(url, query, "shared"), clock=clock, migrate=create)


class SQLiteStore(EmbeddedStore):
    """Claims in a SQLite file.

    `shared` allows a file that already holds other tables, so that a handler's own writes through `ctx.tx`
    commit together with their record. Without `migrate`, a file without tables of eventonce or with those of an older
    one is refused, so that a command that only reads neither creates them nor takes them from running workers.
    """

    def __init__(
        self, file: str | Path, *, shared: bool = False, clock: Clock | None = None, migrate: bool = True
    ) -> None:
        self.clock = clock or SystemClock()
        self._file = str(Path(file).absolute())  # the same file if the process changes its folder
        self._shared = shared
        self._migrate = migrate
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: os.stat_result | None = None  # of the file that was opened first
        self._log_file = f"{self._file}-wal"
        self._log: os.stat_result | None = None  # of its log, which exists as long as a connection does
        # By thread. Weak, so that a transaction which an interrupt kept from its handler does not stay.
        self._lent: weakref.WeakValueDictionary[int, SQLiteTransaction] = weakref.WeakValueDictionary()
        self._forked_inside = False
        self._use(lambda connection: None)
        register_for_forks(self)

    # --- verbs with a fast path, and those that `EmbeddedStore` does not have ---

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Remove the expired ones of the next `limit` keys. This is a walk, so no index is needed."""
        now = self.clock.utc()
        expired, next_cursor = self._use(lambda connection: rows.expired_keys(connection, limit, cursor, now))
        removed = self._in_transaction(lambda connection: rows.drop_expired(connection, expired, now)) if expired else 0
        return Swept(removed, next_cursor)

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        def operation(connection: sqlite3.Connection) -> list[Answer]:
            answers = rows.claim(connection, wants, token, lease, self.clock.utc())
            self._refuse_moved()  # as late as possible: another process may replace the file at any time
            return answers

        return self._in_transaction(operation)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        return self._in_transaction(lambda connection: rows.commit(connection, finishes, self.clock.utc()))

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def begin(self, claim: Claim) -> SQLiteTransaction:
        """Begin the transaction that will hold a handler's writes and their record."""
        # Opened under the lock, so that no fork happens in between.
        transaction = self._use(lambda _: self._enter(SQLiteTransaction(self, self._open(SQLiteTxConnection))))
        try:
            transaction.begin(claim)
        except sqlite3.Error as error:
            transaction.rollback()
            raise self.translate_error(error) from error
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def _enter(self, transaction: SQLiteTransaction) -> SQLiteTransaction:
        try:
            self.enter(transaction)
        except BaseException:  # interrupted: this thread still has to release its claims
            transaction.rollback()
            raise
        return transaction

    def enter(self, transaction: SQLiteTransaction) -> None:
        """Register that this thread is inside ctx.tx."""
        self._lent[threading.get_ident()] = transaction

    def leave(self) -> None:
        self._lent.pop(threading.get_ident(), None)

    # --- transactions ---

    def _change(self, keys: Sequence[Key], operation: Callable[[Records], Result]) -> Result:
        return self._in_transaction(lambda connection: rows.change(connection, keys, operation))

    def _in_transaction(self, operation: Callable[[sqlite3.Connection], Result], begin: str = _WRITING) -> Result:
        return self._use(lambda connection: in_transaction(connection, lambda: operation(connection), begin))

    def _read(self, keys: Sequence[Key]) -> Records:
        return self._in_transaction(lambda connection: rows.select(connection, keys), _READING)

    def _use(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Call a function with the connection, under the lock."""
        self._refuse_inside()
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                return operation(self._connection)
            except sqlite3.Error as error:
                raise self.translate_error(error) from error

    def _refuse_inside(self) -> None:
        if self._forked_inside:
            raise StoreUnusable(f"{self._file}: this process was forked inside ctx.tx; open the store again in it")
        if threading.get_ident() in self._lent:
            raise ConfigError(f"{self._file}: this thread is inside ctx.tx, so it cannot use the same store otherwise")

    # --- forks: SQLite's locks belong to a process, and its connections must not be inherited ---

    def before_fork(self) -> None:
        self._lock.acquire()
        self._drop_connection()

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            self._forked_inside = bool(self._lent)

    # --- opening ---

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._log = None

    def _open(self, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        folder = Path(self._file).parent
        if not folder.is_dir():
            raise StoreUnusable(f"{self._file}: the folder {str(folder)!r} does not exist; create it first")
        self._refuse_moved()  # else SQLite would create a new one, without any records
        connection = sqlite3.connect(
            self._file,
            timeout=LOCK_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=factory,
        )
        return _close_on_error(connection, lambda: connection.executescript(_SETTINGS))

    def _connect(self) -> sqlite3.Connection:
        connection = self._open()
        _close_on_error(connection, lambda: self._set_up(connection))
        self._identity = self._identity or identity(self._file)
        self._log_file = f"{os.path.realpath(self._file)}-wal"  # SQLite creates it beside the target of a symbolic link
        log = Path(self._log_file)
        self._log = log.stat() if log.exists() else None  # missing on a file system without shared memory
        return connection

    def _refuse_moved(self) -> None:
        """Raise if an open file is no longer at its path, because others would run again what is done here."""
        if self._identity is not None and not is_in_place(self._identity, self._file):
            raise moved(self._file)
        if self._log is not None and not is_in_place(self._log, self._log_file):
            raise moved(self._log_file)  # it holds the last commits, and other processes start a new one

    def _set_up(self, connection: sqlite3.Connection) -> None:
        migrations = _migrations()
        tables = _tables(connection)  # read once, since another process may be creating them
        if tables and _SCHEMA_TABLE not in tables and not self._shared:
            raise StoreUnusable(
                f"{self._file}: is a database of another program; use another file, or add ?shared=true "
                "to the URL to keep eventonce's tables beside the others"
            )
        if _SCHEMA_TABLE not in tables and not self._migrate:
            raise StoreUnusable(f"{self._file}: has no tables of eventonce; check its name, or start a worker first")
        if not tables and not self._shared:
            connection.execute(f"PRAGMA page_size = {_PAGE}")
        version = _version(connection) if _SCHEMA_TABLE in tables else 0
        if version > len(migrations):
            raise StoreUnusable(f"{self._file}: was written by a newer eventonce (schema {version}); upgrade eventonce")
        if 0 < version < len(migrations) and not self._migrate:
            raise StoreUnusable(
                f"{self._file}: was written by an older eventonce (schema {version}), whose workers may be running; "
                "stop them and start one of this version, which migrates the file"
            )
        self._switch_to_wal(connection)
        if version < len(migrations):
            in_transaction(connection, lambda: _migrate(connection, migrations))

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        # SQLite does not wait here if another process switches at the same time.
        deadline = self.clock.steady() + LOCK_TIMEOUT * 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) not in _WAITING or self.clock.steady() > deadline:
                    raise
                self.clock.sleep(10)

    def translate_error(self, error: sqlite3.Error) -> StoreError:
        """Return the store error for an error of SQLite."""
        return translate_error(error, self._file)


def _close_on_error(connection: sqlite3.Connection, operation: Callable[[], object]) -> sqlite3.Connection:
    """Call a function and return the connection, or close it if that raised."""
    try:
        operation()
    except BaseException:
        connection.close()
        raise
    return connection


def in_transaction(connection: sqlite3.Connection, operation: Callable[[], Result], begin: str = _WRITING) -> Result:
    """Call a function in a transaction: that of the only writer, unless `begin` says otherwise."""
    try:
        connection.execute(begin)
        result = operation()
        connection.execute("COMMIT")
        return result
    finally:
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Undo what was not committed. SQLite itself has done so after some errors."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


# --- transactions with a handler's own writes ---


class SQLiteTxCursor(sqlite3.Cursor):
    """A cursor of a lent connection, which writes nothing outside of the transaction."""

    def execute(self, *args: Any) -> Self:
        _need_transaction(self.connection)
        return super().execute(*args)

    def executemany(self, *args: Any) -> Self:
        _need_transaction(self.connection)
        return super().executemany(*args)


def _need_transaction(connection: sqlite3.Connection) -> None:
    if isinstance(connection, SQLiteTxConnection) and connection.lent and not connection.in_transaction:
        raise sqlite3.OperationalError(_ROLLED_BACK)


class SQLiteTxConnection(sqlite3.Connection):
    """A connection through which a handler writes, but cannot commit: the effect and its record commit together."""

    lent = False

    def lend(self) -> None:
        self.lent = True
        self.set_authorizer(_deny_endings)  # for COMMIT in SQL, and for what Python commits without calling commit()

    def take_back(self) -> None:
        self.lent = False
        self.set_authorizer(None)
        self.row_factory, self.text_factory = None, str

    def cursor(self, factory: Any = SQLiteTxCursor) -> Any:
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)

    def commit(self) -> None:
        self._refuse()
        super().commit()

    def rollback(self) -> None:
        self._refuse()
        super().rollback()

    def close(self) -> None:
        self._refuse()
        super().close()

    def executescript(self, *args: Any) -> Any:
        self._refuse()  # it commits before it begins
        return super().executescript(*args)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Do nothing at the end of `with ctx.tx:`. An error fails the handler, and that undoes all its writes."""
        return False if self.lent else super().__exit__(kind, error, trace)

    def _refuse(self) -> None:
        if self.lent:
            raise ConfigError(
                "ctx.tx is committed by eventonce when the handler returns, and rolled back when it raises"
            )


def _deny_endings(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteTransaction:
    """A transaction around one handler's writes, on a connection of its own that is closed with it."""

    holds = True

    def __init__(self, store: SQLiteStore, connection: sqlite3.Connection) -> None:
        self._store = store
        self._connection: Any = connection
        self.handle: Any = connection

    def begin(self, claim: Claim) -> None:
        """Take the write lock. After that nobody can take the claim over."""
        self._connection.execute("BEGIN IMMEDIATE")
        if not rows.holds(self._connection, claim):
            raise LeaseLost
        self._connection.lend()

    def commit(self, finish: Commit) -> bool:
        """Commit the handler's writes and their record, or neither if the claim is lost."""
        try:
            self._connection.take_back()
            return self._commit(finish)
        except sqlite3.IntegrityError:  # a deferred constraint: the handler's own mistake
            raise
        except sqlite3.Error as error:
            if "statements in progress" in str(error):
                raise EventOnceError("a cursor of ctx.tx still has rows; fetch them all or close it") from error
            raise self._store.translate_error(error) from error
        finally:
            self.rollback()

    def _commit(self, finish: Commit) -> bool:
        if not self._connection.in_transaction:
            raise EventOnceError(_ROLLED_BACK)
        (committed,) = rows.commit(self._connection, [finish], self._store.clock.utc())
        if committed:
            self._connection.execute("COMMIT")
        return committed

    def rollback(self) -> None:
        """Undo what was not committed, and close the connection. This may be called again."""
        try:
            self._connection.lent = False
            self._connection.set_authorizer(None)
            _roll_back(self._connection)
        except sqlite3.Error:  # closed already, or broken: closing undoes it too
            pass
        finally:
            self._connection.close()
            self._store.leave()


# --- the schema ---


def _migrations() -> list[str]:
    return [file.read_text() for file in sorted(_SCHEMA.glob("*.sql"))]


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _version(connection: sqlite3.Connection) -> int:
    version = connection.execute(f"SELECT max(version) FROM {_SCHEMA_TABLE}").fetchone()[0]
    return int(version or 0)


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    # Inside the write lock, because another process may have migrated the file meanwhile.
    connection.execute(f"CREATE TABLE IF NOT EXISTS {_SCHEMA_TABLE} (version INTEGER NOT NULL)")
    for number in range(_version(connection), len(migrations)):
        for statement in re.split(r";\s*\n", migrations[number]):
            connection.execute(statement)
        connection.execute(f"INSERT INTO {_SCHEMA_TABLE} VALUES (?)", (number + 1,))


# --- errors ---

_WAITING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_REMEDIES = {
    sqlite3.SQLITE_ERROR: "its tables are not as eventonce left them, so use another file",
    sqlite3.SQLITE_FULL: "free some space on the disk and run again (no event was lost)",
    sqlite3.SQLITE_IOERR: "check the disk and its free space and run again (no event was lost)",
    sqlite3.SQLITE_NOTADB: "use another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged, so restore it from a backup or use another one",
    sqlite3.SQLITE_CANTOPEN: "check that it is a file that this user may read and write",
    sqlite3.SQLITE_READONLY: "allow writing to the file and its folder",
    sqlite3.SQLITE_PERM: "allow reading and writing the file and its folder",
    sqlite3.SQLITE_AUTH: "allow reading and writing the file and its folder",
}


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translate_error(error: sqlite3.Error, file: str) -> StoreError:
    """Return the store error for an error of SQLite, with its remedy. It says whether a retry may help."""
    code = _code(error)
    if code in _WAITING:
        return StoreBusy(f"{file}: another process held the database for {LOCK_TIMEOUT:g} s; keep transactions short")
    remedy = _REMEDIES.get(code)
    return StoreUnusable(f"{file}: {error}; {remedy}") if remedy else StoreError(f"{file}: {error}")
