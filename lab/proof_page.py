"""Write docs/proof.md: what was run to break eventonce, and what came of it.

    python -m lab.proof_page                 the page from lab/proof.json, the figures of the last full run
    python -m lab.proof_page --run MINUTES   a full run first: schedules, planted bugs, every store tortured

A test fails while the page is stale. The bugs found in this way are listed in lab/proof-findings.toml.
"""

import json
import os
import platform
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.mutants import MUTANTS
from lab.simulation import MEMORY, TRANSACTIONAL, shrunk, simulate

HERE = Path(__file__).parent
FIGURES, FINDINGS, PAGE = HERE / "proof.json", HERE / "proof-findings.toml", HERE.parent / "docs" / "proof.md"
SCHEDULES = 50_000
STORES = {"sqlite": [], "postgresql": [], "dynamodb": [], "redis": [], "postgresql, plain effects": ["--plain"]}


def page(figures: dict[str, Any]) -> str:
    """Return the page."""
    return HEAD.format(**figures["machine"]) + "\n".join(
        [*_simulated(figures), *_planted(figures), *_tortured(figures), *_findings(), TAIL]
    )


def _simulated(figures: dict[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {run['schedules']:,} | {run['events']:,} | {run['deliveries']:,} | {run['effects']:,} | "
        f"{run['deaths']:,} | {run['fenced']:,} | {run['doubled']:,} | {run['violations']} |"
        for name, run in figures["simulated"].items()
    ]
    head = "| effects | schedules | events | deliveries | effects | deaths | fenced | doubled | violations |"
    return [SIMULATED, head, "|---|---|---|---|---|---|---|---|---|", *rows, ""]


def _planted(figures: dict[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {bug['schedules']:,} | {bug['steps']} | {bug['violation']} |"
        for name, bug in figures["planted"].items()
    ]
    head = "| planted bug | found after schedules | shrunk to steps | what it violated |"
    return [PLANTED, head, "|---|---|---|---|", *rows, ""]


def _tortured(figures: dict[str, Any]) -> list[str]:
    rows = []
    for name, run in figures["tortured"].items():
        fault_count = sum(run["faults"].values())
        rows.append(
            f"| {name} | {run['effects_are']} | {run['seconds']} s | {run['events']:,} | {run['copies']:,} | "
            f"{run['effects']:,} | {run['lost']} | {run['doubled']} | {run['explained']} | {run['fenced']} | "
            f"{fault_count} | {len(run['violations'])} |"
        )
    head = (
        "| store | effects are | for | events | copies sent | effects | lost | doubled | explained | fenced | faults | "
        "violations |"
    )
    harm: Counter[str] = Counter()
    for run in figures["tortured"].values():
        harm.update(run["faults"])
    faults = ", ".join(f"{count} x {name}" for name, count in harm.most_common())
    return [
        TORTURED,
        head,
        "|---|" + "---|" * 11,
        *rows,
        "",
        f"What was done to them: {faults}.",
        "",
        *_reasons(figures),
    ]


def _reasons(figures: dict[str, Any]) -> list[str]:
    """Return how often events took effect twice, by reason."""
    reasons: Counter[str] = Counter()
    for run in figures["tortured"].values():
        reasons.update(run["reasons"])
    rows = [f"- {count} x {reason}" for reason, count in reasons.most_common()]
    return ["Why events outside transactions took effect twice:", "", *rows, ""]


def _findings() -> list[str]:
    findings = tomllib.loads(FINDINGS.read_text())["finding"]
    rows = [f"| {finding['by']} | {finding['what']} | {finding['fix']} |" for finding in findings]
    return [FOUND, "| found by | what was wrong | what is done now |", "|---|---|---|", *rows, ""]


# --- a full run ---


def run(minutes: float) -> dict[str, Any]:
    """Run everything, and return its figures."""
    started_at = time.monotonic()
    simulated = {"plain": _many(MEMORY_NAME), "in transactions": _many(TRANSACTIONAL_NAME)}
    planted = {name: _find(name) for name in MUTANTS}
    tortured = {name: _torture(name, minutes, options) for name, options in STORES.items()}
    return {
        "machine": {**_machine(), "minutes": round((time.monotonic() - started_at) / 60)},
        "simulated": simulated,
        "planted": planted,
        "tortured": tortured,
    }


MEMORY_NAME, TRANSACTIONAL_NAME = "plain", "transactional"
SETUPS = {MEMORY_NAME: MEMORY, TRANSACTIONAL_NAME: TRANSACTIONAL}


def _simulate_range(setup: str, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter(schedules=len(seeds))
    for seed in seeds:
        result = simulate(seed, SETUPS[setup])
        counts += result.counts
        counts["violations"] += len(result.violations)
    return counts


def _many(setup: str) -> dict[str, int]:
    print(f"simulating {SCHEDULES:,} schedules, {setup}", file=sys.stderr)
    ranges = [range(start, start + 1000) for start in range(0, SCHEDULES, 1000)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        counts = sum(pool.map(_simulate_range, [setup] * len(ranges), ranges), Counter[str]())
    names = ("schedules", "events", "deliveries", "effects", "deaths", "fenced", "doubled", "violations")
    return {name: counts[name] for name in names}


def _find(name: str) -> dict[str, Any]:
    print(f"looking for the planted bug: {name}", file=sys.stderr)
    setup = MUTANTS[name]
    violated = next(run for run in (simulate(seed, setup) for seed in range(SCHEDULES)) if run.violations)
    short = shrunk(violated, setup)
    return {"schedules": violated.seed + 1, "steps": len(short.story), "violation": short.violations[-1]}


def _torture(name: str, minutes: float, options: list[str]) -> dict[str, Any]:
    print(f"torturing {name} for {minutes:g} minutes", file=sys.stderr)
    words = ["torture", "--store", name.partition(",")[0], "--minutes", str(minutes), "--json", *options]
    done = subprocess.run([sys.executable, "-m", "lab", *words], capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    explained = report.pop("explained")
    reasons = Counter(reason for each in explained for reason in set(each.partition(": ")[2].split("; ")))
    return {**report, "explained": len(explained), "reasons": reasons}


def _machine() -> dict[str, str]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "redis": _version(["redis-server", "--version"]),
        "postgresql": _version(["psql", "--version"]),
    }


def _version(command: list[str]) -> str:
    try:
        words = subprocess.run(command, capture_output=True, text=True, check=False).stdout.replace("v=", "").split()
    except FileNotFoundError:
        return "unknown"
    return next((word for word in words if word[0].isdigit()), "unknown")


HEAD = """# Proof

We break eventonce on purpose, and publish what comes of it. Figures of the last full run: {date}, {minutes} minutes on
{machine}, Python {python}, SQLite {sqlite}, Redis {redis}, PostgreSQL {postgresql}, DynamoDB emulated by
dynoxide and SQS by ministack. `make proof` repeats it all on your machine. This page is made from its results.

"""
SIMULATED = """## In a simulator

The real engine, worker, heartbeat and store logic run in virtual time under a seeded scheduler. Every store call, queue
call and wait is a point at which another worker or thread may run and a process may die or freeze. A call or only its
answer may be lost. It may be later than its lease, arrive after its caller gave up, or be made twice by its client. The
queue may deliver late, twice or out of order. The clocks of workers differ by up to 0.9 s under leases of 1 s. There
are versions, groups, poison, windows that expire, and workers of a replaced rule beside those of the new one.

Each run is checked, call by call, against a model of the claim protocol that shares no code with the stores: every
answer is the only one allowed, no handler starts without a live lease, a worker without faults keeps its leases and
commits within a second, and what may have killed a worker runs alone. At its end: nothing lost, nothing acked that is
not done or kept, no dead letter before its attempts are used up, no second effect within a window without a death or a
lost lease, none at all in transactions, groups in order.

`python -m lab simulate --schedules 20000` runs as many as you like. A failing seed is shrunk to a short story.
"""
PLANTED = """A checker that cannot fail proves nothing, so bugs are planted, each known from systems in use, and must be
found:
"""
TORTURED = """## On real servers

`python -m lab torture --store STORE --minutes N` runs real worker processes on a real store and queue, and a nemesis
beside them. Every claim, heartbeat, commit, release and ack is written to a history before anything follows from it.
In the end the history and effects are read. An event without an effect is lost. One with two effects is explained by
the [promise](guarantees.md) (its owner was killed, or lost its lease, between effect and commit) or is a violation.
"""
FOUND = """## What this found

Each was fixed, and has a test of its own now.
"""
TAIL = """## Limits

- The simulator runs handlers one at a time in a process. `async def` handlers take the same steps through another
  driver, which ordinary tests cover. It covers the memory store, a transactional one and SQLite. The scripts of Redis
  and the statements of PostgreSQL and DynamoDB are checked against the same protocol by the store contract, on real
  servers.
- DynamoDB and SQS are emulated here. What AWS does beyond the emulators (throttling, hot partitions, other Regions) is
  put into tests by hand.
- A torture run is as good as its luck: it shows violations, and never that there can be none.
- Redis ran with `appendfsync always`. With less, a restart may forget what it has confirmed: see [stores](stores.md).
- One machine: what a network between machines does is played by a proxy that delays, cuts and loses.
"""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        FIGURES.write_text(json.dumps(run(float(sys.argv[2])), indent=1) + "\n")
    PAGE.write_text(page(json.loads(FIGURES.read_text())))
