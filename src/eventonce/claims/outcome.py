"""What became of a delivery, and the pure table that says how to settle it."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from eventonce.event.keys import Key


class Kind(StrEnum):
    """What became of a delivery."""

    PROCESSED = "processed"  # ran now, and is remembered
    DUPLICATE = "duplicate"  # ran before
    BUSY = "busy"  # another worker runs it now
    STALE = "stale"  # a newer version ran before
    EXPIRED = "expired"  # older than the rule's max_age
    FAILED = "failed"  # the handler raised, or the claim was lost before its commit
    REJECTED = "rejected"  # can never be processed
    UNKNOWN = "unknown"  # the store did not answer


class Action(StrEnum):
    """How to settle a delivery."""

    ACK = "ack"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"


# A failure is retried until its attempts are used up; that alone is not decided by the kind.
_ACTIONS = {
    Kind.PROCESSED: Action.ACK,
    Kind.DUPLICATE: Action.ACK,
    Kind.BUSY: Action.RETRY,
    Kind.STALE: Action.ACK,
    Kind.EXPIRED: Action.ACK,
    Kind.FAILED: Action.RETRY,
    Kind.REJECTED: Action.DEAD_LETTER,
    Kind.UNKNOWN: Action.RETRY,
}


def settle(kind: Kind, *, final: bool = False) -> Action:
    """The one table: what a source is told for an outcome. `final` says that no attempt is left."""
    return Action.DEAD_LETTER if kind is Kind.FAILED and final else _ACTIONS[kind]


class First(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of the copy that was processed; `id`, `time` and `differs` with `remember = "note"`."""

    at: datetime
    attempts: int
    id: str | None = None
    time: str | None = None
    differs: bool | None = None  # whether the content of this copy differs from the first one's


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one event.

    `error` says why it was not processed; on a processed event it says that the store did not record it.
    `retry_at` is when a busy event could be free, or a receiver wants to be asked again (milliseconds, UTC).
    """

    kind: Kind
    key: Key | None = None
    rule: str | None = None
    result: Any = None
    error: BaseException | None = None
    first: First | None = None
    attempt: int = 0
    final: bool = False
    retry_at: int | None = None

    @property
    def action(self) -> Action:
        """How to settle the delivery."""
        return settle(self.kind, final=self.final)
