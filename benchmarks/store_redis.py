"""Redis: one server on this machine, with an append-only file that is synced every second, as most run it.

It is judged by what client and server compute: there is nothing else to wait for.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

from benchmarks.harness import Row, Scale, Traffic, batches, compare, copies, counted, faster, keys
from benchmarks.paths import BARE, OURS, RULE, WINDOW, RunEvents, bare, fill, singly, store_only, whole
from benchmarks.powertools import NAME, powertools
from eventonce import Once
from eventonce.event.keys import Key
from eventonce.stores import open_store
from tests.servers import Redis

SUBJECT = "redis"
LIMIT, NAIVE = "limit: packed keys", "naive SET NX"
DECLARED = "limit with declared KEYS"

# The least that is correct: a claim is a key with our token that expires with the lease. A commit extends it.
CLAIM = """
local answers = {}
for at = 1, #ARGV[1], 16 do
  local key = string.sub(ARGV[1], at, at + 15)
  answers[#answers + 1] = redis.call('SET', key, ARGV[2], 'NX', 'PX', ARGV[3]) and '1' or '0'
end
return table.concat(answers)
"""
COMMIT = """
local answers = {}
for at = 1, #ARGV[1], 16 do
  local key = string.sub(ARGV[1], at, at + 15)
  if redis.call('GET', key) == ARGV[2] then
    redis.call('SET', key, 'D', 'PX', ARGV[3])
    answers[#answers + 1] = '1'
  else
    answers[#answers + 1] = '0'
  end
end
return table.concat(answers)
"""


def limit(client: Any, *, declared: bool = False) -> Callable[[Sequence[Key]], None]:
    claim, commit = (_declaring(text) if declared else text for text in (CLAIM, COMMIT))
    digests = [client.script_load(text) for text in (claim, commit)]

    def run(keys: Sequence[Key]) -> None:
        for batch in batches(keys):
            token = os.urandom(8)
            names = (len(batch), *batch) if declared else (0, b"".join(batch))
            client.execute_command("EVALSHA", digests[0], *names, token, 60_000)
            client.execute_command("EVALSHA", digests[1], *names, token, WINDOW)

    return run


def _declaring(script: str) -> str:
    loop = "for _, key in ipairs(KEYS) do"
    text = script.replace("for at = 1, #ARGV[1], 16 do\n  local key = string.sub(ARGV[1], at, at + 15)", loop)
    return text.replace("ARGV[2]", "ARGV[1]").replace("ARGV[3]", "ARGV[2]")


def naive(client: Any) -> RunEvents:
    """Return what tutorials teach: one phase, so that a crash loses the event."""

    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            text = json.dumps(json.loads(raw)["detail"], sort_keys=True)
            client.set(hashlib.sha256(text.encode()).hexdigest(), "1", nx=True, ex=WINDOW // 1000)

    return run


# The defaults of Redis with a file, but without the process that rewrites it now and then: its time would be counted
# only while it lives.
DURABLE = ("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")


def rows(scale: Scale) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, Redis(Path(folder), *DURABLE) as server:
        assert server.process is not None
        yield from measured(server, server.process.pid, scale)


def measured(server: Redis, pid: int, scale: Scale) -> Iterator[Row]:
    store, client = open_store(server.url()), redis.Redis(port=server.port)
    yield from sizes(store, client)
    fill(store, keys(scale.resident))
    once = Once(store, consumer="bench", rules=RULE)
    decoding_client: Any = redis.Redis(port=server.port, decode_responses=True)
    theirs = powertools(RedisCachePersistenceLayer(client=decoding_client))
    candidates = {OURS: whole(once), BARE: bare(store), NAME: theirs, NAIVE: naive(client)}
    for size, name in scale.sizes.items():
        traffic = Traffic(size)
        spent = compare(
            candidates,
            lambda traffic=traffic: traffic.events(scale.events // 2),  # type: ignore[misc]
            scale.rounds,
            servers=(pid,),
        )
        has_target = size == 1000
        yield faster(SUBJECT, f"whole path, {name}", "at least 10" if has_target else "", spent, OURS, NAME)
        yield faster(SUBJECT, f"whole path, {name}", "at least 0.5" if has_target else "", spent, OURS, BARE)
        yield faster(SUBJECT, f"whole path, {name}", "", spent, OURS, NAIVE)
    traffic = Traffic()
    spent = compare(candidates, lambda: traffic.events(scale.events // 2), scale.rounds, repeated=True, servers=(pid,))
    yield faster(SUBJECT, "whole path, duplicates", "at least 12", spent, OURS, NAME)
    spent = copies(candidates[OURS], lambda: traffic.events(scale.events), scale.rounds, servers=(pid,))
    yield faster(SUBJECT, "whole path, duplicates", "at least 1", spent, "duplicates", "unique events")
    alone = {OURS: singly(Once(store, consumer="bench", rules=RULE)), NAME: theirs}
    spent = compare(alone, lambda: traffic.events(scale.events // 4), scale.rounds, servers=(pid,))
    yield faster(SUBJECT, "whole path, batch of 1", "at least 1", spent, OURS, NAME)
    only = {OURS: store_only(store), LIMIT: limit(client), DECLARED: limit(client, declared=True)}
    spent = compare(only, lambda: keys(scale.events), 2 * scale.rounds, servers=(pid,))
    yield faster(SUBJECT, "store only", "at least 0.6", spent, OURS, LIMIT)
    yield faster(SUBJECT, "store only", "", spent, OURS, DECLARED)
    once.close()
    yield from crowded(server, pid, scale)


def sizes(store: Any, client: Any) -> Iterator[Row]:
    """Yield the memory of a key, while the server is still empty."""

    def growth(insert: Callable[[], object]) -> float:
        client.flushdb()
        before = client.info("memory")["used_memory"]
        insert()
        return float(client.info("memory")["used_memory"] - before) / 100_000

    def plain() -> None:
        for batch in batches(keys(100_000), 1000):
            with client.pipeline(transaction=False) as pipeline:
                for key in batch:
                    pipeline.set(b"eventonce:" + key, b"1", ex=WINDOW // 1000)
                pipeline.execute()

    ours, raw = growth(lambda: fill(store, keys(100_000))), growth(plain)
    yield counted(SUBJECT, "memory", "SET EX of the same key", "at most 1.5", ours, raw, "bytes a key")


def crowded(server: Redis, pid: int, scale: Scale) -> Iterator[Row]:
    """The same server once more, beside itself with very many keys."""
    with tempfile.TemporaryDirectory() as folder, Redis(Path(folder), "--appendonly", "yes") as other:
        assert other.process is not None
        few = open_store(other.url())
        fill(few, keys(100_000))
        many = open_store(server.url())
        for _ in range((scale.many - scale.resident) // 100_000):
            fill(many, keys(100_000))
        a_lot, a_few = f"{scale.many:,} keys", "100,000 keys"
        paths = {a_lot: whole(Once(many, rules=RULE)), a_few: whole(Once(few, rules=RULE))}
        traffic = Traffic()
        spent = compare(paths, lambda: traffic.events(scale.events), scale.rounds, servers=(pid, other.process.pid))
        yield faster(SUBJECT, f"whole path, {a_lot} resident", "at least 0.7", spent, a_lot, a_few)
