"""`Once`: the only file that knows the order of the steps.

    read -> rule -> key -> claim -> handler or sink -> commit -> outcome

The order is written once, as a generator of steps (see `flow.py`), for one event and for many, for `def` and for
`async def` handlers.
"""

import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from eventonce.claims import memo, protocol
from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import (
    LONGEST_LEASE,
    TOKEN_BYTES,
    Answer,
    Busy,
    Done,
    Record,
    Release,
    Stale,
    Token,
    Want,
    Won,
)
from eventonce.clock import LONGEST, Clock, SystemClock, duration, to_datetime
from eventonce.context import AsyncHandler, Context, Handler
from eventonce.errors import (
    ConfigError,
    EventBusy,
    EventExpired,
    EventRejected,
    EventStale,
    LeaseLost,
    SinkDown,
    StoreBusy,
    StoreError,
    StorePartly,
    TooManyAttempts,
    describe,
)
from eventonce.event import Delivery, Event
from eventonce.event.formats import MAX_BYTES, read_event
from eventonce.event.keys import Key
from eventonce.flow import Call, Flow, Pause, drive, drive_async
from eventonce.job import Job, split
from eventonce.keeper import Batch, Hold, Keeper
from eventonce.observe.hooks import Hooks
from eventonce.observe.watched import Watched
from eventonce.ports import Checkable, Hook, Seen, Sink, Store
from eventonce.rules import Rulebook, identity, resolve_rules
from eventonce.rules.rule import DEFAULT_WINDOW, OnStoreError, Remember, Rule
from eventonce.stores import open_store
from eventonce.work import Run, Work

if TYPE_CHECKING:
    from asyncio import Runner

    from eventonce.auth import Auth
    from eventonce.aws_lambda import LambdaHandler

BATCH = 500  # events that are claimed together
_LARGE = 64 * 1024  # bytes of a batch that may take a loop too long to read
CONCURRENCY = 16  # async handlers at a time
_FIRST_PAUSE, _LONGEST_PAUSE = 10, 250  # between looks at a busy key
_LONGEST_ERROR = 500
_FLUSH_PAUSES = (20, 100, 400, None)  # after each try to commit
_BLAMELESS = (StoreError, LeaseLost, SinkDown)  # no fault of the event, so no attempt of it
_TEXTS = (bytes, str, bytearray, memoryview)
_WEIGHTS: dict[type, int] = {Done: 0, Stale: 1, Busy: 2, Won: 3}
_log = logging.getLogger("eventonce")

Returned = TypeVar("Returned")


