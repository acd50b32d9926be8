"""Batching: events sent in as few calls as possible, in the order of their groups, and retried if that may help."""

from collections.abc import Iterable, Sequence

from eventonce.backoff import jitter
from eventonce.clock import Clock
from eventonce.errors import EventRejected, SinkDown, SinkError, SinkUnusable
from eventonce.event import Event
from eventonce.event.groups import GroupQueue, Stops
from eventonce.ports import BatchEntry, BatchRefused, CallLimits, Carrier, EntryAccepted, EntryRefusal

MAX_ATTEMPTS = 4  # for one event in one `send`; after that the engine retries it
_FIRST_PAUSE = 250
_LONGEST_PAUSE = 20_000

# --- a job ---

NO_RESULT = EntryRefusal("NoAnswer", "the service returned no result")


class SendJob:
    """One event on its way into a call that takes several, and the result of sending it."""

    __slots__ = ("_key", "attempts", "entry", "error", "event", "group", "result")

    def __init__(self, event: Event, key: str = "", group: str | None = None) -> None:
        self.event = event
        self._key = key
        self.group = group  # if the caller names one; else the carrier finds it in the event
        self.entry = BatchEntry({}, 0)
        self.attempts = 0
        self.error: EventRejected | SinkError | None = None  # of the last attempt
        self.result: EntryAccepted | EventRejected | SinkError | None = None  # None while it may be sent

    @property
    def key(self) -> str:
        """The idempotency key, the same at every attempt."""
        return self._key

    def next_event(self) -> Event:
        """Return the event as the next attempt carries it."""
        return self.event


# --- order ---


class SendQueue:
    """Jobs to send. Groups do not wait for each other, and jobs without a group wait for none.

    A refused event has not failed: nothing will ever come of it, so the next one of its group goes.
    """

    def __init__(self, jobs: Iterable[SendJob]) -> None:
        self._queue = GroupQueue(_sendable(jobs), lambda job: job.entry.group)
        self._later: list[SendJob] = []

    def __bool__(self) -> bool:
        return bool(self._queue.free or self._later)

    def next_call(self, limits: CallLimits) -> list[SendJob]:
        """Return the jobs of the next call. No two are of one group: the second could get through without the first."""
        call: list[SendJob] = []
        size = 0
        free = self._queue.free
        while free and len(call) < limits.entries:
            size += free[0].entry.size
            if call and size > limits.together:
                break
            call.append(free.popleft())
        return call

    def settle(self, job: SendJob) -> None:
        """Move a job on after its call: without a result into the next pass, else let the next of its group go."""
        if job.result is None:
            self._later.append(job)
        else:
            _hold_back(self._queue.ended(job, well=not isinstance(job.result, SinkError)))

    def next_pass(self) -> list[SendJob]:
        """Start another pass. The jobs that this one left without a result come first."""
        repeated, self._later = self._later, []
        self._queue.free.extendleft(reversed(repeated))
        return repeated

    def remaining(self) -> list[SendJob]:
        """Return all that was not sent."""
        return [*self._later, *self._queue.waiting()]


def _sendable(jobs: Iterable[SendJob]) -> list[SendJob]:
    """Return the jobs that may be sent. One that could not be written holds back those behind it in its group."""
    stops = Stops()
    sendable: list[SendJob] = []
    for position, job in enumerate(jobs):
        if job.result is None and stops.hold_back(job.group, position):
            _hold_back([job])
        elif job.result is None:
            sendable.append(job)
        elif isinstance(job.result, SinkError):
            stops.stop(job.group, position)
    return sendable


def _hold_back(jobs: Sequence[SendJob]) -> None:
    for job in jobs:
        job.result = SinkDown("was not sent: an earlier event in its group failed")


# --- sending ---


