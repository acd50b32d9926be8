"""Clients that an application has already, in place of a URL: used, and never closed."""

import sqlite3
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import psycopg
import pytest
import redis
import redis.asyncio
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from redis.cluster import ClusterPipeline

from eventonce import Context, Event, Once
from eventonce.claims.outcome import OutcomeKind
from eventonce.errors import ConfigError
from tests.servers import Dynoxide, Postgres, Redis, RedisCluster

EVENTS = [{"id": "1"}, {"id": "2"}, {"id": "1"}]
KINDS = [OutcomeKind.PROCESSED, OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE]


def consumer() -> str:
    return uuid.uuid4().hex


def kinds(once: Once) -> list[OutcomeKind]:
    with once:
        return [outcome.kind for outcome in once.run(EVENTS, lambda event: None)]


def test_a_client_of_redis(redis_server: Redis) -> None:
    with redis.Redis.from_url(redis_server.url()) as client:
        name = consumer()
        assert kinds(Once(client, consumer=name)) == KINDS
        assert client.ping()  # it is open
        assert kinds(Once(redis_server.url(), consumer=name)) == [OutcomeKind.DUPLICATE] * 3


def test_a_client_of_a_redis_cluster(redis_cluster: RedisCluster) -> None:
    port = redis_cluster.nodes[0].port
    with redis.RedisCluster("127.0.0.1", port) as client:
        assert kinds(Once(client, consumer=consumer())) == KINDS
        assert client.ping()


def test_a_pool_of_psycopg(postgres_server: Postgres) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS own_clients (id text)")
        connection.execute("TRUNCATE own_clients")

    def insert(event: Event, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO own_clients VALUES (%s)", (event.id,))

    conninfo, name = postgres_server.url(), consumer()
    with ConnectionPool(conninfo, kwargs={"autocommit": True, "application_name": "mine"}, min_size=1) as pool:
        with Once(pool, consumer=name) as once:
            assert [outcome.kind for outcome in once.run(EVENTS, insert)] == KINDS
        with pool.connection() as mine:
            assert mine.execute("SELECT id FROM own_clients ORDER BY id").fetchall() == [("1",), ("2",)]
    closed = AsyncConnectionPool(lambda: conninfo, open=False)
    assert kinds(Once(closed, consumer=name)) == [OutcomeKind.DUPLICATE] * 3


@pytest.fixture
def table(dynoxide: Dynoxide) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex}"
    client = boto3.client("dynamodb", endpoint_url=dynoxide.endpoint())
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield name
    client.close()


def test_clients_of_boto3(dynoxide: Dynoxide, table: str) -> None:
    client = boto3.client("dynamodb", endpoint_url=dynoxide.endpoint())
    name = consumer()
    assert kinds(Once(f"dynamodb://{table}", client=client, consumer=name)) == KINDS
    assert client.describe_table(TableName=table)["Table"]["TableStatus"] == "ACTIVE"  # it is open
    session = boto3.Session(region_name="eu-west-1")
    url = f"dynamodb://{table}?endpoint={dynoxide.endpoint()}"
    assert kinds(Once(url, client=session, consumer=name)) == [OutcomeKind.DUPLICATE] * 3


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (redis.asyncio.Redis, "pass redis.Redis or redis.RedisCluster"),
        (lambda: redis.Redis(decode_responses=True), "leave decode_responses out"),
        (redis.ConnectionPool, "pass redis.Redis"),
        (lambda: redis.Redis().pipeline(), "Pipeline cannot be used; pass redis.Redis"),
        (lambda: object.__new__(ClusterPipeline), "ClusterPipeline cannot be used; pass redis.Redis"),
        (lambda: sqlalchemy.create_engine("sqlite://"), "pass the URL of its database"),
        (boto3.Session, r'as Once\("dynamodb://TABLE", client=session\)'),
        (lambda: boto3.resource("dynamodb", region_name="eu-west-1").Table("t"), "dynamodb://TABLE"),
        (lambda: boto3.client("sqs", region_name="eu-west-1"), r'as Once\("dynamodb://TABLE", client=client\)'),
        (lambda: 5, "use the URL of a store"),
        (lambda: b"memory:", "use the URL of a store"),
    ],
)
def test_what_cannot_be_a_store(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Once(make())


def test_a_connection_is_not_enough() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match=r"sqlite:///FILE\?shared=true"):
        Once(connection)
    connection.close()


@pytest.mark.parametrize(
    ("url", "client", "reason"),
    [
        ("redis://host", object(), "goes with dynamodb://TABLE"),
        ("dynamodb://table", object(), "neither a session of boto3 nor a client of DynamoDB"),
        ("dynamodb://table", redis.Redis(), "neither a session of boto3 nor a client of DynamoDB"),
        ("dynamodb://table", boto3.client("sqs", region_name="eu-west-1"), "nor a client of DynamoDB"),
        (redis.Redis(), object(), "go with the URL of a store"),
    ],
)
def test_a_client_beside_what_takes_none(url: Any, client: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Once(url, client=client)


def test_a_password_apart_from_its_url(redis_server: Redis, postgres_server: Postgres) -> None:
    redis_server.cli("acl", "setuser", "apart", "on", ">p@ss/:?#", "~*", "+@all")
    url = redis_server.url().replace("redis://", "redis://apart@")
    with pytest.raises(Exception, match="password"):
        Once(url, store_password="hunter2-wrong").check()
    assert kinds(Once(url, store_password="p@ss/:?#", consumer=consumer())) == KINDS
