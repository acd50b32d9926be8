"""A plain call with one event in straight code, for `def` handlers.

It knows the good cases only: a duplicate, or a new event whose handler returns and whose commit is recorded. Whatever
else happens is played back to the steps, as if they had made these calls themselves, and they go on from there. So the
steps remain the only place that knows what to do.
"""

import os
from typing import Any

from eventonce.claims.protocol import TOKEN_BYTES, ClaimRequest, Commit, Done, Won
from eventonce.engine import endings
from eventonce.engine.context import CURRENT, Context
from eventonce.engine.drivers import StoreCalls, drive
from eventonce.engine.handler import Handler
from eventonce.engine.jobs import Effect, Ended, Job, RefusedEvent, Runnable
from eventonce.engine.keeper import OpenClaims
from eventonce.engine.order import RunLimits
from eventonce.engine.results import unrun_kind
from eventonce.engine.steps import Batch, Engine
from eventonce.event.groups import Stops

_NEW = Won(1)


def run_one(
    engine: Engine,
    handler: Handler,
    limits: RunLimits,
    item: object,
    job: Job | RefusedEvent,
    store: StoreCalls,
    batch_type: type[Batch],
) -> Ended | RefusedEvent:
    """Run one event, which has been read, and return how it ended."""
    batch = batch_type(engine, handler, limits, Stops())
    if not handler.is_plain or not isinstance(job, Job) or not _is_plain(job):
        return drive(batch.steps([item], arrived=[job]), store)[0]
    plain = _PlainRun(job, handler, batch.claims)
    if (ended := plain.run(engine, limits, store)) is not None:
        return ended
    again = handler.played_back(plain.function, plain.context)
    played_back = batch_type(engine, again, limits, Stops(), batch.claims)
    steps = played_back.steps([item], arrived=[job], token=plain.token)
    end = drive(steps, _PlayedBack(store, plain.answers))[0]
    if plain.interrupt is not None:  # it came when all was done, so the steps did not meet it
        raise plain.interrupt
    return end


class _PlainRun:
    """The run of one job in straight code, and what has happened in it so far."""

    def __init__(self, job: Job, handler: Handler, claims: OpenClaims) -> None:
        self.job = job
        self.handler = handler
        self.function = handler.function  # after its call, one that repeats how it ended
        self.context: Context | None = None
        self.claims = claims
        self.token = os.urandom(TOKEN_BYTES)
        self.answers: list[Any] = []  # of the store
        self.returned: tuple[Any] | None = None  # the result, stored in the statement of the call
        self.interrupt: BaseException | None = None

    def run(self, engine: Engine, limits: RunLimits, store: StoreCalls) -> Ended | None:
        """Return how the job ended, or None if that is for the steps to decide."""
        engine.keeper.watch(self.claims, 1)
        try:
            return self._run(engine, limits, store)
        except BaseException as error:
            self.interrupt = None if isinstance(error, Exception) else error
            if self.returned is not None:
                self.function = _Returns(self.returned[0])
            if not self.answers or self.returned is not None:  # the store raised it
                self.answers.append(error)
            else:
                self.function = _Raises(error)
            return None
        finally:
            engine.keeper.leave(self.claims)

    def _run(self, engine: Engine, limits: RunLimits, store: StoreCalls) -> Ended | None:
        job, rule, answers = self.job, self.job.rule, self.answers
        sent = engine.clock.steady()
        answers.append(
            store.call("claim", [ClaimRequest(job.key, rule.window, None, rule.refresh)], self.token, limits.lease)
        )
        answer = answers[0][0]
        if isinstance(answer, Done):
            return endings.duplicate(job, answer)
        if answer != _NEW:
            return None
        claim = self.claims.add([job.key], self.token, sent + limits.lease)[job.key]
        claim.check()
        context = self.context = engine.context(job, 1, claim, self.handler)
        outer = CURRENT.get()
        try:
            CURRENT.set(context)
            self.returned = (self.handler.call(job.event, context),)
        finally:
            CURRENT.set(outer)
        result = self.returned[0]
        self.function = _Returns(result)
        if context.transaction is not None or (result is not None and unrun_kind(result) is not None):
            return None
        context.ended = True
        answers.append(store.call("commit", [Commit(job.key, self.token, rule.window)]))
        return endings.processed(Effect(Runnable(job, 1, claim), result)) if answers[1][0] else None


def _is_plain(job: Job) -> bool:
    return len(job.keys) == 1 and job.version is None and job.message_id is None and job.rule.remember == "seen"


class _Returns:
    """A handler that has returned."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __call__(self, event: object, ctx: object = None) -> Any:
        return self._result


class _Raises:
    """A handler that has raised, or was never called."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, event: object, ctx: object = None) -> Any:
        raise self._error


class _PlayedBack(StoreCalls):
    """Store calls, of which the first ones repeat answers that have been received already."""

    def __init__(self, store: StoreCalls, answers: list[Any]) -> None:
        self._store_calls = store
        self._answers = answers

    def call(self, verb: str, *args: Any) -> Any:
        if not self._answers:
            return self._store_calls.call(verb, *args)
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer
