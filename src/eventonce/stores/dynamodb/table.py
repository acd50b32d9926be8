"""The table of a DynamoDB store: creating it, and checking its settings."""

from typing import Any

from eventonce.errors import StoreError, StoreUnusable
from eventonce.stores.aws_client import Denied
from eventonce.stores.dynamodb.client import DynamoDBClient
from eventonce.stores.dynamodb.layout import Layout

_LOW = 10  # write units a second: a few events
_POLL = 200
_CREATE_TIMEOUT = 120_000


def create_command(table: str, layout: Layout, region: str | None) -> str:
    """Return the command that creates the table."""
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


def create_table(client: DynamoDBClient, layout: Layout) -> None:
    """Create the table, paid per request, and set its time to live."""
    names = _names(layout)
    client.call(
        "create_table",
        TableName=client.table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        KeySchema=[
            {"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
        ],
    )
    deadline = client.clock.steady() + _CREATE_TIMEOUT
    while client.call("describe_table", TableName=client.table)["Table"]["TableStatus"] != "ACTIVE":
        if client.clock.steady() > deadline:
            raise StoreError(f"{client.address()} was created but is not ready yet; set its time to live when it is")
        client.clock.sleep(_POLL)
    client.call(
        "update_time_to_live",
        TableName=client.table,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": layout.ttl},
    )


def check_table(client: DynamoDBClient, layout: Layout) -> list[str]:
    """Return what to warn of. Raise if the table cannot be used."""
    try:
        table = client.call("describe_table", TableName=client.table)["Table"]
    except Denied:
        return [f"{client.address()}: its key and capacity were not checked; dynamodb:DescribeTable is not allowed"]
    _check_key(client, layout, table)
    return _capacity(client, table) + _time_to_live(client, layout)


def _check_key(client: DynamoDBClient, layout: Layout, table: dict[str, Any]) -> None:
    types = {definition["AttributeName"]: definition["AttributeType"] for definition in table["AttributeDefinitions"]}
    actual = [part["AttributeName"] for part in sorted(table["KeySchema"], key=lambda part: str(part["KeyType"]))]
    expected = _names(layout)
    if actual == expected and all(types[name] == "S" for name in actual):
        return
    described = " and ".join(f"{name} ({types[name]})" for name in actual)
    if all(types[name] == "S" for name in actual):
        options = "&".join(f"{option}={name}" for option, name in zip(("key", "sort"), actual, strict=False))
        raise StoreUnusable(
            f"{client.address()} has the key {described}, but needs {' and '.join(expected)}; add {options} to the URL"
        )
    raise StoreUnusable(f"{client.address()} has the key {described}; use a table whose key attributes are strings (S)")


def _capacity(client: DynamoDBClient, table: dict[str, Any]) -> list[str]:
    units = table.get("ProvisionedThroughput", {}).get("WriteCapacityUnits", 0)
    if not 0 < units < _LOW:
        return []
    return [f"{client.address()} is provisioned for {units} writes a second, and each event needs two; raise it"]


def _time_to_live(client: DynamoDBClient, layout: Layout) -> list[str]:
    try:
        time_to_live = client.call("describe_time_to_live", TableName=client.table)["TimeToLiveDescription"]
    except Denied:
        return [f"{client.address()}: its time to live was not checked; dynamodb:DescribeTimeToLive is not allowed"]
    enabled = time_to_live.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if enabled and time_to_live.get("AttributeName") == layout.ttl:
        return []
    remedy = (
        f"set ttl={time_to_live.get('AttributeName')} in the URL"
        if enabled
        else f"run aws dynamodb update-time-to-live --table-name {client.table} "
        f"--time-to-live-specification Enabled=true,AttributeName={layout.ttl}"
    )
    return [f"{client.address()} never deletes expired records: time to live is not set on {layout.ttl!r}; {remedy}"]


def _names(layout: Layout) -> list[str]:
    return [layout.key_name] if layout.sort_name is None else [layout.key_name, layout.sort_name]
