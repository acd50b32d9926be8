"""Shared by the tests of outboxes: databases of their own, and a receiver that fails on demand."""

import sqlite3
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from eventonce.errors import EventRejected, SinkError
from eventonce.outbox import Message, Outbox, PublishKind, PublishResult, Relay
from tests.servers import Postgres

PATIENCE = 120.0  # seconds until a test is given up


class Receiver:
    """Takes events, and fails on demand: `kind_of` decides the result of each message."""

    def __init__(self, kind_of: Callable[[Message], PublishKind] = lambda each: PublishKind.PUBLISHED) -> None:
        self.kind_of = kind_of
        self.sent: list[Message] = []  # all that was sent, whatever became of it
        self.got: list[Message] = []  # what got through
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)

    def send(self, events: Sequence[Message]) -> list[PublishResult]:
        answers = []
        stuck: set[str | None] = set()
        with self._more:
            for each in events:
                kind = PublishKind.FAILED if each.group in stuck else self._receive(each)
                stuck |= {each.group} - {None} if kind is PublishKind.FAILED else set()
                answers.append(_answer(each, kind))
            self._more.notify_all()
        return answers

    def _receive(self, each: Message) -> PublishKind:
        kind = self.kind_of(each)
        self.sent.append(each)
        if kind in (PublishKind.PUBLISHED, PublishKind.DEDUPLICATED):
            self.got.append(each)
        return kind

    def numbers(self) -> list[int]:
        return [each.event.data["n"] for each in self.got]

    def by_group(self) -> dict[str | None, list[int]]:
        by_group: dict[str | None, list[int]] = defaultdict(list)
        for each in self.got:
            by_group[each.group].append(each.event.data["n"])
        return dict(by_group)

    def wait(self, count: int) -> None:
        """Wait until the receiver has a number of messages."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.got) >= count, PATIENCE), f"{len(self.got)} of {count}"


def _answer(each: Message, kind: PublishKind) -> PublishResult:
    errors = {PublishKind.REFUSED: EventRejected("is not wanted"), PublishKind.FAILED: SinkError("could not be taken")}
    return PublishResult(kind=kind, identity=each.identity or "", error=errors.get(kind))


class Database:
    """A database of one test, and its outbox."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.url = url
        self.connect = connect
        self.outbox = Outbox(url)

    def add(self, *numbers: int, group: str | None = None) -> None:
        """Add events, each in a transaction of its own."""
        connection = self.connect()
        try:
            for number in numbers:
                self.outbox.add(connection, event(number), group=group)
                connection.commit()
        finally:
            connection.close()

    def execute(self, *statements: str) -> None:
        connection = self.connect()
        try:
            for each in statements:
                connection.execute(each)
            connection.commit()
        finally:
            connection.close()

    def rows(self, sql: str) -> list[Any]:
        connection = self.connect()
        try:
            return list(connection.execute(sql).fetchall())
        finally:
            connection.close()


def event(number: int) -> dict[str, Any]:
    return {"id": f"e{number}", "source": "com.example.shop", "detail-type": "Ordered", "detail": {"n": number}}


def sqlite_database(folder: Path) -> Database:
    file = folder / "shop.db"
    sqlite3.connect(file).close()
    return Database(f"sqlite:///{file}", lambda: sqlite3.connect(file, timeout=30))


def postgres_database(server: Postgres, isolation: str = "read committed") -> Database:
    name = f"outbox_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'".encode())
    url = server.url().rpartition("/")[0] + f"/{name}"
    return Database(url, lambda: psycopg.connect(url))


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    """Run relays, each in a thread, until the block ends."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(relays)) as threads:
        futures = [threads.submit(each.run, stop) for each in relays]
        try:
            yield
        finally:
            stop.set()
            for future in futures:
                future.result(PATIENCE)
