"""What an audit costs: against keying the same file in one process, side by side in one run.

    python benchmarks/audit.py [EVENTS]

The audit also takes each event's content and id, counts, and remembers; with several processes it shares that out.
Rounds are interleaved, and the best round of each counts.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import IGNORED, Traffic

from eventonce.formats import read_event
from eventonce.rule import Rule
from eventonce.rules import Rulebook, identity
from eventonce.sources.file import FileSource
from eventonce.study import traffic
from eventonce.study.audit import audit

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
ROUNDS = 3
RULES = {
    "by id": [],
    "by one field": [Rule(name="r", key=["detail.orderId"])],
    "by content": [Rule(name="r", key="content", ignore=IGNORED)],
}


def plain(file: str, book: Rulebook) -> None:
    """Read and key every event."""
    source = FileSource(file)
    while deliveries := source.receive(500):
        for delivery in deliveries:
            book.key(read_event(delivery.body))
    source.close()


def seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def measure(file: str, rules: list[Rule], counts: Sequence[int]) -> tuple[float, dict[int, float]]:
    """Seconds to key the file, and to audit it in so many processes."""
    book = Rulebook("bench", rules, identity("14d", "retry"))
    keyed, audited = float("inf"), dict.fromkeys(counts, float("inf"))
    for _ in range(ROUNDS):
        keyed = min(keyed, seconds(lambda: plain(file, book)))
        for count in counts:
            took = seconds(lambda count=count: audit(traffic.Traffic([file]), book, processes=count))  # type: ignore[misc]
            audited[count] = min(audited[count], took)
    return keyed, audited


def main() -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "traffic.jsonl")
        events = Traffic(1200).events(EVENTS * 5 // 6)
        Path(file).write_bytes(b"\n".join(events + events[: EVENTS // 6]) + b"\n")
        for name, rules in RULES.items():
            keyed, audited = measure(file, rules, (1, os.cpu_count() or 1))
            told = [f"{name:14} keying {EVENTS / keyed:9,.0f}/s"]
            for count, took in audited.items():
                told.append(f"audit in {count}: {EVENTS / took:9,.0f}/s, {keyed / took:.2f} x keying")
            print("   ".join(told))  # noqa: T201


if __name__ == "__main__":
    main()
