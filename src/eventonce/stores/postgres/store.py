"""The PostgreSQL store: claims in a table, with one statement and one round trip for each verb and batch.

The server's clock decides. Every statement locks its rows in the order of their keys, and waits for no row that it does
not need. So batches cannot block each other. The statements in `sql/` are a second implementation of
`claims/protocol.py`, and the store contract holds them equal to it on random histories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import psycopg

from eventonce.claims.protocol import (
    FAILURES_FOR,
    FURTHEST_LEASE,
    Answer,
    Busy,
    Claim,
    ClaimRequest,
    Commit,
    Done,
    Record,
    Release,
    Stale,
    Token,
    Won,
)
from eventonce.clients import libpq
from eventonce.clients.libpq import TIMEOUT
from eventonce.clock import LONGEST, Clock, SystemClock
from eventonce.errors import ConfigError, StoreBusy, StoreError, StoreUnusable
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Swept
from eventonce.stores.postgres.batch import ADAPTERS, byte_strings, longs
from eventonce.stores.postgres.connection import Connection, Pool
from eventonce.stores.postgres.errors import READ_ONLY, translate_error
from eventonce.stores.postgres.schema import create_tables, statement
from eventonce.stores.postgres.transaction import PostgresTransaction
from eventonce.stores.retry import RELEASE_TIMEOUT, call_with_retries
from eventonce.stores.url import parse_timeout
from eventonce.text import counted

_CONNECTIONS = 8  # for the verbs of one process; each holds one for one statement
_TRANSACTIONS = 64  # handlers inside ctx.tx at a time
_FIRST_LEASE = 10_000  # milliseconds, assumed before the first claim
_LOCKED_FOR = 1000  # milliseconds until a retry of a row that a transaction locks beyond its lease
_ROWS_A_BLOCK = 16  # fewer than a block has, so that a sweep reads at least as many rows as its limit
_ROUNDS, _MORE_ROUNDS, _PAUSE = 2, 20, 50  # statements for rows that others lock now, and milliseconds in between
_RACES_FOR = 60_000  # milliseconds for which races for new keys are expected after one
_LARGE = 128  # blocks from which on a plan with the index is certainly the cheapest
_SHORT = 30_000  # milliseconds of a window that could expire between two statements
_PREPARE_THRESHOLD = 1000  # runs after which psycopg itself prepares a statement; None would disable preparing
_WON = Won(1)

_CLAIM, _EXTEND, _COMMIT, _RELEASE = (statement(name) for name in ("claim", "extend", "commit", "release"))
_CLAIM_ALONE = _CLAIM.replace("ON CONFLICT (key) DO NOTHING", "")
_COMMIT_LARGE = statement("commit_large")
_PEEK, _FORGET, _SWEEP, _SETTLED = (statement(name) for name in ("peek", "forget", "sweep", "settled"))
_CHECK = statement("check")
Owned = TypeVar("Owned", Claim, Commit, Release)
Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]


def open_url(url: str, clock: Clock | None, create: bool) -> PostgresStore:
    """Open `postgresql://...`. The options `timeout=5s` and `prepare=false` are ours, all others libpq's."""
    settings, query = libpq.read(url, "store", "timeout", "prepare")
    timeout = parse_timeout(query.get("timeout", TIMEOUT / 1000))
    if query.get("prepare", "true") not in ("true", "false"):
        raise ConfigError(f"store: prepare={query['prepare']!r} is neither true nor false")
    return PostgresStore(settings, timeout=timeout, prepare=query.get("prepare") != "false", create=create, clock=clock)


class SendCounter:
    """The number of times a batch was sent, lost answers included."""

    count = 0


