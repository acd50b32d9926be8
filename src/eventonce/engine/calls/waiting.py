"""Waiting: a call whose key runs already in this process follows that run.

The first call of a key **leads**: it goes through the steps. The others **wait** for its end and take it over, failed
or not, so that many callers make one attempt. Only a run that was cancelled, or that lost its claim, hands over to one
of them. The run of another process is waited for by the leader alone, in the steps: it looks again until its deadline.

Nothing here holds a lock while it calls anything, and a leader waits for nobody before its own runs have ended.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple
from weakref import ReferenceType, ref

from msgspec import structs

from eventonce.engine.context import runs_here
from eventonce.engine.drivers import StoreCalls
from eventonce.engine.jobs import Ended, Job, RefusedEvent
from eventonce.errors import ConfigError, EventBusy, LeaseLost
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Store

MAX_THREADS = 8  # that wait at a time: more could take all threads of a pool in which a leader needs one

Ends = Sequence["End"]  # how the calls of one key ended, the leader first; empty if they hand over


class End(NamedTuple):
    """How a call ended, for those that take it over. Its caller adds frames and notes to the error that it gets."""

    ended: Ended
    error: BaseException | None  # as it was then
    traceback: TracebackType | None  # of the error then

    def own(self, ended: Ended) -> Ended:
        """Return how a call ended that took this end over, with an error of its own."""
        if self.error is None or ended.outcome.error is not self.ended.outcome.error:
            return ended
        error = copy_of(self.error)
        if error is self.error:
            error.__traceback__ = self.traceback  # all of them raise this one, and each begins with this traceback
        return structs.replace(ended, outcome=structs.replace(ended.outcome, error=error))


def end_of(ended: Ended) -> End:
    """Return how a call ended, before its caller adds anything to its error."""
    error = ended.outcome.error
    return End(ended, None, None) if error is None else End(ended, copy_of(error), error.__traceback__)


def copy_of(error: BaseException) -> BaseException:
    """Return an equal error with the same traceback and causes, or the error itself if it cannot be copied."""
    other = _copied(_without_init, error) or _copied(copy.copy, error)
    if other is None:
        return error
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        other.__notes__ = list(error.__notes__)
    return other.with_traceback(error.__traceback__)


def _copied(make: Callable[[BaseException], BaseException], error: BaseException) -> BaseException | None:
    try:
        other = make(error)
        is_equal = type(other) is type(error) and (other.args, str(other)) == (error.args, str(error))
    except Exception:  # whatever its class does to us
        return None
    return other if is_equal else None


def _without_init(error: BaseException) -> BaseException:
    other = type(error).__new__(type(error), *error.args)
    vars(other).update(vars(error))
    return other


class LeadingRun:
    """The run of one key. Who waits for it has its future only, so one that is lost without an end hands over."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.future: Future[Ends] | None = None  # once somebody waits

    def end(self, ends: Ends) -> None:
        """Pass the end on to those that wait."""
        if self.future is not None and not self.future.done():
            self.future.set_result(ends)

    def __del__(self) -> None:
        self.end(())


class RunningCalls:
    """The keys of calls that run in this process, through one `Once`. If they are not shared, nobody waits."""

    def __init__(self, store: Store, *, shared: bool = True) -> None:
        self._store = store
        self._shared = shared
        self._lock = threading.Lock()
        self._runs: dict[Key, ReferenceType[LeadingRun]] = {}
        self._threads = 0  # that wait
        register_for_forks(self)

    def lead(self, job: Job) -> LeadingRun | None:
        """Lead the runs of a key. Return None if a call of this key runs already."""
        run = LeadingRun(job.key)
        if not self._shared:
            return run
        with self._lock:
            entered = self._runs.get(job.key)
            if entered is not None and entered() is not None:
                return None
            self._runs[job.key] = ref(run)
        return run

    def leave(self, run: LeadingRun, ended: Iterable[Ended | RefusedEvent]) -> None:
        """End the runs of a key, and pass on how its calls ended."""
        with self._lock:
            entered = self._runs.get(run.key)
            if entered is not None and entered() is run:
                del self._runs[run.key]
        if run.future is not None:
            ours = (end for end in ended if isinstance(end, Ended) and run.key == end.job.key)
            run.end([end_of(end) for end in ours if _has_ended(end)])

    def wait(self, job: Job, timeout: int) -> "WaitForRun | None":
        """Return the step that waits for the run of a job's key, or None if it has ended meanwhile."""
        with self._lock:
            entered = self._runs.get(job.key)
            run = None if entered is None else entered()
            if run is None:
                return None
            if run.future is None:
                run.future = Future()
                run.future.set_running_or_notify_cancel()  # so that nobody who waits can cancel it
            return WaitForRun(self, job.rule.name, run.future, timeout)

    def refuse_own(self, jobs: Iterable[Job]) -> bool:
        """Raise `ConfigError` if the calling code is part of a run of one of these keys, which it would wait for.

        Return whether it may wait for others. A run with an open transaction must not: others may wait for that.
        """
        may_wait = True
        for context in runs_here():
            for job in jobs:
                if self._shared and context.is_run_of(job.keys, self._store):
                    raise ConfigError(
                        f"{job.rule.name} is called with the key that the calling code runs under, so it would wait "
                        "for itself; call its plain function, or with another key"
                    )
            may_wait = may_wait and context.transaction is None
        return may_wait

    def enter_thread(self) -> None:
        """Count a thread that waits. Raise `EventBusy` if too many do."""
        with self._lock:
            if self._threads >= MAX_THREADS:
                raise EventBusy(f"{MAX_THREADS} threads of this process wait for calls already")
            self._threads += 1

    def leave_thread(self) -> None:
        with self._lock:
            self._threads -= 1

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # the runs are the parent's
            self._runs = {}
            self._threads = 0
        self._lock.release()


class WaitForRun:
    """The step that waits for the run of a key. It raises `EventBusy` if that takes too long."""

    def __init__(self, calls: RunningCalls, name: str, future: "Future[Ends]", timeout: int) -> None:
        self._calls = calls
        self._name = name
        self._future = future
        self._timeout = timeout / 1000

    def run(self, store: StoreCalls) -> Ends:
        """Wait in this thread."""
        self._calls.enter_thread()
        try:
            return self._future.result(self._timeout)
        except TimeoutError:
            raise self._busy() from None
        finally:
            self._calls.leave_thread()

    async def run_async(self, store: StoreCalls) -> Ends:
        """Wait in this task."""
        import asyncio

        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._future), self._timeout)
        except TimeoutError:
            raise self._busy() from None

    def _busy(self) -> EventBusy:
        return EventBusy(f"a call of {self._name} with its key is still running")


def _has_ended(ended: Ended) -> bool:
    """Return whether others take this end over. Who lost the claim does not know how its run ended."""
    return not isinstance(ended.outcome.error, LeaseLost)
