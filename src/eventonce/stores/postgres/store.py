"""The PostgreSQL store: claims in a table, one statement and one round trip for each verb and batch.

The server's clock decides. Every statement takes its rows in the order of their keys and waits for no row that it does
not need, so batches cannot block each other. The protocol of `claim.py` is written once more, in SQL, in
`sql/`; a test drives both and compares.
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
    Done,
    Finish,
    Record,
    Release,
    Stale,
    Token,
    Want,
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
from eventonce.stores.postgres.errors import READ_ONLY, trouble
from eventonce.stores.postgres.schema import prepare, statement
from eventonce.stores.postgres.transaction import PostgresTransaction
from eventonce.stores.retry import GIVING_BACK, ask
from eventonce.stores.url import patience

_CONNECTIONS = 8  # for the verbs of one process; each holds one for one statement
_TRANSACTIONS = 64  # handlers inside ctx.tx at a time
_FIRST_LEASE = 10_000  # what to be patient for before any claim has been made
_HELD_FOR = 1000  # when to look again at a row that a transaction holds beyond its lease
_ROWS_A_BLOCK = 16  # fewer than there are, so that a sweep looks at no fewer rows than it is asked to
_LOOKS, _MORE_LOOKS, _PAUSE = 2, 20, 50  # how often to look at rows that others hold right now, and how long between
_RACES_FOR = 60_000  # how long races for new keys are expected after there was one
_LARGE = 128  # blocks, from which on a plan by the index is certainly the cheapest
_SHORT = 30_000  # a window that could end between two statements
_RARELY = 1000  # psycopg prepares a statement of itself after so many times; None would prevent it altogether
_WON = Won(1)

_CLAIM, _EXTEND, _COMMIT, _RELEASE = (statement(name) for name in ("claim", "extend", "commit", "release"))
_CLAIM_ALONE = _CLAIM.replace("ON CONFLICT (key) DO NOTHING", "")
_COMMIT_LARGE = statement("commit_large")
_PEEK, _FORGET, _SWEEP, _SETTLED = (statement(name) for name in ("peek", "forget", "sweep", "settled"))
_CHECK = statement("check")
Owned = TypeVar("Owned", Claim, Finish, Release)
Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]


def open_url(url: str, clock: Clock | None, create: bool) -> PostgresStore:
    """Open `postgresql://...`; `timeout=5s` and `prepare=false` are ours, every other parameter is libpq's."""
    settings, ours = libpq.read(url, "store", "timeout", "prepare")
    timeout = patience(ours.get("timeout", TIMEOUT / 1000))
    if ours.get("prepare", "true") not in ("true", "false"):
        raise ConfigError(f"store: prepare={ours['prepare']!r} is neither true nor false")
    return PostgresStore(settings, timeout=timeout, prepare=ours.get("prepare") != "false", create=create, clock=clock)


class SendCounter:
    """How often a batch was sent, lost answers included."""

    count = 0


