"""Outcomes of deliveries, and the pure table that says how to settle them."""

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from eventonce.event.keys import Key

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # whose default lets `Outcome` alone mean any result

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


class OutcomeKind(StrEnum):
    """What became of a delivery."""

    PROCESSED = "processed"  # ran now, and is remembered
    DUPLICATE = "duplicate"  # ran before
    BUSY = "busy"  # another worker runs it now
    STALE = "stale"  # a newer version ran before
    EXPIRED = "expired"  # older than the rule's max_age
    FAILED = "failed"  # the handler raised, or the claim was lost before its commit
    REJECTED = "rejected"  # can never be processed
    UNKNOWN = "unknown"  # the store did not answer
    UNROUTED = "unrouted"  # no handler is registered for it


class Action(StrEnum):
    """How to settle a delivery."""

    ACK = "ack"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"


# A failure is retried until its attempts are used up, and an unrouted event is dropped if its `Once` skips such. Only
# these two are not decided by the kind.
_ACTIONS = {
    OutcomeKind.PROCESSED: Action.ACK,
    OutcomeKind.DUPLICATE: Action.ACK,
    OutcomeKind.BUSY: Action.RETRY,
    OutcomeKind.STALE: Action.ACK,
    OutcomeKind.EXPIRED: Action.ACK,
    OutcomeKind.FAILED: Action.RETRY,
    OutcomeKind.REJECTED: Action.DEAD_LETTER,
    OutcomeKind.UNKNOWN: Action.RETRY,
    OutcomeKind.UNROUTED: Action.ACK,
}
_KEPT_IF_FINAL = (OutcomeKind.FAILED, OutcomeKind.UNROUTED)


def settle(kind: OutcomeKind, *, final: bool = False) -> Action:
    """Return how to settle a delivery with this outcome. `final` says that no attempt remains."""
    return Action.DEAD_LETTER if final and kind in _KEPT_IF_FINAL else _ACTIONS[kind]


class FirstCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The copy that was processed. `id`, `time` and `differs` are known with `remember = "note"`."""

    at: datetime
    attempts: int
    id: str | None = None
    time: str | None = None
    differs: bool | None = None  # whether the content of this copy differs from the first one's


class Outcome(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """What became of one event.

    `error` says why it was not processed. On a processed event it says that the store did not record it.
    `retry_at` is when a busy event could be free, or when a receiver wants the next try (milliseconds, UTC).
    """

    kind: OutcomeKind
    key: Key | None = None
    rule: str | None = None
    result: T_co = None  # type: ignore[assignment]  # of a run or its duplicate; without one None is part of T
    error: BaseException | None = None
    first: FirstCopy | None = None
    attempt: int = 0
    final: bool = False
    retry_at: int | None = None

    @property
    def action(self) -> Action:
        """Return how to settle the delivery."""
        return settle(self.kind, final=self.final)
