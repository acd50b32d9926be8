"""The DynamoDB store keeps the shipped contract and survives the shipped faults, on two servers."""

import functools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from eventonce import open_store
from eventonce.ports import Store
from eventonce.stores.dynamodb.store import DynamoDBStore
from eventonce.testing import Features, StoreContract, StoreFaults
from eventonce.testing.faults import StoreAt
from tests.servers import Dynoxide, Ministack


def table_at(server: Dynoxide) -> str:
    """Create a table for claims and effects."""
    table = f"claims-{uuid.uuid4().hex[:12]}"
    store = open_store(server.url(table))
    assert isinstance(store, DynamoDBStore)
    store.create_table()
    store.close()
    return table


class DynamoDBContract(StoreContract):
    features = Features(processes=True, durable=True, transactions=True)

    @pytest.fixture
    def server(self) -> Dynoxide:
        raise NotImplementedError

    @pytest.fixture
    def opener(self, server: Dynoxide) -> Callable[[], Store]:
        return functools.partial(open_store, server.url(table_at(server)))

    def effect(self, handle: Any, number: int) -> None:
        handle.put_item(TableName=self.table, Item={"id": f"effect-{number}", "number": number})

    def effects(self, store: Any) -> list[int]:
        items = store._client.call("scan", TableName=self.table, ConsistentRead=True)["Items"]
        return sorted(int(item["number"]["N"]) for item in items if "number" in item)

    @pytest.fixture(autouse=True)
    def _table(self, store: Any) -> None:
        self.table = store._client.table


class TestDynamoDBOnDynoxide(DynamoDBContract):
    @pytest.fixture
    def server(self, dynoxide_in_memory: Dynoxide) -> Dynoxide:
        return dynoxide_in_memory  # only clients are killed here


@pytest.mark.long
class TestDynamoDBOnMinistack(DynamoDBContract):
    @pytest.fixture
    def server(self, ministack: Ministack) -> Dynoxide:
        return ministack


class TestDynamoDBUnderFaults(StoreFaults):
    """Dynoxide keeps its data when it is killed."""

    @pytest.fixture
    def server(self, dynoxide: Dynoxide) -> Dynoxide:
        return dynoxide

    @pytest.fixture
    def opener(self, server: Dynoxide) -> StoreAt:
        table = table_at(server)
        return lambda port, clock, timeout: open_store(f"{server.url(table, port)}&timeout={timeout}", clock)


@pytest.mark.long
class TestDynamoDBOnMinistackUnderFaults(StoreFaults):
    """Ministack loses its data when it is killed, so it is restarted in order."""

    @pytest.fixture
    def server(self, durable_ministack: Ministack) -> Dynoxide:
        return durable_ministack

    @pytest.fixture
    def opener(self, server: Dynoxide) -> StoreAt:
        table = table_at(server)
        return lambda port, clock, timeout: open_store(f"{server.url(table, port)}&timeout={timeout}", clock)
