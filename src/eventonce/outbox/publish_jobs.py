"""Jobs of a publisher: stamped anew at every attempt, and kept as dead letters where they are refused."""

from collections.abc import Sequence
from typing import Any, Self

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.clock import Clock
from eventonce.errors import EventRejected, SinkError, SinkUnusable
from eventonce.event import Delivery, Event
from eventonce.event.stamp import stamped
from eventonce.outbox.identity import deduplication_id
from eventonce.outbox.message import Message, PublishKind, PublishResult, kept
from eventonce.ports import Carrier, DeadLetters, EntryAccepted, EntryRefusal
from eventonce.sinks.batching import BatchSender, SendJob


class PublishJob(SendJob):
    """One event under its identity."""

    __slots__ = ("_readable", "identity", "outgoing")

    def __init__(self, outgoing: Message, event: Event, identity: str) -> None:
        self.outgoing = outgoing
        self.identity = identity
        self._readable = True
        super().__init__(event, group=outgoing.group)

    @classmethod
    def unreadable(cls, outgoing: Message, why: EventRejected) -> Self:
        """One that will not be sent."""
        identity = outgoing.identity if isinstance(outgoing.identity, str) else ""
        job = cls(outgoing, Event(data=None), identity)
        job.result, job._readable = why, False
        return job

    @property
    def key(self) -> str:
        return deduplication_id(self.event, self.identity)  # when asked: EventBridge Classic has no use for it

    @property
    def sent(self) -> int:
        """How often it was sent, from the very first time."""
        return self.outgoing.attempts + self.attempts

    def next_event(self) -> Event:
        return stamped(self.event, self.identity, self.sent + 1)

    def published(self) -> PublishResult:
        """What became of it."""
        told: dict[str, Any] = {"identity": self.identity, "attempts": self.sent}
        if isinstance(self.result, EntryAccepted):
            kind = PublishKind.DEDUPLICATED if self.result.repeated else PublishKind.PUBLISHED
            return PublishResult(kind=kind, id=self.result.id, **told)
        kind = PublishKind.REFUSED if isinstance(self.result, EventRejected) else PublishKind.FAILED
        return PublishResult(kind=kind, code=_code(self.result), error=self.result, **told)

    def letter(self, where: str) -> tuple[Delivery, Outcome]:
        """It as a dead letter; the stamp is in its body, so that it comes back under the same identity."""
        found = {"source": "publish", "sink": where, "identity": self.identity, "code": _code(self.result)}
        error = self.result if isinstance(self.result, Exception) else None
        outcome = Outcome(kind=OutcomeKind.REJECTED, error=error, attempt=self.sent)
        return Delivery(self._body(), {name: value for name, value in found.items() if value}), outcome

    def _body(self) -> bytes:
        try:
            return stamped(self.event, self.identity, max(self.sent, 1)).line() if self._readable else self._kept()
        except (TypeError, ValueError, OverflowError, RecursionError):
            return self._kept()

    def _kept(self) -> bytes:
        return kept(self.outgoing.event)


class Publishing(BatchSender):
    """Sends for a publisher: trouble that passes is waited out, and what is refused becomes a dead letter."""

    patient = True

    def __init__(self, carrier: Carrier, clock: Clock, max_attempts: int, dead_letters: DeadLetters | None) -> None:
        super().__init__(carrier, clock, max_attempts)
        self._where = carrier.label
        self._dead_letters = dead_letters

    def _judge(self, refusal: EntryRefusal) -> EventRejected | SinkError:
        error = super()._judge(refusal)
        return self._carrier.rejected(refusal) if isinstance(error, SinkUnusable) else error

    def _on_refused(self, jobs: Sequence[SendJob]) -> None:
        if self._dead_letters is None or not jobs:
            return
        letters = [job.letter(self._where) for job in jobs if isinstance(job, PublishJob)]
        try:
            self._dead_letters.write(letters, self._clock.utc())
        except SinkError as error:
            for job in jobs:
                job.result = SinkError(f"{job.result}; and its dead letter could not be kept: {error}")


def _code(result: object) -> str | None:
    return getattr(result, "code", None)
