"""Compare the results with the truth: `python check.py FOLDER` prints every problem, and exits 1 if there is one.

The truth is the responses to the clients (acknowledged.jsonl) and the rides of the service (rides.db). The counts of
eventonce are not used.
"""

import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any


def problems(folder: Path) -> list[str]:
    rides = {
        row[0]: row for row in rows(folder / "rides.db", "SELECT id, rider, status, fare_cents, version FROM rides")
    }
    if not any(ride[2] == "completed" for ride in rides.values()):
        return ["there is no completed ride, so nothing can be checked"]
    return [
        *check_responses(folder, rides),
        *check_charges(folder, rides),
        *check_read_model(folder, rides),
        *check_remains(folder),
    ]


def check_responses(folder: Path, rides: dict[str, Any]) -> list[str]:
    """Report rides whose newest response differs from the service, and rides that no client requested."""
    responses = [json.loads(line) for line in (folder / "acknowledged.jsonl").read_text().splitlines()]
    newest = {ride["rideId"]: ride for ride in sorted(responses, key=lambda ride: int(ride["version"]))}
    wrong = []
    for name, ride in newest.items():
        expected = tuple(ride[field] for field in ("rideId", "rider", "status", "fareCents", "version"))
        if rides.get(name) != expected:
            wrong.append(f"{name}: the client received {expected}, and the service has {rides.get(name)}")
    return wrong + [f"{name}: no client requested it" for name in rides.keys() - newest.keys()]


def check_charges(folder: Path, rides: dict[str, Any]) -> list[str]:
    """Report completed rides without exactly one charge of their fare, and charges of other rides."""
    expected = Counter((ride[0], ride[3]) for ride in rides.values() if ride[2] == "completed")
    actual = Counter(rows(folder / "billing.db", "SELECT ride, cents FROM charges"))
    return [
        f"{ride}: {actual[ride, cents]} charges of {cents} cents, and there should be {expected[ride, cents]}"
        for ride, cents in sorted(expected.keys() | actual.keys())
        if expected[ride, cents] != actual[ride, cents]
    ]


def check_read_model(folder: Path, rides: dict[str, Any]) -> list[str]:
    """Report rides whose state in the read model is not the newest."""
    model = {row[0]: row for row in rows(folder / "readmodel.db", "SELECT id, rider, status, fare, version FROM rides")}
    return [
        f"{name}: the read model has {model.get(name)}, and the service {rides.get(name)}"
        for name in sorted(rides.keys() | model.keys())
        if rides.get(name) != model.get(name)
    ]


def check_remains(folder: Path) -> list[str]:
    """Report events that wait in the outbox, and dead letters."""
    waiting = len(rows(folder / "rides.db", "SELECT id FROM eventonce_outbox"))
    dead = [file.name for file in folder.glob("*dead*.jsonl") if file.stat().st_size]
    return [f"{waiting} events wait in the outbox"] * bool(waiting) + [
        f"there are dead letters in {name}" for name in dead
    ]


def rows(file: Path, query: str) -> list[Any]:
    """Return the rows of a query, or none if the file or the table does not exist yet."""
    if not file.exists():
        return []
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        return connection.execute(query).fetchall() if query.rpartition(" ")[2] in tables else []


def summary(folder: Path) -> str:
    rides, charges = (
        rows(folder / "rides.db", "SELECT status FROM rides"),
        rows(folder / "billing.db", "SELECT * FROM charges"),
    )
    done = sum(status == "completed" for (status,) in rides)
    return f"{len(rides)} rides, {done} of them completed, {len(charges)} charges"


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print(summary(Path(sys.argv[1])))
    print("\n".join(wrong) if wrong else "Billing and the read model agree with the service.")
    sys.exit(1 if wrong else 0)
