"""What the steps yield, and the two drivers that carry it out.

The steps are a generator (`steps.py`). It yields whatever takes time: a store call, a run of handlers, a pause. `drive`
does that in place. `drive_async` does it in the running loop: handlers run concurrently, and store calls go to a
thread. asyncio is imported where it is used, since it would take a third of a cold start.
"""

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from eventonce.forks import register_for_forks
from eventonce.ports import Store

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Result = TypeVar("Result")
Item = TypeVar("Item")

_MAX_THREADS = 32  # that call stores at a time


class StoreCalls:
    """Calls the verbs of a store, each by itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def call(self, verb: str, *args: Any) -> Any:
        """Call the store here and now."""
        return getattr(self._store, verb)(*args)

    async def call_async(self, verb: str, *args: Any) -> Any:
        """Call the store without blocking the loop."""
        return await _in_thread(getattr(self._store, verb), *args)


class Step(Protocol):
    """What the generator yields."""

    def run(self, store: StoreCalls) -> Any: ...
    def run_async(self, store: StoreCalls) -> Coroutine[Any, Any, Any]: ...


class StoreCall:
    """Call a verb of the store."""

    __slots__ = ("args", "verb")

    def __init__(self, verb: str, *args: Any) -> None:
        self.verb = verb
        self.args = args

    def run(self, store: StoreCalls) -> Any:
        return store.call(self.verb, *self.args)

    def run_async(self, store: StoreCalls) -> Coroutine[Any, Any, Any]:
        return store.call_async(self.verb, *self.args)


class Blocking:
    """Call a function that takes long."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._function = function
        self._args = args

    def run(self, store: StoreCalls) -> Any:
        return self._function(*self._args)

    def run_async(self, store: StoreCalls) -> Coroutine[Any, Any, Any]:
        return _in_thread(self._function, *self._args)


class Pause:
    """Wait for a while (milliseconds)."""

    def __init__(self, sleep: Callable[[int], None], duration: int) -> None:
        self._sleep = sleep
        self._duration = duration

    def run(self, store: StoreCalls) -> None:
        self._sleep(self._duration)

    async def run_async(self, store: StoreCalls) -> None:
        import asyncio

        await asyncio.sleep(self._duration / 1000)


class Each(Generic[Item]):
    """Call a function with each item in order. If it is async, with several items at a time."""

    def __init__(self, function: Callable[[Item], Any], items: Sequence[Item], concurrency: int = 1) -> None:
        self._function = function
        self._items = items
        self._concurrency = concurrency

    def run(self, store: StoreCalls) -> None:
        for item in self._items:
            self._function(item)

    async def run_async(self, store: StoreCalls) -> None:
        import asyncio

        if not self._items:
            return
        queue = iter(self._items)
        runners = [asyncio.ensure_future(self._drain(queue)) for _ in range(min(self._concurrency, len(self._items)))]
        try:
            await asyncio.gather(*runners)
        except GeneratorExit:  # the loop is closed, and nothing can be awaited
            raise
        except BaseException:
            for runner in runners:
                runner.cancel()
            ended, _ = await asyncio.wait(runners)
            for runner in ended:  # an interrupt is in one of them as well, and would be logged as never retrieved
                if not runner.cancelled():
                    runner.exception()
            raise

    async def _drain(self, queue: Iterator[Item]) -> None:
        from asyncio import CancelledError, current_task

        task = current_task()
        for item in queue:
            if task is not None and task.cancelling():  # even if the previous handler ignored that
                raise CancelledError
            await self._function(item)


Flow = Generator[Step, Any, Result]


class Interrupted(BaseException):
    """Stands for an error that is not an `Exception`, since generators treat some of those specially."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def drive(flow: Flow[Result], store: StoreCalls) -> Result:
    """Carry the steps out here and now."""
    try:
        return _drive(flow, next(flow), store)
    except StopIteration as end:
        result: Result = end.value
        return result
    except Interrupted as interrupted:
        raise interrupted.error from None
    except BaseException as error:
        _wind_up(flow, error, store)
        raise


async def drive_async(flow: Flow[Result], store: StoreCalls) -> Result:
    """Carry the steps out in the running loop, without blocking it."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await step.run_async(store)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    except BaseException as error:
        # Most likely cancelled. Claims are released in place, before another cancellation can interfere.
        _wind_up(flow, error, store)
        raise


def _drive(flow: Flow[Result], step: Step, store: StoreCalls) -> Result:
    while True:
        try:
            answer = step.run(store)
        except Exception as error:
            step = flow.throw(error)
        except BaseException as error:
            step = flow.throw(Interrupted(error))
        else:
            step = flow.send(answer)


def _wind_up(flow: Flow[Any], error: BaseException, store: StoreCalls) -> None:
    """After an interrupt, let the flow release its claims, unless it has ended by itself."""
    if isinstance(flow, GeneratorType) and flow.gi_frame is not None:  # it has a frame until its end
        with suppress(StopIteration, Interrupted):
            _drive(flow, flow.throw(Interrupted(error)), store)


class _Threads:
    """The threads in which async runs call stores. Those of a loop may all be waiting for one of these runs."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()
        register_for_forks(self)

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Call a function in one of these threads. They end with the process."""
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            pool = self._pool = self._pool or ThreadPoolExecutor(_MAX_THREADS, "eventonce-store")
        return pool.submit(function, *args)  # without our lock: the pool has one of its own, which a fork takes first

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # the threads are the parent's
            self._pool = None
        self._lock.release()


_threads = _Threads()


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    import asyncio
    from contextvars import copy_context

    call = asyncio.wrap_future(_threads.submit(copy_context().run, function, *args))
    try:
        return await asyncio.shield(call)
    finally:
        while not call.done():  # cancelled, but a thread cannot be: wait for what it does to the store
            with suppress(asyncio.CancelledError):
                await asyncio.wait({call})
