"""The Redis store: how it connects, what a server may forget, and its errors."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from eventonce import ConfigError, Event, LeaseLost, Once, OutcomeKind, StoreError, open_store
from eventonce.claims.protocol import Busy, Claim, ClaimRequest, Commit, Done, Release, Won
from eventonce.errors import StorePartly, StoreUnusable
from eventonce.event import Delivery
from eventonce.event.keys import Key
from eventonce.ports import Checkable, Store
from eventonce.stores.redis.store import RedisStore, _bucketed_names
from eventonce.testing import FaultProxy, ManualClock
from eventonce.testing.contract import LONG, claim, finish, key, keys
from eventonce.testing.proxy import free_port
from tests.missing import need
from tests.servers import Redis, RedisCluster, Valkey
from tests.until import PATIENCE, until

Start = Callable[..., Redis]
PATIENT = "socket_timeout=60&socket_connect_timeout=60"  # of connections; `timeout` then applies to replicas only


@pytest.fixture
def start(redis_server: Redis, servers: Path) -> Iterator[Start]:
    """Start further servers for one test. `redis_server` skips the test if Redis is missing."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(Redis(servers, *options))


@pytest.fixture
def server(redis_server: Redis) -> Redis:
    redis_server.cli("flushall")
    return redis_server


def warnings(store: Store) -> str:
    assert isinstance(store, Checkable)
    return "\n".join(store.check())


# --- connections ---


def test_a_unix_socket(server: Redis) -> None:
    store = open_store(f"unix://{server.socket}?db=0")
    assert claim(store, 1) == Won(1)
    store.close()


