"""The order of a batch: the one home of everything that makes one event wait for another.

- **Groups.** Nothing runs behind one of its group that did not end well (was not acknowledged).
- **Copies.** The first of each key runs, and its copies end as it did. Another version of the key waits for it.
- **Suspects.** What may have killed a worker is claimed again alone, so that it takes nothing else with it.
- **Busy keys.** What another worker runs is claimed again after a pause, for as long as we may wait.

A batch is worked off in turns. A turn is claimed, run and committed together. Then the next one is chosen from what
still waits, in order of arrival. The first job that waits never waits for another one of the batch, so there is an end.

Nothing here calls a store or a handler: decisions go in, turns come out.
"""

import os
from collections.abc import Iterable, Sequence

import msgspec

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.claims.protocol import TOKEN_BYTES, Token
from eventonce.clock import Clock
from eventonce.engine import endings
from eventonce.engine.jobs import Chain, Decision, Deferred, Ended, Job, RefusedEvent, Runnable, Turn, ended_well
from eventonce.event.groups import Stops, chains
from eventonce.event.keys import Key

_FIRST_PAUSE, _LONGEST_PAUSE = 10, 250  # milliseconds between looks at a busy key


class RunLimits(msgspec.Struct, frozen=True, eq=False):
    """How many attempts there are, how long claims live, and how long to wait for a busy key (milliseconds).

    With `ends`, claims live until then and are not extended: those of a Lambda function end with its time.
    """

    max_attempts: int
    lease: int
    busy_wait: int
    ends: int | None = None

    def lease_from(self, now: int) -> int:
        """Return how long a claim that is made now lives."""
        return self.lease if self.ends is None else max(self.ends - now, 1)

    def deadline_from(self, now: int) -> int:
        """Return until when to wait for a busy key: well before our own claims end, so that time to respond remains."""
        deadline = now + self.busy_wait
        return deadline if self.ends is None else min(deadline, now + (self.ends - now) // 2)


class Order:
    """The events of one batch: which of them wait, and how the others ended."""

    def __init__(
        self,
        arrived: Sequence[Job | RefusedEvent],
        limits: RunLimits,
        stops: Stops,
        clock: Clock,
        token: Token | None = None,
    ) -> None:
        self._arrived = arrived
        self._limits = limits
        self._stops = stops  # of groups, for the whole call
        self._clock = clock
        self._token = token  # of the first turn, if that is claimed already
        self._ended: dict[int, Ended | RefusedEvent] = {}  # by position
        self._waiting = [job for job in arrived if type(job) is Job]
        self._more_wait = False  # than the jobs of the current turn
        self._firsts: dict[Key, Ended] = {}  # the latest end of each key, while others wait
        self._suspects: set[Job] = set()
        self._busy: dict[Job, Ended] = {}  # with the end it has if we wait no longer
        self._deadline: int | None = None  # of waiting for busy keys
        self._pause = _FIRST_PAUSE
        self._has_groups = bool({job.group for job in self._waiting} - {None})
        self.remaining = len(self._waiting)  # jobs that have not ended
        if self.remaining < len(arrived):
            self._refuse([refused for refused in arrived if isinstance(refused, RefusedEvent)])

    def next_turn(self) -> Turn | None:
        """Return what goes next, or None at the end of the batch."""
        if not self._busy:
            self._deadline = None
        while self.remaining:
            free, pause = self._free(), 0
            if not free and self._busy:
                pause = self._next_pause()
                busy, self._busy = self._busy, {}
                if not pause:  # we wait no longer
                    self.end(busy.values())
                    continue
                free = self._free()
            if self._suspects and (suspect := next((job for job in free if job in self._suspects), None)):
                free = [suspect]
            if free:
                token, self._token = self._token or os.urandom(TOKEN_BYTES), None
                return Turn(free, token, pause)
        return None

    def admit(self, decisions: Sequence[Decision]) -> list[Chain]:
        """Take in what the store's answers to a turn mean. Return what runs now: of each group, one after another.

        Behind one of its group that does not run now and has not ended well, a job goes on waiting.
        """
        runnable = [decision for decision in decisions if type(decision) is Runnable]
        if len(runnable) < len(decisions):
            stops = self._put_off([decision for decision in decisions if not isinstance(decision, Runnable)])
            runnable = [each for each in runnable if not _is_stopped(each.job, stops)]
        return chains(runnable, _group) if self._has_groups else [[each] for each in runnable]

    def end(self, ended: Iterable[Ended]) -> None:
        """Take in how jobs of the turn have ended. Their copies end in the same way."""
        for end in ended:
            if self._more_wait:
                for key in end.job.keys:
                    self._firsts[key] = end
            self._end(end)

    def ended(self) -> list[Ended | RefusedEvent]:
        """Return how each event ended, in order of arrival."""
        return [self._ended[event.position] for event in self._arrived]

    # --- what makes one wait for another ---

    def _put_off(self, decisions: Sequence[Deferred | Ended]) -> Stops:
        """End or defer the jobs of a turn that do not run now. Return the groups that they stop in this turn."""
        ended: list[Ended] = []
        stops = Stops()
        for decision in decisions:
            job = decision.job
            if isinstance(decision, Deferred):
                if decision.alone:
                    self._suspects.add(job)
                stops.stop(job.group, job.position)
            elif decision.outcome.kind is OutcomeKind.BUSY and decision.outcome.retry_at is not None:
                self._wait_for(decision)
                stops.stop(job.group, job.position)
            else:
                ended.append(decision)
                if job.group is not None:
                    _stop(stops, job, decision.outcome)
        self.end(ended)
        return stops

    def _free(self) -> list[Job]:
        """Return the jobs that wait for no other one, in order of arrival. End those whose end another decides."""
        free: list[Job] = []
        waiting: list[Job] = []
        leaders: dict[Key, Job] = {}  # of each key, the one that its copies wait for
        blocked: set[str | None] = set()  # groups with one that waits
        some_ended = self._stops or self._firsts
        some_wait = self._busy or self._suspects
        for job in self._waiting:
            leader = leaders.get(job.key) or leaders.get(job.keys[-1])  # it has one key or two
            if job.position in self._ended or (some_ended and self._ends_by_another(job, leader)):
                continue
            waiting.append(job)
            if job.group is not None and job.group in blocked:
                continue
            if leader is None:
                for key in job.keys:
                    leaders[key] = job
            if leader is None and not (some_wait and self._must_wait(job, free)):
                free.append(job)
            elif leader is None or not _ends_with(job, leader):
                blocked.add(job.group)
        self._waiting, self._more_wait = waiting, len(waiting) > len(free)
        return free

    def _must_wait(self, job: Job, free: Sequence[Job]) -> bool:
        """Return whether a job is busy elsewhere, or must run alone while another of its group goes first."""
        if job in self._busy:
            return True
        return job in self._suspects and job.group is not None and any(job.group == other.group for other in free)

    def _ends_by_another(self, job: Job, leader: Job | None) -> bool:
        """End a copy as its first has ended, or a job behind one of its group that did not end well.

        A copy whose `leader` has not ended waits with it, unless it is done already under its other key.
        """
        is_copy = leader is not None and leader.version == job.version
        first = self._first_of(job)
        ended = None
        if first is not None and (not is_copy or ended_well(first.outcome)):
            ended = endings.follow(job, first, self._clock.utc())
        if ended is None and not is_copy and _is_stopped(job, self._stops):
            ended = endings.behind(job)
        if ended is not None:
            self._end(ended)
        return ended is not None

    def _first_of(self, job: Job) -> Ended | None:
        """Return the end that a copy takes over. If its two keys have two, that is the one that ended well."""
        firsts = [first for key in job.keys if (first := self._firsts.get(key)) and first.job.version == job.version]
        return next((first for first in firsts if ended_well(first.outcome)), firsts[0] if firsts else None)

    def _wait_for(self, busy: Ended) -> None:
        """Look again at a job that is busy elsewhere, until the deadline."""
        self._busy[busy.job] = busy
        if self._deadline is None:
            self._deadline, self._pause = self._limits.deadline_from(self._clock.steady()), _FIRST_PAUSE

    def _next_pause(self) -> int:
        """Return how long to wait now for busy keys. 0 means that the deadline has passed."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        remaining = 0 if self._deadline is None else self._deadline - self._clock.steady()
        return max(0, min(pause, remaining))

    def _end(self, ended: Ended) -> None:
        job = ended.job
        assert job.position not in self._ended  # ended twice, a job would be counted twice in `remaining`
        self._ended[job.position] = ended
        self.remaining -= 1
        if self._busy:
            self._busy.pop(job, None)
        if job.group is not None:
            _stop(self._stops, job, ended.outcome)

    def _refuse(self, refused: Iterable[RefusedEvent]) -> None:
        for event in refused:
            self._ended[event.position] = event
            _stop(self._stops, event, event.outcome)


def _stop(stops: Stops, event: Job | RefusedEvent, outcome: Outcome) -> None:
    """Stop the group of an event that did not end well."""
    if not ended_well(outcome):
        # A dead letter does not hold up the other events of its message, which are settled with it.
        message = event.message if outcome.action is Action.DEAD_LETTER else None
        stops.stop(event.group, event.position, message)


def _is_stopped(job: Job, stops: Stops) -> bool:
    return stops.hold_back(job.group, job.position, job.message)


def _ends_with(job: Job, leader: Job) -> bool:
    """Return whether a copy certainly ends well if its leader does, so that its group need not wait for it."""
    return leader.group == job.group and leader.version == job.version and job.message_id is None


def _group(runnable: Runnable) -> str | None:
    return runnable.job.group
