"""The whole example: rides are made while parts are killed, and at the end everything is checked against the truth.

    python examples/rides/run.py --embedded     with nothing but files
    python examples/rides/run.py                with a bus, a topic and queues in an emulator of AWS

Exit 0: every ride was charged once and the read model shows the newest state. Exit 1: not so, and what is wrong.
"""

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from check import problems, rows, summary
from embedded import Embedded
from parts import EVENTONCE, PATIENCE, PYTHON, Parts, free_port, until

from eventonce.errors import ConfigError

RIDERS = 3
PAUSE = 0.05  # seconds between two changes of a ride
KILLS = 2  # of each part
STORIES = (("accepted", "started", "completed"), ("accepted", "started", "completed"), ("accepted", "cancelled"))
WELL = "Every completed ride was charged once, and the read model shows every ride as it is."
# How to see that a part is at work: a number that grows.
PROGRESS = {
    "api": ("rides.db", "SELECT total(version) FROM rides"),
    "relay": ("rides.db", "SELECT count(*) FROM eventonce_outbox_published"),
    "fanout": ("fanout.db", "SELECT count(*) FROM eventonce_done"),
    "billing": ("billing.db", "SELECT count(*) FROM charges"),
    "readmodel": ("readmodel.db", "SELECT total(version) FROM rides"),
}


class Riders:
    """Clients of the API: they ask until they are answered, and write down what they were told."""

    def __init__(self, folder: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._file = folder / "acknowledged.jsonl"
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.asked_again = 0

    def work(self, rides: int, enough: threading.Event) -> None:
        """Make so many rides, and more until it is enough."""
        with httpx.Client(base_url=self._url) as client:
            while (number := next(self._numbers)) <= rides or not enough.is_set():
                self._ride(client, number)

    def _ride(self, client: httpx.Client, number: int) -> None:
        name = f"r-{number}"
        ride = self._ask(client, "POST", "/rides", {"id": name, "rider": f"rider-{number % 5}"})
        for status in STORIES[number % len(STORIES)]:
            time.sleep(PAUSE)
            wish = {"version": ride["version"], "status": status, "fareCents": 500 + number}
            ride = self._ask(client, "PATCH", f"/rides/{name}", wish)

    def _ask(self, client: httpx.Client, method: str, path: str, wish: dict[str, Any]) -> dict[str, Any]:
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                answer = client.request(method, path, json=wish, timeout=30)
                break
            except httpx.TransportError:  # the API was killed, before or after it had done what was asked
                self.asked_again += 1
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)
        ride: dict[str, Any] = answer.raise_for_status().json()
        with self._lock, self._file.open("a") as file:
            file.write(json.dumps(ride) + "\n")
        return ride


class Chaos:
    """Kills each part at work, with SIGKILL, and starts it again; and lets copies of events loose."""

    def __init__(self, folder: Path, parts: Parts, place: Any) -> None:
        self._folder = folder
        self._parts = parts
        self._place = place
        self.killed: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        try:
            victims = self._parts.names * KILLS
            random.shuffle(victims)
            for victim in victims:
                self._wait_for_work(victim)
                self._parts.kill(victim)
                self._parts.start(victim)
                self.killed[victim] += 1
                self._place.repeat()
        finally:
            self.over.set()

    def _wait_for_work(self, name: str) -> None:
        before = self._progress(name)

        def works() -> bool:
            self._parts.check()
            return self._progress(name) > before

        until(works, f"work of {name}")

    def _progress(self, name: str) -> float:
        file, query = PROGRESS[name]
        found = rows(self._folder / file, query)
        return float(found[0][0]) if found else 0.0


def commands(port: int, bus: str) -> dict[str, list[str]]:
    """The service and its relay; the consumers depend on the bus."""
    relay = ["relay", "--outbox", "sqlite:///rides.db", "--create", "--to", bus, "--dead-letter", "dead-relay.jsonl"]
    return {
        "api": [PYTHON, "-m", "uvicorn", "api:app", "--port", str(port), "--log-level", "warning"],
        # A short lease, so that another relay soon goes on; a copy of what was sent is kept for the chaos only.
        "relay": [*EVENTONCE, *relay, "--lease", "2s", "--keep", "1h"],
    }


def run(folder: Path, place: Any, rides: int, stack: ExitStack) -> list[str]:
    """Everything, in one folder; what is wrong at the end."""
    stack.callback(place.close)
    place.prepare()
    port = free_port()
    parts = Parts(folder, commands(port, place.bus) | place.commands())
    stack.callback(parts.close)
    for name in parts.names:
        parts.start(name)
    riders, chaos = Riders(folder, port), Chaos(folder, parts, place)
    with ThreadPoolExecutor(RIDERS + 1) as threads:
        work = [threads.submit(riders.work, rides, chaos.over) for _ in range(RIDERS)]
        for each in [threads.submit(chaos.run), *work]:
            each.result()
    print(f"killed and started again: {dict(chaos.killed)}; clients asked again {riders.asked_again} times")
    until(lambda: not rows(folder / "rides.db", "SELECT id FROM eventonce_outbox"), "an empty outbox")
    place.settle()
    copies = f"; {place.copies} copies let loose" if place.copies else ""
    print(f"{summary(folder)}{copies}")
    return problems(folder)


def main() -> int:
    options = argparse.ArgumentParser(description="Rides, charged once and shown as they are, while all is killed.")
    options.add_argument("--embedded", action="store_true", help="files in place of AWS")
    options.add_argument("--rides", type=int, default=60, help="at least so many (60)")
    options.add_argument("--keep", type=Path, help="a new folder for databases and logs, to look at afterwards")
    given = options.parse_args()
    if given.keep is not None and given.keep.exists():
        options.error(f"--keep: {given.keep} is there already; name a new folder")
    with ExitStack() as stack:
        stop_with(stack)
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rides-")))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found = run(folder.resolve(), place(folder.resolve(), embedded=given.embedded), given.rides, stack)
        except ConfigError as error:
            options.error(f"{error}; --embedded needs none")
    print("\n".join(found or [WELL]))
    return 1 if found else 0


def stop_with(stack: ExitStack) -> None:
    """Leave nothing running behind when told to stop."""

    def stop(*_: object) -> None:
        stack.close()
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def place(folder: Path, *, embedded: bool) -> Any:
    if embedded:
        return Embedded(folder)
    from cloud import Cloud  # boto3 and an emulator, which nothing else needs

    return Cloud(folder)


if __name__ == "__main__":
    sys.exit(main())
