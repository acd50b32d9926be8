"""A sink that publishes events to an SNS topic, and so to its subscribers."""

from typing import Any

from eventonce.clients.aws import AwsUrl
from eventonce.clock import Clock
from eventonce.event import Event
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.aws_batch import MIB, AwsBatchSink
from eventonce.sinks.aws_messages import MessageFormat, results_by_id, with_ids


class SnsSink(AwsBatchSink):
    """`sns://TOPIC`, by name or ARN. A FIFO topic takes `?group=PATH`."""

    service = "sns"
    limits = CallLimits(10, MIB // 4, MIB)  # the default of a topic, and the most that it can be set to

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(AwsUrl(url, "sink", "group"), clock)
        self._message = MessageFormat(self.address, "Message")
        self._arn = self.address.name

    def _prepare(self) -> None:
        name = self.address.name  # not self._arn: threads may do this at the same time
        if not name.startswith("arn:"):
            meta, sts = self.client().meta, self.address.client("sts")
            try:
                account = sts.get_caller_identity()["Account"]
            finally:
                sts.close()
            self._arn = f"arn:{meta.partition}:sns:{meta.region_name}:{account}:{name}"

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        return self._message.entry(event, item)

    def _put(self, bodies: list[dict[str, Any]]) -> list[EntryAccepted | EntryRefusal]:
        response = self.client().publish_batch(TopicArn=self._arn, PublishBatchRequestEntries=with_ids(bodies))
        return results_by_id(response, len(bodies))


open_url = SnsSink