def test_tls(start: Start, servers: Path) -> None:
    need("openssl")
    pair = ["-keyout", str(servers / "tls.key"), "-out", str(servers / "tls.crt")]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", *pair]
    subprocess.run([*make, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    port = str(free_port())
    files = ["--tls-cert-file", str(servers / "tls.crt"), "--tls-key-file", str(servers / "tls.key")]
    start("--tls-port", port, *files, "--tls-ca-cert-file", str(servers / "tls.crt"), "--tls-auth-clients", "no")
    store = open_store(f"rediss://127.0.0.1:{port}?ssl_ca_certs={servers / 'tls.crt'}")
    assert claim(store, 1) == Won(1)
    store.close()
    stranger = open_store(f"rediss://127.0.0.1:{port}")
    with Once(stranger, lease="0.2s") as once:
        assert "certificate" in str(once.run([{"id": "1"}], lambda event: None)[0].error)


def test_the_master_that_sentinels_name_also_after_a_failover(start: Start, servers: Path) -> None:
    master = start("--appendonly", "no")
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    until(lambda: "master_link_status:up" in replica.cli("info", "replication"))
    sentinel = Redis(servers)
    config = servers / "sentinel.conf"
    config.write_text(
        f"port {sentinel.port}\nsentinel monitor main 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds main 600000\nsentinel failover-timeout main 2000\n"
    )
    process = subprocess.Popen(["redis-server", str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: sentinel.cli("ping") == "PONG")
        until(lambda: "slaves=1" in sentinel.cli("info", "sentinel"))
        store = open_store(f"redis://127.0.0.1:{sentinel.port}/0?sentinel=main&timeout=1s")
        assert claim(store, 1) == Won(1)
        assert finish(store, 1)
        until(lambda: f"slave0:ip=127.0.0.1,port={replica.port}" in master.cli("info", "replication"))
        with _client(master) as here, _client(replica) as there:
            until(lambda: here.get(_name(1)) == there.get(_name(1)))  # the replica has it a moment later
        master.kill()
        sentinel.cli("sentinel", "set", "main", "down-after-milliseconds", "300")  # from here on a master is down soon
        assert isinstance(claim(store, 1, b"token--2"), Done)  # waits for the failover
        assert claim(store, 2) == Won(1)  # on a server that has never seen the scripts
        store.close()
    finally:
        process.kill()
        process.wait()


def test_a_cluster_spreads_its_keys(redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.nodes:
        node.cli("flushall")
    store = open_store(redis_cluster.url())
    assert store.claim([ClaimRequest(each, LONG) for each in _random(600)], b"token--1", LONG) == [Won(1)] * 600
    key_counts = [int(node.cli("dbsize")) for node in redis_cluster.nodes]
    assert sum(key_counts) == 600
    assert min(key_counts) > 100
    store.close()


def test_a_cluster_that_lost_a_master_loses_nothing(redis_cluster: RedisCluster) -> None:
    ran: list[str] = []
    events = [{"id": str(number)} for number in range(50)]
    for node in redis_cluster.nodes:
        node.cli("flushall")
    store = open_store(f"{redis_cluster.url()}&timeout=1s")
    with Once(store, lease="2s") as once:
        redis_cluster.nodes[2].kill()
        try:
            first = [outcome.kind for outcome in once.run(events, lambda event: ran.append(event.id))]
            assert OutcomeKind.UNKNOWN in first
            assert first.count(OutcomeKind.UNKNOWN) + first.count(OutcomeKind.PROCESSED) == 50
            assert len(ran) == first.count(OutcomeKind.PROCESSED)
        finally:
            redis_cluster.nodes[2].start()
        until(lambda: all("cluster_state:ok" in node.cli("cluster", "info") for node in redis_cluster.nodes))
    with Once(store, busy_wait="60s") as once:  # until the claims on the other masters have expired
        then = [outcome.kind for outcome in once.run(events, lambda event: ran.append(event.id))]
        assert then == [
            OutcomeKind.PROCESSED if kind is OutcomeKind.UNKNOWN else OutcomeKind.DUPLICATE for kind in first
        ]
        assert sorted(ran) == sorted(str(number) for number in range(50))
    store.close()


def test_slots_that_move_while_we_work_cost_nothing(redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    names = [node.cli("cluster", "myid") for node in redis_cluster.nodes]
    ran: list[str] = []
    events = [{"id": str(number)} for number in range(600)]
    move = ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{redis_cluster.port}", "--cluster-slots", "300"]

    def moved(here: int, there: int) -> subprocess.Popen[bytes]:
        words = ["--cluster-from", names[here], "--cluster-to", names[there], "--cluster-yes"]
        return subprocess.Popen([*move, *words], stdout=subprocess.DEVNULL)

    with Once(redis_cluster.url()) as once:
        for kind, here, there in (("processed", 0, 1), ("duplicate", 1, 0)):
            moving, kinds = moved(here, there), set()
            for start in range(0, 600, 25):
                some = once.run(events[start : start + 25], lambda event: ran.append(event.id))
                kinds |= {outcome.kind for outcome in some}
                time.sleep(0.05)
            assert moving.wait() == 0
            assert kinds == {kind}
    assert sorted(ran) == sorted(str(number) for number in range(600))


def test_scripts_are_loaded_again_after_a_flush(server: Redis) -> None:
    store = open_store(server.url())
    claim(store, 1)
    server.cli("script", "flush")
    assert finish(store, 1)
    server.cli("script", "flush")
    wants = [ClaimRequest(each, LONG) for each in keys(3000)]  # several scripts in one pipeline
    assert store.claim(wants, b"token--2", LONG).count(Won(1)) == 2999
    store.close()


@pytest.fixture
def one_hangs(redis_cluster: RedisCluster) -> Iterator[tuple[list[Key], list[Key]]]:
    """Prepare a cluster of which one master will hang. Yield keys of the other masters, and keys of that one."""
    redis_cluster.flush()
    for node in redis_cluster.nodes:
        node.cli("config", "set", "cluster-require-full-coverage", "no")
    client: Any = redis.RedisCluster.from_url(redis_cluster.url())
    many = _random(60)
    there = [client.get_node_from_key(name).port for name in _bucketed_names(many)]
    client.close()
    last = redis_cluster.nodes[2]
    yield (
        [each for each, port in zip(many, there, strict=True) if port != last.port],
        [each for each, port in zip(many, there, strict=True) if port == last.port],
    )
    last.thaw()
    redis_cluster.settle()
    for node in redis_cluster.nodes:
        node.cli("config", "set", "cluster-require-full-coverage", "yes")


def test_a_master_that_hangs_delays_only_its_own_keys(
    redis_cluster: RedisCluster, one_hangs: tuple[list[Key], list[Key]]
) -> None:
    living, dead = one_hangs
    mixed = [each for pair in zip(living, dead, strict=False) for each in pair]
    store = open_store(f"{redis_cluster.url()}&timeout=200ms")
    assert store.claim([ClaimRequest(each, LONG) for each in mixed], b"token--1", 5000) == [Won(1)] * len(mixed)
    redis_cluster.nodes[2].freeze()
    calls: list[Callable[[], object]] = [
        lambda: store.extend([Claim(each, b"token--1") for each in mixed], 5000),
        lambda: store.commit([Commit(each, b"token--1", LONG) for each in mixed]),
        lambda: store.release([Release(each, b"token--1", LONG, None) for each in mixed]),
    ]
    for call, answer in zip(calls, (True, True, False), strict=True):
        with pytest.raises(StorePartly, match="imeout") as caught:
            call()
        assert caught.value.answers == [answer, None] * (len(mixed) // 2)
    other = open_store(f"{redis_cluster.url()}&timeout=200ms")  # which connects meanwhile
    assert isinstance(other.claim([ClaimRequest(living[0], LONG)], b"token--2", 5000)[0], Done)
    assert other.claim([ClaimRequest(living[-1], LONG)], b"token--2", 5000) == [Won(1)]
    redis_cluster.nodes[2].thaw()
    assert store.commit([Commit(each, b"token--1", LONG) for each in mixed]) == [True] * len(mixed)
    for each in (store, other):
        each.close()


@pytest.mark.long
def test_a_claim_on_a_living_master_is_kept_while_another_hangs(
    redis_cluster: RedisCluster, one_hangs: tuple[list[Key], list[Key]]
) -> None:
    """A handler runs for longer than a lease, with claims on both masters, and its effect is committed."""
    lease, ran = 6.0, []
    with Once(f"{redis_cluster.url()}&timeout=200ms", lease=f"{lease}s") as once:
        last = redis_cluster.nodes[2].port
        client: Any = redis.RedisCluster.from_url(redis_cluster.url())
        events = [{"id": str(number)} for number in range(30)]
        dead = [
            client.get_node_from_key(name).port == last for name in _bucketed_names([once.key(each) for each in events])
        ]
        client.close()
        events = [each for each, late in sorted(zip(events, dead, strict=True), key=lambda pair: pair[1])]

        def handle(event: Event, ctx: Any) -> None:
            ran.append(event.id)
            if len(ran) == 1:
                redis_cluster.nodes[2].freeze()
                end = time.monotonic() + 1.5 * lease
                while time.monotonic() < end:
                    ctx.check()
                    time.sleep(0.05)

        outcomes = once.run(events, handle)
    living = dead.count(False)
    assert [outcome.kind for outcome in outcomes[:living]] == [OutcomeKind.PROCESSED] * living
    assert [outcome.kind for outcome in outcomes[living:]] == [OutcomeKind.FAILED] * dead.count(True)
    assert all(isinstance(outcome.error, LeaseLost) for outcome in outcomes[living:])
    assert 0 < living < len(events)


def test_events_of_living_masters_run_while_another_hangs(
    redis_cluster: RedisCluster, one_hangs: tuple[list[Key], list[Key]]
) -> None:
    """In a group, no event overtakes one that has to wait."""
    with Once(f"{redis_cluster.url()}&timeout=200ms", lease="2s") as once:
        events = [{"id": f"event-{number}"} for number in range(40)]
        client: Any = redis.RedisCluster.from_url(redis_cluster.url())
        dead = [
            client.get_node_from_key(name).port == redis_cluster.nodes[2].port
            for name in _bucketed_names([once.key(each) for each in events])
        ]
        client.close()
        living, late = (
            [event for event, on_dead in zip(events, dead, strict=True) if on_dead is wanted]
            for wanted in (False, True)
        )
        named = [("h", living), ("h", living), ("g", living), ("g", late), ("g", living)]
        group = [Delivery(json.dumps(some.pop()).encode(), group=name) for name, some in named]
        ran: list[str] = []
        redis_cluster.nodes[2].freeze()
        outcomes = once.run([*living, *late, *group], lambda event: ran.append(event.id))
        kinds = [OutcomeKind.PROCESSED] * len(living) + [OutcomeKind.UNKNOWN] * len(late)
        kinds += [OutcomeKind.PROCESSED] * 3 + [OutcomeKind.UNKNOWN, OutcomeKind.BUSY]
        assert [outcome.kind for outcome in outcomes] == kinds
        redis_cluster.nodes[2].thaw()
        redis_cluster.settle()
        outcomes = once.run([*living, *late, *group], lambda event: ran.append(event.id))
        kinds = [OutcomeKind.DUPLICATE] * len(living) + [OutcomeKind.PROCESSED] * len(late)
        kinds += [OutcomeKind.DUPLICATE] * 3 + [OutcomeKind.PROCESSED] * 2
        assert [outcome.kind for outcome in outcomes] == kinds
        assert {outcome.attempt for outcome in outcomes if outcome.kind is OutcomeKind.PROCESSED} == {1}
        assert len(ran) == len(set(ran)) == 40


def test_an_event_without_a_claim_overtakes_nothing_of_its_group(
    redis_cluster: RedisCluster, one_hangs: tuple[list[Key], list[Key]]
) -> None:
    with Once(f"{redis_cluster.url()}&timeout=200ms", lease="2s", on_store_error="process") as once:
        events = [{"id": f"event-{number}"} for number in range(40)]
        client: Any = redis.RedisCluster.from_url(redis_cluster.url())
        dead = [
            client.get_node_from_key(name).port == redis_cluster.nodes[2].port
            for name in _bucketed_names([once.key(each) for each in events])
        ]
        client.close()
        living, late = (
            [event for event, on_dead in zip(events, dead, strict=True) if on_dead is wanted]
            for wanted in (False, True)
        )
        named = [("g", living), ("g", late), ("g", living), ("h", late), ("h", living), ("h", late)]
        group = [Delivery(json.dumps(some.pop()).encode(), group=name) for name, some in named]
        ran: list[bytes] = []
        redis_cluster.nodes[2].freeze()
        outcomes = once.run(group, lambda event: ran.append(event.raw))
        for name in ("g", "h"):
            bodies = [each.body for each in group if each.group == name]
            assert [body for body in ran if body in bodies] == bodies[: sum(body in ran for body in bodies)]
        kinds = [outcome.kind for outcome in outcomes]
        assert kinds == [
            OutcomeKind.PROCESSED,
            OutcomeKind.BUSY,
            OutcomeKind.BUSY,
            OutcomeKind.PROCESSED,
            OutcomeKind.PROCESSED,
            OutcomeKind.BUSY,
        ]


# --- what a server may forget ---


def test_a_batch_is_answered_as_each_of_its_keys_alone(server: Redis) -> None:
    store = open_store(server.url())
    store.claim([ClaimRequest(each, LONG, 2) for each in keys(9)], b"token--1", LONG)
    store.commit([Commit(each, b"token--1", LONG, 2) for each in keys(5)])
    store.commit([Commit(each, b"token--1", LONG, 2, b"memo") for each in keys(7)[5:]])
    for version in (None, 1, 2):
        wants = [ClaimRequest(each, LONG, version) for each in keys(9)]
        mixed = [want if index % 3 else want._replace(version=1) for index, want in enumerate(wants)]
        for batch in (wants, mixed):
            together = store.claim(batch, b"token--2", LONG)
            alone = [store.claim([want], b"token--2", LONG)[0] for want in batch]
            assert together[:7] == alone[:7]
            assert {type(answer) for answer in together[7:] + alone[7:]} == {Busy}
    store.close()


def test_keys_expire_by_themselves(server: Redis) -> None:
    store = open_store(server.url())
    claim(store, 1, window=500)
    with _client(server) as client:
        assert 0 < client.pttl(_name(1)) <= 86_400_000 + LONG
        finish(store, 1, window=LONG)
        assert 0 < client.pttl(_name(1)) <= LONG
        claim(store, 2, window=500)
        finish(store, 2, window=500)
        until(lambda: not client.exists(_name(2)))
        assert server.cli("dbsize") == "1"
    store.close()


def test_a_remembered_key_costs_little_more_than_a_plain_one(start: Start) -> None:
    server = start("--appendonly", "no")
    many = _random(20_000)

    store = open_store(server.url())
    claim(store, 1)
    with _client(server) as client, client.pipeline(transaction=False) as pipeline:

        def used() -> float:
            return float(client.memory_stats()["keys.bytes-per-key"])

        for index in range(0, len(many), 1000):
            some = many[index : index + 1000]
            store.claim([ClaimRequest(each, LONG) for each in some], b"token--1", LONG)
            store.commit([Commit(each, b"token--1", LONG) for each in some])
        ours = used()
        client.flushall()
        for each in many:
            pipeline.set(each, b"x" * 16, ex=60)
        pipeline.execute()
        assert ours <= used() + 16
    store.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_evict_keys_is_warned_of(start: Start, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    server = start("--maxmemory", "100mb", "--maxmemory-policy", policy, "--appendonly", "yes")
    store = open_store(server.url())
    assert f"maxmemory-policy is {policy}" in warnings(store)
    store.close()
    store = open_store(server.url())
    with caplog.at_level(logging.WARNING, "eventonce"):
        claim(store, 1)
        claim(store, 2)
    assert [record.getMessage().count(policy) for record in caplog.records] == [1]  # once, at the start
    store.close()


def test_a_server_that_keeps_everything_is_not_warned_of(server: Redis) -> None:
    store = open_store(server.url())
    assert warnings(store) == ""
    store.close()


def test_a_server_that_keeps_nothing_is_warned_of(start: Start) -> None:
    store = open_store(start("--appendonly", "no").url())
    assert "no append-only file" in warnings(store)
    store.close()


def test_wait_counts_replicas(start: Start) -> None:
    master = start("--appendonly", "no")
    for timeout in ("200ms", "1ms"):  # the shortest timeout waits for a moment, and not forever
        alone = open_store(f"{master.url()}?wait=1&timeout={timeout}&{PATIENT}")
        with Once(alone, lease="1s") as once:
            assert "only 0 of 1 replicas" in str(once.run([{"id": "1"}], lambda event: None)[0].error)
        alone.close()
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    until(lambda: "master_link_status:up" in replica.cli("info", "replication"))
    store = open_store(f"{master.url()}?wait=1")
    assert claim(store, 5) == Won(1)
    assert finish(store, 5)
    assert store.extend([Claim(key(5), b"token--1")], LONG) == [False]
    store.close()


def test_wait_counts_replicas_after_the_scripts_were_lost(start: Start) -> None:
    master = start("--appendonly", "no", "--repl-ping-replica-period", "3600")
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    until(lambda: "master_link_status:up" in replica.cli("info", "replication"))
    store = open_store(f"{master.url()}?wait=1&timeout=400ms&{PATIENT}")
    assert claim(store, 1) == Won(1)
    master.cli("script", "flush")
    until(lambda: master.cli("wait", "1", "1000") == "1")
    replica.freeze()
    try:
        with pytest.raises(StoreError, match="only 0 of 1 replicas"):
            claim(store, 2, lease=500)
    finally:
        replica.thaw()
    assert claim(store, 2) == Won(1)
    store.close()


class Pair:
    """A master and its replica, with a link that can stall, and a proxy for the connections of workers."""

    def __init__(self, servers: Path, stack: ExitStack, kind: type[Redis]) -> None:
        self.master = stack.enter_context(kind(servers, "--repl-diskless-sync-delay", "0"))
        self.link = stack.enter_context(FaultProxy(self.master.port))
        self.name = stack.enter_context(FaultProxy(self.master.port))
        self.replica = stack.enter_context(kind(servers, "--replicaof", "127.0.0.1", str(self.link.port)))
        until(lambda: "master_link_status:up" in self.replica.cli("info", "replication"))
        until(lambda: "state=online" in self.master.cli("info", "replication"))

    def store(self) -> Store:
        return open_store(f"redis://127.0.0.1:{self.name.port}?wait=1&timeout=2s")

    def cut_while_it_waits(self) -> None:
        """Break the worker's connection while the server waits for the replica."""
        until(lambda: "cmd=wait" in self.master.cli("client", "list"))
        self.name.cut_all()

    def promoted(self) -> Store:
        self.master.kill()
        self.replica.cli("replicaof", "no", "one")
        return open_store(self.replica.url())


@pytest.fixture(params=[Redis, Valkey])
def pair(request: pytest.FixtureRequest, servers: Path) -> Iterator[Pair]:
    request.getfixturevalue(f"{request.param.brand}_server")  # skips the test if the server is missing
    with ExitStack() as stack:
        yield Pair(servers, stack, request.param)


def test_a_commit_that_no_replica_has_does_not_count_after_a_broken_connection(pair: Pair) -> None:
    store = pair.store()
    assert claim(store, 1, lease=3000) == Won(1)
    pair.link.stall()
    with ThreadPoolExecutor(1) as worker:
        committed = worker.submit(finish, store, 1)
        pair.cut_while_it_waits()
        assert "only 0 of 1 replicas" in str(committed.exception())
    other = pair.store()
    with pytest.raises(StoreError, match="only 0 of 1 replicas"):  # nor does a copy learn that it is done
        claim(other, 1, b"token--2", lease=3000)
    promoted = pair.promoted()
    (record,) = promoted.peek([key(1)])
    assert record is not None
    assert (record.done_at, record.token) == (0, b"token--1")
    assert finish(promoted, 1)
    for each in (store, other, promoted):
        each.close()


def test_a_commit_that_reaches_the_replica_late_counts_after_a_broken_connection(pair: Pair) -> None:
    store = pair.store()
    assert claim(store, 1) == Won(1)
    pair.link.stall()
    with ThreadPoolExecutor(1) as worker:
        committed = worker.submit(finish, store, 1)
        pair.cut_while_it_waits()
        pair.link.flow()
        assert committed.result()
    other, promoted = pair.store(), pair.promoted()
    assert isinstance(claim(promoted, 1, b"token--2"), Done)
    for each in (store, other, promoted):
        each.close()


def test_a_lease_that_no_replica_has_extended_is_not_extended(pair: Pair) -> None:
    store = pair.store()
    assert claim(store, 1) == Won(1)
    pair.link.stall()
    with pytest.raises(StoreError, match="only 0 of 1 replicas"):
        store.extend([Claim(key(1), b"token--1")], LONG)
    pair.link.flow()
    assert store.extend([Claim(key(1), b"token--1")], LONG) == [True]
    store.close()


def test_waiting_for_more_replicas_than_exist_is_warned_of(start: Start) -> None:
    store = open_store(f"{start('--appendonly', 'yes').url()}?wait=2")
    assert "has 0 replicas and wait=2" in warnings(store)
    store.close()


# --- errors ---


def test_a_missing_cluster_is_unknown() -> None:
    with Once(f"redis://127.0.0.1:{free_port()}?cluster=true", lease="0.3s") as once:
        (outcome,) = once.run([{"id": "1"}], lambda event: pytest.fail("ran"))
        assert outcome.kind == "unknown"
        assert "refused" in str(outcome.error)


def test_the_rights_that_a_user_needs(server: Redis) -> None:
    rights = ["+evalsha", "+eval", "+set", "+get", "+mget", "+del", "+time", "+info"]
    server.cli("acl", "setuser", "worker", "on", ">pw", "~eventonce:*", *rights)
    store = open_store(f"redis://worker:pw@127.0.0.1:{server.port}")
    assert claim(store, 1) == Won(1)
    assert finish(store, 1)
    assert store.peek([key(1)])[0] is not None
    assert store.forget([key(1)]) == [True]
    store.close()


def test_a_user_without_the_right_to_wait_is_refused(server: Redis) -> None:
    server.cli("acl", "setuser", "hasty", "on", ">pw", "~eventonce:*", "+@all", "-wait")
    store = open_store(f"redis://hasty:pw@127.0.0.1:{server.port}?wait=1")
    with pytest.raises(StoreUnusable, match="WAIT where the URL says wait="):
        claim(store, 1)
    store.close()


def test_the_rights_that_a_user_of_a_cluster_needs(redis_cluster: RedisCluster) -> None:
    rights = ["+evalsha", "+eval", "+set", "+get", "+mget", "+del", "+time", "+info"]
    for node in redis_cluster.nodes:
        node.cli("acl", "setuser", "worker", "on", ">pw", "~{eo*}*", *rights)
    url = redis_cluster.url().replace("//", "//worker:pw@")
    store = open_store(url)
    with pytest.raises(StoreUnusable, match="in a cluster CLUSTER SLOTS and COMMAND too"):
        claim(store, 1)
    for node in redis_cluster.nodes:
        node.cli("acl", "setuser", "worker", "+cluster|slots", "+command")
    assert claim(store, 1) == Won(1)
    assert finish(store, 1)
    assert store.peek([key(1)])[0] is not None
    assert store.forget([key(1)]) == [True]
    store.close()


def test_a_server_outside_of_a_cluster_is_refused(server: Redis) -> None:
    store = open_store(f"redis://127.0.0.1:{server.port}?cluster=true")
    with pytest.raises(StoreUnusable, match="leave cluster=true out"):
        claim(store, 1)
    store.close()


def test_threads_do_not_wait_for_each_others_timeouts(start: Start) -> None:
    server = start("--appendonly", "yes")
    with FaultProxy(server.port) as proxy:
        # A clock that only sleeping moves, so that retries end at once when connections are refused.
        store = open_store(f"{server.url(proxy.port)}?timeout=60s", ManualClock())
        server.freeze()
        try:
            with ThreadPoolExecutor(16) as threads:
                requests = [threads.submit(store.peek, [key(1)]) for _ in range(16)]
                until(lambda: proxy.connections == 16)  # each waits for its own answer
                proxy.refusing = True
                proxy.cut_all()
                for request in requests:
                    assert isinstance(request.exception(), StoreError)
        finally:
            server.thaw()
        store.close()


def test_a_fork_while_another_thread_connects(start: Start) -> None:
    server = start("--appendonly", "yes")
    with FaultProxy(server.port) as proxy:
        store = open_store(f"{server.url(proxy.port)}?timeout=5s")
        server.freeze()
        connecting = threading.Thread(target=store.peek, args=([key(1)],))
        connecting.start()
        until(lambda: proxy.connections > 0)
        child = os.fork()
        if child == 0:
            os._exit(0 if claim(store, 1) == Won(1) else 1)
        server.thaw()
        connecting.join()
        deadline = time.monotonic() + PATIENCE
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0)
        assert isinstance(claim(store, 1, b"token--2"), Busy)
        store.close()


def test_room_in_a_full_server_is_waited_for(server: Redis) -> None:
    store = open_store(server.url())
    claim(store, 1)
    server.cli("config", "set", "maxmemory", "1")
    room = threading.Timer(0.5, server.cli, ["config", "set", "maxmemory", "0"])
    room.start()
    try:
        assert finish(store, 1)
        assert store.claim([ClaimRequest(each, LONG) for each in keys(3)], b"token--2", LONG)[0] == Won(1)
    finally:
        room.join()
    store.close()


def test_a_name_that_leads_to_a_new_master_is_followed(start: Start) -> None:
    """The old master becomes a replica and keeps its connections, as with managed Redis."""
    old = start("--appendonly", "yes")
    new = start("--replicaof", "127.0.0.1", str(old.port))
    until(lambda: "master_link_status:up" in new.cli("info", "replication"))
    with FaultProxy(old.port) as name:
        store = open_store(f"redis://127.0.0.1:{name.port}?timeout=1s")
        assert claim(store, 1) == Won(1)
        until(lambda: new.cli("dbsize") == "1")
        new.cli("replicaof", "no", "one")
        old.cli("replicaof", "127.0.0.1", str(new.port))
        moved = threading.Timer(0.5, name.lead_to, [new.port])
        moved.start()
        assert finish(store, 1)
        moved.join()
        assert claim(store, 2) == Won(1)
        assert new.cli("dbsize") == "2"
        store.close()


def test_a_replica_is_warned_of(start: Start) -> None:
    store = open_store(start("--replicaof", "127.0.0.1", "1").url())
    assert "takes no writes, so events are only retried; if it stays a replica, name its master" in warnings(store)
    store.close()


def test_one_node_of_a_cluster_is_refused(redis_cluster: RedisCluster) -> None:
    for call in (lambda store: claim(store, 1), lambda store: store.check()):
        store = open_store(redis_cluster.nodes[0].url())
        with pytest.raises(StoreUnusable, match="belongs to a cluster, so add cluster=true to the URL"):
            call(store)
        store.close()


@pytest.mark.parametrize("blind", [False, True])
def test_one_node_of_a_cluster_is_refused_also_without_the_right_to_info(
    redis_cluster: RedisCluster, blind: bool
) -> None:
    for node in redis_cluster.nodes:
        node.cli("acl", "setuser", "blind", "on", ">pw", "~*", "+@all", "-info" if blind else "+info")
    store = open_store(redis_cluster.nodes[0].url().replace("//", "//blind:pw@"))
    with pytest.raises(StoreUnusable, match="add cluster=true to the URL"):
        store.claim([ClaimRequest(each, LONG) for each in _random(50)], b"token--1", LONG)
    store.close()


def test_a_server_that_is_not_a_sentinel_is_refused(server: Redis) -> None:
    store = open_store(f"redis://127.0.0.1:{server.port}?sentinel=main")
    with pytest.raises(StoreUnusable, match="name sentinels, which usually listen on port 26379"):
        claim(store, 1)
    store.close()


@pytest.mark.long
def test_missing_sentinels_are_reported_in_one_sentence() -> None:
    store = open_store(f"redis://:hunter2@127.0.0.1:{free_port()}?sentinel=main")
    with pytest.raises(StoreError, match="No master found for 'main'; check the names and ports") as caught:
        claim(store, 1, lease=100)
    assert len(str(caught.value)) < 200
    assert caught.value.retryable
    store.close()


@pytest.mark.parametrize("credentials", [":hunter2@", "me:hunter2@", ""])
def test_a_wrong_password_is_reported_without_showing_it(start: Start, credentials: str) -> None:
    server = start("--requirepass", "right")
    store = open_store(f"redis://{credentials}127.0.0.1:{server.port}/0")
    with pytest.raises(StoreUnusable, match="password") as caught:
        claim(store, 1)
    assert "hunter2" not in str(caught.value)
    store.close()


def test_a_right_password(start: Start) -> None:
    server = start("--requirepass", "p@ss/word")
    store = open_store(f"redis://:p%40ss%2Fword@127.0.0.1:{server.port}/0")
    assert claim(store, 1) == Won(1)
    store.close()


def test_a_key_of_another_program_is_refused(server: Redis) -> None:
    store = open_store(server.url())
    with _client(server) as client:
        client.lpush(_name(7), "x")
    with pytest.raises(StoreUnusable, match="another program writes keys"):
        claim(store, 7)
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://127.0.0.1?clutser=true", "unknown option 'clutser'"),
        ("redis://127.0.0.1?cluster=yes", "neither true nor false"),
        ("redis://127.0.0.1?timeout=soon", "'soon' is not a duration"),
        ("redis://127.0.0.1?timeout=0s", "no server time to answer"),
        ("redis://127.0.0.1?wait=0", "not a whole number above 0"),
        ("redis://127.0.0.1?cluster=true&wait=1", "neither with wait"),
        ("redis://:hunter2@127.0.0.1/zero", "database"),
        ("redis://:hunter2@127.0.0.1:port/0", "port"),
        ("redis://:hunter2@[::1:6379/0", "cannot be parsed"),
        ("redis://:a?hunter2@127.0.0.1", "%-encoded"),
        ("redis://127.0.0.1/zero?password=a@hunter2", "database"),
        ("redis:hunter2@127.0.0.1", "redis: is not supported; did you mean redis://HOST"),
        ("redis://127.0.0.1?socket_timeout=soon", "socket_timeout"),
        ("redis://127.0.0.1?ssl_ca_certs=file", "ssl_ca_certs"),
        ("rediss://127.0.0.1?ssl_ca_cert=file", "ssl_ca_cert"),
        ("rediss://127.0.0.1,127.0.0.2?sentinel=main&ssl_ca_cert=file", "ssl_ca_cert"),
        ("redis://127.0.0.1/3?cluster=true", "no databases"),
    ],
)
def test_a_bad_url(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_options_reach_the_master_that_sentinels_name() -> None:
    url = "rediss://me:p%40ss@[::1],127.0.0.1:7/2?sentinel=main&ssl_ca_certs=file&health_check_interval=5"
    store = cast(RedisStore, open_store(url))
    pool = store._connect().connection_pool
    wanted = {"db": 2, "username": "me", "password": "p@ss", "ssl_ca_certs": "file", "health_check_interval": 5}
    assert {name: pool.connection_kwargs[name] for name in wanted} == wanted
    addresses = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(address["host"], address["port"]) for address in addresses] == [("::1", 26379), ("127.0.0.1", 7)]
    store.close()


# --- helpers ---


def _client(server: Redis) -> redis.Redis:
    return redis.Redis.from_url(server.url())


def _name(number: int) -> bytes:
    return b"eventonce:" + key(number)


def _random(count: int) -> list[Key]:
    return [Key(hashlib.md5(b"%d" % number).digest()) for number in range(count)]
