"""A job: one event on its way through a batch."""

from typing import Any, cast

import msgspec

from eventonce.claims.outcome import Action, FirstCopy, Outcome, OutcomeKind
from eventonce.claims.protocol import Done
from eventonce.context import Context
from eventonce.errors import EventBusy
from eventonce.event import Event
from eventonce.event.keys import Key
from eventonce.keeper import Hold
from eventonce.rules import CompiledRule, Keyed


class Job(msgspec.Struct, eq=False):
    """One event, what is known of it so far, and in the end its outcome."""

    group: str | None = None
    mark: str | None = None
    event: Event = cast(Any, None)  # as soon as it is known, and so the rule
    rule: CompiledRule = cast(Any, None)
    key: Key = Key(b"")
    keys: tuple[Key, ...] = ()  # it, and the one under the rule that its rule replaces: claimed together
    version: int | None = None
    content: bytes = b""  # its canonical content, where the rule remembers a note of it
    attempt: int = 0
    hold: Hold | None = None  # our claim on it, while it runs
    context: Context | None = None
    done: Done | None = None  # the store's answer, where it was done before
    result: Any = None
    memo: bytes | None = None
    error: Exception | None = None  # how the handler ended
    waits: bool = False  # for one of its group before it
    finished: bool = False  # the effect has happened
    recorded: bool | None = None  # whether the commit was accepted; None while that is not known
    outcome: Outcome | None = None

    def take(self, event: Event, keyed: Keyed) -> None:
        """The event falls under this rule and has this key."""
        self.event = event
        self.rule, self.key, self.version = keyed.rule, keyed.key, keyed.version
        self.keys = keyed.keys
        if self.rule.remember != "seen":
            self.content = self.rule.content(event)

    def end(
        self,
        kind: OutcomeKind,
        error: BaseException | None = None,
        *,
        result: Any = None,
        first: FirstCopy | None = None,
        final: bool = False,
        retry_at: int | None = None,
    ) -> None:
        """This became of it."""
        self.outcome = Outcome(
            kind=kind,
            key=self.key or None,
            rule=self.rule.name if self.rule is not None else None,
            result=result,
            error=error,
            first=first,
            attempt=self.attempt,
            final=final,
            retry_at=retry_at,
        )

    def wait(self) -> None:
        """One of its group before it is not done, so this one is not run."""
        self.waits = True
        self.error = EventBusy("an event of its group before it is not done yet")
        self.end(OutcomeKind.BUSY, self.error)

    @property
    def ended_well(self) -> bool:
        """Whether those behind it in its group may go on."""
        return self.outcome is not None and self.outcome.action is Action.ACK


def split(jobs: list[Job]) -> tuple[list[Job], list[tuple[Job, Job]], list[Job]]:
    """The first job of each key, the copies with the job they follow, and what must wait for another round.

    A job with two keys is a copy where either is known, as it would be in a batch of its own. Another version of a key
    waits for the first. What is behind it in its group waits too, and what is behind a copy whose first is of another
    group.
    """
    first: dict[Key, Job] = {}
    leaders, copies, later = [], [], []
    held: set[str | None] = set()
    for job in jobs:
        leader = first.get(job.key) or first.get(job.keys[-1])  # it has one or two
        if job.group in held or (leader is not None and leader.version != job.version):
            later.append(job)
            held |= {job.group} - {None}
        elif leader is None:
            leaders.append(job)
            for key in job.keys:
                first[key] = job
        else:
            copies.append((job, leader))
            held |= {job.group} - {None, leader.group}
    return leaders, copies, later


def lanes(jobs: list[Job]) -> list[list[Job]]:
    """Jobs that run one after the other: those of one group together, every other by itself."""
    if all(job.group is None for job in jobs):  # nearly always
        return [[job] for job in jobs]
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job if job.group is None else job.group, []).append(job)
    return list(groups.values())
