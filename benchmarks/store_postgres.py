"""PostgreSQL with its default settings, with synchronous_commit on.

Beside naive code it is judged by the clock, since that waits for the disk at every step. Beside the limit it is judged
by what client and server compute, since both wait for the disk as often.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.harness import Row, Scale, Traffic, batches, compare, faster, keys
from benchmarks.paths import BARE, OURS, RULE, WINDOW, RunEvents, bare, keyer, store_only, whole
from eventonce import Once
from eventonce.event.keys import Key
from eventonce.stores import open_store
from eventonce.stores.postgres.batch import ADAPTERS, byte_strings
from tests.servers import Postgres

SUBJECT = "postgres"
LIMIT, LEAST, NAIVE = "limit: unnest, = ANY", "limit, with keys", "naive two-phase"
TABLES = """
CREATE TABLE limit_claims (key bytea PRIMARY KEY, token bytea, lease bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE naive_claims (key text PRIMARY KEY, status text NOT NULL, ends timestamptz NOT NULL)
"""
CLAIM = """
INSERT INTO limit_claims (key, token, lease) SELECT key, %s, %s FROM unnest(%s::bytea[]) AS w (key)
ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease = excluded.lease WHERE limit_claims.lease < %s
RETURNING key
"""
COMMIT = "UPDATE limit_claims SET lease = %s WHERE key = ANY(%s::bytea[]) AND token = %s RETURNING key"


def limit(connection: Any) -> Callable[[Sequence[Key]], None]:
    """Keys sorted, prepared statements, arrays in binary, and nothing remembered but the claim."""

    def run(keys: Sequence[Key]) -> None:
        for batch in batches(keys):
            now, token = time.time_ns() // 1_000_000, os.urandom(8)
            packed = byte_strings(sorted(batch))
            claim = (token, now + 60_000, packed, now)
            connection.execute(CLAIM, claim, prepare=True, binary=True).fetchall()
            connection.execute(COMMIT, (now + WINDOW, packed, token), prepare=True, binary=True).fetchall()

    return run


def least(connection: Any) -> RunEvents:
    """Return the least work that is possible: the keys, and the limit."""
    key, run = keyer(), limit(connection)
    return lambda events: run([key(raw) for raw in events])


def naive(connection: Any) -> RunEvents:
    """One event at a time: look, insert as running, run, mark as done."""

    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            key = hashlib.sha256(json.dumps(json.loads(raw)["detail"], sort_keys=True).encode()).hexdigest()
            cursor = connection.execute("SELECT status FROM naive_claims WHERE key = %s AND ends > now()", [key])
            if cursor.fetchone() is None:
                insert = "INSERT INTO naive_claims VALUES (%s, 'running', now() + interval '1 minute')"
                if connection.execute(f"{insert} ON CONFLICT DO NOTHING", [key]).rowcount:
                    done = "UPDATE naive_claims SET status = 'done', ends = now() + interval '14 days' WHERE key = %s"
                    connection.execute(done, [key])

    return run


def rows(scale: Scale) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with Postgres(Path(folder)) as server:
            yield from measured(server, scale)
    yield from crowded(scale)


def measured(server: Postgres, scale: Scale) -> Iterator[Row]:
    assert server.process is not None
    pid, store = server.process.pid, open_store(server.url())
    connection = psycopg.connect(server.url(), autocommit=True, context=ADAPTERS)
    connection.execute(TABLES)
    prefilled(store, connection, scale.resident)
    once = Once(store, consumer="bench", rules=RULE)
    candidates = {OURS: whole(once), BARE: bare(store), LEAST: least(connection), NAIVE: naive(connection)}
    for size, name in scale.sizes.items():
        traffic = Traffic(size)
        spent = compare(candidates, lambda traffic=traffic: traffic.events(200), scale.rounds, servers=[pid])  # type: ignore[misc]
        has_target = size == 1000
        yield faster(SUBJECT, f"whole path, {name}", "at least 25" if has_target else "", spent, OURS, NAIVE, "wall")
        yield faster(SUBJECT, f"whole path, {name}", "", spent, OURS, BARE, "wall")
        yield faster(SUBJECT, f"{LEAST}, {name}", "", spent, LEAST, NAIVE, "wall")
    only = {OURS: store_only(store), LIMIT: limit(connection)}
    spent = compare(only, lambda: keys(scale.events), 2 * scale.rounds, servers=[pid])
    yield faster(SUBJECT, "store only", "at least 0.7", spent, OURS, LIMIT)
    once.close()


def prefilled(store: Any, connection: Any, count: int, *, ours_alone: bool = False) -> None:
    """Insert keys that are done into all tables."""
    store_only(store)(keys(100))  # creates the table
    number, key = "generate_series(1, %s) n", "sha256(n::text::bytea)"
    connection.execute(
        "INSERT INTO eventonce_claims (key, token, lease, flags, tries, took, done_at, until, expires) "
        f"SELECT substr({key}, 1, 16), '\\x0102030405060708', 0, 0, 0, 1, m, m + %s, m + %s "
        f"FROM {number}, (SELECT (extract(epoch FROM now()) * 1000)::bigint AS m) t",
        [WINDOW, WINDOW, count],
    )
    if not ours_alone:
        least = f"SELECT substr({key}, 1, 16), '\\x0102030405060708', 9000000000000 FROM {number}"
        connection.execute(f"INSERT INTO limit_claims {least}", [count])
        plain = f"SELECT encode({key}, 'hex'), 'done', now() + interval '14 days' FROM {number}"
        connection.execute(f"INSERT INTO naive_claims {plain}", [count])
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")
    store.sweep(1000)  # as the keeper does, so that it knows how large its table is


def crowded(scale: Scale) -> Iterator[Row]:
    """Two servers, one with very many keys."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with Postgres(Path(folder)) as few, Postgres(Path(folder)) as many:
            a_lot, a_few = f"{scale.many:,} keys", "100,000 keys"
            paths = {}
            for name, server, count in ((a_lot, many, scale.many), (a_few, few, 100_000)):
                store = open_store(server.url())
                connection = psycopg.connect(server.url(), autocommit=True)
                prefilled(store, connection, count, ours_alone=True)
                paths[name] = whole(Once(store, rules=RULE))
            traffic = Traffic()
            spent = compare(paths, lambda: traffic.events(scale.events), scale.rounds)
            yield faster(SUBJECT, f"whole path, {a_lot} resident", "at least 0.7", spent, a_lot, a_few, "wall")
