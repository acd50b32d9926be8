"""What publishing costs: CPU time per event against bare PutEvents calls, side by side in one run.

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
    """Events of EventBridge, new each time."""
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


def bare(endpoint: str) -> Callable[[list[dict[str, Any]]], None]:
    """PutEvents in tens, and nothing else."""
    bus = client("events", endpoint=endpoint)

    def send(found: list[dict[str, Any]]) -> None:
        for start in range(0, len(found), 10):
            entries = [
                {"Source": each["source"], "DetailType": each["detail-type"], "Detail": json.dumps(each["detail"])}
                for each in found[start : start + 10]
            ]
            assert bus.put_events(Entries=entries)["FailedEntryCount"] == 0

    return send


def ours(endpoint: str, rules: Rule | None = None) -> Callable[[list[dict[str, Any]]], None]:
    """The same by a publisher."""
    publisher = Publisher(f"events://default?endpoint={endpoint}", rules=rules)

    def send(found: list[dict[str, Any]]) -> None:
        assert all(each.ok for each in publisher.send(found))

    return send


def main() -> None:
    """Print microseconds of CPU time per event, and the ratio."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        ways = {
            "bare PutEvents": bare(server.endpoint()),
            "Publisher": ours(server.endpoint()),
            "Publisher, key of paths": ours(server.endpoint(), Rule(name="r", key=["detail.orderId"])),
            "Publisher, key of content": ours(server.endpoint(), Rule(name="r", key="content")),
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for name, send in ways.items():
                found, begun = events(), time.process_time()
                send(found)
                best[name] = min(best[name], (time.process_time() - begun) / EVENTS * 1e6)
    for name, cost in best.items():
        print(f"{name:28}{cost:8.1f} µs   {best['bare PutEvents'] / cost:6.0%} of the bare calls' speed")  # noqa: T201


if __name__ == "__main__":
    main()
