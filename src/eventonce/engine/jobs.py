"""The phases of an event in a batch: a small frozen type for each, with what is known by then and nothing else.

Job ----> Runnable ---> Effect  ----> Ended
 |           |             |            ^
 |           +---------> Failure -------+
 |                                      |
 +--> Deferred (claimed again later)    |
 +--> duplicate, stale, busy, used up --+
RefusedEvent: never a job
"""

from collections.abc import Hashable
from typing import Any

import msgspec

from eventonce.claims.outcome import Action, Outcome
from eventonce.claims.protocol import Done, Token
from eventonce.engine.context import Context
from eventonce.engine.keeper import OpenClaim
from eventonce.errors import StoreError
from eventonce.event import Event
from eventonce.event.event import Restore
from eventonce.event.keys import Key
from eventonce.rules import CompiledRule


class Job(msgspec.Struct, frozen=True, eq=False):
    """One event of a batch, with its rule and key."""

    position: int  # in the whole call, not in its batch
    event: Event
    rule: CompiledRule
    key: Key
    keys: tuple[Key, ...]  # with the one under the rule that its rule replaces; both are claimed together
    version: int | None = None
    content: bytes = b""  # its canonical content, if the rule remembers a note of it
    group: str | None = None
    message: Hashable = None  # the handle of its message, in which there may be several events
    message_id: str | None = None  # if its carrier may redeliver it after it was passed on
    restore: Restore | None = None  # makes the type that its handler returns of a remembered result


class RefusedEvent(msgspec.Struct, frozen=True, eq=False):
    """An event that cannot become a job: it is unreadable, has no key, or is too old."""

    position: int
    event: Event | None
    outcome: Outcome
    group: str | None = None
    message: Hashable = None


class Turn(msgspec.Struct, frozen=True, eq=False):
    """The jobs that are claimed, run and committed together."""

    jobs: list[Job]
    token: Token  # of their claims. It releases them even if the answer to the call that made them is lost.
    pause: int = 0  # milliseconds to wait first, if all of them were busy before

    @property
    def alone(self) -> bool:
        """Return whether there is one job only, so that a worker that dies can only have died of it."""
        return len(self.jobs) == 1


class Runnable(msgspec.Struct, frozen=True, eq=False):
    """A job that may run, and on what basis.

    Either its claim is open. Or it is a redelivery of what was done before, which has to be passed on once more. Or the
    store did not answer, and its rule says to run unclaimed.
    """

    job: Job
    attempt: int
    basis: OpenClaim | Done | StoreError
    context: Context | None = None  # a sink has none


class Deferred(msgspec.Struct, frozen=True, eq=False):
    """A job that is claimed again in a later turn. It goes `alone` if it may have killed the worker that had it."""

    job: Job
    alone: bool


class Effect(msgspec.Struct, frozen=True, eq=False):
    """A run whose handler has returned. The event must be recorded, and its claim must not be released."""

    runnable: Runnable
    result: Any


class Failure(msgspec.Struct, frozen=True, eq=False):
    """A run whose handler has raised, or was not called because the claim was lost."""

    runnable: Runnable
    error: Exception


class Ended(msgspec.Struct, frozen=True, eq=False):
    """A job with its outcome, and what its copies in the batch need."""

    job: Job
    outcome: Outcome
    done: Done | None = None  # the store's answer, if it was done before
    memo: bytes | None = None  # what is remembered of the run, if it ran now

    @property
    def event(self) -> Event:
        return self.job.event


Decision = Runnable | Deferred | Ended  # what the answer to a claim means
Chain = list[Runnable]  # what runs one after another: the jobs of one group, or a single one


def ended_well(outcome: Outcome) -> bool:
    """Return whether events later in its group may run."""
    return outcome.action is Action.ACK
