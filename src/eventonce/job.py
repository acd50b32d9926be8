"""A job: one event on its way through a batch."""

from typing import Any

from eventonce.claim import Done
from eventonce.context import Context
from eventonce.event import Event
from eventonce.key import Key
from eventonce.outcome import Kind, Outcome
from eventonce.rules import CompiledRule, Keyed


class Job:
    """One event, what is known of it so far, and in the end its outcome."""

    __slots__ = (
        "attempt", "content", "context", "done", "error", "event", "finished", "key", "keys", "memo", "outcome",
        "recorded", "result", "rule", "version",
    )  # fmt: skip

    event: Event
    rule: CompiledRule  # as soon as it is known
    version: int | None

    def __init__(self) -> None:
        self.key = Key(b"")
        self.keys: tuple[Key, ...] = ()  # it, and the one under the rule that its rule replaces: claimed together
        self.content = b""  # its canonical content, where the rule remembers a note of it
        self.attempt = 0
        self.context: Context | None = None
        self.done: Done | None = None  # the store's answer, where it was done before
        self.result: Any = None
        self.memo: bytes | None = None
        self.error: Exception | None = None  # how the handler ended
        self.finished = False  # the effect has happened
        self.recorded: bool | None = None  # whether the commit was accepted; None while that is not known
        self.outcome: Outcome | None = None

    def take(self, event: Event, keyed: Keyed) -> None:
        """The event falls under this rule and has this key."""
        self.event = event
        self.rule, self.key, self.version, old = keyed
        self.keys = (self.key,) if old is None else (self.key, old)
        if self.rule.remember != "seen":
            self.content = self.rule.content(event)

    def end(self, kind: Kind, error: BaseException | None = None, **more: Any) -> None:
        """This became of it."""
        self.outcome = Outcome(
            kind=kind,
            key=self.key or None,
            rule=self.rule.name if hasattr(self, "rule") else None,
            error=error,
            attempt=self.attempt,
            **more,
        )


def split(jobs: list[Job]) -> tuple[list[Job], list[tuple[Job, Job]], list[Job]]:
    """The first job of each key, the copies with the job they follow, and other versions, which must wait."""
    first: dict[Key, Job] = {}
    copies, later = [], []
    for job in jobs:
        leader = first.setdefault(job.key, job)
        if leader is job:
            continue
        if leader.version == job.version:
            copies.append((job, leader))
        else:
            later.append(job)
    return list(first.values()), copies, later