class BatchSender:
    """Sends jobs until each has its result.

    A pass sends each job once, in the order of its group. A pause follows, and then a pass of the jobs that a retry may
    help. A refusal of a whole call ends the pass.
    """

    patient = False  # whether to wait if a whole call fails; else its error is the result of all jobs

    def __init__(self, carrier: Carrier, clock: Clock, max_attempts: int) -> None:
        self._carrier = carrier
        self._clock = clock
        self._max_attempts = max_attempts
        self._settled = 0  # jobs that have their result

    def run(self, jobs: Sequence[SendJob]) -> None:
        """Give each job its result."""
        for job in jobs:
            self._write(job)
        self._on_refused([job for job in jobs if job.result is not None])
        queue = SendQueue(jobs)
        error, stalls = None, 0
        while queue:
            settled = self._settled
            error = self._pass(queue)
            stalls = 0 if self._settled > settled else stalls + 1
            if error is not None and not self._waits_out(error, stalls, queue):
                break
            if queue:
                self._clock.sleep(pause(max(stalls, 1)))
        for job in queue.remaining():
            job.result = job.result or job.error or error

    # --- what a publisher does in its own way ---

    def _on_refused(self, jobs: Sequence[SendJob]) -> None:
        """Handle jobs that will never be sent."""

    def _judge(self, refusal: EntryRefusal) -> EventRejected | SinkError:
        return self._carrier.judge(refusal)

    # --- one pass ---

    def _waits_out(self, error: SinkError, stalls: int, queue: SendQueue) -> bool:
        limit = self._max_attempts
        exhausted = stalls >= limit or any(job.attempts >= limit for job in queue.remaining())
        return self.patient and not isinstance(error, SinkUnusable) and not exhausted

    def _pass(self, queue: SendQueue) -> SinkError | None:
        """Send what can be sent now. Return the error that ended the pass, if any."""
        for job in queue.next_pass():
            self._write(job)
        try:
            self._carrier.ready()
            while call := queue.next_call(self._carrier.limits):
                self._call(call, queue)
        except SinkError as error:
            return error
        return None

    def _call(self, call: list[SendJob], queue: SendQueue) -> None:
        try:
            if unsettled := [job for job in call if job.result is None]:
                self._send(unsettled)
        finally:
            self._on_refused([job for job in call if isinstance(job.result, EventRejected)])
            for job in call:
                self._settled += job.result is not None
                queue.settle(job)

    def _send(self, jobs: list[SendJob]) -> None:
        """Make a call and note its results. Raise an error that ends the pass."""
        for job in jobs:
            job.attempts += 1
        try:
            results = self._carrier.put([job.entry for job in jobs])
        except BatchRefused as refused:
            if len(jobs) > 1:
                self._send_one_by_one(jobs)
                return
            results = [refused.refusal]
        except SinkError as error:
            for job in jobs:
                job.error = error
            raise
        self._note_all(jobs, results)

    def _send_one_by_one(self, jobs: list[SendJob]) -> None:
        """Send each job alone: one of them is to blame, and the others must not fail with it."""
        denied: dict[SendJob, SinkUnusable] = {}
        for job in jobs:
            self._write(job)
            if job.result is not None:
                continue
            try:
                self._send([job])
            except SinkUnusable as error:
                denied[job] = error
        if denied and not any(isinstance(job.result, EntryAccepted) for job in jobs):
            raise next(iter(denied.values()))
        for job, denial in denied.items():
            job.result = EventRejected(f"was refused while others were accepted: {denial}")
            job.result.code = denial.code

    def _note_all(self, jobs: list[SendJob], results: Sequence[EntryAccepted | EntryRefusal]) -> None:
        for job, result in zip(jobs, results, strict=True):
            self._note(job, result)
        for job in jobs:
            if isinstance(job.result, SinkUnusable):
                raise job.result
        down = [job.error for job in jobs if isinstance(job.error, SinkDown)]
        if self.patient and len(down) == len(jobs):  # as good as a refusal of the whole call
            for job in jobs:
                job.result = None
            raise down[0]

    def _note(self, job: SendJob, result: EntryAccepted | EntryRefusal) -> None:
        if isinstance(result, EntryAccepted):
            job.result, job.error = result, None
            return
        job.error = self._judge(result)
        if isinstance(job.error, EventRejected | SinkUnusable) or job.attempts >= self._max_attempts:
            job.result = job.error

    def _write(self, job: SendJob) -> None:
        """Make the entry of a job for its next attempt."""
        if job.result is not None:
            return
        try:
            job.entry = self._carrier.entry(job)
        except EventRejected as error:
            job.result = error


def pause(attempts: int) -> int:
    """Return the milliseconds to wait after a number of attempts."""
    return jitter(min(_FIRST_PAUSE * 2 ** min(attempts - 1, 10), _LONGEST_PAUSE))


def raise_if_unusable(results: Sequence[Exception | None]) -> Sequence[Exception | None]:
    """Return these results. Raise instead if nothing was sent and nothing can be.

    What was sent must be recorded, or it would be sent twice. Then the error is the result of the others only.
    """
    unusable = next((result for result in results if isinstance(result, SinkUnusable)), None)
    if unusable is not None and None not in results:
        raise unusable
    return results
