"""Writes docs/proof.md: what was run to break eventonce, and what came of it.

    python -m lab.proof_page                 the page from lab/proof.json, the figures of the last full run
    python -m lab.proof_page --run MINUTES   a full run first: schedules, planted bugs, every store tortured

A test fails while the page is stale. What was found by it stands in lab/proof-findings.toml.
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
    """The report."""
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
        f"| {name} | {found['schedules']:,} | {found['steps']} | {found['violation']} |"
        for name, found in figures["planted"].items()
    ]
    head = "| planted bug | found after schedules | shrunk to steps | what it violated |"
    return [PLANTED, head, "|---|---|---|---|", *rows, ""]


def _tortured(figures: dict[str, Any]) -> list[str]:
    rows = []
    for name, run in figures["tortured"].items():
        faults = sum(run["faults"].values())
        rows.append(
            f"| {name} | {run['effects_are']} | {run['seconds']} s | {run['events']:,} | {run['copies']:,} | "
            f"{run['effects']:,} | {run['lost']} | {run['doubled']} | {run['explained']} | {run['fenced']} | "
            f"{faults} | {len(run['violations'])} |"
        )
    head = (
        "| store | effects are | for | events | copies sent | effects | lost | doubled | explained | fenced | faults | "
        "violations |"
    )
    harm: Counter[str] = Counter()
    for run in figures["tortured"].values():
        harm.update(run["faults"])
    told = ", ".join(f"{count} x {name}" for name, count in harm.most_common())
    return [TORTURED, head, "|---|" + "---|" * 11, *rows, "", f"What was done to them: {told}.", "", *_reasons(figures)]


def _reasons(figures: dict[str, Any]) -> list[str]:
    """Why events took effect twice, counted."""
    reasons: Counter[str] = Counter()
    for run in figures["tortured"].values():
        reasons.update(run["reasons"])
    rows = [f"- {count} x {reason}" for reason, count in reasons.most_common()]
    return ["Why events outside transactions took effect twice:", "", *rows, ""]


def _findings() -> list[str]:
    found = tomllib.loads(FINDINGS.read_text())["finding"]
    rows = [f"| {each['by']} | {each['what']} | {each['mended']} |" for each in found]
    return [FOUND, "| found by | what was wrong | what is done now |", "|---|---|---|", *rows, ""]


# --- a full run ---


def run(minutes: float) -> dict[str, Any]:
    """Everything, and its figures."""
    began = time.monotonic()
    simulated = {"plain": _many(MEMORY_NAME), "in transactions": _many(TRANSACTIONAL_NAME)}
    planted = {name: _find(name) for name in MUTANTS}
    tortured = {name: _torture(name, minutes, options) for name, options in STORES.items()}
    return {
        "machine": {**_machine(), "minutes": round((time.monotonic() - began) / 60)},
        "simulated": simulated,
        "planted": planted,
        "tortured": tortured,
    }


MEMORY_NAME, TRANSACTIONAL_NAME = "plain", "transactional"
KITS = {MEMORY_NAME: MEMORY, TRANSACTIONAL_NAME: TRANSACTIONAL}


def _piece(kit: str, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter(schedules=len(seeds))
    for seed in seeds:
        found = simulate(seed, KITS[kit])
        counts += found.counts
        counts["violations"] += len(found.violations)
    return counts


def _many(kit: str) -> dict[str, int]:
    print(f"simulating {SCHEDULES:,} schedules, {kit}", file=sys.stderr)
    pieces = [range(start, start + 1000) for start in range(0, SCHEDULES, 1000)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        counts = sum(pool.map(_piece, [kit] * len(pieces), pieces), Counter[str]())
    names = ("schedules", "events", "deliveries", "effects", "deaths", "fenced", "doubled", "violations")
    return {name: counts[name] for name in names}


def _find(name: str) -> dict[str, Any]:
    print(f"looking for the planted bug: {name}", file=sys.stderr)
    kit = MUTANTS[name]
    found = next(run for run in (simulate(seed, kit) for seed in range(SCHEDULES)) if run.violations)
    short = shrunk(found, kit)
    return {"schedules": found.seed + 1, "steps": len(short.story), "violation": short.violations[-1]}


def _torture(name: str, minutes: float, options: list[str]) -> dict[str, Any]:
    print(f"torturing {name} for {minutes:g} minutes", file=sys.stderr)
    words = ["torture", "--store", name.partition(",")[0], "--minutes", str(minutes), "--json", *options]
    done = subprocess.run([sys.executable, "-m", "lab", *words], capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr)
    verdict: dict[str, Any] = json.loads(done.stdout)
    explained = verdict.pop("explained")
    reasons = Counter(reason for each in explained for reason in set(each.partition(": ")[2].split("; ")))
    return {**verdict, "explained": len(explained), "reasons": reasons}


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
{machine}, Python {python}, SQLite {sqlite}, Redis {redis}, PostgreSQL {postgresql}, DynamoDB played by
dynoxide and SQS by ministack. `make proof` does it all again on your machine; this page is written from what it found.

"""
SIMULATED = """## In a simulator

The real engine, worker, heartbeat and store logic run in virtual time under a seeded scheduler. Every store call, queue
call and wait is a point at which another worker or thread may run, a process may die or stand still, a call or only its
answer may be lost, it may be late beyond its lease, arrive after its caller gave up, or be made twice by its client,
and the queue may deliver late, twice or out of order; the clocks of workers differ by up to 0.9 s under leases of 1 s.
There are versions, groups, poison, windows that run out, and workers of a replaced rule beside those of the new one.
Each run is checked, call by call, against a model of the claim protocol that shares no code with the stores: every
answer is the only one allowed, no handler begins without a live lease, whoever nothing happens to keeps its lease and
commits within a second, what may have killed a worker runs alone. At its end: nothing lost, nothing acked that is not
done or kept, no dead letter before its attempts are used up, no second effect within a window without a death or a lost
lease, none at all in transactions, groups in order.

`python -m lab simulate --schedules 20000` runs as many as you like. A failing seed is shrunk to a short story and told.
"""
PLANTED = """A checker that cannot fail proves nothing, so bugs are planted, each known from systems in use, and must be
found:
"""
TORTURED = """## On real servers

`python -m lab torture --store STORE --minutes N` runs real worker processes on a real store and queue, and a nemesis
beside them. Every claim, heartbeat, commit, release and ack is written to a history before anything follows from it.
In the end the history and effects are read: an event without an effect is lost; one with two effects is explained by
the [promise](guarantees.md) (its owner was killed, or lost its lease, between effect and commit) or a violation.
"""
FOUND = """## What this found

Each was mended, and has a test of its own now.
"""
TAIL = """## Limits

- The simulator runs handlers one at a time in a process; `async def` handlers take the same steps through another
  driver, which ordinary tests cover. It knows the memory store, a transactional one and SQLite; the scripts of Redis
  and the statements of PostgreSQL and DynamoDB are held to the same protocol by the store contract, on real servers.
- DynamoDB and SQS are played by emulators here. What AWS does beyond them (throttling, hot partitions, other Regions)
  is put into tests by hand.
- A torture run is as good as its luck: it shows violations, and never that there can be none.
- Redis ran with `appendfsync always`. With less, a restart may forget what it had said yes to: see
  [stores](stores.md).
- One machine: what a network between machines does is played by a proxy that delays, cuts and loses.
"""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        FIGURES.write_text(json.dumps(run(float(sys.argv[2])), indent=1) + "\n")
    PAGE.write_text(page(json.loads(FIGURES.read_text())))