class Once:
    """Makes every event take effect once.

    `store` is a URL or a store; `rules` a rule, several, or a TOML file that holds them. An event that no rule
    matches is keyed by its own id, with `window`, `on_store_error` and `remember`. Durations are written like "60s" or
    as seconds.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        consumer: str = "default",
        rules: Rule | Sequence[Rule] | str | os.PathLike[str] = (),
        window: str | float = DEFAULT_WINDOW,
        on_store_error: OnStoreError = "retry",
        remember: Remember = "seen",
        lease: str | float = "60s",
        busy_wait: str | float = 0,
        max_attempts: int = 5,
        max_result: int = memo.MAX_RESULT,
        max_bytes: int = MAX_BYTES,
        concurrency: int = CONCURRENCY,
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
    ) -> None:
        if not consumer or not isinstance(consumer, str):
            raise ConfigError(f"consumer: {consumer!r} is no name; write a text, two consumers both get every event")
        self._lease = lease_of(lease)
        self._busy_wait = duration(busy_wait, "busy_wait")
        self._max_attempts = _at_least_one("max_attempts", max_attempts)
        self._concurrency = _at_least_one("concurrency", concurrency)
        self._max_result = max_result
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._rules = Rulebook(consumer, resolve_rules(rules), identity(window, on_store_error, remember))
        self._bounds_counts = any(rule.ahead_of_last is not None for rule in self._rules.all)
        if not isinstance(store, str) and not hasattr(store, "claim"):
            raise ConfigError(f"store: {store!r} is neither a URL nor a store; use sqlite:///FILE or memory:")
        self._owns_store = isinstance(store, str)
        self._store = open_store(store, self._clock) if isinstance(store, str) else store
        self._hooks = Hooks(hooks) if hooks else None
        self._told = self._store if self._hooks is None else Watched(self._store, self._hooks)
        self._keeper = Keeper(self._told, self._lease, self._clock)
        self._consumer = consumer
        self._decorated: str | None = None
        self._loop: Runner | None = None

    # --- the front door ---

    def __call__(self, handler: Callable[..., Returned]) -> Callable[[object], Returned]:
        """Decorate a handler: called with one event it returns its result, or the remembered one, or raises."""
        work = self._work(handler)
        self._refuse_second(handler)

        def call(event: object) -> Any:
            return _value(drive(self._flow([event], Run(work, self._lease, self._max_attempts)))[0])

        async def call_async(event: object) -> Any:
            return _value((await drive_async(self._flow([event], Run(work, self._lease, self._max_attempts))))[0])

        wrapper: Any = functools.wraps(handler)(call_async if work.is_async else call)
        wrapper.eventonce_handler = handler
        decorated: Callable[[object], Returned] = wrapper
        return decorated

    @overload
    def run(self, events: Iterable[object], handler: AsyncHandler) -> Coroutine[Any, Any, list[Outcome]]: ...
    @overload
    def run(self, events: Iterable[object], handler: Handler | Sink) -> list[Outcome]: ...
    def run(
        self, events: Iterable[object], handler: Handler | Sink
    ) -> list[Outcome] | Coroutine[Any, Any, list[Outcome]]:
        """Run a handler or a sink over many events: one outcome each, in order. Await it if the handler is async."""
        if isinstance(events, Mapping | str | bytes | Event | Delivery):
            raise ConfigError("run takes many events: give it a list, such as [event]")
        work = self._work(handler)
        flow = self._flow(list(events), Run(work, self._lease, self._max_attempts))
        return drive_async(flow) if work.is_async else drive(flow)

    def aws_lambda(
        self,
        handler: Handler | Sink,
        *,
        enrichment: bool = False,
        report_kafka_failures: bool = False,
        auth: "Auth | None" = None,
    ) -> "LambdaHandler":
        """A Lambda function's handler for everything that AWS invokes one with, which answers as its carrier expects.

        With `enrichment` it stands inside a pipe: it hands on what is new, as the handler returns it or as it came.
        With `report_kafka_failures` it names the records of Kafka that failed, which takes `ReportBatchItemFailures` in
        the mapping; without, one failure brings all of the batch back.
        `auth` decides who may send requests to it; what services of AWS invoke it with is theirs by IAM.
        """
        from eventonce.aws_lambda import Gate, LambdaHandler

        if enrichment and auth is not None:
            raise ConfigError("auth: an enrichment is invoked by its pipe and takes no requests; leave auth out")
        work = self._work(handler)

        def run(deliveries: Sequence[Delivery], left: int | None) -> list[Outcome]:
            # How often a message may come is for its carrier to count: there is no dead letter of ours here.
            ends = None if left is None else self._clock.steady() + left
            flow = self._flow(deliveries, Run(work, self._lease, attempts=LONGEST, ends=ends))
            return self._in_loop(drive_async(flow)) if work.is_async else drive(flow)

        gate = Gate(auth, self._in_loop, self._clock, self.rules)
        return LambdaHandler(
            run,
            self._consumer,
            self._max_bytes,
            self._clock,
            gate,
            enrichment=enrichment,
            report_kafka_failures=report_kafka_failures,
        )

    @property
    def rules(self) -> Sequence[Rule]:
        """Its rules, as they were given."""
        return self._rules.definition[1]

    def key(self, event: object) -> Key:
        """The key of an event, or `EventRejected`."""
        return self._rules.key(read_event(event, self._max_bytes)).key

    def preview(self, event: object) -> Outcome:
        """What would become of an event if it came now and its handler returned; nothing is claimed or changed."""
        job = self._read(event)
        if job.outcome is None:
            self._foresee(job)
        return _ended(job)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        """What is remembered of these keys."""
        return self._told.peek(keys)

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        """Forget these keys, so that the next copy of their events runs again; whether each was known."""
        return self._told.forget(keys)

    def check(self) -> list[str]:
        """What to warn of in the store's server; raises `StoreError` where it cannot be used."""
        return self._store.check() if isinstance(self._store, Checkable) else []

    def close(self) -> None:
        """End the background thread, and close the store if it was opened here."""
        self._keeper.stop()
        if self._loop is not None:
            self._loop.close()
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_loop(self, found: Coroutine[Any, Any, Returned]) -> Returned:
        """One loop for all invocations, so that the handlers' own connections live on."""
        if self._loop is None:
            from asyncio import Runner

            self._loop = Runner()
        return self._loop.run(found)

    def _refuse_second(self, handler: Handler) -> None:
        """Two handlers under one consumer would each take the other's events for done."""
        name = f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', repr(handler))}"
        if self._decorated not in (None, name):
            raise ConfigError(
                f"this Once decorates {self._decorated} already, and {name} would only get what that has not had; "
                'give each handler an Once with a consumer of its own: Once(..., consumer="mail")'
            )
        self._decorated = name

    def _work(self, handler: Handler | Sink) -> Work:
        return Work(handler, self._concurrency, self._max_result, self._hooks)

    # --- the order of the steps ---

    def _flow(self, items: Sequence[object], run: Run) -> Flow[list[Outcome]]:
        outcomes: list[Outcome] = []
        for start in range(0, len(items), BATCH):
            batch = items[start : start + BATCH]
            if run.work.is_async and sum(map(_bytes_of, batch)) > _LARGE:
                jobs = yield Call(self._read_all, batch)  # on a thread: the loop has others to serve
            else:
                jobs = self._read_all(batch)
            yield from self._batch(run.hold_back(jobs), run)
            run.stop(jobs)
            outcomes += [job.outcome for job in jobs if job.outcome is not None]
            if self._hooks is not None:
                self._hooks.settled([_seen(item, job) for item, job in zip(batch, jobs, strict=True)])
        return outcomes

    def _batch(self, jobs: list[Job], run: Run) -> Flow[None]:
        if not jobs:
            return
        batch = Batch(self._told, self._clock, renewed=run.renewed)
        self._keeper.watch(batch, len(jobs))
        try:
            while jobs:
                leaders, copies, later = split(jobs)
                yield from self._until_free(batch, leaders, run)
                again = [copy for copy, leader in copies if leader.done is not None and _passed_on(copy, leader.done)]
                followers = [(copy, leader) for copy, leader in copies if copy not in again]
                for copy, leader in followers:
                    self._follow(copy, leader)
                run.stop(leaders)
                run.stop(copy for copy, _ in followers)
                jobs = run.hold_back(again + later)
        finally:
            self._keeper.leave(batch)

    def _until_free(self, batch: Batch, jobs: list[Job], run: Run) -> Flow[None]:
        """Claim and run, and again those that are busy elsewhere for as long as we may wait."""
        give_up, pause = run.patience(self._clock.steady(), self._busy_wait), _FIRST_PAUSE
        while True:
            yield from self._together_or_alone(batch, jobs, run)
            busy = [job for job in jobs if job.outcome is not None and job.outcome.kind is OutcomeKind.BUSY]
            run.stop([job for job in jobs if job not in busy] if busy else ())
            jobs = [job for job in busy if job.group not in run.stopped]
            left = give_up - self._clock.steady()
            if not jobs or left <= 0:
                return
            yield Pause(self._clock.sleep, min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _together_or_alone(self, batch: Batch, jobs: list[Job], run: Run) -> Flow[None]:
        """Claim and run, but alone what a worker may have died of: a batch must not share that fate again."""
        while jobs:
            suspects, held = yield from self._claim_and_run(batch, jobs, run)
            for job in suspects:
                if _behind_failure(job, jobs):  # which came only after it was set aside
                    job.wait()
                else:
                    yield from self._claim_and_run(batch, [job], run)
            free = {job.group for job in suspects if job.ended_well}
            jobs = [job for job in held if job.group in free]

    def _claim_and_run(self, batch: Batch, jobs: list[Job], run: Run) -> Flow[tuple[list[Job], list[Job]]]:
        """Claim these and run what was won; what is to be run alone, and what waits for that, is left."""
        token, shared, asked = os.urandom(TOKEN_BYTES), len(jobs) > 1, jobs
        try:
            asked = yield from self._believed(jobs)
            sent = self._clock.steady()
            lease = run.lease(sent)
            wants = [
                Want(key, job.rule.window, job.version, job.rule.refresh, shared) for job in asked for key in job.keys
            ]
            answers = (yield Call(self._told.claim, wants, token, lease)) if wants else []
            won, lost = self._take(batch, asked, iter(answers), token, sent + lease, run)
            runnable, unrun, suspects, held = self._sort(jobs, won, run.attempts, shared=shared)
            yield from self._give_back(unrun + lost, token)
            batch.drop(key for job in unrun for key in job.keys)
            yield from self._run(batch, runnable, token, run)
        except StoreError as error:  # of the claim: the other steps deal with theirs
            if error.retryable and not isinstance(error, StoreBusy):  # it may have claimed, with only its answer lost
                yield from self._give_back(asked, token)
            unanswered = {*_unanswered(asked, error)}
            yield from self._without_store(batch, _not_overtaking(unanswered, asked), run, error)
            answered = _not_behind(unanswered | {*jobs} - {*asked}, jobs)
            return (yield from self._claim_and_run(batch, answered, run)) if answered else ([], [])
        except BaseException:  # whatever the claim did, the token undoes it
            yield from self._interrupted(batch, jobs, token, run.work)
            raise
        return suspects, held

    def _run(self, batch: Batch, jobs: list[Job], token: Token, run: Run) -> Flow[None]:
        if not jobs:
            return
        yield run.work.step(batch, jobs)
        trouble = yield from self._flush(batch)
        failed = [job for job in jobs if job.error is not None]
        yield from self._give_back(failed, token)
        batch.drop(key for job in failed for key in job.keys)
        for job in jobs:
            self._conclude(batch, job, trouble, run.attempts)

    def _interrupted(self, batch: Batch, jobs: list[Job], token: Token, work: Work) -> Flow[None]:
        """Commit what has taken effect and give the rest back; no trouble of one job is that of another."""
        for job in jobs:
            with _whatever_happens("record what was done"):
                work.settle(batch, job)
        with _whatever_happens("commit what was done"):
            yield from self._flush(batch)
        with _whatever_happens("give claims back"):
            yield from self._give_back([job for job in jobs if not job.finished], token)

    def _flush(self, batch: Batch) -> Flow[StoreError | None]:
        """Commit what waits; the effects have happened, so try again for as long as the claims are ours."""
        for pause in _FLUSH_PAUSES:
            try:
                yield Call(batch.flush)
            except StoreError as error:
                if pause is None or not error.retryable or not batch.waits():
                    return error
                yield Pause(self._clock.sleep, pause)
            else:
                break
        return None

    def _give_back(self, jobs: list[Job], token: Token) -> Flow[None]:
        if not jobs:
            return
        releases = [Release(key, token, job.rule.window, _last_words(job)) for job in jobs for key in job.keys]
        try:
            yield Call(self._told.release, releases)
        except StoreError as error:  # their leases end by themselves
            _log.warning("could not give %d claims back: %s", len(jobs), error)

    def _without_store(self, batch: Batch, jobs: list[Job], run: Run, error: StoreError) -> Flow[None]:
        """The store did not answer: retry later, or run unclaimed where the rule says so."""
        unclaimed = [job for job in jobs if job.rule.on_store_error == "process"]
        for job in jobs:
            job.attempt, job.error, job.waits = 1, None, False
            self._admit(job, None, run.work)
            job.end(OutcomeKind.UNKNOWN, error)
        if unclaimed:
            _log.warning("running %d events without a claim: %s", len(unclaimed), error)
            yield run.work.step(batch, unclaimed)
            for job in unclaimed:
                self._conclude(batch, job, error, run.attempts)

    # --- each step for one job ---

    def _read_all(self, items: Sequence[object]) -> list[Job]:
        return [self._read(item) for item in items]

    def _read(self, item: object) -> Job:
        delivery = item if isinstance(item, Delivery) else None
        job = Job() if delivery is None else Job(delivery.group, delivery.message_id)
        try:
            body = item if delivery is None else _body(delivery)
            event = read_event(body, self._max_bytes)
            if not isinstance(body, _TEXTS):  # a handler may write into it, and whoever gave it will use it again
                event = event.copy()
            job.rule = self._rules.find(event)
            keyed = job.rule.key(event)
            job.take(event, keyed)
            if keyed.since is not None:
                self._check_version(job, keyed.since)
            if job.rule.max_age is not None:
                self._check_age(job, job.rule.max_age)
        except EventRejected as error:
            job.end(OutcomeKind.REJECTED, error)
        except EventExpired as error:
            job.end(OutcomeKind.EXPIRED, error)
        except Exception as error:  # whatever an event does to us, it is kept and the others go on
            _log.exception("an event could not be read")
            job.end(OutcomeKind.REJECTED, EventRejected(f"could not be read: {_text(error)}"))
        return job

    def _check_age(self, job: Job, oldest: int) -> None:
        if job.event.time is None and job.event.tombstone:
            return
        if job.event.time is None:
            raise EventRejected(f"has no time, and rule {job.rule.name!r} has a max_age")
        age = self._clock.utc() - job.event.time.timestamp() * 1000
        if age > oldest:
            raise EventExpired(f"is {age / 1000:.0f} s old, over the max_age of rule {job.rule.name!r}")

    def _check_version(self, job: Job, since: int) -> None:
        """Refuse a version that no clock can have given yet: it would make all that come after it stale."""
        if since > self._clock.utc() + job.rule.ahead_of_clock:
            time = to_datetime(since).isoformat(timespec="seconds")
            raise EventRejected(
                f"{job.rule.rule.version} is {job.version}, which no clock gives before {time}, and would make later "
                f"versions stale; if it is right, give rule {job.rule.name!r} another version_ahead"
            )

    def _believed(self, jobs: list[Job]) -> Flow[list[Job]]:
        """The jobs without those whose count is too far ahead of the last one done: they are rejected."""
        bounded = [job for job in jobs if job.rule.ahead_of_last is not None] if self._bounds_counts else []
        if not bounded:
            return jobs
        try:
            records = yield Call(self._told.peek, [key for job in bounded for key in job.keys])
        except StorePartly as error:  # its answers are of these keys, and not of all that would be claimed
            raise StoreError(str(error)) from error
        found = iter(records)
        for job in bounded:
            self._check_count(job, [next(found) for _ in job.keys])
        return [job for job in jobs if job.outcome is None or job.outcome.kind is not OutcomeKind.REJECTED]

    def _check_count(self, job: Job, records: Sequence[Record | None]) -> None:
        now, ahead, version = self._clock.utc(), job.rule.ahead_of_last, job.version
        live = [record.version for record in records if record is not None and record.until > now]
        last = max((each for each in live if each is not None), default=None)
        if last is not None and ahead is not None and version is not None and version - last > ahead:
            why = (
                f"{job.rule.rule.version} is {version}, and the last one done is {last}, which is further than the "
                f"version_ahead of rule {job.rule.name!r} allows ({ahead}); if it is right, forget the key"
            )
            job.end(OutcomeKind.REJECTED, EventRejected(why))

    def _take(
        self, batch: Batch, jobs: list[Job], answers: Iterator[Answer], token: Token, until: int, run: Run
    ) -> tuple[dict[Job, Won], list[Job]]:
        """Answer what needs no run; the others' claims are ours from now on.

        A job with two keys is won with both; where only one was won, that one is to be given back.
        """
        won: dict[Job, Won] = {}
        lost: list[Job] = []
        ours: list[Key] = []
        for job in jobs:
            answer = next(answers) if len(job.keys) == 1 else _weightiest([next(answers) for _ in job.keys])
            job.error, job.waits = None, False
            if type(answer) is Won:
                won[job] = answer
                ours += job.keys
                continue
            if len(job.keys) > 1:
                lost.append(job)
            if isinstance(answer, Done) and _passed_on(job, answer):
                job.recorded = True  # by an earlier run, after which its carrier sent it again
                won[job] = Won(answer.record.attempts)
            else:
                self._answer(job, answer)
        holds = batch.hold(ours, token, until)
        for job, first in won.items():
            job.attempt, job.outcome = first.attempt, None
            self._admit(job, holds.get(job.keys[-1]), run.work)
        return won, lost

    def _sort(
        self, jobs: list[Job], won: Mapping[Job, Won], attempts: int, *, shared: bool
    ) -> tuple[list[Job], list[Job], list[Job], list[Job]]:
        """Which jobs to run now, which claims to give back unused, which of those to run alone, what waits for that."""
        runnable, unrun, held = [], [], []
        suspects: list[Job] = []
        blocked: set[str | None] = set()  # groups
        alone: set[str | None] = set()  # those that only wait for one to be run alone
        for job in jobs:
            answer = won.get(job)
            if job.group in blocked and answer is not None:
                job.wait()
                unrun.append(job)
                held += [job] if job.group in alone else []
                continue
            if answer is not None and answer.attempt <= attempts and not (shared and answer.suspect):
                runnable.append(job)
                continue
            if answer is not None:
                unrun.append(job)
                self._set_aside(job, answer, suspects, shared=shared)
            if job.group is not None and not job.ended_well:
                blocked.add(job.group)
                alone |= {job.group} if job in suspects else set()
        return runnable, unrun, suspects, held

    def _set_aside(self, job: Job, answer: Won, suspects: list[Job], *, shared: bool) -> None:
        if shared and answer.suspect:
            suspects.append(job)
        else:
            job.attempt = answer.attempt - 1
            job.end(OutcomeKind.FAILED, _gave_up(answer, self._max_attempts), final=True)

    def _answer(self, job: Job, answer: Answer) -> None:
        if isinstance(answer, Done):
            job.done = answer
            record = answer.record
            first, result, not_kept = memo.read(
                job.rule.remember, record.memo, record.done_at, record.attempts, job.content
            )
            job.end(OutcomeKind.DUPLICATE, not_kept, result=result, first=first)
        elif isinstance(answer, Busy):
            until = to_datetime(answer.until).strftime("%Y-%m-%d %H:%M:%S")
            busy = EventBusy(f"another worker is running it; its lease lasts until {until} UTC")
            job.end(OutcomeKind.BUSY, busy, retry_at=answer.until)
        elif not isinstance(answer, Won):
            job.end(
                OutcomeKind.STALE, EventStale(f"version {answer.version} was processed before version {job.version}")
            )

    def _follow(self, copy: Job, leader: Job) -> None:
        """A copy in the same batch shares the fate of the first: done by it, or retried with it."""
        outcome = leader.outcome
        if leader.done is not None:
            self._answer(copy, leader.done)
        elif outcome is not None and outcome.kind is OutcomeKind.PROCESSED:
            first, result, not_kept = memo.read(
                copy.rule.remember, leader.memo, self._clock.utc(), leader.attempt, copy.content
            )
            copy.end(OutcomeKind.DUPLICATE, not_kept, result=result, first=first)
        else:
            copy.outcome = outcome

    def _conclude(self, batch: Batch, job: Job, trouble: StoreError | None, attempts: int) -> None:
        """What became of a job that ran."""
        if job.recorded is None:
            job.recorded = batch.committed.pop(job.key, None)
        if job.error is not None:
            self._conclude_failure(job, job.error, attempts)
        elif job.recorded:
            job.end(OutcomeKind.PROCESSED, result=job.result)
        elif job.recorded is False:
            _log.warning("key %s: another worker took over before the commit", job.key.hex())
            job.end(OutcomeKind.FAILED, LeaseLost("another worker took over before this run could be recorded"))
        elif job.rule.on_store_error == "process":
            job.end(OutcomeKind.PROCESSED, trouble, result=job.result)
        else:
            job.end(OutcomeKind.UNKNOWN, trouble)

    def _conclude_failure(self, job: Job, error: Exception, attempts: int) -> None:
        if job.waits:
            job.end(OutcomeKind.BUSY, error)
        elif isinstance(error, StoreError):
            job.end(OutcomeKind.UNKNOWN, error)
        elif isinstance(error, EventRejected):
            job.end(OutcomeKind.REJECTED, error)
        else:
            last = job.attempt >= attempts and not isinstance(error, _BLAMELESS)
            job.end(OutcomeKind.FAILED, error, final=last, retry_at=getattr(error, "retry_at", None))

    def _foresee(self, job: Job) -> None:
        now, want = self._clock.utc(), Want(job.key, job.rule.window, job.version)
        records = self._told.peek(job.keys)
        self._check_count(job, records)
        if job.outcome is not None:
            return
        answers = [protocol.claim(record, want, b"", self._lease, now)[0] for record in records]
        answer = _weightiest(answers)
        if not isinstance(answer, Won):
            self._answer(job, answer)
        elif answer.attempt > self._max_attempts:
            self._set_aside(job, answer, [], shared=False)
        else:
            job.attempt = answer.attempt
            job.end(OutcomeKind.PROCESSED)

    def _admit(self, job: Job, hold: Hold | None, work: Work) -> None:
        """It may run now."""
        job.hold = hold
        if work.tells:
            job.context = Context(
                job.attempt, job.event.replay, job.key, job.version, hold, self._store, self._clock, work.is_async
            )


@contextmanager
def _whatever_happens(what: str) -> Iterator[None]:
    """Go on after an error: another one is on its way up, and it must arrive."""
    try:
        yield
    except Exception:
        _log.exception("could not %s after an interruption", what)


def _bytes_of(item: object) -> int:
    """How long an event is, as far as that is known without reading it."""
    if isinstance(item, Delivery):
        return max(len(item.body), _bytes_of(item.event))
    if isinstance(item, Event):
        return len(item.raw)
    return len(item) if isinstance(item, bytes | str) else 0


def _body(delivery: Delivery) -> bytes | Event:
    if delivery.unreadable is not None:
        raise EventRejected(delivery.unreadable)
    return delivery.body if delivery.event is None else delivery.event


def _unanswered(jobs: list[Job], error: StoreError) -> list[Job]:
    """The jobs of which some key was not answered; that is all of them, unless some servers of the store did answer."""
    if not isinstance(error, StorePartly):
        return jobs
    answers = iter(error.answers)
    return [job for job in jobs if None in [next(answers) for _ in job.keys]] or jobs


def _not_overtaking(unanswered: set[Job], jobs: list[Job]) -> list[Job]:
    """Those without an answer; but one that would run now, and ahead of others in its group that have one, waits."""
    answered: set[str] = set()
    first: list[Job] = []
    for job in jobs:
        if job not in unanswered:
            answered |= {job.group} if job.group is not None else set()
        elif job.group in answered and job.rule.on_store_error == "process":
            job.wait()
        else:
            first.append(job)
    return first


def _not_behind(ended: set[Job], jobs: list[Job]) -> list[Job]:
    """The other jobs; those behind one in their group that has not ended well wait."""
    stopped: set[str] = set()
    others: list[Job] = []
    for job in jobs:
        if job in ended:
            stopped |= {job.group} if job.group is not None and not job.ended_well else set()
        elif job.group in stopped:
            job.wait()
        else:
            others.append(job)
    return others


def _behind_failure(job: Job, jobs: list[Job]) -> bool:
    """Whether one before it in its group has not ended well."""
    before = jobs[: jobs.index(job)] if job.group is not None else ()
    return any(other.group == job.group and not other.ended_well for other in before)


def _passed_on(job: Job, done: Done) -> bool:
    """Whether it was this very message that was passed on, so that it must pass again."""
    return job.mark is not None and memo.message_id(done.record.memo) == job.mark


def _ended(job: Job) -> Outcome:
    assert job.outcome is not None  # every path through the steps ends a job
    return job.outcome


def _seen(item: object, job: Job) -> Seen:
    return Seen(job.event, _ended(job), item.origin if isinstance(item, Delivery) else {})


def _weightiest(answers: list[Answer]) -> Answer:
    """What the answers to all keys of one job come to: done or stale under any of them, else busy, else won.

    If won, with the attempts of the key that has seen more of them.
    """
    return min(answers, key=lambda answer: (_WEIGHTS[type(answer)], _trials(answer)))


def _trials(answer: Answer) -> tuple[bool, int]:
    """Smaller with more behind it."""
    return (not answer.suspect, -answer.attempt) if isinstance(answer, Won) else (False, 0)


def lease_of(value: str | float) -> int:
    """A lease as someone has written it."""
    lease = duration(value, "lease")
    if not lease:
        raise ConfigError("lease: 0 would let every worker take over every claim at once")
    if lease > LONGEST_LEASE:
        raise ConfigError(
            f"lease: {value} is longer than a day; a worker that lives extends its leases, so write one like 60s or 10m"
        )
    return lease


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name}: {value!r} is below 1")
    return value


def _value(outcome: Outcome) -> Any:
    """What a decorated handler returns or raises for an outcome."""
    if outcome.error is not None and outcome.kind is not OutcomeKind.PROCESSED:
        raise outcome.error
    return outcome.result


def _gave_up(answer: Won, most: int) -> TooManyAttempts:
    last = f"the last one ended with {answer.error}" if answer.error else "its worker died each time"
    return TooManyAttempts(f"failed {most} times; {last}")


def _last_words(job: Job) -> str | None:
    """The error to remember of a failed attempt; None where the event is not to blame."""
    blameless = job.error is None or job.waits or isinstance(job.error, _BLAMELESS)
    return None if blameless else _text(job.error)


def _text(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {describe(error)}"[:_LONGEST_ERROR]
