"""What happens to the events of a batch: the one place that knows the order of the steps.

    read -> claim -> run -> commit -> settle

`Batch.steps` is that order, for one event and for many, for `def` and for `async def` handlers. A **turn** is what goes
through it together, and nearly always there is one. Another follows for what had to wait: for another version of its
key, for one before it in its group, for a busy key, or to run alone.

What can happen at each step, the outcome of the event, and what its source then does with it. The steps return the
outcomes, and whoever passed the events acts on them.

    read     unreadable, no key, impossible version  rejected     it becomes a dead letter
             no handler is registered for it         unrouted     it becomes a dead letter, or is dropped if its router
                                                                  says so
             older than its rule allows              expired      it is dropped
    claim    done before                             duplicate    it is dropped, with the remembered result
             done before, from this very message     processed    it runs once more, without a claim: its carrier,
                                                                  such as a pipe, could not pass the result on
             a newer version was done before         stale        it is dropped
             its version is too far ahead            rejected     it becomes a dead letter
             another worker runs it                  busy         it comes back, after more turns if it may wait
             no attempt is left                      failed       it becomes a dead letter
             its worker died in company              -            it runs alone, in a turn of its own
             the store does not answer               unknown      it comes back, or runs unclaimed if its rule says so
             only other servers of the store fail    -            it is claimed again in the next turn
    run      its data does not fit the type that     rejected     it becomes a dead letter, and that counts as no
             the handler takes                                    attempt
             the handler raises EventRejected        rejected     it becomes a dead letter
             the handler cannot reach its store      unknown      it comes back
             the handler raises another error        failed       it comes back, or becomes a dead letter after its
                                                                  last attempt
             its claim expired before it began, its  failed       it comes back, and that counts as no attempt
             sink is down, or a call in it is busy
             one before it in its group did not      busy         it does not run, and comes back
             end well (was not dropped or processed)
    commit   recorded                                processed    it is acknowledged
             another worker has taken over           failed       it comes back, most likely as a duplicate
             the store does not answer               unknown      it comes back, or is processed if its rule says so
    settle   a copy of one that was processed        duplicate    it is dropped, with the same result
             a copy of one that ended otherwise      the same     with the same consequence

The commits of a turn go out together. So when the commit of an effect fails, those behind it in its group have run.

After an interrupt at any step, what has taken effect is committed, what has failed counts as an attempt, and all other
claims are released as if they had never been made. The same goes for an error that is not about one event, such as a
sink that can send nothing. Both then go on to the caller.

Which events go when is decided in `order.py`. What is known in each phase is in `jobs.py`, and how a job can end in
`endings.py`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from eventonce.claims.protocol import Answer, Busy, ClaimRequest, Done, Release, Stale, Token, Won
from eventonce.clock import Clock
from eventonce.engine import endings
from eventonce.engine.context import CURRENT, Context
from eventonce.engine.drivers import Blocking, Flow, Pause, StoreCall
from eventonce.engine.handler import Handler
from eventonce.engine.jobs import Chain, Decision, Deferred, Effect, Ended, Failure, Job, RefusedEvent, Runnable, Turn
from eventonce.engine.keeper import Keeper, OpenClaim, OpenClaims
from eventonce.engine.order import Order, RunLimits
from eventonce.engine.reading import ItemReader, are_large
from eventonce.engine.results import Results
from eventonce.errors import StoreBusy, StoreError, StorePartly, describe
from eventonce.event import Delivery
from eventonce.event.groups import Stops
from eventonce.event.keys import Key
from eventonce.ports import OutcomeDetails, Store
from eventonce.text import counted, one_line

if TYPE_CHECKING:
    from eventonce.engine.hooks import Hooks

BATCH = 500  # events that are claimed together
_COMMIT_PAUSES = (20, 100, 400, None)  # milliseconds after each call that failed; the last one is not repeated
_NEW = Won(1)
_STRENGTH: dict[type, int] = {Done: 0, Stale: 1, Busy: 2, Won: 3}
_log = logging.getLogger("eventonce")


class Engine(msgspec.Struct, eq=False):
    """What the batches of one `Once` share. It holds nothing of a batch, so threads may share it."""

    reader: ItemReader
    store: Store  # for transactions; its verbs are called by whoever drives the steps
    keeper: Keeper
    clock: Clock
    max_result: int
    checks_counts: bool  # whether a rule bounds how far a version may count beyond the last one
    hooks: "Hooks | None" = None

    def context(self, job: Job, attempt: int, basis: OpenClaim | Done | StoreError, handler: Handler) -> Context:
        """Return the context of a run."""
        claim = basis if type(basis) is OpenClaim else None
        replay, outer = job.event.replay, CURRENT.get()
        return Context(
            attempt, replay, job.key, job.keys, job.version, claim, self.store, self.clock, handler.is_async, outer
        )


class Batch:
    """Some events on their way through the steps."""

    order_type = Order

    def __init__(
        self, engine: Engine, handler: Handler, limits: RunLimits, stops: Stops, claims: OpenClaims | None = None
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._limits = limits
        self._stops = stops
        self.claims = OpenClaims(engine.clock, limits.lease, renewed=limits.ends is None) if claims is None else claims

    def steps(
        self,
        items: Sequence[object],
        first: int = 0,
        *,
        arrived: Sequence[Job | RefusedEvent] = (),
        token: Token | None = None,
    ) -> Flow[list[Ended | RefusedEvent]]:
        """Run each event once, and return how each ended.

        This yields what takes time. Whoever drives it sends back the answer, or throws the error. `first` is the
        position of the first item in the whole call. `arrived` is what has been read already, and `token` is that of
        its claim if that has been made.
        """
        engine, claims = self._engine, self.claims
        arrived = arrived or (yield from self._read(items, first))
        order = self.order_type(arrived, self._limits, self._stops, engine.clock, token)
        engine.keeper.watch(claims, order.remaining)  # it extends leases, and commits what the steps leave waiting
        try:
            while turn := order.next_turn():
                if turn.pause:
                    yield Pause(engine.clock.sleep, turn.pause)
                results = Results(claims, engine.max_result, engine.hooks)
                try:
                    decisions = yield from self._claim(turn)  # each job may run, has ended, or is claimed again later
                    chains = order.admit(decisions)  # what runs now: of each group, one after another
                    yield from self._release(turn, self._unused(turn, chains))
                    yield self._handler.run(chains, results)  # each result is noted as it happens
                    error = yield from self._commit(results)
                    yield from self._release(turn, results.without_effect(), results.failures)
                    order.end(self._settle(results, error))  # this decides copies, and the group behind a failure
                except BaseException:
                    yield from self._rescue(turn, results)
                    raise
        finally:
            engine.keeper.leave(claims)
        ended = order.ended()
        if engine.hooks is not None:
            engine.hooks.after_settle([_details(item, event) for item, event in zip(items, ended, strict=True)])
        return ended

    # --- read: which events are these? ---

    def _read(self, items: Sequence[object], first: int) -> Flow[Sequence[Job | RefusedEvent]]:
        """Read each event, and find its rule and key."""
        reader, handler = self._engine.reader, self._handler
        if handler.is_async and are_large(items):  # on a thread: the loop has others to serve
            jobs: list[Job | RefusedEvent] = yield Blocking(reader.read_all, items, first, handler)
            return jobs
        return reader.read_all(items, first, handler)

    # --- claim: may these run? ---

    def _claim(self, turn: Turn) -> Flow[list[Decision]]:
        """Ask the store for the right to run each job, and decide what its answers mean."""
        jobs, rejected = turn.jobs, []
        if self._engine.checks_counts:
            try:
                rejected = yield from self._too_far_ahead(jobs)
            except StoreError as error:
                return self._without_store(jobs, error)
            jobs = _without(jobs, rejected)
        shared = not turn.alone
        wants = [
            ClaimRequest(key, job.rule.window, job.version, job.rule.refresh, shared)
            for job in jobs
            for key in job.keys
        ]
        sent = self._engine.clock.steady()
        lease = self._limits.lease_from(sent)
        try:
            answers = (yield StoreCall("claim", wants, turn.token, lease)) if wants else []
        except StoreError as error:
            if error.retryable and not isinstance(error, StoreBusy):  # it may have claimed, with only its answer lost
                yield from self._release(turn, jobs)
            return _in_order(rejected + self._without_store(jobs, error))
        won = [want.key for want, answer in zip(wants, answers, strict=True) if type(answer) is Won]
        claims = self.claims.add(won, turn.token, sent + lease)
        if len(answers) == len(jobs) == answers.count(_NEW) and not rejected:  # nearly always: a short cut
            return [self._runnable(job, 1, claims[job.key]) for job in jobs]
        if len(answers) > len(jobs):  # some have two keys
            remaining = iter(answers)
            answers = [strongest([next(remaining) for _ in job.keys]) for job in jobs]
        decided = [self._decide(turn, job, answer, claims) for job, answer in zip(jobs, answers, strict=True)]
        return _in_order(rejected + decided) if rejected else decided

    def _decide(self, turn: Turn, job: Job, answer: Answer, claims: Mapping[Key, OpenClaim]) -> Decision:
        """Decide what the store's answer means for a job."""
        if isinstance(answer, Done):
            if endings.is_redelivery(job, answer):
                return self._runnable(job, answer.record.attempts, answer)
            return endings.duplicate(job, answer)
        if not isinstance(answer, Won):
            return endings.not_won(job, answer)
        if answer.suspect and not turn.alone:
            return Deferred(job, alone=True)
        if answer.attempt > self._limits.max_attempts:
            return endings.used_up(job, answer)
        return self._runnable(job, answer.attempt, claims[job.keys[-1]])

    def _too_far_ahead(self, jobs: Sequence[Job]) -> Flow[list[Decision]]:
        """End the jobs whose version counts too far beyond the last one done."""
        bounded = [job for job in jobs if job.rule.ahead_of_last is not None]
        if not bounded:
            return []
        try:
            records = iter((yield StoreCall("peek", [key for job in bounded for key in job.keys])))
        except StorePartly as error:  # its partial answers are to this peek, not to the claim
            raise StoreError(str(error)) from error
        now = self._engine.clock.utc()
        ends = [endings.too_far_ahead(job, [next(records) for _ in job.keys], now) for job in bounded]
        return [end for end in ends if end is not None]

    def _without_store(self, jobs: Sequence[Job], error: StoreError) -> list[Decision]:
        """Decide without an answer: retry later, or run unclaimed if the rule says so.

        If some servers of the store did answer, their jobs are claimed again in the next turn. Nothing runs unclaimed
        behind such a job in its group.
        """
        answered = _answered(jobs, error)
        waiting_groups: set[str | None] = set()
        decisions: list[Decision] = []
        unclaimed = 0
        for job in jobs:
            if job in answered:
                decisions.append(Deferred(job, alone=False))
                waiting_groups |= {job.group} - {None}
            elif job.rule.on_store_error != "process":
                decisions.append(endings.unknown(job, error))
            elif job.group in waiting_groups:
                decisions.append(endings.behind(job))
            else:
                decisions.append(self._runnable(job, 1, error))
                unclaimed += 1
        if unclaimed:
            _log.warning("running %s without a claim: %s", counted(unclaimed, "event"), one_line(describe(error)))
        return decisions

    def _runnable(self, job: Job, attempt: int, basis: OpenClaim | Done | StoreError) -> Runnable:
        handler = self._handler
        if handler.is_sink:
            return Runnable(job, attempt, basis)
        return Runnable(job, attempt, basis, handler.context or self._engine.context(job, attempt, basis, handler))

    # --- commit and release: what the store must know ---

    def _commit(self, results: Results) -> Flow[StoreError | None]:
        """Commit what waits. Return the error if that failed.

        The effects have happened, so the call is repeated while the claims are ours.
        """
        if not results.effects:
            return None
        for pause in _COMMIT_PAUSES:
            finishes = self.claims.ready()
            if not finishes:
                break
            try:
                answers = yield StoreCall("commit", finishes)
            except StoreError as error:
                if isinstance(error, StorePartly):
                    self.claims.note_commits(finishes, error.answers)
                if pause is None or not error.retryable or not self.claims.may_still_commit():
                    return error
                yield Pause(self._engine.clock.sleep, pause)
            else:
                self.claims.note_commits(finishes, answers)
        return None

    def _release(self, turn: Turn, jobs: Sequence[Job], failures: Iterable[Failure] = ()) -> Flow[None]:
        """Release the claims of jobs: with the error of a failed attempt, or as if they had never been made."""
        if not jobs:
            return
        errors = {failure.runnable.job: endings.error_to_remember(failure.error) for failure in failures}
        releases = [Release(key, turn.token, job.rule.window, errors.get(job)) for job in jobs for key in job.keys]
        try:
            yield StoreCall("release", releases)
        except StoreError as error:  # their leases expire by themselves
            _log.warning("could not release %s: %s", counted(len(jobs), "claim"), one_line(describe(error)))
        self.claims.drop([release.key for release in releases])

    def _unused(self, turn: Turn, chains: Sequence[Chain]) -> list[Job]:
        """Return the jobs with a claim of ours that do not run now: deferred, without an attempt, or behind another.

        A job may also have won one of its two keys only.
        """
        running = [each.job for chain in chains for each in chain if type(each.basis) is OpenClaim]
        if len(running) == len(self.claims):  # nearly always
            return []
        unused, is_open = set(turn.jobs).difference(running), self.claims.is_open
        return [job for job in turn.jobs if job in unused and any(is_open(key, turn.token) for key in job.keys)]

    def _rescue(self, turn: Turn, results: Results) -> Flow[None]:
        """After an interrupt, commit what has taken effect and release the rest, even if one of the two fails."""
        results.wind_up()
        with _logged("commit what was done"):
            yield from self._commit(results)
        with _logged("release claims"):
            yield from self._release(turn, results.never_happened(turn.jobs), results.failures)

    # --- settle: what became of those that ran ---

    def _settle(self, results: Results, error: StoreError | None) -> list[Ended]:
        """Return how the jobs of a turn ended, given the error of their commit."""
        ended = [self._end(effect, results, error) for effect in results.effects]
        return ended + [endings.failed(failure, self._limits.max_attempts) for failure in results.failures]

    def _end(self, effect: Effect, results: Results, error: StoreError | None) -> Ended:
        job, basis = effect.runnable.job, effect.runnable.basis
        memo = results.memos.get(job) if results.memos else None
        if not isinstance(basis, OpenClaim):
            return endings.unclaimed(effect, basis, memo)
        committed = results.in_transaction.get(job) if results.in_transaction else None
        if committed is None:
            committed = self.claims.committed.pop(job.key, None)
        if committed:
            return endings.processed(effect, memo)
        if committed is None:
            return endings.unrecorded(effect, error, memo)
        _log.warning("key %s: another worker took over before the commit", job.key.hex())
        return endings.fenced(effect)