class PostgresStore:
    """Claims in a table of a PostgreSQL database. Nothing is connected before it is needed.

    `settings` is what libpq is told: host, dbname, user and the like.
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
        waits = {"connect_timeout": -(-timeout // 1000), "application_name": "eventonce"}
        self._settings = {**waits, **settings}
        self._place = libpq.place(settings)
        self._timeout = timeout / 1000
        self._create = create
        self._clock = clock or SystemClock()
        self._lease = _FIRST_LEASE
        self._ready = False  # the tables
        self._may_prepare = prepare
        self._large = False  # the table, so that statements are prepared
        self._races_until = 0  # other processes claim the same keys at the same time
        self._inside: set[Claim] = set()  # whose rows are locked by transactions of ours
        self._pool = Pool(self._connect, _CONNECTIONS, self._timeout)
        self._lent = Pool(self._connect_to_lend, _TRANSACTIONS, self._timeout)
        register_for_forks(self)

    # --- the verbs ---

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        self._lease = lease
        asked = {want.key: want for want in reversed(wants)}
        left = [asked[key] for key in sorted(asked)]
        known: dict[Key, Answer] = {}
        looks, tries = 0, SendCounter()
        while left:
            if looks > 1:
                self._clock.sleep(_PAUSE)
            rows, looks = self._look(left, token, lease, tries), looks + 1
            known |= {left[row[0] - 1].key: _answer(row, self._clock.utc()) for row in rows}
            # What others are changing is looked at again; with more patience where it may have been ourselves, at an
            # earlier try whose answer was lost.
            most = _LOOKS if tries.count == looks else _MORE_LOOKS
            again = [row[0] for row in rows if row[2] == "absent" or (row[2] == "free" and looks < most)]
            left = [left[place - 1] for place in sorted(again)]
            for want in left:
                del known[want.key]
        return [known.get(want.key, _WON) for want in wants] if known else [_WON] * len(wants)

    def _look(self, wants: Sequence[Want], token: Token, lease: int, tries: SendCounter) -> Rows:
        parameters = _wanted(wants, token, lease)

        def act(connection: Connection) -> Rows:
            tries.count += 1
            return self._claimed(connection, parameters)

        try:
            return self._patiently(act)
        except StoreBusy as busy:
            if tries.count > 1:  # it would say that nothing was done
                raise StoreError(str(busy)) from busy
            raise

    def _claimed(self, connection: Connection, parameters: Mapping[str, object]) -> Rows:
        """Claim as if nobody else claimed the same new keys right now.

        Where somebody does, the statement fails and has done nothing; so for a while it is one that provides for that,
        at the price of one more look and one more record in the server's log for each key.
        """
        if self._clock.steady() >= self._races_until:
            try:
                return self._run(connection, _CLAIM_ALONE, parameters)
            except psycopg.errors.UniqueViolation:
                self._races_until = self._clock.steady() + _RACES_FOR
        return self._run(connection, _CLAIM, parameters)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        held: set[Claim] = set()
        left = sorted(set(claims))
        for looks in range(_MORE_LOOKS):
            # A row that a transaction of ours has locked cannot be taken over, nor be written before that ends.
            held |= self._inside.intersection(left)
            left = [claim for claim in left if claim not in held]
            if not left:
                break
            if looks > 1:
                self._clock.sleep(_PAUSE)
            rows = self._translated(partial(self._run, sql=_EXTEND, parameters={**_owners(left), "lease": lease}))
            held |= {left[place - 1] for place, got in rows if got}
            left = [left[place - 1] for place, got in rows if not got]
        if left:
            raise StoreError(f"{self._place}: another transaction holds {len(left)} rows of ours")
        return [claim in held for claim in claims]

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        rows = _distinct(finishes)
        if not rows:
            return []
        keys, tokens, windows, versions, memos = zip(*rows, strict=True)
        columns = {"windows": longs(windows), "versions": longs(versions), "memos": byte_strings(memos)}
        columns |= {"keys": byte_strings(keys), "tokens": byte_strings(tokens)}
        # Where a window is short, what the first statement did could be over when the second asks for it.
        at_once = self._large and min(windows) > _SHORT
        if at_once and self._patiently(partial(self._count, columns=columns)) == len(rows):
            return [True] * len(finishes)
        return self._owned(_COMMIT, finishes, rows, columns)

    def _count(self, connection: Connection, columns: Mapping[str, object]) -> int:
        return self._sent(connection, _COMMIT_LARGE, columns).rowcount

    def release(self, releases: Sequence[Release]) -> list[bool]:
        rows = _distinct(releases)
        if not rows:
            return []
        columns = {
            **_owners(rows),
            "windows": longs([each.window for each in rows]),
            "errors": byte_strings([_encoded(each.error) for each in rows]),
            "failures_for": FAILURES_FOR,
        }
        return self._owned(_RELEASE, releases, rows, columns, GIVING_BACK)

    def _owned(
        self,
        sql: str,
        asked: Sequence[Owned],
        rows: Sequence[Owned],
        columns: Mapping[str, object],
        most: int = LONGEST,
    ) -> list[bool]:
        """Do something to claims where they are still owned, and say where that is."""
        places = self._patiently(lambda connection: self._run(connection, sql, columns), most)
        done = {rows[place - 1][:2] for (place,) in places}
        return [each[:2] in done for each in asked]

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        found = {row[0]: _record(row[1:]) for row in self._by_key(_PEEK, keys)}
        return [found.get(key) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        if not {claim.key for claim in self._inside.copy()}.isdisjoint(keys):
            raise ConfigError(f"{self._place}: a key cannot be forgotten while ctx.tx holds it")
        known = {key for (key,) in self._by_key(_FORGET, keys)}
        return [key in known for key in keys]

    def _by_key(self, sql: str, keys: Sequence[Key]) -> Rows:
        if not keys:
            return []
        columns = {"keys": byte_strings(sorted(set(keys)))}
        return self._patiently(lambda connection: _rows(connection, sql, columns))

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Remove what is over in the next blocks of the table: a walk, so no index is needed."""
        first = int.from_bytes(cursor, "big")
        end = first + max(1, limit // _ROWS_A_BLOCK)
        bounds = {"first": f"({first},0)", "end": f"({end},0)", "limit": limit}
        ((removed, last, blocks),) = self._patiently(lambda connection: _rows(connection, _SWEEP, bounds))
        self._learn_size(blocks)
        upto = last if removed and removed == limit else end  # there may be more in the last block
        return Swept(removed, upto.to_bytes(8, "big") if upto < blocks else None)

    def _learn_size(self, blocks: int) -> None:
        # A plan that was made for a small table reads all of it for each key, and would go on so while it grows.
        large = blocks >= _LARGE
        if self._large and not large:
            self._pool.close()
        self._large = large

    def close(self) -> None:
        self._pool.close()
        self._lent.close()

    def check(self) -> list[str]:
        """Whether the server takes writes, and keeps what it has said yes to."""

        def look() -> Rows:
            return self._told(lambda: self._pool.use(lambda connection: _rows(connection, _CHECK, {})))

        ((standby, read_only, *lax),) = ask(look, self._clock, self._lease // 2)
        if standby or read_only:
            raise StoreUnusable(f"{self._place}: is {'a standby server' if standby else 'read-only'}; {READ_ONLY}")
        ask(self._prepare, self._clock, self._lease // 2)
        return [f"{self._place}: {words}" for found, words in zip(lax, _LAX, strict=True) if found]

    # --- transactions ---

    def begin(self, claim: Claim) -> PostgresTransaction:
        """Begin the transaction that will hold a handler's writes and the record of them."""
        return ask(lambda: self._begin(claim), self._clock, self._lease // 2)

    def _begin(self, claim: Claim) -> PostgresTransaction:
        self._prepare()
        connection, _ = self._told(self._lent.take)
        self._inside.add(claim)
        transaction = PostgresTransaction(self, claim, connection)
        try:
            self._told(transaction.begin)
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def settled(self, claim: Claim) -> bool | None:
        """Whether a claim is done by its token, once no transaction holds it any more; None where it is another's."""
        rows = self._patiently(lambda connection: _rows(connection, _SETTLED, claim._asdict()))
        return bool(rows[0][0]) if rows else None

    def leave(self, claim: Claim, connection: Connection) -> None:
        """A transaction has ended."""
        self._inside.discard(claim)
        self._lent.give(connection)

    # --- asking ---

    def _patiently(self, act: Callable[[Connection], Result], most: int = LONGEST) -> Result:
        """Let a function use a connection, and again for as long as the lease at stake allows."""
        return ask(lambda: self._translated(act), self._clock, min(most, self._lease // 2))

    def _translated(self, act: Callable[[Connection], Result]) -> Result:
        self._prepare()
        return self._told(lambda: self._pool.use(act))

    def _told(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except psycopg.Error as error:
            raise self.trouble(error) from error

    def _run(self, connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run one of the frequent statements, prepared where that is safe: planning takes longer than a few keys do.

        No two of them take the same types but the two for claims, either of which may stand for the other; so a pooler
        which mixes up their names can only cause an error.
        """
        return self._sent(connection, sql, parameters).fetchall()

    def _sent(self, connection: Connection, sql: str, parameters: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        return connection.run(sql, parameters, prepare=self._may_prepare and self._large)

    def trouble(self, error: psycopg.Error) -> StoreError:
        """What an error means to the engine."""
        if self._may_prepare and self._large and error.sqlstate in _MIXED_UP:
            self._may_prepare = False
            self.close()
            return StoreError(f"{self._place}: {error}; a pooler mixes up prepared statements, so add prepare=false")
        if error.sqlstate in _AWAY:  # idle connections are as dead, and another server may have taken its place
            self.close()
        return trouble(error, self._place)

    def _prepare(self) -> None:
        """See to the tables, once; threads that do so together are kept apart by the server."""
        if not self._ready:
            self._told(lambda: self._pool.use(lambda link: prepare(link, self._place, create=self._create)))
            self._ready = True

    def _connect(self) -> Connection:
        connection = Connection.connect(**self._settings, autocommit=True, context=ADAPTERS)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.prepare_threshold = _RARELY
        connection.patience = self._timeout
        return connection

    def _connect_to_lend(self) -> Connection:
        """For handlers, so with the isolation and the types that their database and psycopg have by default."""
        connection = Connection.connect(**self._settings)
        connection.prepare_threshold = None
        connection.patience = self._timeout
        return connection

    # --- forks: connections belong to the process that made them ---

    def before_fork(self) -> None:
        self._pool.before_fork()
        self._lent.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        self._pool.after_fork(in_child=in_child)
        self._lent.after_fork(in_child=in_child)
        if in_child:
            self._inside = set()


# --- rows ---


def _rows(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    return connection.run(sql, parameters).fetchall()


def _distinct(asked: Sequence[Owned]) -> list[Owned]:
    """Each claim once, in the order of their keys."""
    found = {each[:2]: each for each in reversed(asked)}
    return sorted(found.values(), key=itemgetter(0))


def _owners(rows: Sequence[Owned]) -> dict[str, object]:
    return {"keys": byte_strings([each.key for each in rows]), "tokens": byte_strings([each.token for each in rows])}


def _wanted(wants: Sequence[Want], token: Token, lease: int) -> dict[str, object]:
    keys, windows, versions, refresh, shared = zip(*wants, strict=True)
    return {
        "keys": byte_strings(keys),
        "windows": longs(windows),
        "versions": longs(versions),
        "flags": longs([one | two << 1 for one, two in zip(shared, refresh, strict=True)]),
        "token": token,
        "lease": lease,
        "failures_for": FAILURES_FOR,
        "furthest_lease": FURTHEST_LEASE,
    }


def _encoded(error: str | None) -> bytes | None:
    return None if error is None else error.encode("utf-8", "backslashreplace")


def _answer(row: tuple[Any, ...], ours: int) -> Answer:
    _, now, state, tries, suspect, error, *record = row
    if state == "won":
        return Won(tries, _decoded(error), suspect)
    if state == "done":
        return Done(_record(record))
    if state == "stale":
        return Stale(_record(record).version or 0)
    lasts = _record(record).lease - now if state == "busy" else _HELD_FOR
    return Busy(ours + lasts)  # callers compare it with their own clock


def _decoded(error: bytes | None) -> str | None:
    return None if error is None else error.decode()


def _record(row: Sequence[Any]) -> Record:
    record = Record._make(row)
    return record if record.error is None else record._replace(error=_decoded(row[10]))


_AWAY = (None, "25006", "57P01", "57P02", "57P03")  # the connection was lost; read-only; shutting down
_MIXED_UP = ("26000", "42P05", "08P01", "22P03", "42804")  # no such statement, another one, or other types
_LAX = (
    "fsync is off, so a crash of the server may lose or damage what was committed",
    "synchronous_commit is off, so a crash of the server may lose the last commits, and their events run again",
    "full_page_writes is off, so a crash of the server may damage what was committed",
)
