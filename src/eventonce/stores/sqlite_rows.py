"""The rows of the SQLite store: what is open of a key and what is done, in a table each.

A claim looks among what is done and writes what is open, a small table whose pages are at hand; a commit moves the row
over. So each event changes one page of the large table, once. A record is both rows of its key in one.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import nan
from operator import itemgetter
from typing import Any

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Claim, Finish, Record, Token, Want, live
from eventonce.event.keys import Key
from eventonce.stores import embedded as ledger
from eventonce.stores.embedded import Records, Result

Row = tuple[Any, ...]
Change = tuple[Record | None, Record | None, list[Key]]  # before, after
_CHUNK = 512  # keys in one statement, at most
_OPEN = "token, lease, shared, tries, trying, error, expires"
_DONE = "token, done_at, window, took, version, memo"
# With a list of keys that were `asked` for.
_FIND_OPEN = f"SELECT key, {_OPEN} FROM asked CROSS JOIN eventonce_open USING (key)"
_FIND_DONE = (  # as records: what is not open is not running, and may be dropped at the end of its window
    "SELECT key, token, 0, 0, 0, NULL, done_at, done_at + window, took, version, memo, NULL, done_at + window "
    "FROM asked CROSS JOIN eventonce_done USING (key)"
)
_KEEP_OPEN = f"REPLACE INTO eventonce_open (key, {_OPEN}) SELECT key, ?, ?, ?, ?, ?, ?, ? FROM asked"
_KEEP_DONE = f"REPLACE INTO eventonce_done (key, {_DONE}) SELECT key, ?, ?, ?, ?, ?, ? FROM asked"
_DROP_OPEN = "DELETE FROM eventonce_open WHERE key IN asked"
_DROP_DONE = "DELETE FROM eventonce_done WHERE key IN asked"
# What the protocol does where nothing is known of a key, and where a claim is held. Nothing here can fail half-way: for
# what could, as a statement that replaces rows, SQLite copies each page that it changes, which takes twice as long.
_TAKE = (
    f"INSERT OR IGNORE INTO eventonce_open (key, {_OPEN}) SELECT key, ?, ?, ?, ?, ?, ?, ? FROM asked "
    "WHERE NOT EXISTS (SELECT 1 FROM eventonce_done WHERE key = asked.key)"
)
_NOT_TAKEN = "SELECT key FROM asked WHERE NOT EXISTS (SELECT 1 FROM eventonce_open WHERE key = asked.key AND token = ?)"
_HELD = "asked CROSS JOIN eventonce_open USING (key) WHERE token = ? AND lease <> 0 AND expires > ?"
_FINISH = f"INSERT OR IGNORE INTO eventonce_done (key, {_DONE}) SELECT key, token, ?, ?, tries, ?, ? FROM {_HELD}"
_DROP_BEFORE = f"DELETE FROM eventonce_done WHERE key IN (SELECT key FROM {_HELD})"
_WALK = (
    "SELECT key, max(expires) FROM ("
    "SELECT * FROM (SELECT key, expires FROM eventonce_open WHERE key > ?1 ORDER BY key LIMIT ?2) UNION ALL "
    "SELECT * FROM (SELECT key, done_at + window FROM eventonce_done WHERE key > ?1 ORDER BY key LIMIT ?2)"
    ") GROUP BY key ORDER BY key LIMIT ?2"
)


# --- what the store does with them ---


def select(connection: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, Record]:
    """The records of these keys; in a transaction, or a row that moves meanwhile could be in neither table."""
    keys = sorted(keys)
    records: dict[Key, Record] = {}
    done: dict[Row, Record] = {}  # what is the same for many keys is one record
    for row in _found(connection, _FIND_DONE, keys):
        values = row[1:]
        records[row[0]] = done[values] if values in done else done.setdefault(values, Record._make(values))
    if connection.execute("SELECT 1 FROM eventonce_open LIMIT 1").fetchone():
        opened: dict[tuple[Record | None, Row], Record] = {}
        for row in _found(connection, _FIND_OPEN, keys):
            both = records.get(row[0]), row[1:]
            records[row[0]] = opened[both] if both in opened else opened.setdefault(both, _opened(*both))
    return records


def change(connection: sqlite3.Connection, keys: Sequence[Key], act: Callable[[Records], Result]) -> Result:
    """Let a function act on the records of these keys, and write what it has changed."""
    before = select(connection, keys)
    after = dict(before)
    result = act(after)
    _write(connection, before, after)
    return result


def claim(connection: sqlite3.Connection, wants: Sequence[Want], token: Token, lease: int, now: int) -> list[Answer]:
    """Mostly nothing is known of nearly all keys: those are taken unseen, and the protocol decides on the others."""
    keys = sorted({want.key for want in wants})
    if len(keys) < len(wants) or len({want[1:] for want in wants}) != 1:
        return change(connection, keys, lambda records: ledger.claim(records, wants, token, lease, now))
    won, record = protocol.claim(None, wants[0], token, lease, now)
    taken = _do(connection, _TAKE, keys, _open(record) or ())
    if taken == len(keys):
        return [won] * taken
    left = {key for (key,) in _found(connection, _NOT_TAKEN, keys, (token,))}
    if taken + len(left) < len(keys):  # some were its own before: the client asks again
        left = set(keys)
    others = [want for want in wants if want.key in left]
    decided = change(connection, [*left], lambda records: ledger.claim(records, others, token, lease, now))
    answers = dict(zip((want.key for want in others), decided, strict=True))
    return [answers.get(want.key, won) for want in wants]


def holds(connection: sqlite3.Connection, claim: Claim) -> bool:
    """Whether nobody has taken this claim over."""
    find = "SELECT 1 FROM eventonce_open WHERE key = ? AND token = ? AND lease <> 0"
    return connection.execute(find, claim).fetchone() is not None


def commit(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> list[bool]:
    """Mostly every claim is still held, and then nothing has to be read before it is written.

    Where one is not, or a key stands there twice, the protocol decides on all of them. To it, those that went well are
    still open, and what it makes of them is what has been written.
    """
    keys = sorted({finish.key for finish in finishes})
    if len(keys) == len(finishes) and all(_finish(connection, *each, now) for each in _ends_alike(finishes)):
        _do(connection, _DROP_OPEN, keys)
        return [True] * len(finishes)
    return change(connection, keys, lambda records: ledger.commit(records, finishes, now))


def _finish(connection: sqlite3.Connection, end: tuple[Any, ...], keys: Sequence[Key], now: int) -> bool:
    """Whether all these claims were held, and so are done now."""
    token, window, version, memo = end
    done, held = (now, window, version, memo), (token, now)
    if _do(connection, _FINISH, keys, (*done, *held)) == len(keys):
        return True
    _do(connection, _DROP_BEFORE, keys, held)  # a lower version was done, or it was done a window ago
    return _do(connection, _FINISH, keys, (*done, *held)) == len(keys)


def _ends_alike(finishes: Sequence[Finish]) -> Iterable[tuple[tuple[Any, ...], list[Key]]]:
    """What is to be kept, with all keys that end like that, in their order; mostly there is one such end in a batch."""
    alike: dict[tuple[Any, ...], list[Key]] = {}
    for finish in sorted(finishes, key=itemgetter(0)):
        end = finish[1:]
        if end in alike:
            alike[end].append(finish.key)
        else:
            alike[end] = [finish.key]
    return alike.items()


def over(connection: sqlite3.Connection, limit: int, cursor: bytes, now: int) -> tuple[list[Key], bytes | None]:
    """Which of the next `limit` keys are over, and where to go on."""
    rows = connection.execute(_WALK, (cursor, limit)).fetchall()
    return [key for key, expires in rows if expires <= now], rows[-1][0] if rows and len(rows) == limit else None


def drop(connection: sqlite3.Connection, keys: Sequence[Key], now: int) -> int:
    """Drop those of these keys that are over; one may have been claimed again since that was seen."""

    def act(records: Records) -> int:
        dead = [key for key, record in records.items() if not live(record, now)]
        for key in dead:
            del records[key]
        return len(dead)

    return change(connection, keys, act)


# --- a record and its two rows ---


def _opened(record: Record | None, row: Row) -> Record:
    """What is remembered of a key of which this is open."""
    token, lease, shared, tries, trying, error, expires = row
    done = (0, 0, 0, None, None) if record is None else record[5:10]
    return Record(token, lease, bool(shared), tries, trying, *done, error, expires)


def _open(record: Record | None) -> Row | None:
    if record is None or (record.done_at and not (record.lease or record.tries or record.shared)):
        return None
    return record[:5] + record[10:]


def _done(record: Record | None) -> Row | None:
    if record is None or not record.done_at:
        return None
    return record.token, record.done_at, record.until - record.done_at, *record[7:10]


def _write(connection: sqlite3.Connection, before: dict[Key, Record], after: dict[Key, Record]) -> None:
    for old, new, keys in _alike(before, after):
        was_open, opened, done = _open(old), _open(new), _done(new)
        if opened is not None and opened != was_open:
            _do(connection, _KEEP_OPEN, keys, opened)
        if done is not None and _is_news(old, new):
            _do(connection, _KEEP_DONE, keys, done)
        if opened is None and was_open is not None:
            _do(connection, _DROP_OPEN, keys)
        if done is None and _done(old) is not None:
            _do(connection, _DROP_DONE, keys)


def _is_news(old: Record | None, new: Record | None) -> bool:
    """Whether what is done has changed. Its token counts only where nothing is open that has one."""
    was, done = _done(old), _done(new)
    if was is None or done is None or _open(new) is not None:
        return (was or ())[1:] != (done or ())[1:]
    return was != done or _open(old) is not None


def _alike(before: dict[Key, Record], after: dict[Key, Record]) -> Iterable[Change]:
    """What has changed, with all keys of which the same is true: most of a batch.

    By identity, since to look at all of a record takes longer; in the order of keys, so that a page is changed once.
    """
    changes: dict[tuple[int, int], Change] = {}
    for key in sorted(before | after):
        old, new = before.get(key), after.get(key)
        if old is not new:
            same = id(old), id(new)
            if same in changes:
                changes[same][2].append(key)
            else:
                changes[same] = (old, new, [key])
    return changes.values()


# --- statements for many keys ---


def _found(
    connection: sqlite3.Connection, find: str, keys: Sequence[Key], values: Sequence[object] = ()
) -> Iterator[Any]:
    for cursor in _asked(connection, find, keys, values):
        yield from cursor


def _do(connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Sequence[object] = ()) -> int:
    """How many rows it has changed; not what somebody's triggers have, which all other counters include."""
    each = _asked(connection, statement, keys, values)
    return sum(connection.execute("SELECT changes()").fetchone()[0] for _ in each)


def _asked(
    connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Sequence[object] = ()
) -> Iterator[sqlite3.Cursor]:
    """Let a statement ask for all these keys, some at a time."""
    begin, bound = 0, [*map(_bound, values)]
    while begin < len(keys):
        # Powers of two, so that there are few statements, and all of them stay prepared.
        count = min(_CHUNK, 1 << (len(keys) - begin).bit_length() - 1)
        asked = [*map(bytearray, keys[begin : begin + count])]
        yield connection.execute(_asking(statement, count), [*asked, *bound])
        begin += count


@lru_cache
def _asking(statement: str, count: int) -> str:
    return f"WITH asked (key) AS (VALUES {', '.join(['(?)'] * count)}) {statement}"


def _bound(value: object) -> object:
    """The same for SQLite, and Python passes it on at once: for other types it first looks for adapters, at length."""
    if value is None:
        return nan  # is NULL to SQLite
    if isinstance(value, bytes):
        return bytearray(value)
    return int(value) if isinstance(value, bool) else value
