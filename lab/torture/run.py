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
from lab.torture.targets import TortureTarget, effects_at, place
from lab.torture.worker import CONSUMER
from tests.servers import Ministack

LEASE = 2.0  # seconds: short, so that many are lost
_QUEUE = "torture"
_DRAIN = 180.0  # seconds for what is left, once nothing is harmed any more
_PATIENCE = 40.0  # seconds for a worker to stop
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

    def __init__(self, plan: TortureSettings) -> None:
        self._plan = plan
        self._place: TortureTarget = place(plan.store)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._keeping = threading.Thread(target=self._keep_workers, name="eventonce-torture", daemon=True)
        self._name = uuid4().hex[:8]  # so that another run on the same store is no copy of this one

    def run(self, folder: Path, show: Callable[[float], None] = lambda seconds: None) -> TortureReport:
        """Run it, let everything heal and drain, and judge."""
        self._folder = folder
        os.environ.update(_ACCOUNT)
        with ExitStack() as stack:
            queue = stack.enter_context(Ministack(self._folder))
            self._place.open(self._folder, stack, LEASE)
            effects = self._prepare(queue.endpoint())
            history = History(self._folder, "torture")
            stack.callback(history.close)
            began = time.monotonic()
            harm = self._harm(history, stack, show)
            left = self._drain(show)
            self._stop_workers()
            return self._judge(effects, harm, round(time.monotonic() - began), left)

    # --- before ---

    def _prepare(self, endpoint: str) -> Effects:
        self._sqs = client("sqs", endpoint=endpoint)
        self._url = self._sqs.create_queue(QueueName=_QUEUE, Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
        self._sender = TrafficSender(self._sqs, self._url, self._name, self._plan.rate)
        config = {
            "store": self._place.store,
            "direct": self._place.direct,
            "queue": f"sqs://{_QUEUE}?endpoint={endpoint}&wait=1s",
            "lease": LEASE,
            "plain": self._plan.plain,
        }
        (self._folder / "torture.json").touch(0o600)  # a URL may hold a password
        (self._folder / "torture.json").write_text(json.dumps(config))
        store: Any = open_store(self._place.direct)
        if self._place.own and hasattr(store, "create_table"):
            store.create_table()
        store.peek([Key(bytes(KEY_BYTES))])  # it must be there, and its tables before workers race for them
        store.close()
        effects = effects_at(config, self._folder)
        effects.prepare()
        return effects

    # --- meanwhile ---

    def _harm(self, history: History, stack: ExitStack, show: Callable[[float], None]) -> list[Nemesis]:
        """Send events and harm everything for as long as was asked for."""
        faults = worker_faults(lambda: list(self._workers), history, LEASE)
        found = [Nemesis(faults, history), Nemesis(self._place.faults, history)]
        stack.callback(self._stop_workers)
        self._keeping.start()
        self._sender.start(history)
        stack.callback(self._sender.end)
        for nemesis in found:
            nemesis.start()
            stack.callback(nemesis.end)  # first of all: it must not start again what is stopped
        end = time.monotonic() + self._plan.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(0.5, left))
            show(self._plan.seconds - max(left - 0.5, 0))
        for nemesis in found:
            nemesis.stop()
        self._sender.stop()
        return found

    def _keep_workers(self) -> None:
        """As many workers as were asked for, whatever becomes of them."""
        log = (self._folder / "workers.log").open("ab")
        with log:
            while not self._stopping.is_set():
                for pid, each in list(self._workers.items()):
                    if each.poll() is not None:
                        del self._workers[pid]
                while len(self._workers) < self._plan.workers and not self._stopping.is_set():
                    command = [sys.executable, "-m", "lab.torture.worker", str(self._folder)]
                    each = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                    self._workers[each.pid] = each
                time.sleep(0.1)

    # --- after ---

    def _drain(self, show: Callable[[float], None]) -> int:
        """Wait until the queue is empty; how many messages are left if it never is."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        give_up, quiet, left = time.monotonic() + _DRAIN, 0, 0
        while quiet < 5 and time.monotonic() < give_up:
            found = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=names)["Attributes"]
            left = sum(int(number) for number in found.values())
            quiet = 0 if left else quiet + 1
            time.sleep(0.3)
            show(self._plan.seconds)
        return left

    def _stop_workers(self) -> None:
        self._stopping.set()
        self._keeping.join()
        for each in list(self._workers.values()):
            each.terminate()
        for each in list(self._workers.values()):
            try:
                each.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        self._workers.clear()

    def _judge(self, effects: Effects, harm: list[Nemesis], seconds: int, left: int) -> TortureReport:
        dead = self._dead()
        with Once("memory:", consumer=CONSUMER) as once:
            keys = {name: once.key(event).hex() for name, event in self._sender.events.items()}
        one_clock = not self._place.store.startswith(("sqlite:", "dynamodb:"))  # a worker's own, up to a margin
        checker = Checker(read(self._folder), keys, dead, one_clock=one_clock)
        found = [each for each in effects.read() if each.event in self._sender.events]
        lost, doubled = checker.judge(found, transactional=effects.transactional)
        if left:
            checker.violations.append(f"{left} messages were still in the queue after {_DRAIN:.0f} s")
        return TortureReport(
            store=redact_url(self._plan.store),
            effects_are="transactional" if effects.transactional else "plain",
            seconds=seconds,
            events=len(checker.sent),
            copies=checker.sent.total(),
            effects=len(found),
            lost=len(lost),
            doubled=len(doubled),
            fenced=checker.fenced,
            dead_letters=len(dead),
            deaths=len(checker.deaths),
            faults={name: count for each in harm for name, count in each.done.items()},
            explained=checker.explained,
            violations=checker.violations,
        )

    def _dead(self) -> set[str]:
        file = self._folder / "dead.jsonl"
        letters = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return {json.loads(letter["body"])["id"] for letter in letters}
