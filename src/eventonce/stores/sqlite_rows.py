"""The rows of the SQLite store, and the claim protocol once more, in SQL: its fast path.

A key has a row in `eventonce_open` while it runs or fails, one in `eventonce_done` once it is done, or both. Both rows
together are its record. A claim reads the done rows and writes an open one, into a small table whose pages stay in
memory. A commit moves the row over. So each event changes one page of the large table, once.

The fast path is a second implementation of `claims/protocol.py`, and covers two cases without reading a record:

- `claim` of distinct keys with equal terms: each key without a row is claimed by `_CLAIM_NEW`.
- `commit` of distinct keys: if every token still owns its claim, all are committed by `_COMMIT_OWNED`.

All else goes through `change`, which reads the records, calls the protocol and writes what that changed.
`test_the_fast_path_equals_the_protocol` in `tests/integration/stores/test_sqlite_store.py` holds both paths equal to
the protocol on random histories, answer by answer and record by record.

Values are bound as types that Python passes to SQLite at once. For all others, `None` and `bytes` included, it first
looks for an adapter, which takes time. So NULL is bound as NaN, which SQLite stores as NULL.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import nan
from operator import itemgetter
from typing import Any

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Token, live
from eventonce.event.keys import Key
from eventonce.stores import embedded
from eventonce.stores.embedded import Records, Result

Row = tuple[Any, ...]
Change = tuple[Record | None, Record | None, list[Key]]  # before, after
_CHUNK = 512  # keys in one statement, at most
_OPEN = "token, lease, shared, tries, trying, error, expires"
_DONE = "token, done_at, window, took, version, memo"
# Each statement below gets the keys of a batch as the table `asked`.
_SELECT_OPEN = f"SELECT key, {_OPEN} FROM asked CROSS JOIN eventonce_open USING (key)"
_SELECT_DONE = (  # as records: a key without an open row is not running, and expires with its window
    "SELECT key, token, 0, 0, 0, NULL, done_at, done_at + window, took, version, memo, NULL, done_at + window "
    "FROM asked CROSS JOIN eventonce_done USING (key)"
)
_REPLACE_OPEN = f"REPLACE INTO eventonce_open (key, {_OPEN}) SELECT key, ?, ?, ?, ?, ?, ?, ? FROM asked"
_REPLACE_DONE = f"REPLACE INTO eventonce_done (key, {_DONE}) SELECT key, ?, ?, ?, ?, ?, ? FROM asked"
_DELETE_OPEN = "DELETE FROM eventonce_open WHERE key IN asked"
_DELETE_DONE = "DELETE FROM eventonce_done WHERE key IN asked"
# The fast path: the protocol for keys that are new, and for claims that are still owned. No statement here can fail
# half-way. Where one could, as REPLACE can, SQLite first copies each page that it changes, which takes twice as long.
_CLAIM_NEW = (
    f"INSERT OR IGNORE INTO eventonce_open (key, {_OPEN}) SELECT key, ?, ?, ?, ?, ?, ?, ? FROM asked "
    "WHERE NOT EXISTS (SELECT 1 FROM eventonce_done WHERE key = asked.key)"
)
_UNCLAIMED = "SELECT key FROM asked WHERE NOT EXISTS (SELECT 1 FROM eventonce_open WHERE key = asked.key AND token = ?)"
_OWNED = "asked CROSS JOIN eventonce_open USING (key) WHERE token = ? AND lease <> 0 AND expires > ?"
_COMMIT_OWNED = (
    f"INSERT OR IGNORE INTO eventonce_done (key, {_DONE}) SELECT key, token, ?, ?, tries, ?, ? FROM {_OWNED}"
)
_DROP_DONE_BEFORE = f"DELETE FROM eventonce_done WHERE key IN (SELECT key FROM {_OWNED})"
_WALK = (
    "SELECT key, max(expires) FROM ("
    "SELECT * FROM (SELECT key, expires FROM eventonce_open WHERE key > ?1 ORDER BY key LIMIT ?2) UNION ALL "
    "SELECT * FROM (SELECT key, done_at + window FROM eventonce_done WHERE key > ?1 ORDER BY key LIMIT ?2)"
    ") GROUP BY key ORDER BY key LIMIT ?2"
)


# --- the verbs ---


def select(connection: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, Record]:
    """Read the records of these keys.

    Call this in a transaction: outside of one, a row that moves meanwhile could be missed in both tables.
    """
    keys = sorted(keys)
    records: dict[Key, Record] = {}
    done: dict[Row, Record] = {}  # equal rows share one record
    for row in _select(connection, _SELECT_DONE, keys):
        values = row[1:]
        records[row[0]] = done[values] if values in done else done.setdefault(values, Record._make(values))
    if connection.execute("SELECT 1 FROM eventonce_open LIMIT 1").fetchone():
        opened: dict[tuple[Record | None, Row], Record] = {}
        for row in _select(connection, _SELECT_OPEN, keys):
            both = records.get(row[0]), row[1:]
            records[row[0]] = opened[both] if both in opened else opened.setdefault(both, _with_open_row(*both))
    return records


def change(connection: sqlite3.Connection, keys: Sequence[Key], operation: Callable[[Records], Result]) -> Result:
    """Call a function with the records of these keys, and write what it changed."""
    before = select(connection, keys)
    after = dict(before)
    result = operation(after)
    _write_changes(connection, before, after)
    return result


def claim(
    connection: sqlite3.Connection, wants: Sequence[ClaimRequest], token: Token, lease: int, now: int
) -> list[Answer]:
    """Claim these keys: new ones by one statement, the others by the protocol. In most batches nearly all are new."""
    keys = sorted({want.key for want in wants})
    if len(keys) < len(wants) or len({want[1:] for want in wants}) != 1:
        return change(connection, keys, lambda records: embedded.claim(records, wants, token, lease, now))
    won, record = protocol.claim(None, wants[0], token, lease, now)
    claimed = _write(connection, _CLAIM_NEW, keys, _open_row(record) or ())
    if claimed == len(keys):
        return [won] * claimed
    remaining = {key for (key,) in _select(connection, _UNCLAIMED, keys, (token,))}
    if claimed + len(remaining) < len(keys):  # this token owned some before: the client repeats its claim
        remaining = set(keys)
    others = [want for want in wants if want.key in remaining]
    other_answers = change(connection, [*remaining], lambda records: embedded.claim(records, others, token, lease, now))
    answers = dict(zip((want.key for want in others), other_answers, strict=True))
    return [answers.get(want.key, won) for want in wants]


def holds(connection: sqlite3.Connection, claim: Claim) -> bool:
    """Return whether the token still owns this claim."""
    statement = "SELECT 1 FROM eventonce_open WHERE key = ? AND token = ? AND lease <> 0"
    return connection.execute(statement, claim).fetchone() is not None


def commit(connection: sqlite3.Connection, finishes: Sequence[Commit], now: int) -> list[bool]:
    """Commit these claims, by statements alone if each is still owned, as in most batches.

    If one is not, or a key occurs twice, the protocol decides on all of them. Claims that the statements have committed
    still have their open rows then, so the protocol commits them again, and to the same records.
    """
    keys = sorted({finish.key for finish in finishes})
    if len(keys) == len(finishes) and all(_commit_owned(connection, *group, now) for group in _by_terms(finishes)):
        _write(connection, _DELETE_OPEN, keys)
        return [True] * len(finishes)
    return change(connection, keys, lambda records: embedded.commit(records, finishes, now))


def _commit_owned(connection: sqlite3.Connection, terms: tuple[Any, ...], keys: Sequence[Key], now: int) -> bool:
    """Write the done rows of these claims. Return whether all of them were owned."""
    token, window, version, memo = terms
    done, owned = (now, window, version, memo), (token, now)
    if _write(connection, _COMMIT_OWNED, keys, (*done, *owned)) == len(keys):
        return True
    _write(connection, _DROP_DONE_BEFORE, keys, owned)  # a lower version was done, or a window has expired
    return _write(connection, _COMMIT_OWNED, keys, (*done, *owned)) == len(keys)


def _by_terms(finishes: Sequence[Commit]) -> Iterable[tuple[tuple[Any, ...], list[Key]]]:
    """Group keys, in their order, by the terms of their commits. Most batches have one group."""
    groups: dict[tuple[Any, ...], list[Key]] = {}
    for finish in sorted(finishes, key=itemgetter(0)):
        terms = finish[1:]
        if terms in groups:
            groups[terms].append(finish.key)
        else:
            groups[terms] = [finish.key]
    return groups.items()


def expired_keys(connection: sqlite3.Connection, limit: int, cursor: bytes, now: int) -> tuple[list[Key], bytes | None]:
    """Return those of the next `limit` keys that have expired, and the cursor to go on from."""
    rows = connection.execute(_WALK, (cursor, limit)).fetchall()
    return [key for key, expires in rows if expires <= now], rows[-1][0] if rows and len(rows) == limit else None


def drop_expired(connection: sqlite3.Connection, keys: Sequence[Key], now: int) -> int:
    """Drop those of these keys that are still expired: one may have been claimed since it was listed."""

    def operation(records: Records) -> int:
        expired = [key for key, record in records.items() if not live(record, now)]
        for key in expired:
            del records[key]
        return len(expired)

    return change(connection, keys, operation)


# --- a record and its two rows ---


def _with_open_row(record: Record | None, row: Row) -> Record:
    """Return the record of a key from its done row, if any, and its open row."""
    token, lease, shared, tries, trying, error, expires = row
    done = (0, 0, 0, None, None) if record is None else record[5:10]
    return Record(token, lease, bool(shared), tries, trying, *done, error, expires)


def _open_row(record: Record | None) -> Row | None:
    if record is None or (record.done_at and not (record.lease or record.tries or record.shared)):
        return None
    return record[:5] + record[10:]


def _done_row(record: Record | None) -> Row | None:
    if record is None or not record.done_at:
        return None
    return record.token, record.done_at, record.until - record.done_at, *record[7:10]


def _write_changes(connection: sqlite3.Connection, before: dict[Key, Record], after: dict[Key, Record]) -> None:
    for old, new, keys in _group_changes(before, after):
        old_open, new_open, new_done = _open_row(old), _open_row(new), _done_row(new)
        if new_open is not None and new_open != old_open:
            _write(connection, _REPLACE_OPEN, keys, new_open)
        if new_done is not None and _done_row_changed(old, new):
            _write(connection, _REPLACE_DONE, keys, new_done)
        if new_open is None and old_open is not None:
            _write(connection, _DELETE_OPEN, keys)
        if new_done is None and _done_row(old) is not None:
            _write(connection, _DELETE_DONE, keys)


def _done_row_changed(old: Record | None, new: Record | None) -> bool:
    """Return whether the done row has to be written. Its token matters only if there is no open row with one."""
    old_row, new_row = _done_row(old), _done_row(new)
    if old_row is None or new_row is None or _open_row(new) is not None:
        return (old_row or ())[1:] != (new_row or ())[1:]
    return old_row != new_row or _open_row(old) is not None


def _group_changes(before: dict[Key, Record], after: dict[Key, Record]) -> Iterable[Change]:
    """Group keys, in their order, by the change of their record. Most batches have one group.

    Records are compared by identity, because comparing their fields takes longer. Keys are sorted so that each page is
    changed once.
    """
    changes: dict[tuple[int, int], Change] = {}
    for key in sorted(before | after):
        old, new = before.get(key), after.get(key)
        if old is not new:
            identities = id(old), id(new)
            if identities in changes:
                changes[identities][2].append(key)
            else:
                changes[identities] = (old, new, [key])
    return changes.values()


# --- statements for many keys ---


def _select(
    connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Sequence[object] = ()
) -> Iterator[Any]:
    for cursor in _execute(connection, statement, keys, values):
        yield from cursor


def _write(connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Sequence[object] = ()) -> int:
    """Run a statement and return how many rows it changed. All other counters include the changes of triggers."""
    cursors = _execute(connection, statement, keys, values)
    return sum(connection.execute("SELECT changes()").fetchone()[0] for _ in cursors)


def _execute(
    connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Sequence[object] = ()
) -> Iterator[sqlite3.Cursor]:
    """Run a statement for all these keys, some at a time."""
    start, bound = 0, [*map(_bindable, values)]
    while start < len(keys):
        # Powers of two, so that there are few statements, and all of them stay prepared.
        count = min(_CHUNK, 1 << (len(keys) - start).bit_length() - 1)
        key_values = [*map(bytearray, keys[start : start + count])]
        yield connection.execute(_with_keys(statement, count), [*key_values, *bound])
        start += count


@lru_cache
def _with_keys(statement: str, count: int) -> str:
    return f"WITH asked (key) AS (VALUES {', '.join(['(?)'] * count)}) {statement}"


def _bindable(value: object) -> object:
    """Return an equal value of a type that Python binds without looking for an adapter."""
    if value is None:
        return nan  # which SQLite stores as NULL
    if isinstance(value, bytes):
        return bytearray(value)
    return int(value) if isinstance(value, bool) else value
