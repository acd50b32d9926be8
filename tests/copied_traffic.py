"""Events that are copies of each other in every way, and rules that decide on them."""

import random

import msgspec

from eventonce.rules.rule import Rule

BOOKS = {
    "by id": [],
    "by a field": [Rule(name="orders", key=["detail.order"], window="2d")],
    "by version and by content": [
        Rule(name="v", match={"source": ["s1", "s2"]}, key=["detail.order"], version="detail.version", window="2d"),
        Rule(name="c", key="content", ignore=["detail.word"], refresh=True, window="1d", replay="reprocess"),
    ],
}
COPIES = {
    **BOOKS,
    "with a short window": [Rule(name="short", key=["detail.order"], window="1h")],
    "with a window that slides": [Rule(name="slides", key=["detail.order"], window="1h", refresh=True)],
    "with a window beyond all times": [Rule(name="ever", key=["detail.order"], window="36500d")],
    "by content": [Rule(name="content", key="content", ignore=["detail.version"])],
}


def copy(chance: random.Random) -> bytes:
    """Return an event with or without a time, near the others of its order or not, and equal to them or not."""
    order = chance.randrange(500)
    day, minute = order % 3 and chance.choice((1, 1, 1, 2, 30)), chance.choice((0, 0, 7, 59))
    fields: dict[str, object] = {
        "id": str(order if order % 5 else chance.randrange(10**6)),
        "source": f"s{order % 4}",
        "detail-type": "t",
        "detail": {"order": order, "version": 1 if order % 7 else chance.randrange(3)},
    }
    if order % 3 or chance.random() < 0.2 * (order % 2):
        fields["time"] = f"2026-01-{day or 1:02}T09:{minute:02}:00Z"
    if chance.random() < 0.05:
        fields["replay-name"] = "r"
    return msgspec.json.encode(fields)
