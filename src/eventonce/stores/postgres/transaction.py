"""Transactions of PostgreSQL that hold a handler's own writes and the record of them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from eventonce.claims.protocol import Claim, Finish
from eventonce.errors import ConfigError, EventOnceError, LeaseLost, StoreError
from eventonce.stores.postgres.connection import Connection, Result
from eventonce.stores.postgres.errors import NoAnswer, blameless, inside, lost
from eventonce.stores.postgres.schema import statement

_AS_BEFORE = "SELECT set_config('search_path', %s, true), set_config('role', %s, true)"
_BEGIN, _FINISH = statement("begin"), statement("finish")


class PostgresTxConnection(Connection):
    """What a handler writes through, and cannot end: the effect and its record end together.

    It shares its session with the connection it is made of. That goes on to other handlers, and this one ends with its
    own, so that whoever keeps it, or a cursor of it, reaches nobody else's transaction.
    """

    def __init__(self, lender: Connection) -> None:
        super().__init__(lender.pgconn)
        self.lock = lender.lock  # a thread of the handler's may still be in the middle of a statement
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
            if blameless(error, self):
                raise inside(error) from error
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
        """`with ctx.tx:` ends nothing: an error fails the handler, and that undoes all of it."""

    def _refuse(self) -> None:
        self._refuse_ended()
        raise ConfigError("ctx.tx is committed by eventonce when the handler returns, and rolled back when it raises")

    def _refuse_ended(self) -> None:
        if self._ended:
            raise ConfigError("ctx.tx has ended with its handler; use it inside the handler only")


class Home(Protocol):
    """Where a transaction's connection comes from. Internal."""

    def trouble(self, error: psycopg.Error) -> StoreError: ...
    def settled(self, claim: Claim) -> bool | None: ...  # whether it is done; None where it is not ours
    def leave(self, claim: Claim, connection: Connection) -> None: ...


class PostgresTransaction:
    """A transaction around one handler's writes, on a connection of its own."""

    holds = True  # the row is locked

    def __init__(self, home: Home, claim: Claim, connection: Connection) -> None:
        self._home = home
        self._claim = claim
        self._connection: Connection | None = connection
        self._number = ""
        self._settings: list[str] = []  # search_path and role, as they were
        self.handle: Any = PostgresTxConnection(connection)

    def begin(self) -> None:
        """Lock the row; from here on nobody can take the claim over."""
        connection = self._open()
        row = connection.execute(_BEGIN, self._claim._asdict()).fetchone()
        if row is None:
            raise LeaseLost
        self._number, *self._settings = row[:3]

    def commit(self, finish: Finish) -> bool:
        """Commit the handler's writes and the record of them; where the claim is lost, neither."""
        connection = self._open()
        self.handle.end()
        try:
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

    def _commit(self, connection: Connection) -> bool:
        """Commit; and where the answer is lost, find out what became of it."""
        try:
            connection.commit()
        except psycopg.OperationalError as error:
            if not isinstance(error, NoAnswer) and not lost(error, connection):
                raise
            connection.close()
            done = self._home.settled(self._claim)
            if done is False:
                raise  # nothing was written
            return done is True
        return True

    def _refuse_ended(self, connection: Connection) -> None:
        if connection.pgconn.pipeline_status:
            raise EventOnceError(
                "the handler has left a pipeline of ctx.tx open, so nobody has read what became of its statements; "
                "write `with ctx.tx.pipeline():`"
            )
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise EventOnceError(
                "a statement of ctx.tx failed, and PostgreSQL writes nothing after that; let the handler fail too, "
                "or put what may fail into `with ctx.tx.transaction():`"
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
        """Undo what was not committed, and end. May be called again."""
        connection = self._connection
        if connection is None:
            return
        self.handle.end()
        try:
            if connection.pgconn.pipeline_status:
                connection.close()
            elif not connection.closed:
                connection.rollback()
                _clean(connection)
        except (psycopg.Error, StoreError):  # closing undoes it too
            connection.close()
        except BaseException:  # interrupted: who knows how it would be handed to the next handler
            connection.close()
            raise
        finally:
            self._connection = None
            self._home.leave(self._claim, connection)


def _clean(connection: Connection) -> None:
    """Undo what a handler has set, made or listened to outside of its tables; the next handler is another."""
    try:
        connection.autocommit = True
        connection.execute("DISCARD ALL")
        connection.autocommit = False
    except psycopg.Error:
        connection.close()


def _ended() -> None:
    raise EventOnceError(
        "the handler has ended the transaction of ctx.tx with SQL of its own, so what it wrote before that is not "
        "recorded as done; leave COMMIT and ROLLBACK to eventonce"
    )
