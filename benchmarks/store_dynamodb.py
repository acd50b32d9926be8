"""DynamoDB: the client's CPU time, and the request units it uses. The time of an emulator would say nothing."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
from aws_lambda_powertools.utilities.idempotency.persistence.dynamodb import DynamoDBPersistenceLayer

from benchmarks.harness import Row, Scale, Traffic, compare, costs, counted, faster, keys
from benchmarks.paths import BARE, OURS, RULE, WINDOW, RunEvents, bare, fill, singly, whole
from benchmarks.powertools import NAME, powertools
from eventonce import Once
from eventonce.stores import open_store
from tests.servers import Dynoxide

SUBJECT = "dynamodb"
NAIVE = "naive get + put + update"
EVENTS = 100  # in a round, since each costs a millisecond
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")  # noqa: S106  # the emulator takes any


def naive(table: Any) -> RunEvents:
    """One event at a time: look, put as running, run, mark as done."""

    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            text = json.dumps(json.loads(raw)["detail"], sort_keys=True)
            key, now = {"id": {"S": hashlib.sha256(text.encode()).hexdigest()}}, int(time.time())
            if "Item" in table.get_item(TableName="naive", Key=key, ConsistentRead=True):
                continue
            item = {**key, "status": {"S": "running"}, "ends": {"N": str(now + 60)}}
            table.put_item(TableName="naive", Item=item, ConditionExpression="attribute_not_exists(id)")
            table.update_item(
                TableName="naive",
                Key=key,
                UpdateExpression="SET #status = :done, ends = :ends",
                ExpressionAttributeNames={"#status": "status"},
                ExpressionAttributeValues={":done": {"S": "done"}, ":ends": {"N": str(now + WINDOW // 1000)}},
            )

    return run


def rows(scale: Scale) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, Dynoxide(Path(folder), durable=False) as server:
        yield from measured(server, scale)


def measured(server: Dynoxide, scale: Scale) -> Iterator[Row]:
    store: Any = open_store(server.url("claims"))
    store.create_table()
    fill(store, keys(1000))
    table: Any = boto3.client("dynamodb", endpoint_url=server.endpoint())
    for name in ("naive", "powertools"):
        table.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    once = Once(store, consumer="bench", rules=RULE)
    theirs = powertools(DynamoDBPersistenceLayer("powertools", boto3_client=table))
    candidates = {OURS: whole(once), BARE: bare(store), NAME: theirs, NAIVE: naive(table)}
    for size, name in scale.sizes.items():
        traffic = Traffic(size)
        spent = compare(candidates, lambda traffic=traffic: traffic.events(EVENTS), scale.rounds)  # type: ignore[misc]
        yield costs(SUBJECT, f"client CPU, {name}", "at most 0.125" if size == 1000 else "", spent, OURS, NAIVE)
        yield faster(SUBJECT, f"client CPU, {name}", "", spent, OURS, BARE)
    traffic = Traffic()
    alone = {OURS: singly(Once(store, consumer="bench", rules=RULE)), NAME: theirs}
    spent = compare(alone, lambda: traffic.events(EVENTS), scale.rounds)
    yield faster(SUBJECT, "client CPU, batch of 1", "at least 1", spent, OURS, NAME)
    yield from units(once, store, traffic)
    once.close()


def units(once: Once, store: Any, traffic: Traffic) -> Iterator[Row]:
    """Yield the request units that DynamoDB would bill."""
    used: list[float] = []

    def ask(params: dict[str, Any], **_: Any) -> None:
        params["ReturnConsumedCapacity"] = "TOTAL"

    def add(parsed: dict[str, Any], **_: Any) -> None:
        capacity = parsed.get("ConsumedCapacity", [])
        used.extend(part["CapacityUnits"] for part in (capacity if isinstance(capacity, list) else [capacity]))

    hooks = store._client.client().meta.events
    hooks.register("provide-client-params.dynamodb", ask)
    hooks.register("after-call.dynamodb", add)
    events = traffic.events(EVENTS)
    for kind, limit in (("unique event", 2), ("duplicate", 1)):
        used.clear()
        whole(once)(events)
        yield counted(SUBJECT, f"request units, {kind}", f"{limit}", "at most 1", sum(used) / EVENTS, limit, "units")
    hooks.unregister("provide-client-params.dynamodb", ask)
    hooks.unregister("after-call.dynamodb", add)
