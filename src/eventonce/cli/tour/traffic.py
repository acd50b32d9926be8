"""A stream of orders as they really arrive, with copies of every kind."""

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

_START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class DemoTraffic(NamedTuple):
    """The events that each of two workers receives, and the number of copies of each kind."""

    first: list[str]
    second: list[str]
    orders: int
    same_id: int
    new_id: int
    both: int

    @property
    def deliveries(self) -> int:
        return len(self.first) + len(self.second)


def make_traffic(orders: int, seed: int = 7) -> DemoTraffic:
    """Return orders and their copies, distributed over two workers."""
    rng = random.Random(seed)  # noqa: S311  # the same stream at every tour
    events = [_order(number, rng) for number in range(orders)]
    third = orders // 3
    same_id, new_id, both = events[:third], events[third : 2 * third], events[2 * third :]
    inboxes: tuple[list[str], list[str]] = ([], [])
    for event in events[: 2 * third]:
        _deliver(rng.choice(inboxes), event, rng)
    for event in same_id:
        _deliver(rng.choice(inboxes), event, rng)
    for event in new_id:
        _deliver(rng.choice(inboxes), _republished(event, rng), rng)
    for event in both:  # at the same position in both, so that they run at the same time
        position = rng.randrange(min(map(len, inboxes)))
        for inbox in inboxes:
            inbox.insert(position, json.dumps(event))
    return DemoTraffic(*inboxes, orders, len(same_id), len(new_id), len(both))


def _order(number: int, rng: random.Random) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.UUID(int=rng.getrandbits(128))),
        "detail-type": "Order Placed",
        "source": "com.example.shop",
        "account": "111122223333",
        "time": (_START + timedelta(seconds=number)).isoformat(),
        "region": "eu-west-1",
        "resources": [],
        "detail": {"orderId": f"o-{number:04}", "cents": rng.randrange(100, 50_000), "currency": "EUR"},
    }


def _republished(event: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the order as its producer publishes it again, after a lost response."""
    later = datetime.fromisoformat(event["time"]) + timedelta(seconds=3)
    return {**event, "id": str(uuid.UUID(int=rng.getrandbits(128))), "time": later.isoformat()}


def _deliver(inbox: list[str], event: dict[str, Any], rng: random.Random) -> None:
    inbox.insert(rng.randint(0, len(inbox)), json.dumps(event))
