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

from eventonce.claims.protocol import Answer, Claim, Finish, Token, Want
from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError, EventOnceError, LeaseLost, StoreBusy, StoreError, StoreUnusable
from eventonce.event.keys import Key
from eventonce.files import identity, is_in_place, moved
from eventonce.forks import register_for_forks
from eventonce.ports import Swept
from eventonce.stores import sqlite_rows as rows
from eventonce.stores.embedded import EmbeddedStore, Records, Result
from eventonce.stores.url import flag, options

PATIENCE = 10.0  # seconds to wait for another process's transaction
_SCHEMA = Path(__file__).with_name("sqlite_schema")
_SCHEMA_TABLE = "eventonce_schema"
_WRITING, _READING = "BEGIN IMMEDIATE", "BEGIN"
_ROLLED_BACK = "SQLite has rolled the transaction back after an error; the handler must fail too"
# What was committed survives a power cut; pages stay in memory, since keys are random and want any of them; and the log
# grows to the usual 4 MB before it is written back.
_SETTINGS = "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 4000"
_PAGE = 1024  # bytes: keys are random, so each changes a page of its own, and all of that page is written


def open_url(url: str, clock: Clock | None, create: bool) -> SQLiteStore:
    """Open `sqlite:///FILE`; `?shared=true` allows other tables in it."""
    file = Path(unquote(urlsplit(url).path[1:]))
    found = options(url, "shared")
    if not create and file.parent.is_dir() and not file.exists():
        raise StoreUnusable(f"store: {file}: there is no such file; check its name")
    return SQLiteStore(file, shared=flag(url, found, "shared"), clock=clock, migrate=create)


class SQLiteStore(EmbeddedStore):
    """Claims in a SQLite file.

    `shared` allows a file that already holds other tables, so that a handler's own writes through `ctx.tx`
    commit together with the record of them. Without `migrate`, a file of an older eventonce is refused: who only looks
    must not take it from workers that run.
    """

    def __init__(
        self, file: str | Path, *, shared: bool = False, clock: Clock | None = None, migrate: bool = True
    ) -> None:
        self.clock = clock or SystemClock()
        self._file = str(Path(file).absolute())  # the same file, wherever the process goes
        self._shared = shared
        self._migrate = migrate
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: os.stat_result | None = None  # of the file that was opened first
        self._log_file = f"{self._file}-wal"
        self._log: os.stat_result | None = None  # of its log, which is there for as long as a connection is
        # By thread. Weak: one that an interrupt lost on its way to the handler must not stay.
        self._lent: weakref.WeakValueDictionary[int, SQLiteTransaction] = weakref.WeakValueDictionary()
        self._forked_inside = False
        self._use(lambda connection: None)
        register_for_forks(self)

    # --- the verbs that are not the ledger's ---

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Look at the next `limit` keys and remove those whose time is over: a walk, so no index is needed."""
        now = self.clock.utc()
        over, cursor_after = self._use(lambda connection: rows.over(connection, limit, cursor, now))
        removed = self._transact(lambda connection: rows.drop(connection, over, now)) if over else 0
        return Swept(removed, cursor_after)

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        def act(connection: sqlite3.Connection) -> list[Answer]:
            answers = rows.claim(connection, wants, token, lease, self.clock.utc())
            self._refuse_moved()  # as late as can be: another may begin with a new file at any time
            return answers

        return self._transact(act)

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        return self._transact(lambda connection: rows.commit(connection, finishes, self.clock.utc()))

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def begin(self, claim: Claim) -> SQLiteTransaction:
        """Begin the transaction that will hold a handler's writes and the record of them."""
        # Opened under the lock, so that no fork comes between.
        transaction = self._use(lambda _: self._entered(SQLiteTransaction(self, self._open(SQLiteTxConnection))))
        try:
            transaction.begin(claim)
        except sqlite3.Error as error:
            transaction.rollback()
            raise self.trouble(error) from error
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def _entered(self, transaction: SQLiteTransaction) -> SQLiteTransaction:
        try:
            self.enter(transaction)
        except BaseException:  # interrupted: this thread still has to give its claims back
            transaction.rollback()
            raise
        return transaction

    def enter(self, transaction: SQLiteTransaction) -> None:
        """This thread is inside ctx.tx from now on."""
        self._lent[threading.get_ident()] = transaction

    def leave(self) -> None:
        self._lent.pop(threading.get_ident(), None)

    # --- transactions ---

    def _change(self, keys: Sequence[Key], act: Callable[[Records], Result]) -> Result:
        return self._transact(lambda connection: rows.change(connection, keys, act))

    def _transact(self, act: Callable[[sqlite3.Connection], Result], begin: str = _WRITING) -> Result:
        return self._use(lambda connection: in_transaction(connection, lambda: act(connection), begin))

    def _read(self, keys: Sequence[Key]) -> Records:
        return self._transact(lambda connection: rows.select(connection, keys), _READING)

    def _use(self, act: Callable[[sqlite3.Connection], Result]) -> Result:
        """Let a function use the connection, alone."""
        self._refuse_inside()
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._prepared()
                return act(self._connection)
            except sqlite3.Error as error:
                raise self.trouble(error) from error

    def _refuse_inside(self) -> None:
        if self._forked_inside:
            raise StoreUnusable(f"{self._file}: this process was forked inside ctx.tx; open the store anew in it")
        if threading.get_ident() in self._lent:
            raise ConfigError(f"{self._file}: this thread is inside ctx.tx, so it cannot use the same store besides")

    # --- forks: SQLite's locks belong to a process, and its connections must not cross over ---

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
        self._refuse_moved()  # else SQLite would make a new one, in which nothing is known
        connection = sqlite3.connect(
            self._file,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=factory,
        )
        return _or_closed(connection, lambda: connection.executescript(_SETTINGS))

    def _prepared(self) -> sqlite3.Connection:
        connection = self._open()
        _or_closed(connection, lambda: self._prepare(connection))
        self._identity = self._identity or identity(self._file)
        self._log_file = f"{os.path.realpath(self._file)}-wal"  # SQLite puts it beside what a symbolic link leads to
        log = Path(self._log_file)
        self._log = log.stat() if log.exists() else None  # a file system without shared memory has none
        return connection

    def _refuse_moved(self) -> None:
        """What is open is no longer what others find: they would run again what is done here."""
        if self._identity is not None and not is_in_place(self._identity, self._file):
            raise moved(self._file)
        if self._log is not None and not is_in_place(self._log, self._log_file):
            raise moved(self._log_file)  # what was committed last is in it, and others begin a new one

    def _prepare(self, connection: sqlite3.Connection) -> None:
        known = _migrations()
        tables = _tables(connection)  # one look, since another process may be making them right now
        if tables and _SCHEMA_TABLE not in tables and not self._shared:
            raise StoreUnusable(
                f"{self._file}: is a database of something else; name another file, or add ?shared=true "
                "to the URL to keep eventonce's tables beside the others"
            )
        if not tables and not self._shared:
            connection.execute(f"PRAGMA page_size = {_PAGE}")
        version = _version(connection) if _SCHEMA_TABLE in tables else 0
        if version > len(known):
            raise StoreUnusable(f"{self._file}: was written by a newer eventonce (schema {version}); upgrade eventonce")
        if 0 < version < len(known) and not self._migrate:
            raise StoreUnusable(
                f"{self._file}: was written by an older eventonce (schema {version}), whose workers may be running; "
                "stop them and start one of this version, which moves the file over"
            )
        self._switch_to_wal(connection)
        if version < len(known):
            in_transaction(connection, lambda: _migrate(connection, known))

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
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

    def trouble(self, error: sqlite3.Error) -> StoreError:
        """What an error of SQLite means to the engine."""
        return trouble(error, self._file)


