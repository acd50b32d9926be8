"""Measure the throughput of a relay against bare publish calls, side by side in one run, and the size of its table.

    python -m benchmarks.relay [--quick]           events per second, the ratio, and the cost of an event
    python -m benchmarks.relay --steady [SECONDS]  the outbox of PostgreSQL while events are added and published

The bare calls are PutEvents with ten events at a time, one after another, without an outbox or an identity. Rounds are
interleaved. The ratio is the median over the rounds, since the machine may be busy with something else.
"""

import itertools
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.publish import events  # which also puts the emulator on the PATH
from eventonce.clients.aws import client
from eventonce.outbox import Message, Outbox, Publisher, PublishKind, PublishResult, Relay
from eventonce.testing.proxy import FaultProxy
from tests.servers import Ministack, Postgres

EVENTS, ROUNDS = (300, 2) if "--quick" in sys.argv else (2000, 7)
DELAY = 5  # milliseconds; EventBridge takes longer than that, and an emulator on the same machine does not


class Bare:
    """PutEvents with ten events at a time, and nothing else."""

    def __init__(self, endpoint: str) -> None:
        self._bus = client("events", endpoint=endpoint)
        self._waiting: list[dict[str, Any]] = []

    def add(self, batch: list[dict[str, Any]]) -> None:
        self._waiting = batch

    def move(self) -> None:
        for start in range(0, len(self._waiting), 10):
            entries = [
                {"Source": event["source"], "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
                for event in self._waiting[start : start + 10]
            ]
            assert self._bus.put_events(Entries=entries)["FailedEntryCount"] == 0


class Published(Bare):
    """A publisher, which gives each event its identity."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._publisher = Publisher(f"events://default?endpoint={endpoint}")

    def move(self) -> None:
        assert all(result.ok for result in self._publisher.send(self._waiting))


class Relayed:
    """An outbox and a relay. Adding is not counted: it belongs to the user's own transaction."""

    def __init__(self, url: str, connect: Callable[[], Any], endpoint: str, *, groups: int, threads: int) -> None:
        self._outbox = Outbox(url)
        self._outbox.create()
        self._connect = connect
        self._groups = groups
        publisher = Publisher(f"events://default?endpoint={endpoint}")
        self._relay = Relay(self._outbox, publisher, dead_letter=os.devnull, threads=threads)

    def add(self, batch: list[dict[str, Any]]) -> None:
        connection = self._connect()
        for number, event in enumerate(batch):
            group = f"g{number % self._groups}" if self._groups else None
            self._outbox.add(connection, event, group=group)
        connection.commit()
        connection.close()

    def move(self) -> None:
        assert self._relay.drain() == 0


def ratio() -> None:
    """Print events per second, the share of the bare calls' speed, and the CPU time of this process per event."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Ministack(folder) as server, Postgres(folder) as postgres, FaultProxy(server.port) as proxy:
            _log_mode(folder / "shop.db")
            for delay in (0, DELAY):
                proxy.delay = delay
                endpoint = server.endpoint(proxy.port)
                print(f"responses delayed by {delay} ms:")  # noqa: T201
                _table(_ways(endpoint, postgres.url(), folder / "shop.db"))


def _ways(endpoint: str, url: str, file: Path) -> dict[str, Any]:
    def postgres(threads: int, groups: int) -> Relayed:
        return Relayed(url, lambda: psycopg.connect(url), endpoint, groups=groups, threads=threads)

    return {
        "bare PutEvents": Bare(endpoint),
        "Publisher alone": Published(endpoint),
        "relay, PostgreSQL": postgres(1, 0),
        "relay, PostgreSQL, 500 groups": postgres(1, 500),
        "relay, PostgreSQL, 2 threads": postgres(2, 0),
        "relay, SQLite": Relayed(f"sqlite:///{file}", lambda: sqlite3.connect(file), endpoint, groups=0, threads=1),
    }


def _table(ways: dict[str, Any]) -> None:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            times[name].append(_round(way))
    bare = times["bare PutEvents"]
    for name, rounds in times.items():
        share = statistics.median(raw / wall for (raw, _), (wall, _) in zip(bare, rounds, strict=True))
        wall, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        cost = f"{cpu / EVENTS * 1e6:6.0f} µs CPU each"
        print(f"  {name:30}{EVENTS / wall:8,.0f} events/s{share:7.0%} of the bare calls{cost}")  # noqa: T201


def _log_mode(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _round(way: Any) -> tuple[float, float]:
    way.add(events(EVENTS))
    wall, cpu = time.perf_counter(), time.process_time()
    way.move()
    return time.perf_counter() - wall, time.process_time() - cpu


# --- the table under steady load ---


class Nowhere:
    """Accepts every event at once, so that the database is measured."""

    def send(self, messages: Sequence[Message]) -> list[PublishResult]:
        return [PublishResult(kind=PublishKind.PUBLISHED, identity=message.identity or "") for message in messages]


def steady(seconds: int) -> None:
    """Print the rows and bytes of the outbox every five seconds, while a writer adds and a relay publishes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Postgres(folder, "autovacuum_naptime=5s") as postgres:
            outbox, stop = Outbox(postgres.url()), threading.Event()
            outbox.create()
            relay = Relay(outbox, Nowhere(), dead_letter=os.devnull)
            writer = threading.Thread(target=_write, args=(outbox, postgres.url(), stop))
            threads = [writer, threading.Thread(target=relay.run, args=(stop,))]
            for thread in threads:
                thread.start()
            with psycopg.connect(postgres.url(), autocommit=True) as connection:
                for second in range(0, seconds, 5):
                    time.sleep(5)
                    query = "SELECT count(*), pg_total_relation_size('eventonce_outbox') FROM eventonce_outbox"
                    rows, size = connection.execute(query).fetchone() or (0, 0)
                    print(  # noqa: T201
                        f"{second + 5:4} s  {relay.counts['published']:9,} published  {rows:6,} rows  "
                        f"{size / 1024:8,.0f} KiB"
                    )
            stop.set()
            for thread in threads:
                thread.join()


def _write(outbox: Outbox, url: str, stop: threading.Event) -> None:
    batch, numbers = events(10), itertools.count()
    with psycopg.connect(url) as connection:
        while not stop.is_set():
            for event in batch:
                outbox.add(connection, event, group=f"g{next(numbers) % 1000}")
            connection.commit()


if __name__ == "__main__":
    if "--steady" in sys.argv:
        steady(next((int(argument) for argument in sys.argv if argument.isdigit()), 60))
    else:
        ratio()
