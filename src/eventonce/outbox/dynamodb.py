"""An outbox in a DynamoDB table, whose stream notifies relays of new items.

A record of the stream only announces an item. The relay reads the item from the table, publishes it and deletes it. So
a record that Lambda redelivers is not published twice, and an item that the stream has dropped after a day still is.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eventonce.clients.aws import AwsUrl
from eventonce.clock import Clock
from eventonce.errors import ConfigError, EventRejected, StoreError, StoreUnusable
from eventonce.outbox.feed import Backlog
from eventonce.outbox.rows import OutboxRow, PendingRow
from eventonce.stores.aws_client import Denied
from eventonce.stores.dynamodb.client import RETRYABLE, DynamoDBClient, RequestRefusal
from eventonce.stores.dynamodb.transaction import MAX_ACTIONS, MAX_BYTES, MAX_ITEM, TransactionRefused, Writes, size
from eventonce.stores.retry import call_with_retries

_READ_BATCH, _WRITE_BATCH = 100, 25  # keys of one BatchGetItem and BatchWriteItem
_MAX_COUNTED = 1000  # items that are read for the backlog
_IN_FLIGHT = 8
_KINDS = ("Put", "Update", "Delete", "ConditionCheck")
_CREATE_TIMEOUT = 120_000
_POLL = 200
_FAILED = "ConditionalCheckFailed"


class Key(NamedTuple):
    """The key of an item. The keys of a group sort in the order in which the items were added."""

    grp: str
    place: str  # the time at which it was added, in 15 digits, and its identity

    @property
    def added(self) -> int:
        return int(self.place[:15])

    @property
    def identity(self) -> str:
        return self.place[16:]

    def typed(self) -> dict[str, Any]:
        return {"grp": {"S": self.grp}, "place": {"S": self.place}}


class DynamoDBTable:
    """`dynamodb://TABLE?region=REGION`, with `endpoint` and `timeout` as further options."""

    streamed = True  # relays read its stream

    def __init__(self, url: str, clock: Clock) -> None:
        self.address = AwsUrl(url, "outbox")
        self.name = f"dynamodb://{self.address.name}"
        self.clock = clock
        self._client = DynamoDBClient(
            self.address.name,
            region=self.address.options.get("region"),
            endpoint=self.address.options.get("endpoint"),
            timeout=self.address.timeout,
            in_flight=_IN_FLIGHT,
            clock=clock,
            remedy="outbox.create() or eventonce relay --create",
        )

    # --- the user's side ---

    def _key(self, row: OutboxRow) -> Key:
        return Key(row.grp, f"{self.clock.utc():015}:{row.identity}")

    def insert(self, connection: Any, row: OutboxRow) -> None:
        """Add a row to the writes of `ctx.tx` of a DynamoDB store."""
        if not isinstance(connection, Writes):
            raise ConfigError("outbox: in DynamoDB use transact(items, event), or add(ctx.tx, event) in a handler")
        item = {**self._key(row)._asdict(), "event": row.event.decode()}
        connection.put_item(TableName=self.address.name, Item=item)

    def transact(self, items: Sequence[Mapping[str, Any]], row: OutboxRow) -> None:
        """Write items and a row, all or nothing. A lost response or a conflict leads to a retry with the same token."""
        item = {**self._key(row).typed(), "event": {"S": row.event.decode()}}
        if size(item) > MAX_ITEM:
            raise EventRejected(f"takes {size(item):,} bytes in the outbox, over the {MAX_ITEM:,} of a DynamoDB item")
        _check(items, size(item))
        put = {"TableName": self.address.name, "Item": item}
        # All tables of an account share one space of tokens.
        token = hashlib.sha256("\0".join((self.address.name, row.grp, row.identity)).encode()).hexdigest()[:36]
        request = {"ClientRequestToken": token, "TransactItems": [{"Put": put}, *items]}
        call_with_retries(lambda: self._transact(request, row.identity), self.clock, self.address.timeout)

    def _transact(self, request: dict[str, Any], identity: str) -> None:
        try:
            self._client.call("transact_write_items", **request)
        except RequestRefusal as refused:
            if refused.code == "IdempotentParameterMismatchException":
                raise TransactionRefused(f"outbox: the identity {identity!r} {_USED}") from refused
            if refused.code == "ResourceNotFoundException":
                raise StoreUnusable(
                    f"{self.name}: it does not exist, or a table of the items does not; {_CREATE}"
                ) from None
            if not refused.reasons:
                raise TransactionRefused(f"outbox: DynamoDB refused the transaction ({refused})") from refused
            raise self._cancellation_error(refused, request["TransactItems"]) from refused

    def _cancellation_error(self, refused: RequestRefusal, items: Sequence[Mapping[str, Any]]) -> Exception:
        """Return the error that names the item to blame, or a retryable one if no item is."""
        codes = [str(reason.get("Code") or "None") for reason in refused.reasons]
        for number, (item, code) in enumerate(zip(items, codes, strict=False)):
            if code not in ("None", *RETRYABLE):
                ((kind, fields),) = item.items()
                message = refused.reasons[number].get("Message") or code
                reason = "its condition did not hold" if code == _FAILED else message
                return TransactionRefused(
                    f"outbox: items[{number - 1}], the {kind} on table {fields.get('TableName')!r}, was refused and "
                    f"nothing was written: {reason}"
                )
        passing = ", ".join(sorted(set(codes) & RETRYABLE)) or "no reason given"
        return StoreError(f"{self.name}: the transaction was cancelled and nothing was written: {passing}")

    def create(self) -> None:
        """Create the table, billed per request, with a stream of its keys."""
        if self._description() is None:
            names = [("grp", "HASH"), ("place", "RANGE")]
            self._client.call(
                "create_table",
                TableName=self.address.name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in names],
                KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in names],
                StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
            )
        deadline = self.clock.steady() + _CREATE_TIMEOUT
        while (self._description() or {}).get("TableStatus") != "ACTIVE":
            if self.clock.steady() > deadline:
                raise StoreError(f"{self.name}: was created and is not ready yet; try again later")
            self.clock.sleep(_POLL)

    def check(self) -> None:
        """Raise `StoreUnusable` unless the table is an outbox with a stream."""
        try:
            description = self._description()
        except Denied:  # an error shows when the table is used
            return
        if description is None:
            raise StoreUnusable(f"{self.name}: has no outbox; {_CREATE}")
        keys = {attribute["AttributeName"] for attribute in description["KeySchema"]}
        if keys != {"grp", "place"}:
            raise StoreUnusable(
                f"{self.name}: not an outbox, as its key is {' and '.join(sorted(keys))}; use another table"
            )
        if not description.get("StreamSpecification", {}).get("StreamEnabled"):
            raise StoreUnusable(f"{self.name}: has no stream, which relays need; turn it on, with KEYS_ONLY or more")

    def schema(self) -> str:
        raise ConfigError(f"outbox: {self.name} has no SQL; create it with outbox.create()")

    def _description(self) -> dict[str, Any] | None:
        try:
            description: dict[str, Any] = self._client.call("describe_table", TableName=self.address.name)["Table"]
        except StoreUnusable as error:
            if isinstance(error, Denied) or "does not exist" not in str(error):
                raise
            return None
        return description

    # --- the relay's side ---

    def read(self, keys: Sequence[Key]) -> dict[Key, PendingRow]:
        """Return the items that exist, as they are now."""
        rows: dict[Key, PendingRow] = {}
        parts = [keys[start : start + _READ_BATCH] for start in range(0, len(keys), _READ_BATCH)]
        for items in self._client.map_parts(self._read, parts):
            for item in items:
                row = self._pending(item)
                rows[row.number] = row
        return rows

    def _read(self, keys: Sequence[Key]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        typed = [key.typed() for key in dict.fromkeys(keys)]
        requests: Any = {self.address.name: {"Keys": typed, "ConsistentRead": True}}
        while requests:
            response = self._call("batch_get_item", RequestItems=requests)
            items += response.get("Responses", {}).get(self.address.name, [])
            requests = self._after_pause(response.get("UnprocessedKeys"))
        return items

    def groups(self, grps: Sequence[str]) -> dict[str, list[PendingRow]]:
        """Return the first items of groups."""
        return dict(zip(grps, self._client.map_parts(self._group, grps), strict=True))

    def _group(self, grp: str) -> list[PendingRow]:
        response = self._call(
            "query",
            TableName=self.address.name,
            KeyConditionExpression="grp = :grp",
            ExpressionAttributeValues={":grp": {"S": grp}},
            ConsistentRead=True,
            Limit=_READ_BATCH,
        )
        return [self._pending(item) for item in response.get("Items", [])]

    def scan(self) -> Iterator[Key]:
        """Return the keys of all items."""
        request: dict[str, Any] = {"TableName": self.address.name, "ConsistentRead": True, **_KEYS}
        while True:
            response = self._call("scan", **request)
            for item in response.get("Items", []):
                yield Key(item["grp"]["S"], item["place"]["S"])
            if "LastEvaluatedKey" not in response:
                return
            request["ExclusiveStartKey"] = response["LastEvaluatedKey"]

    def remove(self, rows: Sequence[PendingRow]) -> None:
        """Delete items."""
        parts = [rows[start : start + _WRITE_BATCH] for start in range(0, len(rows), _WRITE_BATCH)]
        self._client.map_parts(self._remove, parts)

    def _remove(self, rows: Sequence[PendingRow]) -> None:
        requests: Any = {self.address.name: [{"DeleteRequest": {"Key": row.number.typed()}} for row in rows]}
        while requests:
            response = self._call("batch_write_item", RequestItems=requests)
            requests = self._after_pause(response.get("UnprocessedItems"))

    def count_failure(self, row: PendingRow) -> None:
        """Count a failed attempt, unless the item was deleted meanwhile."""
        try:
            self._call(
                "update_item",
                TableName=self.address.name,
                Key=row.number.typed(),
                UpdateExpression="ADD failures :one",
                ConditionExpression="attribute_exists(grp)",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )
        except RequestRefusal:
            return

    def backlog(self) -> Backlog:
        """Return the backlog of the first page: to count a table is to read all of it."""
        response = self._call("scan", TableName=self.address.name, Limit=_MAX_COUNTED, **_KEYS)
        added = [Key(item["grp"]["S"], item["place"]["S"]).added for item in response.get("Items", [])]
        return Backlog(len(added), max(0, self.clock.utc() - min(added)) if added else 0)

    def close(self) -> None:
        self._client.close()

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return call_with_retries(lambda: self._client.call(operation, **arguments), self.clock, self.address.timeout)

    def _after_pause(self, unprocessed: Any) -> Any:
        """Return the requests that DynamoDB did not process, after a pause if there are any."""
        if unprocessed:
            self.clock.sleep(_POLL)
        return unprocessed

    def _pending(self, item: dict[str, Any]) -> PendingRow:
        key = Key(item["grp"]["S"], item["place"]["S"])
        waited = self.clock.utc() - key.added
        failures = int(item.get("failures", {"N": "0"})["N"])
        return PendingRow(key, key.identity, key.grp, item["event"]["S"].encode(), failures, max(0, waited))


_CREATE = "check name and region, or create it with outbox.create() or eventonce relay --create"
_USED = "was used before, and that transaction took effect; nothing was written now"
_KEYS = {"ProjectionExpression": "grp, place"}


def _check(items: Sequence[Mapping[str, Any]], own: int) -> None:
    """Raise for what DynamoDB would refuse, with a message that names the item."""
    if not isinstance(items, list | tuple):
        raise ConfigError("outbox: transact takes a list of items; use the form of boto3 TransactWriteItems")
    if len(items) > MAX_ACTIONS:
        raise TransactionRefused(f"outbox: {len(items)} items are too many; use at most {MAX_ACTIONS} beside the event")
    total = own
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or len(item) != 1 or next(iter(item)) not in _KINDS:
            raise ConfigError(f"outbox: items[{number}] is none of {', '.join(_KINDS)}; use {{'Put': {{...}}}}")
        total += _size(item, number)
    if total > MAX_BYTES:
        raise TransactionRefused(
            f"outbox: the items take {total:,} bytes with the event; use at most 4 MB in one transaction"
        )


def _size(item: Mapping[str, Any], number: int) -> int:
    ((kind, fields),) = item.items()
    try:
        sizes = [size(fields.get(name, {})) for name in ("Item", "Key", "ExpressionAttributeValues")]
    except (AttributeError, TypeError, ValueError, KeyError):
        raise ConfigError(
            f"outbox: items[{number}]: the values of the {kind} are not typed; write {{'S': 'text'}}, as for boto3"
        ) from None
    if sizes[0] > MAX_ITEM:
        raise TransactionRefused(f"outbox: items[{number}] takes {sizes[0]:,} bytes; use at most {MAX_ITEM:,}")
    return sum(sizes)