class PostgresStore:
    """Claims in a table of a PostgreSQL database. The first verb connects.

    `settings` are libpq's connection parameters, such as host, dbname and user.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        timeout: int = TIMEOUT,
        prepare: bool = True,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        defaults = {"connect_timeout": -(-timeout // 1000), "application_name": "eventonce"}
        self._settings = {**defaults, **settings}
        self._address = libpq.address(settings)
        self._timeout = timeout / 1000
        self._create = create
        self._clock = clock or SystemClock()
        self._lease = _FIRST_LEASE
        self._has_tables = False
        self._uses_prepared = prepare
        self._large = False  # whether the table is large, so that statements are prepared
        self._races_until = 0  # until then other processes may claim the same new keys at the same time
        self._inside: set[Claim] = set()  # claims whose rows our own transactions lock
        self._pool = Pool(self._connect, _CONNECTIONS, self._timeout)
        self._transaction_pool = Pool(self._connect_for_handlers, _TRANSACTIONS, self._timeout)
        register_for_forks(self)

    # --- the verbs ---

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        self._lease = lease
        unique = {want.key: want for want in reversed(wants)}
        remaining = [unique[key] for key in sorted(unique)]
        answers: dict[Key, Answer] = {}
        rounds, sent = 0, SendCounter()
        while remaining:
            if rounds > 1:
                self._clock.sleep(_PAUSE)
            rows, rounds = self._claim_once(remaining, token, lease, sent), rounds + 1
            answers |= {remaining[row[0] - 1].key: _decode_answer(row, self._clock.utc()) for row in rows}
            # Rows that others are changing are claimed again, and more often if this may be our own claim, from an
            # earlier call whose answer was lost.
            max_rounds = _ROUNDS if sent.count == rounds else _MORE_ROUNDS
            undecided = [row[0] for row in rows if row[2] == "absent" or (row[2] == "free" and rounds < max_rounds)]
            remaining = [remaining[index - 1] for index in sorted(undecided)]
            for want in remaining:
                del answers[want.key]
        return [answers.get(want.key, _WON) for want in wants] if answers else [_WON] * len(wants)

    def _claim_once(self, wants: Sequence[ClaimRequest], token: Token, lease: int, sent: SendCounter) -> Rows:
        parameters = _claim_parameters(wants, token, lease)

        def operation(connection: Connection) -> Rows:
            sent.count += 1
            return self._run_claim(connection, parameters)

        try:
            return self._with_retries(operation)
        except StoreBusy as busy:
            if sent.count > 1:  # StoreBusy would say that nothing was done
                raise StoreError(str(busy)) from busy
            raise

    def _run_claim(self, connection: Connection, parameters: Mapping[str, object]) -> Rows:
        """Claim as if no other process claimed the same new keys at this moment.

        If one does, the statement fails without an effect. For a while after that, a statement runs that allows for
        such races. It costs one more lookup and one more record in the server's write-ahead log for each key.
        """
        if self._clock.steady() >= self._races_until:
            try:
                return self._run(connection, _CLAIM_ALONE, parameters)
            except psycopg.errors.UniqueViolation:
                self._races_until = self._clock.steady() + _RACES_FOR
        return self._run(connection, _CLAIM, parameters)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        extended: set[Claim] = set()
        remaining = sorted(set(claims))
        for rounds in range(_MORE_ROUNDS):
            # A row that our own transaction has locked cannot be taken over, and cannot be written before that ends.
            extended |= self._inside.intersection(remaining)
            remaining = [claim for claim in remaining if claim not in extended]
            if not remaining:
                break
            if rounds > 1:
                self._clock.sleep(_PAUSE)
            parameters = {**_owners(remaining), "lease": lease}
            rows = self._use_connection(partial(self._run, sql=_EXTEND, parameters=parameters))
            extended |= {remaining[index - 1] for index, locked in rows if locked}
            remaining = [remaining[index - 1] for index, locked in rows if not locked]
        if remaining:
            raise StoreError(f"{self._address}: another transaction holds {counted(len(remaining), 'row')} of ours")
        return [claim in extended for claim in claims]

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        rows = _sorted_distinct(finishes)
        if not rows:
            return []
        keys, tokens, windows, versions, memos = zip(*rows, strict=True)
        columns = {"windows": longs(windows), "versions": longs(versions), "memos": byte_strings(memos)}
        columns |= {"keys": byte_strings(keys), "tokens": byte_strings(tokens)}
        # A short window could expire between the first statement and the second.
        try_large = self._large and min(windows) > _SHORT
        if try_large and self._with_retries(partial(self._commit_large, columns=columns)) == len(rows):
            return [True] * len(finishes)
        return self._change_owned(_COMMIT, finishes, rows, columns)

    def _commit_large(self, connection: Connection, columns: Mapping[str, object]) -> int:
        return self._execute(connection, _COMMIT_LARGE, columns).rowcount

    def release(self, releases: Sequence[Release]) -> list[bool]:
        rows = _sorted_distinct(releases)
        if not rows:
            return []
        columns = {
            **_owners(rows),
            "windows": longs([release.window for release in rows]),
            "errors": byte_strings([_encode_error(release.error) for release in rows]),
            "failures_for": FAILURES_FOR,
        }
        return self._change_owned(_RELEASE, releases, rows, columns, RELEASE_TIMEOUT)

    def _change_owned(
        self,
        sql: str,
        requests: Sequence[Owned],
        rows: Sequence[Owned],
        columns: Mapping[str, object],
        timeout: int = LONGEST,
    ) -> list[bool]:
        """Run a statement that changes the claims still owned. Return for each request whether it was owned."""
        indexes = self._with_retries(lambda connection: self._run(connection, sql, columns), timeout)
        owned = {rows[index - 1][:2] for (index,) in indexes}
        return [request[:2] in owned for request in requests]

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        records = {row[0]: _decode_record(row[1:]) for row in self._by_key(_PEEK, keys)}
        return [records.get(key) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        if not {claim.key for claim in self._inside.copy()}.isdisjoint(keys):
            raise ConfigError(f"{self._address}: a key cannot be forgotten while ctx.tx holds it")
        existed = {key for (key,) in self._by_key(_FORGET, keys)}
        return [key in existed for key in keys]

    def _by_key(self, sql: str, keys: Sequence[Key]) -> Rows:
        if not keys:
            return []
        columns = {"keys": byte_strings(sorted(set(keys)))}
        return self._with_retries(lambda connection: _rows(connection, sql, columns))

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Remove expired records in the next blocks of the table. This is a walk, so no index is needed."""
        first = int.from_bytes(cursor, "big")
        end = first + max(1, limit // _ROWS_A_BLOCK)
        bounds = {"first": f"({first},0)", "end": f"({end},0)", "limit": limit}
        ((removed, last, blocks),) = self._with_retries(lambda connection: _rows(connection, _SWEEP, bounds))
        self._learn_size(blocks)
        next_block = last if removed and removed == limit else end  # there may be more in the last block
        return Swept(removed, next_block.to_bytes(8, "big") if next_block < blocks else None)

    def _learn_size(self, blocks: int) -> None:
        # A plan for a small table reads all of it for each key, and would do so while the table grows.
        large = blocks >= _LARGE
        if self._large and not large:
            self._pool.close()
        self._large = large

    def close(self) -> None:
        self._pool.close()
        self._transaction_pool.close()

    def check(self) -> list[str]:
        """Raise if the server takes no writes. Return warnings if it may lose commits."""

        def operation() -> Rows:
            return self._translate_errors(lambda: self._pool.use(lambda connection: _rows(connection, _CHECK, {})))

        ((standby, read_only, *risks),) = call_with_retries(operation, self._clock, self._lease // 2)
        if standby or read_only:
            raise StoreUnusable(f"{self._address}: is {'a standby server' if standby else 'read-only'}; {READ_ONLY}")
        call_with_retries(self._ensure_tables, self._clock, self._lease // 2)
        return [f"{self._address}: {warning}" for risk, warning in zip(risks, _RISKS, strict=True) if risk]

    # --- transactions ---

    def begin(self, claim: Claim) -> PostgresTransaction:
        """Begin the transaction that will hold a handler's writes and their record."""
        return call_with_retries(lambda: self._begin(claim), self._clock, self._lease // 2)

    def _begin(self, claim: Claim) -> PostgresTransaction:
        self._ensure_tables()
        connection, _ = self._translate_errors(self._transaction_pool.take)
        self._inside.add(claim)
        transaction = PostgresTransaction(self, claim, connection)
        try:
            self._translate_errors(transaction.begin)
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def is_done(self, claim: Claim) -> bool | None:
        """Wait until no transaction locks the claim. Return whether it is done, or None if another token owns it."""
        rows = self._with_retries(lambda connection: _rows(connection, _SETTLED, claim._asdict()))
        return bool(rows[0][0]) if rows else None

    def leave(self, claim: Claim, connection: Connection) -> None:
        """Take back the connection of a transaction that has ended."""
        self._inside.discard(claim)
        self._transaction_pool.give(connection)

    # --- calls ---

    def _with_retries(self, operation: Callable[[Connection], Result], timeout: int = LONGEST) -> Result:
        """Call a function with a connection, and retry it for as long as the lease at stake allows."""
        return call_with_retries(lambda: self._use_connection(operation), self._clock, min(timeout, self._lease // 2))

    def _use_connection(self, operation: Callable[[Connection], Result]) -> Result:
        self._ensure_tables()
        return self._translate_errors(lambda: self._pool.use(operation))

    def _translate_errors(self, operation: Callable[[], Result]) -> Result:
        try:
            return operation()
        except psycopg.Error as error:
            raise self.translate_error(error) from error

    def _run(self, connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run one of the frequent statements, prepared if that is safe, since planning takes longer than a few keys do.

        No two of them have parameters of the same types, except the two for claims, which can replace each other. So a
        pooler that mixes up their names can only cause an error.
        """
        return self._execute(connection, sql, parameters).fetchall()

    def _execute(self, connection: Connection, sql: str, parameters: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        return connection.run(sql, parameters, prepare=self._uses_prepared and self._large)

    def translate_error(self, error: psycopg.Error) -> StoreError:
        """Return the store error for an error of PostgreSQL, and close connections that it shows to be dead."""
        if self._uses_prepared and self._large and error.sqlstate in _MIXED_UP:
            self._uses_prepared = False
            self.close()
            return StoreError(f"{self._address}: {error}; a pooler mixes up prepared statements, so add prepare=false")
        if error.sqlstate in _DISCONNECTED:  # idle connections are dead too, and another server may have taken over
            self.close()
        return translate_error(error, self._address)

    def _ensure_tables(self) -> None:
        """Create the tables if needed, once. The server makes threads that do so together wait for each other."""
        if not self._has_tables:
            self._translate_errors(
                lambda: self._pool.use(lambda connection: create_tables(connection, self._address, create=self._create))
            )
            self._has_tables = True

    def _connect(self) -> Connection:
        connection = Connection.connect(**self._settings, autocommit=True, context=ADAPTERS)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.prepare_threshold = _PREPARE_THRESHOLD
        connection.answer_timeout = self._timeout
        return connection

    def _connect_for_handlers(self) -> Connection:
        """Connect for handlers, with the default isolation and types of their database and of psycopg."""
        connection = Connection.connect(**self._settings)
        connection.prepare_threshold = None
        connection.answer_timeout = self._timeout
        return connection

    # --- forks: connections belong to the process that opened them ---

    def before_fork(self) -> None:
        self._pool.before_fork()
        self._transaction_pool.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        self._pool.after_fork(in_child=in_child)
        self._transaction_pool.after_fork(in_child=in_child)
        if in_child:
            self._inside = set()


# --- rows ---


def _rows(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    return connection.run(sql, parameters).fetchall()


def _sorted_distinct(requests: Sequence[Owned]) -> list[Owned]:
    """Return each claim once, in the order of their keys."""
    by_claim = {request[:2]: request for request in reversed(requests)}
    return sorted(by_claim.values(), key=itemgetter(0))


def _owners(rows: Sequence[Owned]) -> dict[str, object]:
    return {"keys": byte_strings([row.key for row in rows]), "tokens": byte_strings([row.token for row in rows])}


def _claim_parameters(wants: Sequence[ClaimRequest], token: Token, lease: int) -> dict[str, object]:
    keys, windows, versions, refresh, shared = zip(*wants, strict=True)
    return {
        "keys": byte_strings(keys),
        "windows": longs(windows),
        "versions": longs(versions),
        "flags": longs([is_shared | refreshes << 1 for is_shared, refreshes in zip(shared, refresh, strict=True)]),
        "token": token,
        "lease": lease,
        "failures_for": FAILURES_FOR,
        "furthest_lease": FURTHEST_LEASE,
    }


def _encode_error(error: str | None) -> bytes | None:
    return None if error is None else error.encode("utf-8", "backslashreplace")


def _decode_answer(row: tuple[Any, ...], our_time: int) -> Answer:
    _, now, state, tries, suspect, error, *record = row
    if state == "won":
        return Won(tries, _decode_error(error), suspect)
    if state == "done":
        return Done(_decode_record(record))
    if state == "stale":
        return Stale(_decode_record(record).version or 0)
    remaining = _decode_record(record).lease - now if state == "busy" else _LOCKED_FOR
    return Busy(our_time + remaining)  # callers compare it with their own clock


def _decode_error(error: bytes | None) -> str | None:
    return None if error is None else error.decode()


def _decode_record(row: Sequence[Any]) -> Record:
    record = Record._make(row)
    return record if record.error is None else record._replace(error=_decode_error(row[10]))


_DISCONNECTED = (None, "25006", "57P01", "57P02", "57P03")  # connection lost; read-only; shutting down
_MIXED_UP = ("26000", "42P05", "08P01", "22P03", "42804")  # no such statement, another one, or other types
_RISKS = (
    "fsync is off, so a crash of the server may lose or damage what was committed",
    "synchronous_commit is off, so a crash of the server may lose the last commits, and their events run again",
    "full_page_writes is off, so a crash of the server may damage what was committed",
)
