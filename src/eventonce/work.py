"""Work: how a handler or a sink is run over the jobs that won their claims."""

import logging
from functools import partial
from typing import Any

from eventonce import memo
from eventonce.claim import Finish
from eventonce.context import Handler, is_async, takes_context
from eventonce.errors import ConfigError, StoreError
from eventonce.flow import Call, Each
from eventonce.job import Job
from eventonce.keeper import Batch
from eventonce.ports import Sink, Transaction

_log = logging.getLogger("eventonce")


class Work:
    """A handler or a sink, and how to run it. It holds no state of a run, so threads may share it."""

    def __init__(self, handler: Handler | Sink, concurrency: int, max_result: int) -> None:
        self._sink = handler if isinstance(handler, Sink) else None
        if self._sink is None and not callable(handler):
            raise ConfigError(f"the handler is a {type(handler).__name__}; pass a function or a sink")
        self._handler: Any = getattr(handler, "eventonce_handler", handler)  # a decorated one must not claim twice
        self._concurrency = concurrency
        self._max_result = max_result
        self.is_async = self._sink is None and is_async(self._handler)
        self._wants_context = self._sink is None and takes_context(self._handler)

    def step(self, batch: Batch, jobs: list[Job]) -> Call:
        """The step that runs these jobs."""
        if self._sink is not None:
            return Call(self._send, self._sink, batch, jobs)
        one = self._perform_async if self.is_async else self._perform
        return Each(partial(one, batch), jobs, self._concurrency)

    def _perform(self, batch: Batch, job: Job) -> None:
        try:
            result = self._handler(*self._arguments(job))
        except Exception as error:
            _failed(job, error)
        except BaseException:
            _roll_back(job)
            raise
        else:
            self._succeeded(batch, job, result)

    async def _perform_async(self, batch: Batch, job: Job) -> None:
        from asyncio import CancelledError, current_task

        try:
            result = await self._handler(*self._arguments(job))
        except CancelledError as error:
            task = current_task()
            if task is None or task.cancelling():
                raise
            _failed(job, RuntimeError(f"the handler ended with {error!r} though nobody cancelled it"))
        except Exception as error:
            _failed(job, error)
        else:
            self._succeeded(batch, job, result)

    def _arguments(self, job: Job) -> tuple[Any, ...]:
        return (job.event, job.context) if self._wants_context else (job.event,)

    def _send(self, sink: Sink, batch: Batch, jobs: list[Job]) -> None:
        keys = [job.context.idempotency_key for job in jobs if job.context is not None]
        for job, error in zip(jobs, sink.send([job.event for job in jobs], keys), strict=True):
            if error is None:
                self._succeeded(batch, job, None)
            else:
                _failed(job, error)

    def _succeeded(self, batch: Batch, job: Job, result: Any) -> None:
        job.result, job.finished = result, True
        job.memo, trouble = memo.write(job.rule.remember, job.event, job.content, result, self._max_result)
        if trouble:
            _log.warning("rule %s: the result is not kept, duplicates will not get it: %s", job.rule.name, trouble)
        if job.context is None or job.context.claim is None:
            return
        finish = Finish(*job.context.claim, job.rule.window, job.version, job.memo)
        if job.context.transaction is None:
            batch.finish(finish)
        else:
            _commit(batch, job, job.context.transaction, finish)


def _commit(batch: Batch, job: Job, transaction: Transaction, finish: Finish) -> None:
    try:
        job.recorded = transaction.commit(finish)
        batch.drop([job.key])
    except StoreError as error:
        job.error = error
    job.finished = bool(job.recorded)  # otherwise the effect was rolled back


def _failed(job: Job, error: Exception) -> None:
    job.error = error
    _roll_back(job)


def _roll_back(job: Job) -> None:
    if job.context is not None and job.context.transaction is not None:
        job.context.transaction.rollback()
