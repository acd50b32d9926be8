"""The whole example: clients make rides while parts are killed, and at the end the results are checked.

    python examples/rides/run.py --embedded     on files alone
    python examples/rides/run.py                with a bus, a topic and queues in an emulator of AWS

Exit 0: every ride was charged once and the read model shows the newest state. Exit 1: the problems are printed.
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
from parts import EVENTONCE, PYTHON, TIMEOUT, Parts, free_port, wait_until

from eventonce.errors import ConfigError

RIDERS = 3
PAUSE = 0.05  # seconds between two changes of a ride
KILLS = 2  # of each part
STORIES = (("accepted", "started", "completed"), ("accepted", "started", "completed"), ("accepted", "cancelled"))
SUCCESS = "Every completed ride was charged once, and the read model shows every ride as it is."
# A number that grows while a part is at work.
PROGRESS = {
    "api": ("rides.db", "SELECT total(version) FROM rides"),
    "relay": ("rides.db", "SELECT count(*) FROM eventonce_outbox_published"),
    "fanout": ("fanout.db", "SELECT count(*) FROM eventonce_done"),
    "billing": ("billing.db", "SELECT count(*) FROM charges"),
    "readmodel": ("readmodel.db", "SELECT total(version) FROM rides"),
}


class Riders:
    """Clients of the API. They repeat a request until it is answered, and write down each response."""

    def __init__(self, folder: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._file = folder / "acknowledged.jsonl"
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.repetitions = 0

    def work(self, rides: int, enough: threading.Event) -> None:
        """Make at least this many rides, and more until `enough` is set."""
        with httpx.Client(base_url=self._url) as client:
            while (number := next(self._numbers)) <= rides or not enough.is_set():
                self._ride(client, number)

    def _ride(self, client: httpx.Client, number: int) -> None:
        name = f"r-{number}"
        ride = self._request(client, "POST", "/rides", {"id": name, "rider": f"rider-{number % 5}"})
        for status in STORIES[number % len(STORIES)]:
            time.sleep(PAUSE)
            body = {"version": ride["version"], "status": status, "fareCents": 500 + number}
            ride = self._request(client, "PATCH", f"/rides/{name}", body)

    def _request(self, client: httpx.Client, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                response = client.request(method, path, json=body, timeout=30)
                break
            except httpx.TransportError:  # the API was killed, before or after the change
                self.repetitions += 1
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        ride: dict[str, Any] = response.raise_for_status().json()
        with self._lock, self._file.open("a") as file:
            file.write(json.dumps(ride) + "\n")
        return ride


class Chaos:
    """Kills each part at work with SIGKILL, restarts it, and sends copies of events."""

    def __init__(self, folder: Path, parts: Parts, carrier: Any) -> None:
        self._folder = folder
        self._parts = parts
        self._carrier = carrier
        self.killed: Counter[str] = Counter()
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            victims = self._parts.names * KILLS
            random.shuffle(victims)
            for victim in victims:
                self._wait_for_work(victim)
                self._parts.kill(victim)
                self._parts.start(victim)
                self.killed[victim] += 1
                self._carrier.repeat()
        finally:
            self.ended.set()

    def _wait_for_work(self, name: str) -> None:
        before = self._progress(name)

        def has_worked() -> bool:
            self._parts.check()
            return self._progress(name) > before

        wait_until(has_worked, f"work of {name}")

    def _progress(self, name: str) -> float:
        file, query = PROGRESS[name]
        result = rows(self._folder / file, query)
        return float(result[0][0]) if result else 0.0


def commands(port: int, bus: str) -> dict[str, list[str]]:
    """Return the commands of the service and its relay. Those of the consumers depend on the bus."""
    relay = ["relay", "--outbox", "sqlite:///rides.db", "--create", "--to", bus, "--dead-letter", "dead-relay.jsonl"]
    return {
        "api": [PYTHON, "-m", "uvicorn", "api:app", "--port", str(port), "--log-level", "warning"],
        # A short lease, so that the next relay soon continues. Published events are kept for the chaos only.
        "relay": [*EVENTONCE, *relay, "--lease", "2s", "--keep", "1h"],
    }


def run(folder: Path, carrier: Any, rides: int, stack: ExitStack) -> list[str]:
    """Run the example in a folder. Return the problems at the end."""
    stack.callback(carrier.close)
    carrier.prepare()
    port = free_port()
    parts = Parts(folder, commands(port, carrier.bus) | carrier.commands())
    stack.callback(parts.close)
    for name in parts.names:
        parts.start(name)
    riders, chaos = Riders(folder, port), Chaos(folder, parts, carrier)
    with ThreadPoolExecutor(RIDERS + 1) as threads:
        work = [threads.submit(riders.work, rides, chaos.ended) for _ in range(RIDERS)]
        for future in [threads.submit(chaos.run), *work]:
            future.result()
    print(f"killed and restarted: {dict(chaos.killed)}; clients repeated {riders.repetitions} requests")
    wait_until(lambda: not rows(folder / "rides.db", "SELECT id FROM eventonce_outbox"), "an empty outbox")
    carrier.settle()
    copies = f"; {carrier.copies} copies sent" if carrier.copies else ""
    print(f"{summary(folder)}{copies}")
    return problems(folder)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Charge rides once and show their newest state, while every part is killed."
    )
    parser.add_argument("--embedded", action="store_true", help="files in place of AWS")
    parser.add_argument("--rides", type=int, default=60, help="minimum number of rides (60)")
    parser.add_argument("--keep", type=Path, help="new folder that keeps the databases and logs")
    options = parser.parse_args()
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep: {options.keep} already exists; name a new folder")
    with ExitStack() as stack:
        stop_with(stack)
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rides-")))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            wrong = run(
                folder.resolve(), open_carrier(folder.resolve(), embedded=options.embedded), options.rides, stack
            )
        except ConfigError as error:
            parser.error(f"{error}; or use --embedded, which needs none")
    print("\n".join(wrong or [SUCCESS]))
    return 1 if wrong else 0


def stop_with(stack: ExitStack) -> None:
    """Stop all processes on SIGTERM or SIGINT."""

    def stop(*_: object) -> None:
        stack.close()
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def open_carrier(folder: Path, *, embedded: bool) -> Any:
    if embedded:
        return Embedded(folder)
    from cloud import Cloud  # needs boto3 and an emulator

    return Cloud(folder)


if __name__ == "__main__":
    sys.exit(main())
