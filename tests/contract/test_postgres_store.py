"""The PostgreSQL store keeps the shipped contract, and survives the shipped faults."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, cast

import psycopg
import pytest

from eventonce import open_store
from eventonce.clock import Clock
from eventonce.ports import Store
from eventonce.stores.postgres.store import PostgresStore
from eventonce.testing import Features, StoreContract
from eventonce.testing.faults import StoreAt, StoreFaults
from tests.servers import Postgres

_numbers = itertools.count()


def new_schema(server: Postgres) -> str:
    """Create a schema for one test, and return it as a parameter of the URL."""
    name = f"contract{next(_numbers)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"options=-csearch_path%3D{name}"


class TestPostgres(StoreContract):
    features = Features(processes=True, durable=True, transactions=True)

    @pytest.fixture
    def opener(self, postgres_server: Postgres) -> Callable[[], Store]:
        return functools.partial(open_store, f"{postgres_server.url()}?{new_schema(postgres_server)}")

    def effect(self, handle: Any, number: int) -> None:
        handle.execute("CREATE TABLE IF NOT EXISTS effects (number integer)")
        handle.execute("INSERT INTO effects VALUES (%s)", (number,))

    def effects(self, store: Any) -> list[int]:
        def read(connection: psycopg.Connection[Any]) -> list[int]:
            if connection.execute("SELECT to_regclass('effects')").fetchone() == (None,):
                return []
            return [number for (number,) in connection.execute("SELECT number FROM effects ORDER BY number")]

        numbers: list[int] = store._pool.use(read)
        return numbers


def open_large(url: str) -> Store:
    """Open a store that behaves as with a large table, and as if others claimed the same keys at the same time."""
    store: Any = open_store(url)
    store._large, store._races_until = True, 2**60
    store._learn_size = lambda blocks: None
    return cast(Store, store)


@pytest.mark.long
class TestLargePostgres(TestPostgres):
    """The statements for large tables and for races keep the same contract."""

    @pytest.fixture
    def opener(self, postgres_server: Postgres) -> Callable[[], Store]:
        return functools.partial(open_large, f"{postgres_server.url()}?{new_schema(postgres_server)}")


@pytest.mark.long
class TestSerializablePostgres(TestPostgres):
    """A database whose transactions are serializable by default."""

    @pytest.fixture
    def opener(self, postgres_server: Postgres) -> Callable[[], Store]:
        isolation = "%20-cdefault_transaction_isolation%3Dserializable"
        return functools.partial(open_store, f"{postgres_server.url()}?{new_schema(postgres_server)}{isolation}")


class TestPostgresUnderFaults(StoreFaults):
    @pytest.fixture
    def server(self, postgres_server: Postgres) -> Postgres:
        return postgres_server

    @pytest.fixture
    def opener(self, server: Postgres) -> StoreAt:
        schema = new_schema(server)

        def open_at(port: int, clock: Clock, timeout: str) -> PostgresStore:
            store = open_store(f"{server.url(port)}?timeout={timeout}&{schema}", clock)
            assert isinstance(store, PostgresStore)
            return store

        return open_at
