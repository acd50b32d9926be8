"""Effects that can be counted afterwards: in the store's own database through `ctx.tx`, or in a file beside it."""

import contextlib
import os
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from eventonce.clients.aws import client
from eventonce.engine.context import Context
from lab.torture.history import now

_TABLE = "torture_effects"
_CREATE = f"CREATE TABLE IF NOT EXISTS {_TABLE} (event TEXT, token TEXT, pid INTEGER, at BIGINT)"
_INSERT = f"INSERT INTO {_TABLE} VALUES "
_SELECT = f"SELECT event, token, pid, at FROM {_TABLE}"


class RecordedEffect(NamedTuple):
    """One effect of one event."""

    event: str
    token: str
    pid: int
    at: int


class Effects(ABC):
    """The effects of a run. Nothing here keeps an event from taking effect twice, since that is the product's work."""

    transactional = True

    @abstractmethod
    def prepare(self) -> None: ...
    @abstractmethod
    def write(self, effect: RecordedEffect, ctx: Context) -> None: ...
    @abstractmethod
    def read(self) -> list[RecordedEffect]: ...


class FileEffects(Effects):
    """Plain effects, each a line that is written at once."""

    transactional = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def prepare(self) -> None:
        self._path.touch()

    def write(self, effect: RecordedEffect, ctx: Context) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, " ".join(str(each) for each in effect).encode() + b"\n")
        finally:
            os.close(file)

    def read(self) -> list[RecordedEffect]:
        words = (line.split() for line in self._path.read_text().splitlines())
        return [RecordedEffect(event, token, int(pid), int(at)) for event, token, pid, at in words]


class SqliteEffects(Effects):
    def __init__(self, file: Path) -> None:
        self._file = file

    def prepare(self) -> None:
        with sqlite3.connect(self._file) as connection:
            connection.execute(_CREATE)
        connection.close()

    def write(self, effect: RecordedEffect, ctx: Context) -> None:
        ctx.tx.execute(f"{_INSERT}(?, ?, ?, ?)", effect)

    def read(self) -> list[RecordedEffect]:
        connection = sqlite3.connect(self._file)
        try:
            return [RecordedEffect(*row) for row in connection.execute(_SELECT)]
        finally:
            connection.close()


class PostgresEffects(Effects):
    def __init__(self, url: str) -> None:
        self._url = url

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._url)

    def prepare(self) -> None:
        with self._connect() as connection:
            connection.execute(_CREATE)

    def write(self, effect: RecordedEffect, ctx: Context) -> None:
        ctx.tx.execute(f"{_INSERT}(%s, %s, %s, %s)", effect)

    def read(self) -> list[RecordedEffect]:
        with self._connect() as connection:
            return [RecordedEffect(*row) for row in connection.execute(_SELECT)]


class DynamoEffects(Effects):
    """An item for each effect, so that a second one of an event does not overwrite the first."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def _client(self) -> Any:
        return client("dynamodb", endpoint=self._endpoint, region="us-east-1")

    def prepare(self) -> None:
        names, dynamodb = [("event", "HASH"), ("number", "RANGE")], self._client()
        with contextlib.suppress(dynamodb.exceptions.ResourceInUseException):  # the table of an earlier run
            dynamodb.create_table(
                TableName=_TABLE,
                KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in names],
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in names],
                BillingMode="PAY_PER_REQUEST",
            )

    def write(self, effect: RecordedEffect, ctx: Context) -> None:
        ctx.tx.put_item(TableName=_TABLE, Item={**effect._asdict(), "number": uuid4().hex})

    def read(self) -> list[RecordedEffect]:
        pages = self._client().get_paginator("scan").paginate(TableName=_TABLE, ConsistentRead=True)
        rows = (item for page in pages for item in page["Items"])
        return [
            RecordedEffect(row["event"]["S"], row["token"]["S"], int(row["pid"]["N"]), int(row["at"]["N"]))
            for row in rows
        ]


def effect_of(event: str, ctx: Context) -> RecordedEffect:
    return RecordedEffect(event, ctx.token, os.getpid(), now())
