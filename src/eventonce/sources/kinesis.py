"""A Kinesis stream."""

from typing import Any

from eventonce.clock import Clock, to_datetime
from eventonce.sources.aws_stream import AwsStream, Options
from eventonce.sources.stream import Page, Shard, StreamRecord

_MAX_RECORDS = 1000  # per read: up to 10 MiB per shard wait in memory


class KinesisStream(AwsStream):
    """`kinesis://STREAM`, by name or ARN."""

    service = "kinesis"

    def __init__(self, options: Options, clock: Clock) -> None:
        super().__init__(options, clock)
        name = self._address.name
        self._stream = {"StreamARN": name} if name.startswith("arn:") else {"StreamName": name}
        summary = self._first_call(self._client.describe_stream_summary, **self._stream)["StreamDescriptionSummary"]
        self.arn = str(summary["StreamARN"])
        self.identity = f"{self.arn} {summary.get('StreamCreationTimestamp')}"

    def shards(self) -> list[Shard]:
        response = self._call(self._client.list_shards, **self._stream)
        shards = [*response["Shards"]]
        while "NextToken" in response:
            response = self._call(self._client.list_shards, NextToken=response["NextToken"])
            shards += response["Shards"]
        return [_shard(shard) for shard in shards]

    def iterator(self, shard: str, after: str | None, start: int | None) -> str:
        if after is not None:
            position: dict[str, Any] = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        elif start is not None:
            position = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": to_datetime(start)}
        else:
            position = {"ShardIteratorType": "TRIM_HORIZON"}
        response = self._call(self._client.get_shard_iterator, ShardId=shard, **position, **self._stream)
        iterator: str = response["ShardIterator"]
        return iterator

    def read(self, shard: str, iterator: str) -> Page:
        response = self._call(self._client.get_records, ShardIterator=iterator, Limit=_MAX_RECORDS)
        records = [_record(shard, record) for record in response["Records"]]
        return Page(records, response.get("NextShardIterator"), bool(response.get("MillisBehindLatest")))


def _record(shard: str, record: dict[str, Any]) -> StreamRecord:
    sequence = record["SequenceNumber"]
    return StreamRecord(sequence, f"{shard}:{sequence}", record["Data"], record.get("ApproximateArrivalTimestamp"))


def _shard(shard: dict[str, Any]) -> Shard:
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    return Shard(shard["ShardId"], tuple(parent for parent in parents if parent))
