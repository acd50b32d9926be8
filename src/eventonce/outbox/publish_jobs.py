"""Jobs of a publisher: stamped anew at every attempt, and written as dead letters if they are refused."""

from collections.abc import Sequence
from typing import Any, Self

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.clock import Clock
from eventonce.errors import EventRejected, SinkError, SinkUnusable
from eventonce.event import Delivery, Event
from eventonce.event.stamp import add_stamp
from eventonce.outbox.identity import deduplication_id
from eventonce.outbox.message import Message, PublishKind, PublishResult, raw_bytes
from eventonce.ports import Carrier, DeadLetters, EntryAccepted, EntryRefusal
from eventonce.sinks.batching import BatchSender, SendJob


class PublishJob(SendJob):
    """One event under its identity."""

    __slots__ = ("_readable", "identity", "message")

    def __init__(self, message: Message, event: Event, identity: str) -> None:
        self.message = message
        self.identity = identity
        self._readable = True
        super().__init__(event, group=message.group)

    @classmethod
    def unreadable(cls, message: Message, error: EventRejected) -> Self:
        """Return a job that will not be sent."""
        identity = message.identity if isinstance(message.identity, str) else ""
        job = cls(message, Event(data=None), identity)
        job.result, job._readable = error, False
        return job

    @property
    def key(self) -> str:
        return deduplication_id(self.event, self.identity)  # on demand: EventBridge Classic does not need it

    @property
    def total_attempts(self) -> int:
        """The number of attempts, including those before this publisher."""
        return self.message.attempts + self.attempts

    def next_event(self) -> Event:
        return add_stamp(self.event, self.identity, self.total_attempts + 1)

    def publish_result(self) -> PublishResult:
        """Return the result for the caller."""
        fields: dict[str, Any] = {"identity": self.identity, "attempts": self.total_attempts}
        if isinstance(self.result, EntryAccepted):
            kind = PublishKind.DEDUPLICATED if self.result.repeated else PublishKind.PUBLISHED
            return PublishResult(kind=kind, id=self.result.id, **fields)
        kind = PublishKind.REFUSED if isinstance(self.result, EventRejected) else PublishKind.FAILED
        return PublishResult(kind=kind, code=_code(self.result), error=self.result, **fields)

    def dead_event(self, sink: str) -> tuple[Delivery, Outcome]:
        """Return the event for its dead letter. Its body has the stamp, so a redrive sends it under its identity."""
        origin = {"source": "publish", "sink": sink, "identity": self.identity, "code": _code(self.result)}
        error = self.result if isinstance(self.result, Exception) else None
        outcome = Outcome(kind=OutcomeKind.REJECTED, error=error, attempt=self.total_attempts)
        return Delivery(self._body(), {name: value for name, value in origin.items() if value}), outcome

    def _body(self) -> bytes:
        if not self._readable:
            return raw_bytes(self.message.event)
        try:
            return add_stamp(self.event, self.identity, max(self.total_attempts, 1)).line()
        except (TypeError, ValueError, OverflowError, RecursionError):
            return raw_bytes(self.message.event)


class PublishSender(BatchSender):
    """Sends for a publisher. It waits while the carrier is down, and writes dead letters of refused events."""

    patient = True

    def __init__(self, carrier: Carrier, clock: Clock, max_attempts: int, dead_letters: DeadLetters | None) -> None:
        super().__init__(carrier, clock, max_attempts)
        self._sink = carrier.label
        self._dead_letters = dead_letters

    def _judge(self, refusal: EntryRefusal) -> EventRejected | SinkError:
        error = super()._judge(refusal)
        return self._carrier.rejected(refusal) if isinstance(error, SinkUnusable) else error

    def _on_refused(self, jobs: Sequence[SendJob]) -> None:
        if self._dead_letters is None or not jobs:
            return
        dead = [job.dead_event(self._sink) for job in jobs if isinstance(job, PublishJob)]
        try:
            self._dead_letters.write(dead, self._clock.utc())
        except SinkError as error:
            for job in jobs:
                job.result = SinkError(f"{job.result}; and its dead letter could not be kept: {error}")


def _code(result: object) -> str | None:
    return getattr(result, "code", None)
