"""A sink that sends events to an SQS queue."""

from typing import Any

from eventonce.clients.aws import AwsUrl
from eventonce.clock import Clock
from eventonce.event import Event
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.aws_batch import MIB, AwsBatchSink
from eventonce.sinks.aws_messages import MessageFormat, results_by_id, with_ids


class SqsSink(AwsBatchSink):
    """`sqs://QUEUE` or `sqs://ACCOUNT/QUEUE`. A FIFO queue takes `?group=PATH`."""

    setting = "sink"
    service = "sqs"
    limits = CallLimits(10, MIB, MIB)

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(AwsUrl(url, self.setting, "group"), clock)
        self._owner, _, self._name = self.address.name.rpartition("/")
        if self._owner and not self._owner.isdecimal():
            raise self.address.wrong("names no queue; write sqs://QUEUE, or sqs://ACCOUNT/QUEUE for another account's")
        self._message = MessageFormat(self.address, "MessageBody")
        self._queue_url = ""

    def _prepare(self) -> None:
        owner = {"QueueOwnerAWSAccountId": self._owner} if self._owner else {}
        self._queue_url = self.client().get_queue_url(QueueName=self._name, **owner)["QueueUrl"]

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        return self._message.entry(event, item)

    def _put(self, bodies: list[dict[str, Any]]) -> list[EntryAccepted | EntryRefusal]:
        response = self.client().send_message_batch(QueueUrl=self._queue_url, Entries=with_ids(bodies))
        return results_by_id(response, len(bodies))


open_url = SqsSink
