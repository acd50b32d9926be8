"""Steps and drivers: the engine's order is written once, as a generator of steps; these carry the steps out.

A step is a store call, the run of a handler over some jobs, or a pause. The plain driver does them in place; the
async driver does store calls on a thread and runs handlers concurrently in its own loop. asyncio is imported
where it is used: it would be a third of a cold start.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from types import GeneratorType
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Job = TypeVar("Job")


class Call:
    """Call the store."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function = function
        self.args = args

    def run(self) -> Any:
        return self.function(*self.args)

    async def arun(self) -> Any:
        import asyncio

        call = asyncio.ensure_future(asyncio.to_thread(self.function, *self.args))
        try:
            return await asyncio.shield(call)
        finally:
            while not call.done():  # cancelled: the thread cannot be, so wait for what it does to the store
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({call})


class Pause(Call):
    """Wait a little (milliseconds)."""

    def __init__(self, sleep: Callable[[int], None], duration: int) -> None:
        super().__init__(sleep, duration)
        self._duration = duration

    async def arun(self) -> None:
        import asyncio

        await asyncio.sleep(self._duration / 1000)


class Each(Call, Generic[Job]):
    """Run something for each job in order; if it is async, for several at a time."""

    def __init__(self, one: Callable[[Job], Any], jobs: Sequence[Job], at_once: int) -> None:
        super().__init__(one)
        self._one = one
        self._jobs = jobs
        self._at_once = at_once

    def run(self) -> None:
        for job in self._jobs:
            self._one(job)

    async def arun(self) -> None:
        import asyncio

        queue = iter(self._jobs)
        runners = [asyncio.ensure_future(self._some(queue)) for _ in range(min(self._at_once, len(self._jobs)))]
        try:
            await asyncio.gather(*runners)
        except GeneratorExit:  # the loop is gone, and nothing can be awaited
            raise
        except BaseException:
            for runner in runners:
                runner.cancel()
            await asyncio.wait(runners)
            raise

    async def _some(self, queue: Iterator[Job]) -> None:
        from asyncio import CancelledError, current_task

        task = current_task()
        for job in queue:
            if task is not None and task.cancelling():  # even if the handler before took no notice
                raise CancelledError
            await self._one(job)


Flow = Generator[Call, Any, Result]


class Interrupted(BaseException):
    """What is thrown into a flow in place of an error that is no `Exception`: some have a meaning to generators."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def drive(flow: Flow[Result]) -> Result:
    """Carry the steps out here and now."""
    try:
        return _drive(flow, next(flow))
    except StopIteration as end:
        result: Result = end.value
        return result
    except Interrupted as interrupted:
        raise interrupted.error from None
    except BaseException as error:
        _wind_up(flow, error)
        raise


def _drive(flow: Flow[Result], step: Call) -> Result:
    while True:
        try:
            answer = step.run()
        except Exception as error:
            step = flow.throw(error)
        except BaseException as error:
            step = flow.throw(Interrupted(error))
        else:
            step = flow.send(answer)


def _wind_up(flow: Flow[Any], error: BaseException) -> None:
    """Interrupted: let the flow give its claims back, if it has not ended by itself."""
    if isinstance(flow, GeneratorType) and flow.gi_frame is not None:  # it has one until its end
        with suppress(StopIteration, Interrupted):
            _drive(flow, flow.throw(Interrupted(error)))


async def drive_async(flow: Flow[Result]) -> Result:
    """Carry the steps out in the running loop, without blocking it."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await step.arun()
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    except BaseException as error:
        # Cancelled, most likely. Claims are given back in place, before another cancellation can come between.
        _wind_up(flow, error)
        raise
