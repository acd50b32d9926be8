"""A sink that writes events to a Kinesis stream."""

import hashlib
from typing import Any

from eventonce.clients.aws import AwsUrl
from eventonce.clock import Clock
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import getter
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.aws_batch import MIB, AwsBatchSink
from eventonce.sinks.aws_messages import results_in_order

_MAX_PARTITION_KEY = 256  # characters


class KinesisSink(AwsBatchSink):
    """`kinesis://STREAM`, by name or ARN. With `?partition=PATH`, events with the same value there keep their order.

    A stream has no deduplication: if a response is lost, the stream may have an event twice.
    """

    service = "kinesis"
    limits = CallLimits(500, 10 * MIB, 10 * MIB)

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(AwsUrl(url, "sink", "partition"), clock)
        name = self.address.name
        self._stream = {"StreamARN": name} if name.startswith("arn:") else {"StreamName": name}
        self._path = self.address.options.get("partition")
        self._get = None if self._path is None else getter(self._path, "sink: partition")

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        data = event.line()
        group = _partition_key(item.group, self._path) if item.group else self._partition(event)
        partition = group or item.key
        return BatchEntry({"Data": data, "PartitionKey": partition}, len(data) + len(partition.encode()), group)

    def _partition(self, event: Event) -> str | None:
        return None if self._get is None else _partition_key(self._get(event.document()), self._path)

    def _put(self, bodies: list[dict[str, Any]]) -> list[EntryAccepted | EntryRefusal]:
        items = self.client().put_records(Records=bodies, **self._stream).get("Records", [])
        return results_in_order(items, len(bodies), "SequenceNumber")


def _partition_key(value: Any, path: str | None) -> str:
    """Return the partition key for a value, of 1 to 256 characters."""
    if value is None or value == "":
        raise EventRejected(f"has nothing at {path}, which names its partition in the sink")
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= _MAX_PARTITION_KEY else hashlib.sha256(text.encode()).hexdigest()


open_url = KinesisSink
