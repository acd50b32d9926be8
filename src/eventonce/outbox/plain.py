"""Publishing through any sink: a file, a webhook, whatever takes events and says how it went."""

from collections.abc import Sequence

from eventonce.errors import EventRejected, SinkError, describe
from eventonce.event.stamp import stamped
from eventonce.outbox.message import Message, PublishKind, PublishResult
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted, Sink
from eventonce.sinks.batching import SendJob, SendQueue

_ALL_THAT_MAY_GO = CallLimits(2**31, 2**31, 2**31)


class PlainPublisher:
    """Sends each event once, stamped with its identity; the sink tries again by itself, as far as it does."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def send(self, events: Sequence[Message]) -> list[PublishResult]:
        """Return what became of each. Of one group, nothing is sent behind an event that failed."""
        jobs = [_job(outgoing) for outgoing in events]
        queue = SendQueue(jobs)
        while call := queue.next_call(_ALL_THAT_MAY_GO):
            for job, error in zip(call, self._send(call), strict=True):
                job.result = _result(error)
                queue.settle(job)
        return [_published(outgoing, job) for outgoing, job in zip(events, jobs, strict=True)]

    def _send(self, call: Sequence[SendJob]) -> Sequence[Exception | None]:
        try:
            return self._sink.send([job.event for job in call], [job.key for job in call])
        except SinkError as error:
            return [error] * len(call)

    def close(self) -> None:
        self._sink.close()


def _job(outgoing: Message) -> SendJob:
    identity = outgoing.identity or ""
    job = SendJob(stamped(outgoing.event, identity, outgoing.attempts + 1), identity)
    job.entry = BatchEntry({}, 0, outgoing.group)
    return job


def _result(error: Exception | None) -> EntryAccepted | EventRejected | SinkError:
    if error is None:
        return EntryAccepted(None)
    if isinstance(error, EventRejected | SinkError):
        return error
    failed = SinkError(describe(error))
    failed.__cause__ = error
    return failed


def _published(outgoing: Message, job: SendJob) -> PublishResult:
    attempts = outgoing.attempts + 1
    identity = outgoing.identity or ""
    if not isinstance(job.result, Exception):
        return PublishResult(kind=PublishKind.PUBLISHED, identity=identity, attempts=attempts)
    kind = PublishKind.REFUSED if isinstance(job.result, EventRejected) else PublishKind.FAILED
    return PublishResult(kind=kind, identity=identity, attempts=attempts, error=job.result)
