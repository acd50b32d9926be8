"""Transactions of PostgreSQL that hold a handler's own writes and the record of them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from eventonce.claim import Claim, Finish
from eventonce.errors import ConfigError, EventOnceError, LeaseLost, StoreError
from eventonce.stores.postgres.connection import Connection, Result
from eventonce.stores.postgres.schema import statement
from eventonce.stores.postgres.trouble import blameless, inside, lost

_AS_BEFORE = "SELECT set_config('search_path', %s, true), set_config('role', %s, true)"
_BEGIN, _FINISH = statement("begin"), statement("finish")


class LentConnection(Connection):
    """A connection that a handler may write through but not end: the effect and its record end together."""

    lent = False
    _own_patience: float | None = None

    def lend(self) -> None:
        self._own_patience, self.patience = self.patience, None  # a handler's statements may take their time
        self.lent = True

    def take_back(self) -> None:
        if self.lent:
            self.lent, self.patience = False, self._own_patience
            self.row_factory = tuple_row
            self.cursor_factory, self.server_cursor_factory = psycopg.Cursor, psycopg.ServerCursor
            self.prepare_threshold = None

    def clean(self) -> None:
        """Undo what a handler has set, made or listened to outside of its tables; the next handler is another."""
        try:
            if not self.closed:
                self.autocommit = True
                self.execute("DISCARD ALL")
                self.autocommit = False
        except psycopg.Error:
            self.close()

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        try:
            return super().wait(gen, interval)
        except psycopg.Error as error:
            if self.lent and blameless(error, self):
                raise inside(error) from error
            raise

    def commit(self) -> None:
        self._refuse()
        super().commit()

    def rollback(self) -> None:
        self._refuse()
        super().rollback()

    def close(self) -> None:
        self._refuse()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`with ctx.tx:` ends nothing: an error fails the handler, and that undoes all of it."""
        if not self.lent:
            super().__exit__(kind, error, trace)

    def _refuse(self) -> None:
        if self.lent:
            raise ConfigError(
                "ctx.tx is committed by eventonce when the handler returns, and rolled back when it raises"
            )


class Home(Protocol):
    """Where a transaction's connection comes from."""

    def trouble(self, error: psycopg.Error) -> StoreError: ...
    def settled(self, claim: Claim) -> bool | None: ...  # whether it is done; None where it is not ours
    def leave(self, claim: Claim, connection: LentConnection) -> None: ...


class PostgresTransaction:
    """A transaction around one handler's writes, on a connection of its own."""

    holds = True  # the row is locked

    def __init__(self, home: Home, claim: Claim, connection: LentConnection) -> None:
        self._home = home
        self._claim = claim
        self._connection: LentConnection | None = connection
        self._number = ""
        self._settings: list[str] = []  # search_path and role, as they were
        self.handle: Any = connection

    def begin(self) -> None:
        """Lock the row; from here on nobody can take the claim over."""
        connection = self._open()
        row = connection.execute(_BEGIN, self._claim._asdict()).fetchone()
        if row is None:
            raise LeaseLost
        self._number, *self._settings = row[:3]
        connection.lend()

    def commit(self, finish: Finish) -> bool:
        """Commit the handler's writes and the record of them; where the claim is lost, neither."""
        connection = self._open()
        try:
            connection.take_back()
            self._refuse_ended(connection)
            connection.execute(_AS_BEFORE, self._settings)  # the handler may have changed them for itself
            if not connection.execute(_FINISH, {**finish._asdict(), "number": self._number}).rowcount:
                self._refuse_other(connection)
                return False
            return self._commit(connection)
        except psycopg.Error as error:
            if not isinstance(error, psycopg.OperationalError) and not blameless(error, connection):
                raise  # the handler's own mistake
            raise self._home.trouble(error) from error
        finally:
            self.rollback()

    def _commit(self, connection: LentConnection) -> bool:
        """Commit; and where the answer is lost, find out what became of it."""
        try:
            connection.commit()
        except psycopg.OperationalError as error:
            if not lost(error, connection):
                raise
            connection.close()
            done = self._home.settled(self._claim)
            if done is False:
                raise  # nothing was written
            return done is True
        return True

    def _refuse_ended(self, connection: LentConnection) -> None:
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise EventOnceError(
                "a statement of ctx.tx failed, and PostgreSQL writes nothing after that; let the handler fail too, "
                "or put what may fail into `with ctx.tx.transaction():`"
            )
        if status == TransactionStatus.IDLE:
            _ended()

    def _refuse_other(self, connection: LentConnection) -> None:
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        if row != (self._number,):
            _ended()

    def _open(self) -> LentConnection:
        if self._connection is None:
            raise EventOnceError("this transaction has ended")
        return self._connection

    def rollback(self) -> None:
        """Undo what was not committed, and end. May be called again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.take_back()
            if not connection.closed:
                connection.rollback()
                connection.clean()
        except (psycopg.Error, StoreError):  # closing undoes it too
            connection.close()
        finally:
            self._home.leave(self._claim, connection)


def _ended() -> None:
    raise EventOnceError(
        "the handler has ended the transaction of ctx.tx with SQL of its own, so what it wrote before that is not "
        "recorded as done; leave COMMIT and ROLLBACK to eventonce"
    )
