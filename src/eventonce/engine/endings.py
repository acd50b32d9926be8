"""How a job can end: one function for each case, and only these make outcomes."""

from collections.abc import Sequence

from eventonce.claims.outcome import FirstCopy, Outcome, OutcomeKind
from eventonce.claims.protocol import Busy, Done, Record, Stale, Won
from eventonce.clock import to_datetime
from eventonce.engine.jobs import Effect, Ended, Failure, Job
from eventonce.errors import (
    EventBusy,
    EventExpired,
    EventInvalid,
    EventRejected,
    EventStale,
    EventUnrouted,
    LeaseLost,
    SinkDown,
    StoreError,
    TooManyAttempts,
    describe,
)
from eventonce.event.keys import Key
from eventonce.rules import CompiledRule
from eventonce.text import counted

_LONGEST_ERROR = 500
# Not caused by the event, or the handler has not begun, so not an attempt of it.
_BLAMELESS = (StoreError, LeaseLost, SinkDown, EventInvalid, EventBusy)


# --- before the claim ---


def refused(error: EventRejected | EventExpired, rule: CompiledRule | None, key: Key | None) -> Outcome:
    """Return the outcome of an event that is unreadable, unrouted, too old, or has no key or an impossible version."""
    if isinstance(error, EventUnrouted):
        return Outcome(kind=OutcomeKind.UNROUTED, error=error, final=not error.skipped)
    kind = OutcomeKind.EXPIRED if isinstance(error, EventExpired) else OutcomeKind.REJECTED
    return Outcome(kind=kind, key=key, rule=None if rule is None else rule.name, error=error)


def behind(job: Job) -> Ended:
    """End a job that does not run, because an earlier event of its group did not end well."""
    return Ended(job, _outcome(job, OutcomeKind.BUSY, EventBusy("an earlier event in its group has not finished")))


def too_far_ahead(job: Job, records: Sequence[Record | None], now: int) -> Ended | None:
    """End a job whose version counts too far beyond the last one done. Return None if it does not."""
    rule = job.rule
    done = [record.version for record in records if record is not None and record.until > now]
    last = max((version for version in done if version is not None), default=None)
    if last is None or job.version is None or rule.ahead_of_last is None or job.version - last <= rule.ahead_of_last:
        return None
    reason = (
        f"{rule.rule.version} is {job.version}, and the last one done is {last}, which is further than the "
        f"version_ahead of rule {rule.name!r} allows ({rule.ahead_of_last}); if it is right, forget the key"
    )
    return Ended(job, _outcome(job, OutcomeKind.REJECTED, EventRejected(reason)))


# --- by the answer to the claim ---


def not_won(job: Job, answer: Done | Busy | Stale) -> Ended:
    """End a job that does not run, because of what the store remembers of its key."""
    if isinstance(answer, Done):
        return duplicate(job, answer)
    return busy(job, answer) if isinstance(answer, Busy) else stale(job, answer)


def duplicate(job: Job, done: Done) -> Ended:
    """End a job that was done before."""
    record = done.record
    return Ended(job, _remembered(job, record.memo, record.done_at, record.attempts), done)


def busy(job: Job, answer: Busy) -> Ended:
    """End a job that another worker is running."""
    until = to_datetime(answer.until).strftime("%Y-%m-%d %H:%M:%S")
    error = EventBusy(f"another worker is running it; its lease lasts until {until} UTC")
    return Ended(job, _outcome(job, OutcomeKind.BUSY, error, retry_at=answer.until))


def still_running(job: Job, error: EventBusy) -> Ended:
    """End a call that does not run, because one with its key runs in this process and it may wait no longer."""
    return Ended(job, _outcome(job, OutcomeKind.BUSY, error))


def stale(job: Job, answer: Stale) -> Ended:
    """End a job of which a newer version was done before."""
    error = EventStale(f"version {answer.version} was processed before version {job.version}")
    return Ended(job, _outcome(job, OutcomeKind.STALE, error))


def used_up(job: Job, answer: Won) -> Ended:
    """End a job that has no attempt left."""
    attempts = answer.attempt - 1  # a redrive may have added some
    last = f"the last one ended with {answer.error}" if answer.error else "its worker died each time"
    error = TooManyAttempts(f"failed {counted(attempts, 'time')}; {last}")
    return Ended(job, _outcome(job, OutcomeKind.FAILED, error, attempt=attempts, final=True))


def unknown(job: Job, error: StoreError) -> Ended:
    """End a job that did not run, because the store did not answer."""
    return Ended(job, _outcome(job, OutcomeKind.UNKNOWN, error, attempt=1))