def _or_closed(connection: sqlite3.Connection, act: Callable[[], object]) -> sqlite3.Connection:
    """The connection after something was done with it, or closed if that failed."""
    try:
        act()
    except BaseException:
        connection.close()
        raise
    return connection


def in_transaction(connection: sqlite3.Connection, act: Callable[[], Result], begin: str = _WRITING) -> Result:
    """Let a function act in a transaction, of the only writer unless it only reads."""
    try:
        connection.execute(begin)
        result = act()
        connection.execute("COMMIT")
        return result
    finally:
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Undo what was not committed; SQLite itself has done so after some errors."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


# --- transactions that hold a handler's own writes ---


class SQLiteTxCursor(sqlite3.Cursor):
    """A cursor of a lent connection: writes nothing outside of the transaction."""

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
    """A connection that a handler may write through but not end: the effect and its record end together."""

    lent = False

    def lend(self) -> None:
        self.lent = True
        self.set_authorizer(_keep_open)  # for COMMIT in SQL, and for what Python commits without asking commit()

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
        """`with ctx.tx:` ends nothing: an error fails the handler, and that undoes all of it."""
        return False if self.lent else super().__exit__(kind, error, trace)

    def _refuse(self) -> None:
        if self.lent:
            raise ConfigError(
                "ctx.tx is committed by eventonce when the handler returns, and rolled back when it raises"
            )


def _keep_open(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteTransaction:
    """A transaction around one handler's writes, on a connection of its own that ends with it."""

    holds = True

    def __init__(self, store: SQLiteStore, connection: sqlite3.Connection) -> None:
        self._store = store
        self._connection: Any = connection
        self.handle: Any = connection

    def begin(self, claim: Claim) -> None:
        """Take the write lock; from here on nobody can take the claim over."""
        self._connection.execute("BEGIN IMMEDIATE")
        if not rows.holds(self._connection, claim):
            raise LeaseLost
        self._connection.lend()

    def commit(self, finish: Finish) -> bool:
        """Commit the handler's writes and the record of them; where the claim is lost, neither."""
        try:
            self._connection.take_back()
            return self._commit(finish)
        except sqlite3.IntegrityError:  # a deferred constraint: the handler's own mistake
            raise
        except sqlite3.Error as error:
            if "statements in progress" in str(error):
                raise EventOnceError("a cursor of ctx.tx still has rows to give; fetch them all or close it") from error
            raise self._store.trouble(error) from error
        finally:
            self.rollback()

    def _commit(self, finish: Finish) -> bool:
        if not self._connection.in_transaction:
            raise EventOnceError(_ROLLED_BACK)
        (kept,) = rows.commit(self._connection, [finish], self._store.clock.utc())
        if kept:
            self._connection.execute("COMMIT")
        return kept

    def rollback(self) -> None:
        """Undo what was not committed, and end. May be called again."""
        try:
            self._connection.lent = False
            self._connection.set_authorizer(None)
            _roll_back(self._connection)
        except sqlite3.Error:  # closed already, or beyond help: closing undoes it too
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
    found = connection.execute(f"SELECT max(version) FROM {_SCHEMA_TABLE}").fetchone()[0]
    return int(found or 0)


def _migrate(connection: sqlite3.Connection, known: Sequence[str]) -> None:
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


def trouble(error: sqlite3.Error, file: str) -> StoreError:
    """What an error of SQLite means: whether it may pass, and what to do where it does not."""
    code = _code(error)
    if code in _WAITING:
        return StoreBusy(f"{file}: another process held the database for {PATIENCE:g} s; keep transactions short")
    why = _REMEDIES.get(code)
    return StoreUnusable(f"{file}: {error}; {why}") if why else StoreError(f"{file}: {error}")
