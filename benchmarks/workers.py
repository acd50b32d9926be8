"""Two processes on one Redis: what the second one adds. The server needs its share of the cores too."""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Rounds, Row, Scale, Spent, Traffic, faster
from benchmarks.paths import RULE, whole
from eventonce import Once
from tests.servers import Redis

SUBJECT = "workers"
ONE, TWO = "one process", "two processes"


def work(url: str, events: int, turns: Any, done: Any) -> None:
    """Run rounds in a process of its own, one for each item of `turns`."""
    traffic = Traffic()
    with Once(url, consumer="bench", rules=RULE) as once:
        run = whole(once)
        run(traffic.events(100))
        inputs = traffic.events(events)
        done.put(None)
        while turns.get():
            run(inputs)
            done.put(None)
            inputs = traffic.events(events)
            done.put(None)


def rows(scale: Scale) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    spent: Rounds = {ONE: [], TWO: []}
    with tempfile.TemporaryDirectory() as folder, Redis(Path(folder), "--appendonly", "yes") as server:
        turns, done = [context.Queue(), context.Queue()], context.Queue()
        args = [(server.url(), 5 * scale.events, queue, done) for queue in turns]
        workers = [context.Process(target=work, args=arguments) for arguments in args]
        for worker in workers:
            worker.start()
        await_all(done, 2)
        for _ in range(scale.rounds):
            for name, queues in ((ONE, turns[:1]), (TWO, turns)):
                start = time.perf_counter()
                for queue in queues:
                    queue.put(True)
                await_all(done, len(queues))
                seconds = (time.perf_counter() - start) / (len(queues) * 5 * scale.events)
                await_all(done, len(queues))
                spent[name].append(Spent(seconds, seconds))
        for queue in turns:
            queue.put(False)
        for worker in workers:
            worker.join()
    yield faster(SUBJECT, "whole path on one Redis", "at least 1.3", spent, TWO, ONE, "wall")


def await_all(done: Any, count: int) -> None:
    for _ in range(count):
        done.get(timeout=60)
