"""The tour itself: real worker processes on a real SQLite file, one of them killed half-way."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from eventonce.cli.tour.traffic import DemoTraffic
from eventonce.text import counted

_PIPELINE = """\
consumer    = "billing"
store       = "sqlite:///shop.db"
sink        = "python:eventonce.cli.tour.handler:charge"
dead_letter = "dead.jsonl"
lease       = "2s"                 # short, so that the killed worker's orders are soon free
batch       = 10

[[rule]]
name  = "orders"
match = { source = ["com.example.shop"] }
key   = "content"                  # the same order under a new id is the same order
"""


class Charges(NamedTuple):
    """The counts in the table of charges. They do not rely on the counters of eventonce."""

    orders: int
    twice: int
    rows: int


class Tour:
    """Two workers on one stream, in a folder of their own."""

    def __init__(self, folder: Path, stream: DemoTraffic) -> None:
        self._folder = folder
        self._stream = stream
        (folder / "pipeline.toml").write_text(_PIPELINE)
        (folder / "inbox-a.jsonl").write_text("\n".join(stream.first) + "\n")
        (folder / "inbox-b.jsonl").write_text("\n".join(stream.second) + "\n")

    def run(self, say: Callable[[str], None], show: Callable[[int], None]) -> Charges:
        """Start both workers, kill one half-way, start it again, and count the charges."""
        workers = [self._start("a"), self._start("b")]
        try:
            say(f"workers a (pid {workers[0].pid}) and b (pid {workers[1].pid}) started on shop.db")
            self._watch(workers, show, until=self._stream.orders // 2)
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()
            say(f"worker a killed with SIGKILL half-way, after {counted(self.charges().rows, 'charge')}")
            workers[0] = self._start("a")
            say(f"worker a started again (pid {workers[0].pid}), with its whole inbox from the beginning")
            self._watch(workers, show, until=None)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return self.charges()

    def charges(self) -> Charges:
        """Count the charges."""
        connection = sqlite3.connect(self._folder / "shop.db", timeout=10)
        try:
            orders, rows = connection.execute("SELECT count(DISTINCT order_id), count(*) FROM charges").fetchone()
            twice = connection.execute(
                "SELECT count(*) FROM (SELECT 1 FROM charges GROUP BY order_id HAVING count(*) > 1)"
            )
            return Charges(orders, twice.fetchone()[0], rows)
        except sqlite3.OperationalError:  # the first worker has not created the table yet
            return Charges(0, 0, 0)
        finally:
            connection.close()

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "eventonce", "run", "pipeline.toml", "--source", f"inbox-{name}.jsonl"]
        log = (self._folder / f"worker-{name}.log").open("ab")
        return subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _watch(self, workers: "list[subprocess.Popen[bytes]]", show: Callable[[int], None], until: int | None) -> None:
        while any(worker.poll() is None for worker in workers):
            charged = self.charges().rows
            show(charged)
            if until is not None and charged >= until:
                return
            time.sleep(0.03)
        show(self.charges().rows)
