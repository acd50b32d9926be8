"""Decorated functions as record handlers of the batch processors of Powertools for AWS Lambda, with a store on disk."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    AsyncBatchProcessor,
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    async_process_partial_response,
    process_partial_response,
)

from eventonce import Event, Once


def batch(*names: str) -> dict[str, Any]:
    """Return what SQS invokes a function with: a message for each order."""
    events = [{"id": name, "source": "shop", "detail-type": "Order Placed", "detail": {"id": name}} for name in names]
    return {
        "Records": [
            {
                "messageId": f"message {number}",
                "receiptHandle": f"receipt {number}",
                "eventSource": "aws:sqs",
                "body": json.dumps(event),
                "attributes": {"MessageGroupId": "orders"},
            }
            for number, event in enumerate(events)
        ]
    }


def failures(*numbers: int) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": f"message {number}"} for number in numbers]}


def order_id(record: Any) -> str:
    """Return the key of a record, which is a mapping: its properties are not items, and so not in reach of a path."""
    name: str = record.json_body["id"]
    return name


class Effects:
    """Handles orders, of which some fail at first."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.ran: list[str] = []

    def __call__(self, order: str) -> None:
        if order in self.failing:
            self.failing.remove(order)
            raise ValueError(order)
        self.ran.append(order)


def test_a_handler_of_events_handles_records(tmp_path: Path) -> None:
    effect = Effects("b")
    for expected in (failures(1), failures()):  # the batch, and the same again in another process
        with Once(f"sqlite:///{tmp_path}/store.db", consumer="records") as once:

            @once
            def handle(record: Event) -> None:
                effect(record.data["id"])

            processor = BatchProcessor(event_type=EventType.SQS)
            assert process_partial_response(batch("a", "b", "a"), handle, processor, None) == expected
    assert effect.ran == ["a", "b"]


def test_a_function_handles_records_in_order(tmp_path: Path) -> None:
    effect = Effects("b")
    for expected in (failures(1, 2), failures()):  # a queue in order goes on after what failed
        with Once(f"sqlite:///{tmp_path}/store.db", consumer="records") as once:

            @once(key=order_id, name="handle")
            def handle(record: Any) -> None:
                effect(order_id(record))

            processor = SqsFifoPartialProcessor()
            assert process_partial_response(batch("a", "b", "a"), handle, processor, None) == expected
    assert effect.ran == ["a", "b"]


def test_an_async_function_handles_records_side_by_side(tmp_path: Path) -> None:
    effect = Effects("b")
    for expected in (failures(1), failures()):
        with Once(f"sqlite:///{tmp_path}/store.db", consumer="records") as once:

            @once(key=order_id, name="handle")
            async def handle(record: Any) -> None:
                await asyncio.sleep(0)
                effect(order_id(record))

            processor = AsyncBatchProcessor(event_type=EventType.SQS)
            response = async_process_partial_response(batch("a", "b", "a"), handle, processor, None)
            assert response == expected
    assert sorted(effect.ran) == ["a", "b"]