def strongest(answers: Sequence[Answer]) -> Answer:
    """Return what the answers to all keys of one job come to: done or stale under any of them, else busy, else won.

    Of two claims that were won, the one with more attempts counts.
    """
    return answers[0] if len(answers) == 1 else min(answers, key=_strength)


def _strength(answer: Answer) -> tuple[int, bool, int]:
    if isinstance(answer, Won):
        return _STRENGTH[Won], not answer.suspect, -answer.attempt
    return _STRENGTH[type(answer)], False, 0


def _answered(jobs: Sequence[Job], error: StoreError) -> set[Job]:
    """Return the jobs with an answer to each of their keys, if only some servers of the store answered.

    Return none if all have one: another turn could end in the same way, and so without end.
    """
    if not isinstance(error, StorePartly):
        return set()
    answers = iter(error.answers)
    answered = {job for job in jobs if None not in [next(answers) for _ in job.keys]}
    return answered if len(answered) < len(jobs) else set()


def _without(jobs: list[Job], ended: Sequence[Decision]) -> list[Job]:
    jobs_ended = {decision.job for decision in ended}
    return [job for job in jobs if job not in jobs_ended] if ended else jobs


def _in_order(decisions: list[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda decision: decision.job.position)


def _details(item: object, event: Ended | RefusedEvent) -> OutcomeDetails:
    return OutcomeDetails(event.event, event.outcome, item.origin if isinstance(item, Delivery) else {})


@contextmanager
def _logged(action: str) -> Iterator[None]:
    """Log an error and go on: the interrupt is on its way up, and must arrive."""
    try:
        yield
    except Exception:
        _log.exception("could not %s after an interruption", action)
