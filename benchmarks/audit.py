"""What an audit costs: against keying the same file in one process, side by side in one run.

    python benchmarks/audit.py [EVENTS]

The audit also takes each event's content and id, counts, and remembers; with several processes it shares that out.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from keying import event

from eventonce.formats import read_event
from eventonce.rule import Rule
from eventonce.rules import Rulebook, identity
from eventonce.sources.file import FileSource
from eventonce.study.audit import audit
from eventonce.study.traffic import Traffic

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
RULES = {
    "by id": [],
    "by one field": [Rule(name="r", key=["detail.orderId"])],
    "by content": [Rule(name="r", key="content", ignore=["at", "meta.id"])],
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


def main() -> None:
    """Print one table."""
    processes = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "traffic.jsonl")
        Path(file).write_bytes(b"\n".join(event(number % (EVENTS * 5 // 6), 1200) for number in range(EVENTS)) + b"\n")
        for name, rules in RULES.items():
            book = Rulebook("bench", rules, identity("14d", "retry"))
            keyed = seconds(lambda book=book: plain(file, book))  # type: ignore[misc]
            told = [f"{name:14} keying {EVENTS / keyed:9,.0f}/s"]
            for count in (1, processes):
                took = seconds(lambda book=book, count=count: audit(Traffic([file]), book, processes=count))  # type: ignore[misc]
                told.append(f"audit in {count}: {EVENTS / took:9,.0f}/s, {keyed / took:.2f} x keying")
            print("   ".join(told))  # noqa: T201


if __name__ == "__main__":
    main()
