"""A stream of Kinesis."""

from typing import Any

from eventonce.clock import Clock, to_datetime
from eventonce.sources.aws_stream import AwsStream, Options
from eventonce.sources.stream import Page, Shard, StreamRecord

_MOST = 1000  # records of one read: up to 10 MiB of them wait in memory, by shard


class KinesisStream(AwsStream):
    """`kinesis://STREAM`, by name or ARN."""

    service = "kinesis"

    def __init__(self, options: Options, clock: Clock) -> None:
        super().__init__(options, clock)
        name = self._place.name
        self._stream = {"StreamARN": name} if name.startswith("arn:") else {"StreamName": name}
        found = self._first(self._client.describe_stream_summary, **self._stream)["StreamDescriptionSummary"]
        self.arn = str(found["StreamARN"])
        self.identity = f"{self.arn} {found.get('StreamCreationTimestamp')}"

    def shards(self) -> list[Shard]:
        answer = self._ask(self._client.list_shards, **self._stream)
        found = [*answer["Shards"]]
        while "NextToken" in answer:
            answer = self._ask(self._client.list_shards, NextToken=answer["NextToken"])
            found += answer["Shards"]
        return [_shard(each) for each in found]

    def iterator(self, shard: str, after: str | None, start: int | None) -> str:
        if after is not None:
            asked: dict[str, Any] = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        elif start is not None:
            asked = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": to_datetime(start)}
        else:
            asked = {"ShardIteratorType": "TRIM_HORIZON"}
        found: str = self._ask(self._client.get_shard_iterator, ShardId=shard, **asked, **self._stream)["ShardIterator"]
        return found

    def read(self, shard: str, iterator: str) -> Page:
        answer = self._ask(self._client.get_records, ShardIterator=iterator, Limit=_MOST)
        records = [_record(shard, each) for each in answer["Records"]]
        return Page(records, answer.get("NextShardIterator"), bool(answer.get("MillisBehindLatest")))


def _record(shard: str, found: dict[str, Any]) -> StreamRecord:
    sequence = found["SequenceNumber"]
    return StreamRecord(sequence, f"{shard}:{sequence}", found["Data"], found.get("ApproximateArrivalTimestamp"))


def _shard(found: dict[str, Any]) -> Shard:
    parents = (found.get("ParentShardId"), found.get("AdjacentParentShardId"))
    return Shard(found["ShardId"], tuple(each for each in parents if each))
