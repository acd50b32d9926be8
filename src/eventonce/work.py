"""Work: how a handler or a sink is run over the jobs that won their claims."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from types import CoroutineType
from typing import Any

from eventonce.claims import memo
from eventonce.claims.protocol import Finish
from eventonce.context import Handler, idempotency_key, is_async, wants_context
from eventonce.errors import ConfigError, EventOnceError, LeaseLost, SinkError, StoreError
from eventonce.flow import Call, Each
from eventonce.job import Job, lanes
from eventonce.keeper import Batch
from eventonce.observe.hooks import Hooks
from eventonce.observe.watched import call_observed
from eventonce.ports import Attempt, Sink, Transaction

_log = logging.getLogger("eventonce")
_CAUSES = 10  # how far back to look
_NOT_RUN = (Awaitable, AsyncGenerator, Generator, map, filter)  # has only been made
_LISTS = (list, tuple, set, frozenset)


class Work:
    """A handler or a sink, and how to run it. It holds no state of a run, so threads may share it."""

    def __init__(self, handler: Handler | Sink, concurrency: int, max_result: int, hooks: Hooks | None = None) -> None:
        self._sink = handler if isinstance(handler, Sink) and not callable(handler) else None
        self._handler: Any = getattr(handler, "eventonce_handler", handler)  # a decorated one must not claim twice
        if self._sink is None:
            _check_handler(self._handler)
        self._concurrency = concurrency
        self._max_result = max_result
        self._hooks = hooks
        self.is_async = self._sink is None and is_async(self._handler)
        self._context = "no" if self._sink is not None else wants_context(self._handler)
        self.tells = self._context != "no"  # whether it is told the context of a run

    def step(self, batch: Batch, jobs: list[Job]) -> Call:
        """The step that runs these jobs."""
        if self._sink is not None:
            return Call(self._send_in_order, self._sink, batch, lanes(jobs))
        one = self._perform_lane_async if self.is_async else self._perform_lane
        return Each(partial(one, batch), lanes(jobs), self._concurrency)

    def _perform_lane(self, batch: Batch, lane: list[Job]) -> None:
        left = iter(lane)
        for job in left:
            self._perform(batch, job)
            if job.error is not None:
                _wait(left)

    async def _perform_lane_async(self, batch: Batch, lane: list[Job]) -> None:
        left = iter(lane)
        for job in left:
            await self._perform_async(batch, job)
            if job.error is not None:
                _wait(left)

    def _perform(self, batch: Batch, job: Job) -> None:
        try:
            self._done(batch, job, self._call(job) if self._hooks is None else self._watched(self._hooks, job))
        except Exception as error:
            _failed(job, error)

    async def _perform_async(self, batch: Batch, job: Job) -> None:
        from asyncio import CancelledError, current_task

        try:
            called = self._call(job) if self._hooks is None else self._watched_async(self._hooks, job)
            self._done(batch, job, await called)
        except CancelledError as error:
            task = current_task()
            if task is None or task.cancelling():
                raise
            _failed(job, RuntimeError(f"the handler ended with {error!r} though nobody cancelled it"))
        except Exception as error:
            _failed(job, error)

    def _call(self, job: Job) -> Any:
        _check_held(job)  # others may have taken over while the jobs before this one ran
        context = job.context
        if context is None:
            return self._handler(job.event)
        return self._handler(job.event, context) if self._context == "second" else self._handler(job.event, ctx=context)

    def _watched(self, hooks: Hooks, job: Job) -> Any:
        with hooks.running([_attempt(job)]):
            return self._call(job)

    async def _watched_async(self, hooks: Hooks, job: Job) -> Any:
        with hooks.running([_attempt(job)]):
            return await self._call(job)

    def _send_in_order(self, sink: Sink, batch: Batch, lanes: list[list[Job]]) -> None:
        """Send the first of each lane together, then the second of those that go on, and so forth."""
        going = [_until_failure(lane) for lane in lanes]
        while jobs := [job for job in (next(lane, None) for lane in going) if job is not None]:
            self._send(sink, batch, jobs)

    def _send(self, sink: Sink, batch: Batch, jobs: list[Job]) -> None:
        held = [job for job in jobs if _still_held(job)]
        keys = [idempotency_key(job.key, job.version) for job in held]
        try:
            with nullcontext() if self._hooks is None else self._hooks.running([_attempt(job) for job in held]):
                errors = sink.send([job.event for job in held], keys)
        except SinkError:  # nothing can be sent until someone acts
            raise
        except Exception as error:
            errors = [error] * len(held)
        for job, failure in zip(held, errors, strict=True):
            if failure is None:
                self._done(batch, job, None)
            else:
                _failed(job, failure)

    def _done(self, batch: Batch, job: Job, result: Any) -> None:
        """The handler has returned."""
        _end(job)
        job.finished = True
        if result is not None:
            _check_result(job, result)
        job.result = result
        self.record(batch, job)

    def settle(self, batch: Batch, job: Job) -> None:
        """Record a run that was interrupted if its effect has happened; undo what it wrote where that is not so."""
        _roll_back(job)
        if job.finished:
            self.record(batch, job)

    def record(self, batch: Batch, job: Job) -> None:
        """Have it remembered: at once in its own transaction, else together with others."""
        rule = job.rule
        if rule.remember != "seen" or job.mark is not None:
            self._note(job)
        if job.hold is None:
            return
        # The last key is the one under which workers with the replaced rule look too, so that one goes first.
        finish = Finish(job.keys[-1], job.hold.token, rule.window, job.version, job.memo)
        transaction = None if job.context is None else job.context.transaction
        if transaction is None:
            batch.finish(finish)
        elif job.recorded is None:
            self._commit(batch, job, transaction, finish)
        if len(job.keys) > 1 and job.recorded is not False:  # fenced: whoever took over says what becomes of it
            batch.finish(finish._replace(key=job.key))

    def _note(self, job: Job) -> None:
        job.memo, trouble = memo.write(
            job.rule.remember, job.event, job.content, job.result, self._max_result, job.mark
        )
        if trouble:
            _log.warning("rule %s: the result is not kept, duplicates will not get it: %s", job.rule.name, trouble)

    def _commit(self, batch: Batch, job: Job, transaction: Transaction, finish: Finish) -> None:
        job.finished = False  # until the transaction has committed
        commit = transaction.commit
        job.recorded = (
            commit(finish) if self._hooks is None else call_observed(self._hooks, "commit", 1, commit, finish)
        )
        job.finished = job.recorded
        batch.drop([finish.key])


class Run:
    """One call of the front door: the work, how long claims live, how often to try, and the groups that have stopped.

    With `ends` the claims live until then and are not renewed, as those of a Lambda function end with its time.
    """

    def __init__(self, work: Work, lease: int, attempts: int, ends: int | None = None) -> None:
        self.work = work
        self.attempts = attempts
        self.renewed = ends is None
        self._lease = lease
        self._ends = ends
        self.stopped: set[str] = set()

    def lease(self, now: int) -> int:
        """How long a claim that is made now lives."""
        return self._lease if self._ends is None else max(self._ends - now, 1)

    def patience(self, now: int, wait: int) -> int:
        """Until when a busy event may be waited for: not until our own claims end, or there is no time to answer."""
        return now + wait if self._ends is None else min(now + wait, now + (self._ends - now) // 2)

    def stop(self, jobs: Iterable[Job]) -> None:
        """Nothing goes on behind those that did not end well."""
        for job in jobs:
            if job.group is not None and not job.ended_well:
                self.stopped.add(job.group)

    def hold_back(self, jobs: list[Job]) -> list[Job]:
        """Those that may run; what is behind one that did not end well waits."""
        stopped = set(self.stopped)
        for job in jobs:
            if job.group is None:
                continue
            if job.outcome is None and job.group in stopped:
                job.wait()
            elif job.outcome is not None and not job.ended_well:
                stopped.add(job.group)
        return [job for job in jobs if job.outcome is None]


def _until_failure(lane: list[Job]) -> Iterator[Job]:
    """The jobs of a lane, of which none runs behind one that failed."""
    left = iter(lane)
    for job in left:
        yield job
        if job.error is not None:
            _wait(left)


def _wait(jobs: Iterable[Job]) -> None:
    for job in jobs:
        job.wait()


def _attempt(job: Job) -> Attempt:
    return Attempt(job.event, job.rule.name, job.key, job.attempt)


def _check_handler(handler: Any) -> None:
    import inspect

    if not callable(handler):
        raise ConfigError(f"the handler is a {type(handler).__name__}; pass a function or a sink")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError("the handler is a generator, which would never run; return instead of yield")
    _check_arguments(handler)


def _check_arguments(handler: Any) -> None:
    """Refuse now what would fail at every event."""
    import inspect

    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return
    context = wants_context(handler)
    given = ("event", "ctx") if context == "second" else ("event",)
    named = {"ctx": "ctx"} if context == "named" else {}
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        raise ConfigError(
            f"the handler takes {signature}, and it is called with (event) or (event, ctx): {error}"
        ) from None


def _check_result(job: Job, result: Any) -> None:
    """Refuse what has not run: marking that done would lose the event."""
    items = result if isinstance(result, _LISTS) else result.values() if isinstance(result, dict) else ()
    kind = next((kind for kind in (type(result), *set(map(type, items))) if _not_run(kind)), None)
    if kind is None:
        return
    job.finished = False
    for each in (result, *items):
        if isinstance(each, CoroutineType):
            each.close()
    raise ConfigError(f"the handler returned an object of type {kind.__name__}, {_remedy(kind)}")


def _not_run(kind: type) -> bool:
    return issubclass(kind, _NOT_RUN) or _is_future(kind)


def _is_future(kind: type) -> bool:
    """Whether it is a future of any library: of threads, processes, asyncio or a cluster."""
    return hasattr(kind, "add_done_callback")


def _remedy(kind: type) -> str:
    if _is_future(kind):
        return "which may not be done yet; wait for it and return its result"
    if issubclass(kind, Awaitable):
        return "which nobody runs; write the handler with async def and await it"
    return "which nobody runs; go through it in the handler and return a list"


def _check_held(job: Job) -> None:
    if job.context is not None:
        job.context.check()
    elif job.hold is not None:
        job.hold.check()


def _still_held(job: Job) -> bool:
    try:
        _check_held(job)
    except LeaseLost as error:
        job.error = error
        return False
    return True


def _end(job: Job) -> None:
    if job.context is not None:
        job.context.ended = True


def _failed(job: Job, error: Exception) -> None:
    _end(job)
    inside = job.context is not None and job.context.transaction is not None
    job.error = _trouble_behind(error) if inside else error
    _roll_back(job)


def _trouble_behind(error: Exception) -> Exception:
    """Trouble of ctx.tx with the store, where a library such as SQLAlchemy has made an error of its own of it."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):  # an error may be its own cause
        if cause is None or isinstance(cause, EventOnceError):
            break
        cause = cause.__cause__
    return cause if isinstance(cause, StoreError) else error


def _roll_back(job: Job) -> None:
    if job.context is not None and job.context.transaction is not None:
        job.context.transaction.rollback()
        job.finished = bool(job.recorded)  # what it wrote has not happened, unless it was committed
