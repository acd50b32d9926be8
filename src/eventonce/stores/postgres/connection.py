"""Connections to PostgreSQL: answers are awaited for so long and no longer, and idle connections are used again."""

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
from eventonce.stores.postgres.errors import NoAnswer, lost

_GRACE = 1.0  # seconds that a server has to say that it has stopped
_IDLE_FOR = 240.0  # seconds; what lies between may forget a connection that is idle for longer
_READ, _WRITE = 1, 2  # as psycopg names what to wait for, and what is ready
Result = TypeVar("Result")


class Connection(psycopg.Connection[Any]):
    """A connection whose answers are awaited for `patience` seconds; libpq itself would wait for ever."""

    answer_timeout: float | None = None
    _as_is: bool | None = None  # whether a statement alone is READ COMMITTED; None while that is not known

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._process = os.getpid()

    def run(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, prepare: bool = False
    ) -> psycopg.Cursor[Any]:
        """Run a statement of our own, in READ COMMITTED: ours look again at a row that has changed meanwhile.

        Where the default of the server is another isolation level, that takes a transaction around it. Setting the
        default for the session would reach other clients behind a pooler.
        """
        if self._as_is is None:
            (level,) = self.execute("SHOW default_transaction_isolation").fetchone() or ("",)
            self._as_is = level in ("read committed", "read uncommitted")  # which PostgreSQL takes for the same
        with nullcontext() if self._as_is else self.transaction():
            return self.execute(sql, parameters, prepare=prepare, binary=True)

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        if os.getpid() != self._process:
            raise StoreUnusable("this process was forked while the connection was in use; it belongs to the parent")
        if self.answer_timeout is None:
            return super().wait(gen, interval)
        try:
            return _await(gen, self.pgconn.socket, self.answer_timeout)
        except _Late:
            self._stop(gen, self.answer_timeout)
        except psycopg.Error:
            raise
        except BaseException:  # an interrupt: nobody will read the answer
            self._cancel()
            self.close()
            raise

    def _stop(self, gen: PQGen[Any], waited: float) -> NoReturn:
        """Have the server stop, so that it does nothing later on.

        What it answers then does not count: a commit that waits for a synchronous standby ends well when it is
        stopped, though this server alone has it.
        """
        late = NoAnswer(f"the server did not answer within {waited:g} s")
        try:
            self._cancel()
            _await(gen, self.pgconn.socket, _GRACE)
        except psycopg.errors.QueryCanceled:
            pass
        except _Late:
            self.close()
        raise late

    def _cancel(self) -> None:
        if psycopg.capabilities.has_cancel_safe():  # the older way may itself wait for ever
            with contextlib.suppress(psycopg.Error):
                self.cancel_safe(timeout=_GRACE)

    def close(self) -> None:
        if os.getpid() == self._process:  # in a fork, closing would end the parent's connection
            super().close()

    def __del__(self, *_: object) -> None:
        """Its socket closes with it, also where an interrupt or the end of the process came first."""


class _Late(Exception):
    """It takes too long."""


def _await(gen: Generator[Any, Any, Result], socket: int, seconds: float) -> Result:
    give_up = time.monotonic() + seconds
    poll = select.poll()
    try:
        wants = next(gen)
        while True:
            poll.register(socket, (select.POLLIN if wants & _READ else 0) | (select.POLLOUT if wants & _WRITE else 0))
            found = poll.poll(max(0.0, give_up - time.monotonic()) * 1000)
            if not found:
                raise _Late
            ready = found[0][1]
            # What is neither is an error, and reading tells which.
            wants = gen.send((_WRITE if ready & select.POLLOUT else 0) | (_READ if ready & ~select.POLLOUT else 0))
    except StopIteration as done:
        result: Result = done.value
        return result


class Pool:
    """Connections that are used again, the last one first; made by the thread that needs one, so that it hears why not.

    psycopg's own pool connects in threads of its own, where the reason of a failure is lost and the caller waits its
    whole patience out, and those threads do not survive a fork.
    """

    def __init__(self, connect: Callable[[], Connection], most: int, patience: float) -> None:
        self._connect = connect
        self._most = most
        self._patience = patience
        self.forget()

    def use(self, act: Callable[[Connection], Result]) -> Result:
        """Let a function use a connection; once more with a new one if an idle one turns out to be dead."""
        connection, used_before = self.take()
        try:
            return act(connection)
        except psycopg.Error as error:
            if not used_before or isinstance(error, NoAnswer) or not lost(error, connection):
                raise
        finally:
            self.give(connection)
        self.close()  # the others are as dead
        connection, _ = self.take()
        try:
            return act(connection)
        finally:
            self.give(connection)

    def take(self) -> tuple[Connection, bool]:
        """A connection, and whether it was used before."""
        if not self._free.acquire(timeout=self._patience):
            raise StoreBusy(f"all {self._most} connections were in use for {self._patience:g} s")
        try:
            found = self._idle_one()
            return (found, True) if found is not None else (self._connect(), False)
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
        """Close what is idle. The pool may still be used."""
        with self._lock:
            while self._idle:
                self._idle.pop()[0].close()

    # --- forks: a connection belongs to the process that made it ---

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            self.forget()

    def forget(self) -> None:
        """Begin without connections; those there were are not ours to close."""
        self._lock = threading.Lock()
        self._free = threading.Semaphore(self._most)
        self._idle: list[tuple[Connection, float]] = []
