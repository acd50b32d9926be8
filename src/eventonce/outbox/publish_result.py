"""What became of an event that was to be published."""

from enum import StrEnum

import msgspec


class PublishKind(StrEnum):
    """What became of it."""

    PUBLISHED = "published"  # the carrier has it
    DEDUPLICATED = "deduplicated"  # the carrier had it already, and says so
    REFUSED = "refused"  # will never be taken; a dead letter, where there is a place for them
    FAILED = "failed"  # not taken, or nobody knows; may be sent again under the same identity


class PublishResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one event. `id` is the carrier's own (EventId, MessageId), `code` what it calls its refusal.

    `attempts` counts every time it was sent, also those of earlier calls that `Outgoing.attempts` told of.
    """

    kind: PublishKind
    identity: str  # empty where the event could not even be read
    id: str | None = None
    attempts: int = 0
    code: str | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether the carrier has it."""
        return self.kind in (PublishKind.PUBLISHED, PublishKind.DEDUPLICATED)
