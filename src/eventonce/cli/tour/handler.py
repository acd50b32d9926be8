"""The handler of the tour, as a user would write it: a charge that must happen once."""

import time

from eventonce.engine.context import Context
from eventonce.event import Event

WORK = 0.02  # seconds, as a payment provider would take


def charge(event: Event, ctx: Context) -> None:
    """Charge an order: the charge and the record of it commit in one transaction."""
    time.sleep(WORK)
    order = event.data
    ctx.tx.execute("CREATE TABLE IF NOT EXISTS charges (order_id TEXT, cents INTEGER, worker_attempt INTEGER)")
    ctx.tx.execute("INSERT INTO charges VALUES (?, ?, ?)", (order["orderId"], order["cents"], ctx.attempt))


def charge_in_dynamodb(event: Event, ctx: Context) -> None:
    """Charge an order in DynamoDB: the charge and the record of it are one transaction."""
    ctx.tx.update_item(
        TableName="charges",
        Key={"order": event.data["orderId"]},
        UpdateExpression="SET cents = :cents ADD times :one",
        ExpressionAttributeValues={":cents": event.data["cents"], ":one": 1},
    )
