"""Connections to PostgreSQL, with a limit to the time they wait for an answer, and a pool that reuses idle ones."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg.abc import PQGen

from eventonce.errors import StoreBusy, StoreUnusable
from eventonce.stores.postgres.errors import NoAnswer, is_connection_lost

_CANCEL_TIMEOUT = 1.0  # seconds for a server to confirm that it has cancelled a statement
_IDLE_FOR = 240.0  # seconds; a firewall or proxy may drop a connection that is idle for longer
_READ, _WRITE = 1, 2  # psycopg's numbers for what to wait for, and for what is ready
Result = TypeVar("Result")


class Connection(psycopg.Connection[Any]):
    """A connection that waits `answer_timeout` seconds for an answer. libpq itself would wait forever."""

    answer_timeout: float | None = None
    _reads_committed: bool | None = None  # whether that is its default isolation level; None until it is asked for

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._process = os.getpid()

    def run(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, prepare: bool = False
    ) -> psycopg.Cursor[Any]:
        """Run one of our own statements in READ COMMITTED, because they read a row again that has changed meanwhile.

        If the server has another default isolation level, the statement runs in a transaction. Setting the default of
        the session would affect other clients behind a pooler.
        """
        if self._reads_committed is None:
            (level,) = self.execute("SHOW default_transaction_isolation").fetchone() or ("",)
            self._reads_committed = level in ("read committed", "read uncommitted")  # which are the same in PostgreSQL
        with nullcontext() if self._reads_committed else self.transaction():
            return self.execute(sql, parameters, prepare=prepare, binary=True)

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        if os.getpid() != self._process:
            raise StoreUnusable("this process was forked while the connection was in use; it belongs to the parent")
        if self.answer_timeout is None:
            return super().wait(gen, interval)
        try:
            return _run_until(gen, self.pgconn.socket, self.answer_timeout)
        except _TimedOut:
            self._stop(gen, self.answer_timeout)
        except psycopg.Error:
            raise
        except BaseException:  # an interrupt: the answer will not be read
            self._cancel()
            self.close()
            raise

    def _stop(self, gen: PQGen[Any], timeout: float) -> NoReturn:
        """Cancel the statement, so that the server does nothing later, and raise `NoAnswer`.

        The answer to the cancellation is ignored: a commit that waits for a synchronous standby succeeds when it is
        cancelled, although only this server has it.
        """
        error = NoAnswer(f"the server did not answer within {timeout:g} s")
        try:
            self._cancel()
            _run_until(gen, self.pgconn.socket, _CANCEL_TIMEOUT)
        except psycopg.errors.QueryCanceled:
            pass
        except _TimedOut:
            self.close()
        raise error

    def _cancel(self) -> None:
        if psycopg.capabilities.has_cancel_safe():  # the older function could wait forever
            with contextlib.suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_TIMEOUT)

    def close(self) -> None:
        if os.getpid() == self._process:  # in a fork, closing would end the parent's connection
            super().close()

    def __del__(self, *_: object) -> None:
        """Do nothing: the socket closes anyway, and psycopg would warn after an interrupt or at exit."""


class _TimedOut(Exception):
    """The answer did not arrive in time."""


def _run_until(gen: Generator[Any, Any, Result], socket: int, seconds: float) -> Result:
    deadline = time.monotonic() + seconds
    poll = select.poll()
    try:
        wants = next(gen)
        while True:
            poll.register(socket, (select.POLLIN if wants & _READ else 0) | (select.POLLOUT if wants & _WRITE else 0))
            ready_sockets = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready_sockets:
                raise _TimedOut
            ready = ready_sockets[0][1]
            # Any other event is an error, and reading raises it.
            wants = gen.send((_WRITE if ready & select.POLLOUT else 0) | (_READ if ready & ~select.POLLOUT else 0))
    except StopIteration as done:
        result: Result = done.value
        return result


class Pool:
    """Connections that are reused, the last one first. The thread that needs a connection opens it, and gets its error.

    psycopg's own pool connects in threads of its own. There the reason of a failure is lost, the caller waits for its
    whole timeout, and those threads do not survive a fork.
    """

    def __init__(self, connect: Callable[[], Connection], max_connections: int, answer_timeout: float) -> None:
        self._connect = connect
        self._max_connections = max_connections
        self._timeout = answer_timeout
        self.forget()

    def use(self, operation: Callable[[Connection], Result]) -> Result:
        """Call a function with a connection, and again with a new one if an idle one turns out to be dead."""
        connection, used_before = self.take()
        try:
            return operation(connection)
        except psycopg.Error as error:
            if not used_before or isinstance(error, NoAnswer) or not is_connection_lost(error, connection):
                raise
        finally:
            self.give(connection)
        self.close()  # the other idle ones are dead too
        connection, _ = self.take()
        try:
            return operation(connection)
        finally:
            self.give(connection)

    def take(self) -> tuple[Connection, bool]:
        """Return a connection, and whether it was used before."""
        if not self._free.acquire(timeout=self._timeout):
            raise StoreBusy(f"all {self._max_connections} connections were in use for {self._timeout:g} s")
        try:
            idle = self._idle_one()
            return (idle, True) if idle is not None else (self._connect(), False)
        except BaseException:
            self._free.release()
            raise

    def _idle_one(self) -> Connection | None:
        with self._lock:
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < _IDLE_FOR:
                    return connection
                connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Take a connection back."""
        if not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            with self._lock:
                self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        self._free.release()

    def close(self) -> None:
        """Close the idle connections. The pool can still be used."""
        with self._lock:
            while self._idle:
                self._idle.pop()[0].close()

    # --- forks: a connection belongs to the process that opened it ---

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            self.forget()

    def forget(self) -> None:
        """Start without connections. Existing ones belong to the parent, so they are not closed."""
        self._lock = threading.Lock()
        self._free = threading.Semaphore(self._max_connections)
        self._idle: list[tuple[Connection, float]] = []
