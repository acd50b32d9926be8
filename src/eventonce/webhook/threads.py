"""Threads that run batches for an event loop. They do not keep a process alive whose handler is stuck."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

Result = TypeVar("Result")


class _Call(NamedTuple):
    """What to do, and where the end of it is awaited."""

    act: Callable[[], Any]
    ended: "asyncio.Future[Any]"


class LazyThreadPool:
    """So many threads, begun with the first call: a process may still fork before that."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, act: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Have a free thread do this."""
        while len(self._threads) < self._count:
            name = f"eventonce-webhook-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(act, ended))
        return ended

    def close(self) -> None:
        """Have each thread end when it is done."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads = []

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.act()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is gone, and with it who waits
                call.ended.get_loop().call_soon_threadsafe(_tell, call.ended, result, error)


def _tell(ended: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(result)
    else:
        ended.set_exception(error if isinstance(error, Exception) else RuntimeError(f"ended with {error!r}"))
