"""The stream of changes of a DynamoDB table."""

from datetime import datetime
from typing import Any

import msgspec

from eventonce.clock import Clock
from eventonce.errors import SourceError
from eventonce.sources.aws_stream import AwsStream, Options
from eventonce.sources.stream import Page, Shard, StreamRecord

_MOST = 1000  # records of one read: up to 1 MB


class DynamoDBStream(AwsStream):
    """`dynamodbstreams://TABLE`, or the ARN of one stream of a table."""

    service = "dynamodbstreams"

    def __init__(self, options: Options, clock: Clock) -> None:
        super().__init__(options, clock)
        name = self._place.name
        self.arn = self.identity = name if name.startswith("arn:") else self._newest(name)
        self._first(self._client.describe_stream, StreamArn=self.identity)

    def shards(self) -> list[Shard]:
        answer = self._describe()
        found = [*answer["Shards"]]
        while "LastEvaluatedShardId" in answer:
            answer = self._describe(ExclusiveStartShardId=answer["LastEvaluatedShardId"])
            found += answer["Shards"]
        return [Shard(each["ShardId"], _parents(each)) for each in found]

    def iterator(self, shard: str, after: str | None, start: int | None) -> str:
        asked = {"ShardIteratorType": "TRIM_HORIZON"}
        if after is not None:
            asked = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after}
        answer = self._ask(self._client.get_shard_iterator, StreamArn=self.identity, ShardId=shard, **asked)
        found: str = answer["ShardIterator"]
        return found

    def read(self, shard: str, iterator: str) -> Page:
        answer = self._ask(self._client.get_records, ShardIterator=iterator, Limit=_MOST)
        return Page([self._record(each) for each in answer["Records"]], answer.get("NextShardIterator"))

    def _record(self, found: dict[str, Any]) -> StreamRecord:
        """As Lambda gets it: with seconds as its time, and the stream's ARN."""
        document = {**found, "eventSourceARN": self.identity}
        body = msgspec.json.encode(_plain(document))
        change = found["dynamodb"]
        return StreamRecord(change["SequenceNumber"], found["eventID"], body, change.get("ApproximateCreationDateTime"))

    def _describe(self, **asked: Any) -> dict[str, Any]:
        answer = self._ask(self._client.describe_stream, StreamArn=self.identity, **asked)
        found: dict[str, Any] = answer["StreamDescription"]
        return found

    def _newest(self, table: str) -> str:
        tables = self._place.client("dynamodb")
        try:
            found: str = self._first(tables.describe_table, TableName=table)["Table"].get("LatestStreamArn", "")
        finally:
            tables.close()
        if not found:
            raise SourceError(
                f"{self.name}: the table has no stream; turn it on, with NEW_AND_OLD_IMAGES or another view"
            )
        return found


def _parents(found: dict[str, Any]) -> tuple[str, ...]:
    return (found["ParentShardId"],) if found.get("ParentShardId") else ()


def _plain(value: Any) -> Any:
    """What JSON has a form for: bytes become base64 by themselves."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value.timestamp()) if isinstance(value, datetime) else value
