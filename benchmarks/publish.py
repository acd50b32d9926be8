"""Measure the cost of publishing: CPU time per event against bare PutEvents calls, side by side in one run.

    python -m benchmarks.publish [--quick]

Only the CPU time of this process counts, not the server's. Rounds are interleaved, and the best of each counts.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventonce import Rule
from eventonce.clients.aws import client
from eventonce.outbox import Publisher
from tests.servers import Ministack

EVENTS, ROUNDS = (200, 2) if "--quick" in sys.argv else (2000, 7)
_SERVERS = Path(__file__).parents[1] / ".servers" / "bin"
os.environ["PATH"] = f"{_SERVERS}{os.pathsep}{os.environ['PATH']}"
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")  # noqa: S106  # the emulator takes any
_numbers = itertools.count()


def events(count: int = EVENTS) -> list[dict[str, Any]]:
    """Return new events of EventBridge."""
    items = [{"sku": f"sku-{n}", "quantity": 3} for n in range(10)]
    return [
        {
            "id": f"e-{number}",
            "source": "com.example.shop",
            "detail-type": "Order Placed",
            "detail": {"orderId": f"o-{number}", "items": items},
        }
        for number in itertools.islice(_numbers, count)
    ]


def bare_calls(endpoint: str) -> Callable[[list[dict[str, Any]]], None]:
    """Return a function that calls PutEvents with ten events at a time, and does nothing else."""
    bus = client("events", endpoint=endpoint)

    def send(batch: list[dict[str, Any]]) -> None:
        for start in range(0, len(batch), 10):
            entries = [
                {"Source": event["source"], "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
                for event in batch[start : start + 10]
            ]
            assert bus.put_events(Entries=entries)["FailedEntryCount"] == 0

    return send


def by_publisher(endpoint: str, rules: Rule | None = None) -> Callable[[list[dict[str, Any]]], None]:
    """Return a function that sends events by a publisher."""
    publisher = Publisher(f"events://default?endpoint={endpoint}", rules=rules)

    def send(batch: list[dict[str, Any]]) -> None:
        assert all(result.ok for result in publisher.send(batch))

    return send


def main() -> None:
    """Print microseconds of CPU time per event, and the ratio."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        senders = {
            "bare PutEvents": bare_calls(server.endpoint()),
            "Publisher": by_publisher(server.endpoint()),
            "Publisher, key of paths": by_publisher(server.endpoint(), Rule(name="r", key=["detail.orderId"])),
            "Publisher, key of content": by_publisher(server.endpoint(), Rule(name="r", key="content")),
        }
        best = dict.fromkeys(senders, float("inf"))
        for _ in range(ROUNDS):
            for name, send in senders.items():
                batch, started = events(), time.process_time()
                send(batch)
                best[name] = min(best[name], (time.process_time() - started) / EVENTS * 1e6)
    for name, cost in best.items():
        print(f"{name:28}{cost:8.1f} µs   {best['bare_calls PutEvents'] / cost:6.0%} of the bare calls' speed")  # noqa: T201


if __name__ == "__main__":
    main()
