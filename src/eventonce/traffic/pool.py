"""Work shared out to processes; results come as they are ready."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from eventonce.errors import EventOnceError
from eventonce.rules import Rulebook

Task = TypeVar("Task")
Result = TypeVar("Result")
_AHEAD = 3  # tasks for each process that wait or are under way


def shared_out(
    act: Callable[[Task, Rulebook], Result], tasks: Iterable[Task], book: Rulebook, processes: int | None = None
) -> Iterator[Result]:
    """What `act` makes of each task, in any order."""
    count = processes or os.cpu_count() or 1
    if count < 2:
        return (act(task, book) for task in tasks)
    return _in_processes(act, tasks, book, count)


def _in_processes(
    act: Callable[[Task, Rulebook], Result], tasks: Iterable[Task], book: Rulebook, count: int
) -> Iterator[Result]:
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(count, get_context("spawn"), _prepare, (book.definition,))
    under_way: set[Future[Result]] = set()
    try:
        for task in tasks:
            under_way.add(pool.submit(_act, act, task))
            while len(under_way) >= count * _AHEAD:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)
    except BrokenProcessPool:
        raise EventOnceError("a worker process died, perhaps for want of memory; run the same again to go on") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_book: Rulebook  # of a process in the pool


def _prepare(definition: tuple[Any, ...]) -> None:
    global _book  # noqa: PLW0603  # it has no other place
    _book = Rulebook(*definition)


def _act(act: Callable[[Task, Rulebook], Result], task: Task) -> Result:
    return act(task, _book)
