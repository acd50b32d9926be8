"""What should be against what is: `python check.py FOLDER` exits 1 and says what is wrong, if anything is.

The truth is what clients were told (acknowledged.jsonl) and the rides of the service (rides.db). eventonce's own counts
are not asked.
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
        return ["there is no completed ride, so nothing can be said"]
    return [*promised(folder, rides), *billed(folder, rides), *shown(folder, rides), *left(folder)]


def promised(folder: Path, rides: dict[str, Any]) -> list[str]:
    """Whatever a client was told is in the service."""
    told = [json.loads(line) for line in (folder / "acknowledged.jsonl").read_text().splitlines()]
    newest = {ride["rideId"]: ride for ride in sorted(told, key=lambda ride: int(ride["version"]))}
    found = []
    for name, ride in newest.items():
        want = tuple(ride[field] for field in ("rideId", "rider", "status", "fareCents", "version"))
        if rides.get(name) != want:
            found.append(f"{name}: the client was told {want}, and the service has {rides.get(name)}")
    return found + [f"{name}: nobody asked for it" for name in rides.keys() - newest.keys()]


def billed(folder: Path, rides: dict[str, Any]) -> list[str]:
    """Each completed ride has one charge, of its fare, and no other ride has any."""
    want = Counter((ride[0], ride[3]) for ride in rides.values() if ride[2] == "completed")
    have = Counter(rows(folder / "billing.db", "SELECT ride, cents FROM charges"))
    return [
        f"{ride}: {have[ride, cents]} charges of {cents} cents, and there should be {want[ride, cents]}"
        for ride, cents in sorted(want.keys() | have.keys())
        if want[ride, cents] != have[ride, cents]
    ]


def shown(folder: Path, rides: dict[str, Any]) -> list[str]:
    """The read model has each ride as it is now."""
    have = {row[0]: row for row in rows(folder / "readmodel.db", "SELECT id, rider, status, fare, version FROM rides")}
    return [
        f"{name}: the read model has {have.get(name)}, and the service {rides.get(name)}"
        for name in sorted(rides.keys() | have.keys())
        if rides.get(name) != have.get(name)
    ]


def left(folder: Path) -> list[str]:
    """Nothing waits in the outbox, and nothing was given up."""
    waiting = len(rows(folder / "rides.db", "SELECT id FROM eventonce_outbox"))
    dead = [file.name for file in folder.glob("*dead*.jsonl") if file.stat().st_size]
    return [f"{waiting} events wait in the outbox"] * bool(waiting) + [
        f"there are dead letters in {name}" for name in dead
    ]


def rows(file: Path, query: str) -> list[Any]:
    """What a database says; nothing where nobody has made it or its table yet."""
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
    found = problems(Path(sys.argv[1]))
    print(summary(Path(sys.argv[1])))
    print("\n".join(found) if found else "Billing and the read model agree with the service.")
    sys.exit(1 if found else 0)