# --- by the run ---


def processed(effect: Effect, memory: bytes | None = None) -> Ended:
    """End a job that ran and is recorded."""
    runnable = effect.runnable
    job = runnable.job
    outcome = Outcome(
        kind=OutcomeKind.PROCESSED, key=job.key, rule=job.rule.name, result=effect.result, attempt=runnable.attempt
    )
    return Ended(job, outcome, None, memory)


def unclaimed(effect: Effect, basis: Done | StoreError, memory: bytes | None) -> Ended:
    """End a job that ran without a claim: an earlier run is recorded, or the store did not answer."""
    return processed(effect, memory) if isinstance(basis, Done) else unrecorded(effect, basis, memory)


def unrecorded(effect: Effect, error: StoreError | None, memory: bytes | None) -> Ended:
    """End a job that ran, and whose record the store did not confirm. By default it comes back, and may run again."""
    runnable = effect.runnable
    job = runnable.job
    if job.rule.on_store_error != "process":
        return Ended(job, _outcome(job, OutcomeKind.UNKNOWN, error, attempt=runnable.attempt))
    outcome = _outcome(job, OutcomeKind.PROCESSED, error, attempt=runnable.attempt, result=effect.result)
    return Ended(job, outcome, None, memory)


def fenced(effect: Effect) -> Ended:
    """End a job that ran, and that another worker took over before it could be recorded."""
    job, attempt = effect.runnable.job, effect.runnable.attempt
    error = LeaseLost("another worker took over before this run could be recorded")
    return Ended(job, _outcome(job, OutcomeKind.FAILED, error, attempt=attempt))


def failed(failure: Failure, max_attempts: int) -> Ended:
    """End a job whose handler raised, or whose claim was lost before the handler was called."""
    error, job, attempt = failure.error, failure.runnable.job, failure.runnable.attempt
    if isinstance(error, StoreError):
        return Ended(job, _outcome(job, OutcomeKind.UNKNOWN, error, attempt=attempt))
    if isinstance(error, EventInvalid):
        return Ended(job, _outcome(job, OutcomeKind.REJECTED, error, attempt=attempt - 1))
    if isinstance(error, EventRejected):
        return Ended(job, _outcome(job, OutcomeKind.REJECTED, error, attempt=attempt))
    final = attempt >= max_attempts and not isinstance(error, _BLAMELESS)
    retry_at = getattr(error, "retry_at", None)
    return Ended(job, _outcome(job, OutcomeKind.FAILED, error, attempt=attempt, final=final, retry_at=retry_at))


# --- by another job ---


def follow(job: Job, first: Ended, now: int) -> Ended | None:
    """End a copy as the first one in its batch ended: done with it, or retried with it.

    Return None if it is a redelivery, which has to run once more.
    """
    if first.done is not None:
        return None if is_redelivery(job, first.done) else duplicate(job, first.done)
    if first.outcome.kind is OutcomeKind.PROCESSED:
        return Ended(job, _remembered(job, first.memo, now, first.outcome.attempt))
    return Ended(job, first.outcome)


def is_redelivery(job: Job, done: Done) -> bool:
    """Return whether an earlier run passed on this very message, and its carrier failed to pass it further."""
    if job.message_id is None:
        return False
    from eventonce.claims import memo

    return memo.message_id(done.record.memo) == job.message_id


# --- what is remembered of a failure ---


def error_to_remember(error: Exception) -> str | None:
    """Return the error of an attempt, or None if the event did not cause it, so that it counts as no attempt."""
    return None if isinstance(error, _BLAMELESS) else one_line(error)


def one_line(error: BaseException) -> str:
    """Return an error with its class, cut to what records have room for."""
    return f"{type(error).__name__}: {describe(error)}"[:_LONGEST_ERROR]


def _remembered(job: Job, memory: bytes | None, at: int, attempts: int) -> Outcome:
    if memory is None and job.rule.remember != "result":  # nearly always
        first, result, error = FirstCopy(at=to_datetime(at), attempts=attempts), None, None
    else:
        from eventonce.claims import memo

        first, result, error = memo.read(job.rule.remember, memory, at, attempts, job.content, job.restore)
    return Outcome(kind=OutcomeKind.DUPLICATE, key=job.key, rule=job.rule.name, result=result, error=error, first=first)


def _outcome(job: Job, kind: OutcomeKind, error: Exception | None, **more: object) -> Outcome:
    return Outcome(kind=kind, key=job.key, rule=job.rule.name, error=error, **more)  # type: ignore[arg-type]
