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

from eventonce.claim import Finish, Record, live
from eventonce.key import Key
from eventonce.stores import ledger
from eventonce.stores.ledger import Records, Result

Row = tuple[object, ...]
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
# What `claim.commit` does where the claim is held. Where it is not there is no `took`, and so no row.
_FINISH = (
    f"INSERT OR IGNORE INTO eventonce_done ({_DONE}, key) VALUES (?1, ?2, ?3, "
    "(SELECT tries FROM eventonce_open WHERE key = ?6 AND token = ?1 AND lease <> 0 AND expires > ?2), ?4, ?5, ?6) "
    f"ON CONFLICT (key) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _DONE.split(', '))}"
)
_WALK = (
    "SELECT key, max(expires) FROM ("
    "SELECT * FROM (SELECT key, expires FROM eventonce_open WHERE key > ?1 ORDER BY key LIMIT ?2) UNION ALL "
    "SELECT * FROM (SELECT key, done_at + window FROM eventonce_done WHERE key > ?1 ORDER BY key LIMIT ?2)"
    ") GROUP BY key ORDER BY key LIMIT ?2"
)


# --- what the store does with them ---


def select(connection: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, Record]:
    """The records of these keys; in a transaction, or a row that moves meanwhile could be in neither table."""
    records: dict[Key, Record] = {}
    alike: dict[Row, Record] = {}  # those of one batch are the same
    keys = sorted(keys)
    for row in _found(connection, _FIND_DONE, keys):
        values = row[1:]
        records[row[0]] = alike[values] if values in alike else alike.setdefault(values, Record._make(values))
    if connection.execute("SELECT 1 FROM eventonce_open LIMIT 1").fetchone():
        for key, *row in _found(connection, _FIND_OPEN, keys):
            records[key] = _opened(records.get(key), row)
    return records


def change(connection: sqlite3.Connection, keys: Sequence[Key], act: Callable[[Records], Result]) -> Result:
    """Let a function act on the records of these keys, and write what it has changed."""
    before = select(connection, keys)
    after = dict(before)
    result = act(after)
    _write(connection, before, after)
    return result


def commit(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> list[bool]:
    """Mostly every claim is still held, and then nothing has to be read before it is written.

    Where one is not, or a key stands there twice, the protocol decides on all of them. To it, those that went well are
    still open, and what it makes of them is what has been written.
    """
    keys = sorted({finish.key for finish in finishes})
    rows = _finished(finishes, now)
    if len(keys) == len(rows) == connection.executemany(_FINISH, rows).rowcount:
        _do(connection, _DROP_OPEN, keys)
        return [True] * len(rows)
    return change(connection, keys, lambda records: ledger.commit(records, finishes, now))


def _finished(finishes: Sequence[Finish], now: int) -> list[Row]:
    """What the statement needs of each, in the order of keys; what is the same for many is worked out once."""
    rows: list[Row] = []
    asked, row = None, Row()
    for finish in sorted(finishes, key=itemgetter(0)):
        if finish[1:] != asked:
            asked = finish[1:]
            token, window, version, memo = map(_bound, asked)
            row = token, now, window, version, memo
        rows.append((*row, bytearray(finish[0])))
    return rows


def over(connection: sqlite3.Connection, limit: int, cursor: bytes, now: int) -> tuple[list[Key], bytes | None]:
    """Which of the next `limit` keys are over, and where to go on."""
    rows = connection.execute(_WALK, (cursor, limit)).fetchall()
    return [key for key, expires in rows if expires <= now], rows[-1][0] if len(rows) == limit else None


def drop(connection: sqlite3.Connection, keys: Sequence[Key], now: int) -> int:
    """Drop those of these keys that are over; one may have been claimed again since that was seen."""

    def act(records: Records) -> int:
        dead = [key for key, record in records.items() if not live(record, now)]
        for key in dead:
            del records[key]
        return len(dead)

    return change(connection, keys, act)


# --- a record and its two rows ---


def _opened(record: Record | None, row: Sequence[Any]) -> Record:
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
    for key in sorted({**before, **after}):
        old, new = before.get(key), after.get(key)
        if old is not new:
            same = id(old), id(new)
            if same not in changes:
                changes[same] = (old, new, [])
            changes[same][2].append(key)
    return changes.values()


# --- statements for many keys ---


def _found(connection: sqlite3.Connection, find: str, keys: Sequence[Key]) -> Iterator[Any]:
    for cursor in _asked(connection, find, keys):
        yield from cursor


def _do(connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Sequence[object] = ()) -> None:
    for _ in _asked(connection, statement, keys, values):
        pass


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
