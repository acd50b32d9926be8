"""The change stream of a DynamoDB table."""

from datetime import datetime
from typing import Any

import msgspec

from eventonce.clock import Clock
from eventonce.errors import SourceError
from eventonce.sources.aws_stream import AwsStream, Options
from eventonce.sources.stream import Page, Shard, StreamRecord

_MAX_RECORDS = 1000  # per read, up to 1 MB


class DynamoDBStream(AwsStream):
    """`dynamodbstreams://TABLE`, or the ARN of one stream of a table."""

    service = "dynamodbstreams"

    def __init__(self, options: Options, clock: Clock) -> None:
        super().__init__(options, clock)
        name = self._address.name
        self.arn = self.identity = name if name.startswith("arn:") else self._newest(name)
        self._first_call(self._client.describe_stream, StreamArn=self.identity)

    def shards(self) -> list[Shard]:
        response = self._describe()
        shards = [*response["Shards"]]
        while "LastEvaluatedShardId" in response:
            response = self._describe(ExclusiveStartShardId=response["LastEvaluatedShardId"])
            shards += response["Shards"]
        return [Shard(shard["ShardId"], _parents(shard)) for shard in shards]

    def iterator(self, shard: str, after: str | None, start: int | None) -> str:
        position = {"ShardIteratorType": "TRIM_HORIZON"}
        if after is not None:
            position = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after}
        response = self._call(self._client.get_shard_iterator, StreamArn=self.identity, ShardId=shard, **position)
        iterator: str = response["ShardIterator"]
        return iterator

    def read(self, shard: str, iterator: str) -> Page:
        response = self._call(self._client.get_records, ShardIterator=iterator, Limit=_MAX_RECORDS)
        return Page([self._record(record) for record in response["Records"]], response.get("NextShardIterator"))

    def _record(self, record: dict[str, Any]) -> StreamRecord:
        """Return a record in the form that Lambda gets: with its time in seconds, and the stream's ARN."""
        document = {**record, "eventSourceARN": self.identity}
        body = msgspec.json.encode(_jsonable(document))
        change = record["dynamodb"]
        sent = change.get("ApproximateCreationDateTime")
        return StreamRecord(change["SequenceNumber"], record["eventID"], body, sent)

    def _describe(self, **arguments: Any) -> dict[str, Any]:
        response = self._call(self._client.describe_stream, StreamArn=self.identity, **arguments)
        description: dict[str, Any] = response["StreamDescription"]
        return description

    def _newest(self, table: str) -> str:
        tables = self._address.client("dynamodb")
        try:
            arn: str = self._first_call(tables.describe_table, TableName=table)["Table"].get("LatestStreamArn", "")
        finally:
            tables.close()
        if not arn:
            raise SourceError(
                f"{self.name}: the table has no stream; turn it on, with NEW_AND_OLD_IMAGES or another view"
            )
        return arn


def _parents(shard: dict[str, Any]) -> tuple[str, ...]:
    return (shard["ParentShardId"],) if shard.get("ParentShardId") else ()


def _jsonable(value: Any) -> Any:
    """Return a value with its times as seconds. The encoder writes bytes as base64."""
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return int(value.timestamp()) if isinstance(value, datetime) else value
