"""What keys cost: as ratios measured side by side in one run, because machines are noisy.

    python benchmarks/keying.py [--quick]

Rounds of all candidates are interleaved, and the best round of each counts.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from eventonce.formats import read_event
from eventonce.rule import Rule
from eventonce.rules import Rulebook, identity

EVENTS, ROUNDS = (200, 5) if "--quick" in sys.argv else (2000, 9)


def event(number: int, size: int) -> bytes:
    """An EventBridge event of about this size."""
    detail: dict[str, Any] = {"orderId": f"o-{number}", "at": f"2026-01-05T09:00:{number % 60:02}Z", "items": []}
    body = {
        "version": "0",
        "id": f"{number:08}-0000-4000-8000-000000000000",
        "detail-type": f"Order Placed {number % 100}",
        "source": f"com.example.shop{number % 100}",
        "account": "111122223333",
        "time": "2026-01-05T09:00:00Z",
        "region": "eu-west-1",
        "resources": [],
        "detail": detail,
    }
    while len(json.dumps(body)) < size:
        detail["items"].append({"sku": f"sku-{len(detail['items'])}", "quantity": 3, "cents": 1999, "gift": False})
    return json.dumps(body).encode()


def rulebook(count: int) -> Rulebook:
    """So many rules with a pattern each; every event falls under one of them, or the last takes all."""
    rules = [
        Rule(
            name=f"r{number}", match={"source": [f"com.example.shop{number}"]}, key="content", ignore=["at", "meta.id"]
        )
        for number in range(count - 1)
    ]
    return Rulebook(
        "bench", [*rules, Rule(name="rest", key="content", ignore=["at", "meta.id"])], identity("14d", "retry")
    )


def best(candidates: dict[str, Callable[[bytes], Any]], events: list[bytes]) -> dict[str, float]:
    """Microseconds per event of each candidate, the best of interleaved rounds."""
    found = dict.fromkeys(candidates, float("inf"))
    for _ in range(ROUNDS):
        for name, act in candidates.items():
            begin = time.perf_counter()
            for each in events:
                act(each)
            found[name] = min(found[name], (time.perf_counter() - begin) / len(events) * 1e6)
    return found


def main() -> None:
    """Print one table."""
    one, hundred, by_id = rulebook(1), rulebook(100), Rulebook("bench", [], identity("14d", "retry"))
    candidates: dict[str, Callable[[bytes], Any]] = {
        "parse once (msgspec)": msgspec.json.decode,
        "parse once (json)": json.loads,
        "key by id": lambda raw: by_id.key(read_event(raw)),
        "key by content, 1 rule": lambda raw: one.key(read_event(raw)),
        "key by content, 100 rules": lambda raw: hundred.key(read_event(raw)),
    }
    for size in (500, 1000, 2000, 10_000):
        found = best(candidates, [event(number, size) for number in range(EVENTS)])
        print(f"\n{size:,} bytes")  # noqa: T201
        for name, micros in found.items():
            print(f"  {name:28} {micros:8.1f} us  {micros / found['parse once (msgspec)']:5.1f} x parse")  # noqa: T201
        print(f"  100 rules against 1: {found['key by content, 100 rules'] / found['key by content, 1 rule']:.2f} x")  # noqa: T201


if __name__ == "__main__":
    main()
