"""The role of a template allows the calls that are made, and no others: both are compared on an emulator."""

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import boto3
import pytest
from botocore.client import BaseClient

from eventonce import Event
from eventonce.aws_setup.plan import make_plan
from eventonce.aws_setup.role import policy
from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import Claim, ClaimRequest, Commit, Release
from eventonce.clock import SystemClock
from eventonce.dead_letters import open_dead_letters
from eventonce.settings import settings
from eventonce.sinks import open_sink
from eventonce.sources import open_source
from eventonce.stores import open_store
from eventonce.stores.dynamodb.store import DynamoDBStore
from eventonce.stores.memory import MemoryStore
from eventonce.testing.contract import LONG, claim, key, keys
from tests.servers import Ministack

pytestmark = pytest.mark.long  # each talks to a whole AWS

_WITHOUT_PERMISSION = {"sts:GetCallerIdentity"}  # which nobody needs


def actions(service: str, operation: str, arguments: dict[str, Any]) -> set[str]:
    """Return the IAM actions of a call."""
    service = service.removesuffix("streams")
    if operation == "BatchExecuteStatement":
        verbs = {statement["Statement"].split()[0] for statement in arguments["Statements"]}
        return {f"dynamodb:PartiQL{verb.capitalize()}" for verb in verbs}
    if operation == "TransactWriteItems":
        return {f"dynamodb:{verb}Item" for item in arguments["TransactItems"] for verb in item}
    return {f"{service}:{operation.removesuffix('Batch')}"} - _WITHOUT_PERMISSION


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that collects the actions of all calls."""
    called: set[str] = set()
    base: Any = BaseClient
    send = base._make_api_call

    def record(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        called.update(actions(client.meta.service_model.service_name, operation, arguments))
        return send(client, operation, arguments)

    monkeypatch.setattr(base, "_make_api_call", record)
    return called


@pytest.fixture
def name() -> str:
    return f"role-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def create(ministack: Ministack) -> Callable[..., Any]:
    """Return a function that calls a service, before the calls of a test are recorded."""

    def call(service: str, operation: str, **arguments: Any) -> Any:
        session: Any = boto3.session.Session(region_name="us-east-1")
        client = session.client(service, endpoint_url=ministack.endpoint())
        with closing(client):
            return getattr(client, operation)(**arguments)

    return call


def allowed(*, function: bool = False, **table: Any) -> set[str]:
    """Return the actions that the role of a pipeline allows."""
    plan = make_plan(settings({"store": "memory:", **table}, "pipeline.toml"), function=function)
    statements = policy(plan, lambda resource: resource.name, "log" if function else None)["Statement"]
    return {action for statement in statements if statement["Resource"] != "log" for action in statement["Action"]}


def at(url: str, server: Ministack) -> str:
    return f"{url}?region=us-east-1&endpoint={server.endpoint()}"


def test_the_table_of_claims(ministack: Ministack, name: str, called: set[str]) -> None:
    url = at(f"dynamodb://{name}", ministack)
    with closing(cast(DynamoDBStore, open_store(url))) as store:
        store.create_table()
        called.clear()
        store.check()
        claim(store, 1)
        store.claim([ClaimRequest(each, LONG) for each in keys(5)], b"token--2", LONG)
        store.extend([Claim(key(1), b"token--1")], LONG)
        store.commit([Commit(key(1), b"token--1", LONG)])
        store.release([Release(key(2), b"token--2", LONG, "failed"), Release(key(3), b"token--2", LONG)])
        transaction = store.begin(Claim(key(4), b"token--2"))
        transaction.handle.put_item(TableName=name, Item={"id": "theirs"})
        assert transaction.commit(Commit(key(4), b"token--2", LONG))
        store.peek(keys(5))
        store.forget(keys(5))
    assert called == allowed(store=url)
    assert called - allowed(store=url, function=True) == {"dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"}


def test_a_queue_and_dead_letters(
    ministack: Ministack, name: str, create: Callable[..., Any], called: set[str]
) -> None:
    places: dict[str, Any] = {
        "source": at(f"sqs://{name}", ministack),
        "dead_letter": at(f"sqs://{name}-dead", ministack),
    }
    queue = create("sqs", "create_queue", QueueName=name)["QueueUrl"]
    create("sqs", "create_queue", QueueName=f"{name}-dead")
    for body in ("a", "b"):
        create("sqs", "send_message", QueueUrl=queue, MessageBody=body)
    called.clear()
    with closing(open_source(places["source"])) as source, closing(open_dead_letters(places["dead_letter"])) as letters:
        deliveries = [*source.receive(1), *source.receive(1)]
        letters.write([(deliveries[0], Outcome(kind=OutcomeKind.REJECTED))], SystemClock().utc())
        source.ack(deliveries[:1])
        source.retry(deliveries[1], 0)
    assert called == allowed(**places)
    reads = {"sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"}
    assert allowed(**places, function=True) == {*reads, "sqs:GetQueueUrl", "sqs:SendMessage"}


def test_a_kinesis_stream(ministack: Ministack, name: str, create: Callable[..., Any], called: set[str]) -> None:
    create("kinesis", "create_stream", StreamName=name, ShardCount=1)
    create("kinesis", "put_record", StreamName=name, Data=b"{}", PartitionKey="a")
    assert read(at(f"kinesis://{name}", ministack), called) == allowed(source=f"kinesis://{name}")


def test_a_stream_of_a_table(ministack: Ministack, name: str, create: Callable[..., Any], called: set[str]) -> None:
    create(
        "dynamodb",
        "create_table",
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
    )
    create("dynamodb", "put_item", TableName=name, Item={"id": {"S": "a"}})
    url = f"dynamodbstreams://{name}"
    assert read(at(url, ministack), called) == allowed(source=url)


def read(url: str, called: set[str]) -> set[str]:
    """Return the actions of reading a stream up to its first record."""
    called.clear()
    with closing(open_source(url, store=MemoryStore)) as source:
        while not source.receive(1):
            pass
    return called


@pytest.mark.parametrize("scheme", ["sqs", "sns", "events", "kinesis"])
def test_a_sink(scheme: str, ministack: Ministack, name: str, create: Callable[..., Any], called: set[str]) -> None:
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "sqs": ("create_queue", {"QueueName": name}),
        "sns": ("create_topic", {"Name": name}),
        "events": ("create_event_bus", {"Name": name}),
        "kinesis": ("create_stream", {"StreamName": name, "ShardCount": 1}),
    }
    operation, arguments = made[scheme]
    create(scheme, operation, **arguments)
    called.clear()
    with closing(cast(Any, open_sink(at(f"{scheme}://{name}", ministack)))) as sink:
        assert sink.send([Event(id="1", source="shop", type="Order", data={})], ["k"]) == [None]
    assert called == allowed(source="events.jsonl", sink=f"{scheme}://{name}")
