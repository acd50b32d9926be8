"""Trials of handlers on real servers: what the promise says of each store is what a trial finds."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from eventonce import Event, open_store
from eventonce.clients.aws import client
from eventonce.testing import try_handler
from tests.servers import Dynoxide, Postgres, Redis

ORDER = {"id": "1", "source": "shop", "detail-type": "Order", "detail": {"orderId": "o-1"}}


def test_plain_effects_on_redis(redis_server: Redis) -> None:
    charges: list[str] = []

    async def charge(event: Event) -> None:
        charges.append(event.id)

    report = try_handler(
        charge, ORDER, effects=lambda: charges, reset=charges.clear, store=redis_server.url(redis_server.port)
    )

    assert [each.scenario for each in report.differences] == ["a crash between effect and commit", "a lost lease"]


@pytest.fixture
def shipments(postgres_server: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE shipments (order_id TEXT)")
        yield connection
        connection.execute("DROP TABLE shipments")


def test_effects_in_transactions_on_postgresql(postgres_server: Postgres, shipments: psycopg.Connection[Any]) -> None:
    report = try_handler(
        lambda event, ctx: ctx.tx.execute("INSERT INTO shipments VALUES ('o-1')") and None,
        ORDER,
        effects=lambda: shipments.execute("SELECT order_id FROM shipments").fetchall(),
        reset=lambda: shipments.execute("DELETE FROM shipments"),
        store=postgres_server.url(),
    )

    assert report.good, report


def test_effects_in_transactions_on_dynamodb(dynoxide: Dynoxide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "trial")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "trial")
    url, table = dynoxide.url("trial_claims"), "trial_shipments"
    store: Any = open_store(url)
    store.create_table()
    store.close()
    dynamodb = client("dynamodb", endpoint=url.rpartition("endpoint=")[2], region="us-east-1")
    dynamodb.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "number", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "number", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )

    def ship(event: Event, ctx: Any) -> None:
        ctx.tx.put_item(TableName=table, Item={"number": uuid4().hex, "order": event.data["orderId"]})

    def shipped() -> list[Any]:
        return list(dynamodb.scan(TableName=table, ConsistentRead=True)["Items"])

    def undo() -> None:
        for item in shipped():
            dynamodb.delete_item(TableName=table, Key={"number": item["number"]})

    report = try_handler(ship, ORDER, effects=lambda: [each["order"]["S"] for each in shipped()], reset=undo, store=url)

    assert report.good, report
