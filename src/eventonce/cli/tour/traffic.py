"""A stream of orders as they really arrive: with copies of every kind."""

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

_BEGIN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class DemoTraffic(NamedTuple):
    """What each of two workers receives, and how it came about."""

    first: list[str]
    second: list[str]
    orders: int
    same_id: int
    new_id: int
    both: int

    @property
    def deliveries(self) -> int:
        return len(self.first) + len(self.second)


def make(orders: int, seed: int = 7) -> DemoTraffic:
    """Deal orders and their copies to two workers."""
    dice = random.Random(seed)  # noqa: S311  # the same stream at every tour
    events = [_order(number, dice) for number in range(orders)]
    third = orders // 3
    same_id, new_id, both = events[:third], events[third : 2 * third], events[2 * third :]
    inboxes: tuple[list[str], list[str]] = ([], [])
    for event in events[: 2 * third]:
        _deliver(dice.choice(inboxes), event, dice)
    for event in same_id:
        _deliver(dice.choice(inboxes), event, dice)
    for event in new_id:
        _deliver(dice.choice(inboxes), _sent_again(event, dice), dice)
    for event in both:  # at the same place in both, so that they meet
        at = dice.randrange(min(map(len, inboxes)))
        for inbox in inboxes:
            inbox.insert(at, json.dumps(event))
    return DemoTraffic(*inboxes, orders, len(same_id), len(new_id), len(both))


def _order(number: int, dice: random.Random) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.UUID(int=dice.getrandbits(128))),
        "detail-type": "Order Placed",
        "source": "com.example.shop",
        "account": "111122223333",
        "time": (_BEGIN + timedelta(seconds=number)).isoformat(),
        "region": "eu-west-1",
        "resources": [],
        "detail": {"orderId": f"o-{number:04}", "cents": dice.randrange(100, 50_000), "currency": "EUR"},
    }


def _sent_again(event: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """The producer did not hear back and published the same order once more."""
    later = datetime.fromisoformat(event["time"]) + timedelta(seconds=3)
    return {**event, "id": str(uuid.UUID(int=dice.getrandbits(128))), "time": later.isoformat()}


def _deliver(inbox: list[str], event: dict[str, Any], dice: random.Random) -> None:
    inbox.insert(dice.randint(0, len(inbox)), json.dumps(event))
