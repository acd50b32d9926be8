"""The pool of processes that reads archives: the same rulebook in each, and results in the order of the tasks."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from eventonce.errors import EventOnceError
from eventonce.rules import Rulebook

if TYPE_CHECKING:
    from concurrent.futures import Future

Task = TypeVar("Task")
Result = TypeVar("Result")
_AHEAD = 8  # tasks for each process that wait or run
_MAX_AHEAD = 64  # with those that are done and wait for the result of an earlier one


def map_in_processes(
    function: Callable[[Task, Rulebook], Result],
    tasks: Iterable[Task],
    rulebook: Rulebook,
    processes: int | None = None,
    *,
    share: bool = False,
) -> Iterator[Result]:
    """Yield what the function returns for each task, in the order of the tasks.

    With `share` this process takes tasks, too, while the others have enough to do. That suits small tasks: during a
    large one the others could run out of theirs.
    """
    count = processes or os.cpu_count() or 1
    if count < 2:
        return (function(task, rulebook) for task in tasks)
    return _in_processes(function, tasks, rulebook, count - share, share=share)


def _in_processes(
    function: Callable[[Task, Rulebook], Result], tasks: Iterable[Task], rulebook: Rulebook, others: int, *, share: bool
) -> Iterator[Result]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    results: deque[Future[Result]] = deque()
    pool = ProcessPoolExecutor(others, get_context("spawn"), _prepare, (rulebook.definition,))
    try:
        for task in tasks:
            busy = share and sum(not result.done() for result in results) >= others * _AHEAD
            results.append(_completed(function(task, rulebook)) if busy else pool.submit(_call, function, task))
            while results and (results[0].done() or len(results) > others * _MAX_AHEAD):
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    except BrokenProcessPool:
        raise EventOnceError("a worker process died, possibly out of memory; run the same again to resume") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _completed(result: Result) -> "Future[Result]":
    from concurrent.futures import Future

    future: Future[Result] = Future()
    future.set_result(result)
    return future


_rulebook: Rulebook  # of a process in the pool


def _prepare(definition: tuple[Any, ...]) -> None:
    global _rulebook  # noqa: PLW0603  # a process of the pool keeps it here from its start
    _rulebook = Rulebook(*definition)


def _call(function: Callable[[Task, Rulebook], Result], task: Task) -> Result:
    return function(task, _rulebook)
