"""A torture run: a queue, workers, a nemesis, and what came of it."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from eventonce.clients.aws import client
from eventonce.engine import Once
from eventonce.event.keys import KEY_BYTES, Key
from eventonce.stores import open_store
from eventonce.stores.url import redact_url
from lab.torture.effects import Effects
from lab.torture.history import History, read
from lab.torture.nemesis import Nemesis, worker_faults
from lab.torture.report import Checker, TortureReport
from lab.torture.sender import TrafficSender
from lab.torture.targets import TortureTarget, effects_at, target_of
from lab.torture.worker import CONSUMER
from tests.servers import Ministack

LEASE = 2.0  # seconds: short, so that many are lost
_QUEUE = "torture"
_DRAIN = 180.0  # seconds for the remaining messages, once nothing is harmed any more
_STOP_TIMEOUT = 40.0  # seconds for a worker to stop
_ACCOUNT = {"AWS_ACCESS_KEY_ID": "torture", "AWS_SECRET_ACCESS_KEY": "torture", "AWS_DEFAULT_REGION": "us-east-1"}


class TortureSettings(NamedTuple):
    """What to run."""

    store: str
    seconds: float
    workers: int = 3
    rate: int = 60  # events a second
    plain: bool = False  # effects in a file, also where the store has transactions


class Torture:
    """One run in a folder of its own, which holds everything that happened."""

    def __init__(self, settings: TortureSettings) -> None:
        self._settings = settings
        self._target: TortureTarget = target_of(settings.store)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._keeping = threading.Thread(target=self._keep_workers, name="eventonce-torture", daemon=True)
        self._name = uuid4().hex[:8]  # so that the events of another run on the same store are not copies of these

    def run(self, folder: Path, show: Callable[[float], None] = lambda seconds: None) -> TortureReport:
        """Run it, let everything heal and drain, and return the report."""
        self._folder = folder
        os.environ.update(_ACCOUNT)
        with ExitStack() as stack:
            queue = stack.enter_context(Ministack(self._folder))
            self._target.open(self._folder, stack, LEASE)
            effects = self._prepare(queue.endpoint())
            history = History(self._folder, "torture")
            stack.callback(history.close)
            started_at = time.monotonic()
            nemeses = self._harm(history, stack, show)
            remaining = self._drain(show)
            self._stop_workers()
            return self._report(effects, nemeses, round(time.monotonic() - started_at), remaining)

    # --- before ---

    def _prepare(self, endpoint: str) -> Effects:
        self._sqs = client("sqs", endpoint=endpoint)
        self._url = self._sqs.create_queue(QueueName=_QUEUE, Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
        self._sender = TrafficSender(self._sqs, self._url, self._name, self._settings.rate)
        config = {
            "store": self._target.store,
            "direct": self._target.direct,
            "queue": f"sqs://{_QUEUE}?endpoint={endpoint}&wait=1s",
            "lease": LEASE,
            "plain": self._settings.plain,
        }
        (self._folder / "torture.json").touch(0o600)  # a URL may hold a password
        (self._folder / "torture.json").write_text(json.dumps(config))
        store: Any = open_store(self._target.direct)
        if self._target.own and hasattr(store, "create_table"):
            store.create_table()
        store.peek([Key(bytes(KEY_BYTES))])  # the store must exist, and its tables before workers race to create them
        store.close()
        effects = effects_at(config, self._folder)
        effects.prepare()
        return effects

    # --- meanwhile ---

    def _harm(self, history: History, stack: ExitStack, show: Callable[[float], None]) -> list[Nemesis]:
        """Send events and harm everything, for the length of the run."""
        faults = worker_faults(lambda: list(self._workers), history, LEASE)
        nemeses = [Nemesis(faults, history), Nemesis(self._target.faults, history)]
        stack.callback(self._stop_workers)
        self._keeping.start()
        self._sender.start(history)
        stack.callback(self._sender.end)
        for nemesis in nemeses:
            nemesis.start()
            stack.callback(nemesis.end)  # first of all, or it might restart what is stopped
        end = time.monotonic() + self._settings.seconds
        while (remaining := end - time.monotonic()) > 0:
            time.sleep(min(0.5, remaining))
            show(self._settings.seconds - max(remaining - 0.5, 0))
        for nemesis in nemeses:
            nemesis.stop()
        self._sender.stop()
        return nemeses

    def _keep_workers(self) -> None:
        """Start workers until there are as many as there should be, again and again."""
        log = (self._folder / "workers.log").open("ab")
        with log:
            while not self._stopping.is_set():
                for pid, process in list(self._workers.items()):
                    if process.poll() is not None:
                        del self._workers[pid]
                while len(self._workers) < self._settings.workers and not self._stopping.is_set():
                    command = [sys.executable, "-m", "lab.torture.worker", str(self._folder)]
                    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                    self._workers[process.pid] = process
                time.sleep(0.1)

    # --- after ---

    def _drain(self, show: Callable[[float], None]) -> int:
        """Wait until the queue is empty. Return how many messages remain if it never is."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        deadline, quiet, remaining = time.monotonic() + _DRAIN, 0, 0
        while quiet < 5 and time.monotonic() < deadline:
            attributes = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=names)["Attributes"]
            remaining = sum(int(number) for number in attributes.values())
            quiet = 0 if remaining else quiet + 1
            time.sleep(0.3)
            show(self._settings.seconds)
        return remaining

    def _stop_workers(self) -> None:
        self._stopping.set()
        self._keeping.join()
        for process in list(self._workers.values()):
            process.terminate()
        for process in list(self._workers.values()):
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._workers.clear()

    def _report(self, effects: Effects, nemeses: list[Nemesis], seconds: int, remaining: int) -> TortureReport:
        dead = self._dead()
        with Once("memory:", consumer=CONSUMER) as once:
            keys = {name: once.key(event).hex() for name, event in self._sender.events.items()}
        one_clock = not self._target.store.startswith(("sqlite:", "dynamodb:"))  # a worker's own, up to a margin
        checker = Checker(read(self._folder), keys, dead, one_clock=one_clock)
        recorded = [effect for effect in effects.read() if effect.event in self._sender.events]
        lost, doubled = checker.judge(recorded, transactional=effects.transactional)
        if remaining:
            checker.violations.append(f"{remaining} messages were still in the queue after {_DRAIN:.0f} s")
        return TortureReport(
            store=redact_url(self._settings.store),
            effects_are="transactional" if effects.transactional else "plain",
            seconds=seconds,
            events=len(checker.sent),
            copies=checker.sent.total(),
            effects=len(recorded),
            lost=len(lost),
            doubled=len(doubled),
            fenced=checker.fenced,
            dead_letters=len(dead),
            deaths=len(checker.deaths),
            faults={name: count for nemesis in nemeses for name, count in nemesis.done.items()},
            explained=checker.explained,
            violations=checker.violations,
        )

    def _dead(self) -> set[str]:
        file = self._folder / "dead.jsonl"
        letters = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return {json.loads(letter["body"])["id"] for letter in letters}
