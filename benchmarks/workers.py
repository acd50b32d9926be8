"""Several processes on one Redis: what a second one adds. The server needs its share of the cores too."""

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
    """In a process of its own: a round whenever it is told to."""
    traffic = Traffic()
    with Once(url, consumer="bench", rules=RULE) as once:
        run = whole(once)
        run(traffic.events(100))
        given = traffic.events(events)
        done.put(None)
        while turns.get():
            run(given)
            done.put(None)
            given = traffic.events(events)
            done.put(None)


def rows(scale: Scale) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    spent: Rounds = {ONE: [], TWO: []}
    with tempfile.TemporaryDirectory() as folder, Redis(Path(folder), "--appendonly", "yes") as server:
        turns, done = [context.Queue(), context.Queue()], context.Queue()
        args = [(server.url(), 5 * scale.events, each, done) for each in turns]
        workers = [context.Process(target=work, args=each) for each in args]
        for each in workers:
            each.start()
        await_all(done, 2)
        for _ in range(scale.rounds):
            for name, some in ((ONE, turns[:1]), (TWO, turns)):
                begin = time.perf_counter()
                for turn in some:
                    turn.put(True)
                await_all(done, len(some))
                took = (time.perf_counter() - begin) / (len(some) * 5 * scale.events)
                await_all(done, len(some))
                spent[name].append(Spent(took, took))
        for turn in turns:
            turn.put(False)
        for each in workers:
            each.join()
    yield faster(SUBJECT, "whole path on one Redis", "at least 1.3", spent, TWO, ONE, "wall")


def await_all(done: Any, count: int) -> None:
    for _ in range(count):
        done.get(timeout=60)
