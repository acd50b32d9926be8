"""Running: bound calls go through the steps as events do, and wait for runs of the same key in this process."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from eventonce.claims.outcome import Outcome
from eventonce.engine import endings
from eventonce.engine.calls.reading import BoundCall
from eventonce.engine.calls.waiting import LeadingRun, RunningCalls
from eventonce.engine.drivers import Flow, StoreCalls, drive
from eventonce.engine.handler import Handler
from eventonce.engine.jobs import Ended, Job, RefusedEvent
from eventonce.engine.order import RunLimits
from eventonce.engine.plain import run_one
from eventonce.engine.steps import Batch, Engine
from eventonce.errors import EventBusy
from eventonce.event.groups import Stops
from eventonce.ports import OutcomeDetails


class CallRunner(msgspec.Struct, frozen=True, eq=False):
    """Runs the calls of one function."""

    engine: Engine
    handler: Handler
    limits: RunLimits
    store_calls: StoreCalls
    batch_type: type[Batch]
    batch: int  # calls that are claimed together
    running: RunningCalls

    def run(self, call: BoundCall[Any]) -> Outcome:
        """Run one call of a `def` function here and now."""
        job = self.engine.reader.read(0, call, self.handler)
        if isinstance(job, Job) and self.running.refuse_own([job]) and (run := self.running.lead(job)):
            ended: tuple[Ended | RefusedEvent, ...] = ()
            try:
                ended = (run_one(self.engine, self.handler, self.limits, call, job, self.store_calls, self.batch_type),)
            finally:
                self.running.leave(run, ended)
            return ended[0].outcome
        return drive(self._batch([call], [job]), self.store_calls)[0].outcome

    def flow(self, calls: Sequence[BoundCall[Any]]) -> Flow[list[Outcome]]:
        """Run many calls."""
        outcomes: list[Outcome] = []
        for first in range(0, len(calls), self.batch):
            batch = calls[first : first + self.batch]
            arrived = self.engine.reader.read_all(batch, 0, self.handler)
            ended = yield from self._batch(batch, arrived)
            outcomes += [end.outcome for end in ended]
        return outcomes

    def _batch(
        self, calls: Sequence[BoundCall[Any]], arrived: Sequence[Job | RefusedEvent]
    ) -> Flow[list[Ended | RefusedEvent]]:
        """Lead the runs of the keys that run nowhere here, and then follow the others."""
        limits = self.limits
        if not self.running.refuse_own([job for job in arrived if isinstance(job, Job)]):
            limits = structs.replace(limits, busy_wait=0)
        clock = self.engine.clock
        deadline = limits.deadline_from(clock.steady())
        ended: dict[int, Ended | RefusedEvent] = {}
        waiting = arrived
        while waiting:
            ours, runs, others = self._lead(waiting)
            ends: list[Ended | RefusedEvent] = []
            try:
                if ours:
                    batch = self.batch_type(self.engine, self.handler, limits, Stops())
                    ends = yield from batch.steps([calls[job.position] for job in ours], arrived=ours)
            finally:
                for run in runs:
                    self.running.leave(run, ends)
            ended |= {job.position: end for job, end in zip(ours, ends, strict=True)}
            followed = yield from self._follow(others, deadline)
            ended |= {end.job.position: end for end in followed}
            waiting = [job for job in others if job.position not in ended]
            limits = structs.replace(limits, busy_wait=max(0, deadline - clock.steady()))
        return [ended[position] for position in range(len(calls))]

    def _lead(
        self, arrived: Sequence[Job | RefusedEvent]
    ) -> tuple[list[Job | RefusedEvent], list[LeadingRun], list[Job]]:
        """Return what goes through the steps now, the runs that it leads, and the jobs whose keys run already."""
        ours: list[Job | RefusedEvent] = []
        runs: dict[bytes, LeadingRun] = {}
        others: list[Job] = []
        for job in arrived:
            if isinstance(job, RefusedEvent) or job.key in runs:
                ours.append(job)
            elif (run := self.running.lead(job)) is None:
                others.append(job)
            else:
                runs[job.key] = run
                ours.append(job)
        return ours, list(runs.values()), others

    def _follow(self, jobs: Sequence[Job], deadline: int) -> Flow[list[Ended]]:
        """Wait for the runs of these jobs' keys. Return how those ended that need no run of their own."""
        ended: list[Ended] = []
        for job in jobs:
            end = yield from self._follow_one(job, deadline)
            if end is not None:
                ended.append(end)
        if self.engine.hooks is not None and ended:
            self.engine.hooks.after_settle([OutcomeDetails(end.event, end.outcome, {}) for end in ended])
        return ended

    def _follow_one(self, job: Job, deadline: int) -> Flow[Ended | None]:
        remaining = deadline - self.engine.clock.steady()
        step = self.running.wait(job, remaining)
        if step is None:
            return None
        try:
            if remaining <= 0:
                raise EventBusy(f"a call of {job.rule.name} with its key is running")
            ends = yield step
        except EventBusy as error:
            return endings.still_running(job, error)
        first = next((end for end in ends if end.ended.job.version == job.version), None)
        ended = None if first is None else endings.follow(job, first.ended, self.engine.clock.utc())
        return ended if first is None or ended is None else first.own(ended)
