"""SQLite: a file on this machine's disk, synced at every commit.

Beside naive code it is judged by the clock, since that waits for the disk at every step. Beside the limit it is judged
by CPU time, since both wait for the disk as often.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Scale, Traffic, batches, compare, counted, faster, keys, spread_keys
from benchmarks.paths import BARE, OURS, RULE, WINDOW, RunEvents, bare, store_only, whole
from eventonce import Once
from eventonce.event.keys import Key
from eventonce.stores import open_store

SUBJECT = "sqlite"
LIMIT, LIMIT_OF_ONE, JOURNAL = "limit: raw B-trees", "one raw B-tree", "store only, a journal of one process"
NAIVE, TUNED = "naive two-phase", "naive, tuned as ours is"  # the first as in tutorials, with SQLite's own settings
BATCH, FILL = 1000, 10_000


def connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA page_size = 1024")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    return connection


def limit(connection: sqlite3.Connection, size: int = BATCH) -> Callable[[Sequence[Key]], None]:
    """Return the B-trees' work alone: sorted keys, a small row each, a transaction for claims and one for commits.

    Its layout is the best of those tried: claimed keys in a small B-tree, done keys in a large one of which each key
    changes one page, and one statement for hundreds of keys.
    """

    def run(keys: Sequence[Key]) -> None:
        for batch in batches(keys, size):
            now, token = time.time_ns() // 1_000_000, bytearray(os.urandom(8))
            ordered = [*map(bytearray, sorted(batch))]  # Python binds these sooner than bytes
            connection.execute("BEGIN IMMEDIATE")
            for part in batches(ordered, 500):
                claim = "INSERT OR IGNORE INTO claimed SELECT column1, ?, ? FROM "
                claim += f"(VALUES {', '.join(['(?)'] * len(part))}) "
                claim += "WHERE NOT EXISTS (SELECT 1 FROM claims WHERE key = column1)"
                connection.execute(claim, [token, now + 60_000, *part])
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            commit = "INSERT OR IGNORE INTO claims SELECT key, token, ? FROM claimed WHERE token = ? AND lease > ?"
            connection.execute(commit, (now + WINDOW, token, now))
            connection.execute("DELETE FROM claimed WHERE token = ?", (token,))
            connection.execute("COMMIT")

    return run


def limit_of_one(connection: sqlite3.Connection, size: int = BATCH) -> Callable[[Sequence[Key]], None]:
    """Return the same with one B-tree: each key changes a page twice."""

    def run(keys: Sequence[Key]) -> None:
        for batch in batches(keys, size):
            now, token = time.time_ns() // 1_000_000, bytearray(os.urandom(8))
            ordered = [*map(bytearray, sorted(batch))]
            connection.execute("BEGIN IMMEDIATE")
            claim = "INSERT INTO claims VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET token = excluded.token, "
            claim += "lease = excluded.lease WHERE lease < ?"
            connection.executemany(claim, [(key, token, now + 60_000, now) for key in ordered])
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            commit = "UPDATE claims SET lease = ? WHERE key = ? AND token = ?"
            connection.executemany(commit, [(now + WINDOW, key, token) for key in ordered])
            connection.execute("COMMIT")

    return run


def limit_file(file: Path, resident: int) -> sqlite3.Connection:
    connection = connect(file)
    for table in ("claims", "claimed"):
        connection.execute(f"CREATE TABLE {table} (key BLOB PRIMARY KEY, token BLOB, lease INTEGER) WITHOUT ROWID")
    insert = "INSERT INTO claims VALUES (?, x'0102030405060708', 9000000000000)"
    for batch in arriving(resident):
        connection.execute("BEGIN")
        connection.executemany(insert, ((key,) for key in sorted(batch)))
        connection.execute("COMMIT")
    return connection


def arriving(count: int) -> Iterator[Sequence[Key]]:
    """Yield batches of this many keys in random order, so that pages are as full as they are in use."""
    return (keys(len(some)) for some in batches(range(count), FILL))


def naive(connection: sqlite3.Connection, resident: int) -> RunEvents:
    """One event at a time: look, insert as running, run, mark as done."""
    connection.execute("CREATE TABLE naive (key TEXT PRIMARY KEY, status TEXT, ends INTEGER)")
    connection.execute("BEGIN")
    insert = "INSERT INTO naive VALUES (?, 'done', 9000000000)"
    connection.executemany(insert, ((2 * key.hex(),) for key in spread_keys(resident)))
    connection.execute("COMMIT")

    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            key = hashlib.sha256(json.dumps(json.loads(raw)["detail"], sort_keys=True).encode()).hexdigest()
            now = int(time.time())
            row = connection.execute("SELECT status FROM naive WHERE key = ? AND ends > ?", (key, now)).fetchone()
            if row is None:
                connection.execute("INSERT OR IGNORE INTO naive VALUES (?, 'running', ?)", (key, now + 60))
                connection.execute(
                    "UPDATE naive SET status = 'done', ends = ? WHERE key = ?", (now + WINDOW // 1000, key)
                )

    return run


def rows(scale: Scale) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # the temporary folder may not be on a disk
        folder = Path(name)
        yield from measured(folder, scale)
        yield from crowded(folder, scale)


def measured(folder: Path, scale: Scale) -> Iterator[Row]:
    file = folder / "store.db"
    store = filled(open_store(f"sqlite:///{file}"), arriving(scale.resident))
    yield size(file, scale.resident)
    least, one = (limit_file(folder / name, scale.resident) for name in ("limit.db", "one.db"))
    plain = sqlite3.connect(folder / "naive.db", isolation_level=None)
    theirs = {NAIVE: naive(plain, scale.resident), TUNED: naive(connect(folder / "tuned.db"), scale.resident)}
    once = Once(store, consumer="bench", rules=RULE)
    candidates = {OURS: whole(once, BATCH), BARE: bare(store, BATCH), **theirs}
    for wide, name in scale.sizes.items():
        traffic = Traffic(wide)
        spent = compare(
            candidates,
            lambda traffic=traffic: traffic.events(BATCH),  # type: ignore[misc]
            scale.rounds,
            fewer=dict.fromkeys(theirs, 50),
        )
        has_target = wide == 1000
        yield faster(SUBJECT, f"whole path, {name}", "at least 15" if has_target else "", spent, OURS, NAIVE, "wall")
        yield faster(SUBJECT, f"whole path, {name}", "", spent, OURS, TUNED, "wall")
        yield faster(SUBJECT, f"whole path, {name}", "at least 0.5" if has_target else "", spent, OURS, BARE)
    journal = open_store(f"journal:///{folder / 'store.journal'}?max_keys={10**9}")
    filled(journal, arriving(scale.resident))
    only = {
        OURS: store_only(store, BATCH),
        LIMIT: limit(least),
        LIMIT_OF_ONE: limit_of_one(one),
        JOURNAL: store_only(journal, BATCH),
    }
    # The log is written back after some four batches. All rounds pay for that alike if they are longer.
    spent = compare(only, lambda: keys(8 * BATCH), 2 * scale.rounds)
    yield faster(SUBJECT, "store only", "at least 0.7", spent, OURS, LIMIT)
    yield faster(SUBJECT, "store only", "", spent, OURS, LIMIT_OF_ONE)
    yield faster(SUBJECT, JOURNAL, "at least 4", spent, JOURNAL, LIMIT, "wall")
    only = {OURS: store_only(store), LIMIT: limit(least, 100)}
    spent = compare(only, lambda: keys(8 * BATCH), scale.rounds)
    yield faster(SUBJECT, "store only, batches of 100", "", spent, OURS, LIMIT)
    once.close()
    journal.close()


def filled(store: Any, key_batches: Iterable[Sequence[Key]]) -> Any:
    """Return the store after it has processed these keys, one batch after the other."""
    for batch in key_batches:
        store_only(store, FILL)(batch)
    return store


def size(file: Path, count: int) -> Row:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return counted(SUBJECT, "file", "80 bytes", "at most 1", file.stat().st_size / count, 80, "bytes a key")


def crowded(folder: Path, scale: Scale) -> Iterator[Row]:
    a_lot, a_few = f"{scale.many:,} keys", "100,000 keys"
    paths = {}
    for number, (name, count) in enumerate(((a_lot, scale.many), (a_few, 100_000))):
        done = batches([Key(key) for key in spread_keys(count)], FILL)  # in order: ten million take long enough
        paths[name] = whole(Once(filled(open_store(f"sqlite:///{folder / str(number)}.db"), done), rules=RULE), BATCH)
    traffic = Traffic()
    spent = compare(paths, lambda: traffic.events(BATCH), scale.rounds)
    yield faster(SUBJECT, f"whole path, {a_lot} resident", "at least 0.5", spent, a_lot, a_few, "wall")
