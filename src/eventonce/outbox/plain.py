"""Publishing through any sink, such as a file or an HTTP receiver."""

from collections.abc import Sequence

from eventonce.errors import EventRejected, SinkError, describe
from eventonce.event.stamp import add_stamp
from eventonce.outbox.message import Message, PublishKind, PublishResult
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted, Sink
from eventonce.sinks.batching import SendJob, SendQueue

_UNLIMITED = CallLimits(2**31, 2**31, 2**31)


class PlainPublisher:
    """Sends each event once, stamped with its identity. Retries are up to the sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def send(self, events: Sequence[Message]) -> list[PublishResult]:
        """Send messages and return a result for each. After one that fails, the rest of its group is not sent."""
        jobs = [_job(message) for message in events]
        queue = SendQueue(jobs)
        while call := queue.next_call(_UNLIMITED):
            for job, error in zip(call, self._send(call), strict=True):
                job.result = _result(error)
                queue.settle(job)
        return [_publish_result(message, job) for message, job in zip(events, jobs, strict=True)]

    def _send(self, call: Sequence[SendJob]) -> Sequence[Exception | None]:
        try:
            return self._sink.send([job.event for job in call], [job.key for job in call])
        except SinkError as error:
            return [error] * len(call)

    def close(self) -> None:
        self._sink.close()


def _job(message: Message) -> SendJob:
    identity = message.identity or ""
    job = SendJob(add_stamp(message.event, identity, message.attempts + 1), identity)
    job.entry = BatchEntry({}, 0, message.group)
    return job


def _result(error: Exception | None) -> EntryAccepted | EventRejected | SinkError:
    if error is None:
        return EntryAccepted(None)
    if isinstance(error, EventRejected | SinkError):
        return error
    failure = SinkError(describe(error))
    failure.__cause__ = error
    return failure


def _publish_result(message: Message, job: SendJob) -> PublishResult:
    attempts = message.attempts + 1
    identity = message.identity or ""
    if not isinstance(job.result, Exception):
        return PublishResult(kind=PublishKind.PUBLISHED, identity=identity, attempts=attempts)
    kind = PublishKind.REFUSED if isinstance(job.result, EventRejected) else PublishKind.FAILED
    return PublishResult(kind=kind, identity=identity, attempts=attempts, error=job.result)
