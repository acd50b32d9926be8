"""The table of a DynamoDB store: how it must be, and how to make it."""

from typing import Any

from eventonce.errors import StoreError, StoreUnusable
from eventonce.stores.dynamodb.client import Denied, DynamoDBClient
from eventonce.stores.dynamodb.layout import Layout

_LOW = 10  # write units a second: a few events
_POLL = 200
_PATIENCE = 120_000


def create_command(table: str, layout: Layout, region: str | None) -> str:
    """What to type to make the table."""
    names = [(name, kind) for name, kind in zip(_names(layout), ("HASH", "RANGE"), strict=False)]
    return " ".join(
        [
            f"aws dynamodb create-table --table-name {table} --billing-mode PAY_PER_REQUEST",
            "--attribute-definitions",
            *(f"AttributeName={name},AttributeType=S" for name, _ in names),
            "--key-schema",
            *(f"AttributeName={name},KeyType={kind}" for name, kind in names),
            *([f"--region {region}"] if region else []),
        ]
    )


def create_table(server: DynamoDBClient, layout: Layout) -> None:
    """Make the table, paid per request, and set its time to live."""
    names = _names(layout)
    server.call(
        "create_table",
        TableName=server.table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        KeySchema=[
            {"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
        ],
    )
    give_up = server.clock.steady() + _PATIENCE
    while server.call("describe_table", TableName=server.table)["Table"]["TableStatus"] != "ACTIVE":
        if server.clock.steady() > give_up:
            raise StoreError(f"{server.where()} was created and is not ready yet; set its time to live when it is")
        server.clock.sleep(_POLL)
    server.call(
        "update_time_to_live",
        TableName=server.table,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": layout.ttl},
    )


def check_table(server: DynamoDBClient, layout: Layout) -> list[str]:
    """What to warn of; raises where the table cannot be used."""
    try:
        table = server.call("describe_table", TableName=server.table)["Table"]
    except Denied:
        return [f"{server.where()}: its key and capacity were not checked; dynamodb:DescribeTable is not allowed"]
    _check_key(server, layout, table)
    return _capacity(server, table) + _time_to_live(server, layout)


def _check_key(server: DynamoDBClient, layout: Layout, table: dict[str, Any]) -> None:
    types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    has = [each["AttributeName"] for each in sorted(table["KeySchema"], key=lambda each: str(each["KeyType"]))]
    wants = _names(layout)
    if has == wants and all(types[name] == "S" for name in has):
        return
    described = " and ".join(f"{name} ({types[name]})" for name in has)
    if all(types[name] == "S" for name in has):
        options = "&".join(f"{option}={name}" for option, name in zip(("key", "sort"), has, strict=False))
        raise StoreUnusable(
            f"{server.where()} has the key {described}, and {' and '.join(wants)} is wanted; add {options} to the URL"
        )
    raise StoreUnusable(f"{server.where()} has the key {described}; name a table whose key attributes are strings (S)")


def _capacity(server: DynamoDBClient, table: dict[str, Any]) -> list[str]:
    units = table.get("ProvisionedThroughput", {}).get("WriteCapacityUnits", 0)
    if not 0 < units < _LOW:
        return []
    return [f"{server.where()} is provisioned for {units} writes a second, and each event takes two; raise it"]


def _time_to_live(server: DynamoDBClient, layout: Layout) -> list[str]:
    try:
        found = server.call("describe_time_to_live", TableName=server.table)["TimeToLiveDescription"]
    except Denied:
        return [f"{server.where()}: its time to live was not checked; dynamodb:DescribeTimeToLive is not allowed"]
    enabled = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if enabled and found.get("AttributeName") == layout.ttl:
        return []
    remedy = (
        f"say ttl={found.get('AttributeName')} in the URL"
        if enabled
        else f"run aws dynamodb update-time-to-live --table-name {server.table} "
        f"--time-to-live-specification Enabled=true,AttributeName={layout.ttl}"
    )
    return [f"{server.where()} keeps what is over forever: time to live is not set on {layout.ttl!r}; {remedy}"]


def _names(layout: Layout) -> list[str]:
    return [layout.key_name] if layout.sort_name is None else [layout.key_name, layout.sort_name]
