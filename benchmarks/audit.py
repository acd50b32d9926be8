"""The cost of an audit beside keying the same file in one process, both in one run.

    python -m benchmarks.audit [EVENTS]

The audit also takes each event's content and id, counts, and remembers. Several processes share that work. Rounds are
interleaved, and the best round of each counts. Beside the time by the clock is that of the busiest process: what the
clock would show if nothing else ran on the machine.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import IGNORED, Traffic
from eventonce.event.formats import read_event
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule
from eventonce.sources.file import FileSource
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
ROUNDS = 3
RULES = {
    "by id": [],
    "by one field": [Rule(name="r", key=["detail.orderId"])],
    "by content": [Rule(name="r", key="content", ignore=IGNORED)],
}


def plain(file: str, rulebook: Rulebook) -> None:
    """Read and key every event."""
    source = FileSource(file)
    while deliveries := source.receive(500):
        for delivery in deliveries:
            rulebook.key(read_event(delivery.body))
    source.close()


class Cost(NamedTuple):
    """Seconds by the clock, and of the busiest process."""

    clock: float = float("inf")
    busiest: float = float("inf")

    def least(self, other: "Cost") -> "Cost":
        return Cost(min(self.clock, other.clock), min(self.busiest, other.busiest))


def cost(function: Callable[[], object], processes: int = 1) -> Cost:
    """Return the cost of a call. The other processes are taken to share their part evenly."""
    start, own, others = time.perf_counter(), used(resource.RUSAGE_SELF), used(resource.RUSAGE_CHILDREN)
    function()
    theirs = (used(resource.RUSAGE_CHILDREN) - others) / max(1, processes - 1)
    return Cost(time.perf_counter() - start, max(used(resource.RUSAGE_SELF) - own, theirs))


def used(whose: int) -> float:
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def measure(file: str, rules: list[Rule], counts: Sequence[int]) -> tuple[Cost, dict[int, Cost]]:
    """Return the cost to key the file, and to audit it in each number of processes."""
    rulebook = Rulebook("bench", rules, identity("14d", "retry"))
    keyed, audited = Cost(), dict.fromkeys(counts, Cost())
    for _ in range(ROUNDS):
        keyed = keyed.least(cost(lambda: plain(file, rulebook)))
        for count in counts:
            spent = cost(lambda count=count: audit(Archive([file]), rulebook, processes=count), count)  # type: ignore[misc]
            audited[count] = audited[count].least(spent)
    return keyed, audited


def main() -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "traffic.jsonl")
        events = Traffic(1200).events(EVENTS * 5 // 6)
        Path(file).write_bytes(b"\n".join(events + events[: EVENTS // 6]) + b"\n")
        for name, rules in RULES.items():
            keyed, audited = measure(file, rules, (1, os.cpu_count() or 1))
            columns = [f"{name:14} keying {EVENTS / keyed.clock:9,.0f}/s"]
            for count, spent in audited.items():
                times = f"{keyed.clock / spent.clock:.2f} x keying ({keyed.busiest / spent.busiest:.2f} x undisturbed)"
                columns.append(f"audit in {count}: {EVENTS / spent.clock:9,.0f}/s, {times}")
            print("   ".join(columns))  # noqa: T201


if __name__ == "__main__":
    main()
