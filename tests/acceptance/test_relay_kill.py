"""Relays killed with SIGKILL at every point: every committed event is published at least once, under one identity."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from eventonce.clients.aws import client
from eventonce.outbox import Outbox
from tests.servers import Ministack, Postgres

# A relay whose receiver is a file. It may die at a given place: between the sending and the settling, or the taking and
# the sending.
RELAY = """
import os, signal, sys, threading
from eventonce.outbox import Outbox, PublishKind, PublishResult, Relay

url, place, store, mode = sys.argv[1:5]
file = os.open("published.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def die(where):
    if where == place:
        os.kill(os.getpid(), signal.SIGKILL)

class Receiver:
    def send(self, events):
        die("before sending")
        for each in events:
            line = f"{each.group} {each.identity} {each.event.data['n']} {os.getpid()}"
            os.write(file, line.encode() + b"\\n")
        die("after sending")
        return [PublishResult(kind=PublishKind.PUBLISHED, identity=each.identity) for each in events]

outbox = Outbox(url)
relay = Relay(outbox, Receiver(), dead_letter="dead.jsonl", lease="1s", poll="100ms", batch=20, store=store)
if mode == "drain":
    left = relay.drain()
    while left:
        left = relay.drain()
else:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    relay.run(stop)
die("at the end")
"""
PATIENCE = 60.0


class Bench:
    """An outbox of one kind, with a way to add to it, and relays as processes."""

    def __init__(self, folder: Path, url: str, add: Callable[[Outbox, str, int], None], **more: str) -> None:
        self.folder = folder
        self.url = url
        self.outbox = Outbox(url)
        self.outbox.create()
        self.added: dict[str, list[str]] = {}
        self._add = add
        self._environment = {**os.environ, **more}
        (folder / "relay.py").write_text(RELAY)

    def add(self, group: str, number: int) -> None:
        """A change of the user's own and its event, in one transaction."""
        self._add(self.outbox, group, number)
        self.added.setdefault(group, []).append(f"{group}-{number}")

    def relay(self, place: str = "", mode: str = "run", store: str = "memory:") -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "relay.py", self.url, place, store, mode], cwd=self.folder, env=self._environment
        )

    def published(self) -> list[list[str]]:
        file = self.folder / "published.log"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def wait(self) -> None:
        """Wait until some relay has published every event that was added."""
        deadline, wanted = time.monotonic() + PATIENCE, {each for group in self.added.values() for each in group}
        while wanted - {line[1] for line in self.published()}:
            assert time.monotonic() < deadline, sorted(wanted - {line[1] for line in self.published()})
            time.sleep(0.05)

    def check(self) -> int:
        """Check that each group has the order of its transactions. Return how many events were published repeatedly."""
        lines = self.published()
        for group, identities in self.added.items():
            assert list(dict.fromkeys(line[1] for line in lines if line[0] == group)) == identities
        assert not (self.folder / "dead.jsonl").exists()
        return len(lines) - len({line[1] for line in lines})


def _add_sqlite(file: Path) -> Callable[[Outbox, str, int], None]:
    def add(outbox: Outbox, group: str, number: int) -> None:
        connection = sqlite3.connect(file, timeout=30)
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rides (id TEXT)")
            connection.execute("INSERT INTO rides VALUES (?)", (f"{group}-{number}",))
            outbox.add(connection, {"n": number}, group=group, identity=f"{group}-{number}")
        connection.close()

    return add


def _add_postgres(url: str) -> Callable[[Outbox, str, int], None]:
    def add(outbox: Outbox, group: str, number: int) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rides (id TEXT)")
            connection.execute("INSERT INTO rides VALUES (%s)", (f"{group}-{number}",))
            outbox.add(connection, {"n": number}, group=group, identity=f"{group}-{number}")

    return add


def _add_dynamodb(table: str) -> Callable[[Outbox, str, int], None]:
    def add(outbox: Outbox, group: str, number: int) -> None:
        put = {"Put": {"TableName": table, "Item": {"id": {"S": f"{group}-{number}"}}}}
        outbox.transact([put], {"n": number}, group=group, identity=f"{group}-{number}")

    return add


def _postgres(server: Postgres, folder: Path) -> Bench:
    name = f"kill_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = server.url().rpartition("/")[0] + f"/{name}"
    return Bench(folder, url, _add_postgres(url))


def _dynamodb(server: Ministack, folder: Path) -> Bench:
    name = f"rides-{uuid.uuid4().hex[:12]}"
    tables: Any = client("dynamodb", endpoint=server.endpoint())
    tables.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    tables.close()
    return Bench(folder, server.url(f"outbox-{name}"), _add_dynamodb(name))


@pytest.fixture(params=["sqlite", "postgresql", "dynamodb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "sqlite":
        sqlite3.connect(tmp_path / "rides.db").close()
        made = Bench(tmp_path, f"sqlite:///{tmp_path / 'rides.db'}", _add_sqlite(tmp_path / "rides.db"))
    elif request.param == "postgresql":
        made = _postgres(request.getfixturevalue("postgres_server"), tmp_path)
    else:
        made = _dynamodb(request.getfixturevalue("ministack"), tmp_path)
    yield made
    made.outbox.close()


@pytest.mark.parametrize("mode", ["run", "drain"])
@pytest.mark.parametrize("place", ["before sending", "after sending"])
def test_a_relay_killed_at_this_place_loses_nothing(bench: Bench, place: str, mode: str) -> None:
    for number in range(10):
        bench.add(f"g{number % 2}", number)
    killed = bench.relay(place, mode)
    assert killed.wait(PATIENCE) == -signal.SIGKILL
    before = len(bench.published())
    assert before == (0 if place == "before sending" else 10)
    other = bench.relay("at the end", "drain")
    assert other.wait(PATIENCE) == -signal.SIGKILL
    bench.wait()
    assert bench.check() == before  # again under the same identities
    assert bench.outbox.table.backlog().pending == 0


@pytest.mark.long
def test_two_relays_killed_over_and_over_lose_nothing_and_keep_the_order(bench: Bench, tmp_path: Path) -> None:
    dice, groups, each = random.Random(2026), 5, 40
    store = f"sqlite:///{tmp_path / 'shards.db'}"  # by which relays of a stream share it

    def write() -> None:
        for number in range(each):
            for group in range(groups):
                bench.add(f"g{group}", number)
                time.sleep(0.02)  # so that relays die while there is more to come

    writer = threading.Thread(target=write)
    writer.start()
    met = 0
    for _ in range(6):
        relays = [bench.relay(dice.choice(["", "after sending"]), store=store) for _ in range(2)]
        time.sleep(dice.uniform(0.6, 1.5))
        for relay in relays:
            met += relay.poll() in (None, -signal.SIGKILL)
            relay.send_signal(signal.SIGKILL)
            relay.wait()
    writer.join()
    relays = [bench.relay(store=store) for _ in range(2)]
    bench.wait()
    for relay in relays:
        relay.terminate()
        relay.wait(PATIENCE)
    assert met == 12
    assert len(bench.added) == groups
    bench.check()  # however many came twice, the order is kept
