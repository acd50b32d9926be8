"""Transactions of PostgreSQL with a handler's own writes and their record."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from eventonce.claims.protocol import Claim, Commit
from eventonce.errors import ConfigError, EventOnceError, LeaseLost, StoreError
from eventonce.stores.postgres.connection import Connection, Result
from eventonce.stores.postgres.errors import NoAnswer, for_handler, is_blameless, is_connection_lost
from eventonce.stores.postgres.schema import statement

_RESTORE_SETTINGS = "SELECT set_config('search_path', %s, true), set_config('role', %s, true)"
_BEGIN, _FINISH = statement("begin"), statement("finish")


class PostgresTxConnection(Connection):
    """A connection through which a handler writes, but cannot commit: the effect and its record commit together.

    It shares its session with the pooled connection it is made from. That one goes on to other handlers, while this one
    ends with its own handler. So a handler that keeps it, or a cursor of it, cannot reach another transaction.
    """

    def __init__(self, lender: Connection) -> None:
        super().__init__(lender.pgconn)
        self.lock = lender.lock  # a thread of the handler may still be running a statement
        self.prepare_threshold = None
        self._ended = False

    def end(self) -> None:
        self._ended = True

    @property
    def closed(self) -> bool:
        return self._ended or super().closed

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        self._refuse_ended()
        try:
            return super().wait(gen, interval)
        except psycopg.Error as error:
            if is_blameless(error, self):
                raise for_handler(error) from error
            raise

    def commit(self) -> None:
        self._refuse()

    def rollback(self) -> None:
        self._refuse()

    def close(self) -> None:
        self._refuse()

    def cancel(self) -> None:
        self._refuse_ended()
        super().cancel()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        self._refuse_ended()
        super().cancel_safe(timeout=timeout)

    def __enter__(self) -> Self:
        self._refuse_ended()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing at the end of `with ctx.tx:`. An error fails the handler, and that undoes all its writes."""

    def _refuse(self) -> None:
        self._refuse_ended()
        raise ConfigError("ctx.tx is committed by eventonce when the handler returns, and rolled back when it raises")

    def _refuse_ended(self) -> None:
        if self._ended:
            raise ConfigError("ctx.tx has ended with its handler; use it inside the handler only")


class TransactionOwner(Protocol):
    """The store to which the connection of a transaction returns. Internal."""

    def translate_error(self, error: psycopg.Error) -> StoreError: ...
    def is_done(self, claim: Claim) -> bool | None: ...  # None if the token does not own it
    def leave(self, claim: Claim, connection: Connection) -> None: ...


class PostgresTransaction:
    """A transaction around one handler's writes, on a connection of its own."""

    holds = True  # the row is locked

    def __init__(self, owner: TransactionOwner, claim: Claim, connection: Connection) -> None:
        self._owner = owner
        self._claim = claim
        self._connection: Connection | None = connection
        self._number = ""
        self._settings: list[str] = []  # search_path and role before the handler
        self.handle: Any = PostgresTxConnection(connection)

    def begin(self) -> None:
        """Lock the row. After that nobody can take the claim over."""
        connection = self._open()
        row = connection.execute(_BEGIN, self._claim._asdict()).fetchone()
        if row is None:
            raise LeaseLost
        self._number, *self._settings = row[:3]

    def commit(self, finish: Commit) -> bool:
        """Commit the handler's writes and their record, or neither if the claim is lost."""
        connection = self._open()
        self.handle.end()
        try:
            self._refuse_ended(connection)
            connection.execute(_RESTORE_SETTINGS, self._settings)  # the handler may have changed them
            if not connection.execute(_FINISH, {**finish._asdict(), "number": self._number}).rowcount:
                self._refuse_other(connection)
                return False
            return self._commit(connection)
        except psycopg.Error as error:
            if not isinstance(error, psycopg.OperationalError) and not is_blameless(error, connection):
                raise  # an error of the handler's own statements
            raise self._owner.translate_error(error) from error
        finally:
            self.rollback()

    def _commit(self, connection: Connection) -> bool:
        """Commit. If the answer is lost, look up whether the claim is done."""
        try:
            connection.commit()
        except psycopg.OperationalError as error:
            if not isinstance(error, NoAnswer) and not is_connection_lost(error, connection):
                raise
            connection.close()
            done = self._owner.is_done(self._claim)
            if done is False:
                raise  # nothing was written
            return done is True
        return True

    def _refuse_ended(self, connection: Connection) -> None:
        if connection.pgconn.pipeline_status:
            raise EventOnceError(
                "the handler has left a pipeline of ctx.tx open, so the results of its statements are unread; "
                "write `with ctx.tx.pipeline():`"
            )
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise EventOnceError(
                "a statement of ctx.tx failed, and PostgreSQL rejects all others after that; let the handler fail too, "
                "or put a statement that may fail into `with ctx.tx.transaction():`"
            )
        if status == TransactionStatus.IDLE:
            _ended()

    def _refuse_other(self, connection: Connection) -> None:
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        if row != (self._number,):
            _ended()

    def _open(self) -> Connection:
        if self._connection is None:
            raise EventOnceError("this transaction has ended")
        return self._connection

    def rollback(self) -> None:
        """Undo what was not committed, and end the transaction. This may be called again."""
        connection = self._connection
        if connection is None:
            return
        self.handle.end()
        try:
            if connection.pgconn.pipeline_status:
                connection.close()
            elif not connection.closed:
                connection.rollback()
                _discard_session_state(connection)
        except (psycopg.Error, StoreError):  # closing undoes it too
            connection.close()
        except BaseException:  # interrupted: the state of the session is unknown
            connection.close()
            raise
        finally:
            self._connection = None
            self._owner.leave(self._claim, connection)


def _discard_session_state(connection: Connection) -> None:
    """Discard settings, temporary tables and listeners of a handler, since the next one is another."""
    try:
        connection.autocommit = True
        connection.execute("DISCARD ALL")
        connection.autocommit = False
    except psycopg.Error:
        connection.close()


def _ended() -> None:
    raise EventOnceError(
        "the handler has ended the transaction of ctx.tx with its own SQL, so what it wrote before that is not "
        "recorded as done; leave COMMIT and ROLLBACK to eventonce"
    )
