"""Threads that run batches for an event loop. They do not keep a process alive if its handler is stuck."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

Result = TypeVar("Result")


class _Call(NamedTuple):
    """A function to call, and the future of its result."""

    function: Callable[[], Any]
    future: "asyncio.Future[Any]"


class LazyThreadPool:
    """Threads that start with the first call: a process may still fork before that."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Return the result of this function, called on a free thread."""
        while len(self._threads) < self._count:
            name = f"eventonce-webhook-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, future))
        return future

    def close(self) -> None:
        """End each thread after its present call."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads = []

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.function()
            except BaseException as caught:
                error = caught
            with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                call.future.get_loop().call_soon_threadsafe(_resolve, call.future, result, error)


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(f"ended with {error!r}"))
