"""An outbox in a table of DynamoDB, whose stream tells relays of what was added.

An item is the truth and a record of the stream is only the news of it: a relay reads the item, publishes it and
removes it. So what Lambda brings again is not published again, and what a stream forgets after a day is still there.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eventonce.clients.aws import AwsUrl
from eventonce.clock import Clock
from eventonce.errors import ConfigError, EventRejected, StoreError, StoreUnusable, TransactionRefused
from eventonce.outbox.feed import Backlog
from eventonce.outbox.rows import OutboxRow, PendingRow
from eventonce.stores.dynamodb.client import PASSING, Denied, DynamoDBClient, Refused
from eventonce.stores.dynamodb.transaction import MAX_ACTIONS, MAX_BYTES, MAX_ITEM, Writes, size
from eventonce.stores.retry import ask

_READ_AT_ONCE, _WRITTEN_AT_ONCE = 100, 25  # keys of one BatchGetItem and BatchWriteItem
_COUNTED = 1000  # items that are looked at to say how much waits
_IN_FLIGHT = 8
_KINDS = ("Put", "Update", "Delete", "ConditionCheck")
_PATIENCE = 120_000  # for a new table
_POLL = 200
_FAILED = "ConditionalCheckFailed"


class Key(NamedTuple):
    """What an item is found by; those of a group lie in the order of adding."""

    grp: str
    place: str  # when it was added, in 15 digits, and its identity

    @property
    def added(self) -> int:
        return int(self.place[:15])

    @property
    def identity(self) -> str:
        return self.place[16:]

    def typed(self) -> dict[str, Any]:
        return {"grp": {"S": self.grp}, "place": {"S": self.place}}


class DynamoDBTable:
    """`dynamodb://TABLE?region=REGION`; `endpoint` and `timeout` may follow too."""

    streamed = True  # relays are fed by its stream

    def __init__(self, url: str, clock: Clock) -> None:
        self.place = AwsUrl(url, "outbox")
        self.name = f"dynamodb://{self.place.name}"
        self.clock = clock
        self._server = DynamoDBClient(
            self.place.name,
            region=self.place.options.get("region"),
            endpoint=self.place.options.get("endpoint"),
            timeout=self.place.timeout,
            in_flight=_IN_FLIGHT,
            clock=clock,
            remedy="outbox.create() or eventonce relay --create",
        )

    # --- the user's side ---

    def _key(self, row: OutboxRow) -> Key:
        return Key(row.grp, f"{self.clock.utc():015}:{row.identity}")

    def insert(self, connection: Any, row: OutboxRow) -> None:
        """Add a row to what `ctx.tx` of a DynamoDB store will write."""
        if not isinstance(connection, Writes):
            raise ConfigError("outbox: in DynamoDB use transact(items, event), or add(ctx.tx, event) in a handler")
        item = {**self._key(row)._asdict(), "event": row.event.decode()}
        connection.put_item(TableName=self.place.name, Item=item)

    def transact(self, items: Sequence[Mapping[str, Any]], row: OutboxRow) -> None:
        """Write all or nothing. Asked again with the same token, where an answer is lost or another interferes."""
        item = {**self._key(row).typed(), "event": {"S": row.event.decode()}}
        if size(item) > MAX_ITEM:
            raise EventRejected(f"takes {size(item):,} bytes in the outbox, and DynamoDB keeps {MAX_ITEM:,} in an item")
        _check(items, size(item))
        put = {"TableName": self.place.name, "Item": item}
        # Tokens are one space for all tables of an account.
        token = hashlib.sha256("\0".join((self.place.name, row.grp, row.identity)).encode()).hexdigest()[:36]
        request = {"ClientRequestToken": token, "TransactItems": [{"Put": put}, *items]}
        ask(lambda: self._transact(request, row.identity), self.clock, self.place.timeout)

    def _transact(self, request: dict[str, Any], identity: str) -> None:
        try:
            self._server.call("transact_write_items", **request)
        except Refused as refused:
            if refused.code == "IdempotentParameterMismatchException":
                raise TransactionRefused(f"outbox: the identity {identity!r} {_USED}") from refused
            if refused.code == "ResourceNotFoundException":
                raise StoreUnusable(
                    f"{self.name}: it does not exist, or a table of the items does not; {_MAKE}"
                ) from None
            if not refused.reasons:
                raise TransactionRefused(f"outbox: DynamoDB refused the transaction ({refused})") from refused
            raise self._cancelled(refused, request["TransactItems"]) from refused

    def _cancelled(self, refused: Refused, items: Sequence[Mapping[str, Any]]) -> Exception:
        """Which item is to blame; or, where none is, that it may be tried again."""
        codes = [str(reason.get("Code") or "None") for reason in refused.reasons]
        for number, (item, code) in enumerate(zip(items, codes, strict=False)):
            if code not in ("None", *PASSING):
                ((kind, what),) = item.items()
                said = refused.reasons[number].get("Message") or code
                why = "its condition did not hold" if code == _FAILED else said
                return TransactionRefused(
                    f"outbox: items[{number - 1}], the {kind} on table {what.get('TableName')!r}, was refused and "
                    f"nothing was written: {why}"
                )
        passing = ", ".join(sorted(set(codes) & PASSING)) or "for no reason given"
        return StoreError(f"{self.name}: the transaction was cancelled and nothing was written: {passing}")

    def create(self) -> None:
        """Make the table, paid per request, with a stream of its keys."""
        if self._description() is None:
            names = [("grp", "HASH"), ("place", "RANGE")]
            self._server.call(
                "create_table",
                TableName=self.place.name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in names],
                KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in names],
                StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
            )
        give_up = self.clock.steady() + _PATIENCE
        while (self._description() or {}).get("TableStatus") != "ACTIVE":
            if self.clock.steady() > give_up:
                raise StoreError(f"{self.name}: was created and is not ready yet; try again later")
            self.clock.sleep(_POLL)

    def check(self) -> None:
        """Raise unless it is an outbox with a stream."""
        try:
            found = self._description()
        except Denied:  # then nobody looks, and what is wrong shows when it is used
            return
        if found is None:
            raise StoreUnusable(f"{self.name}: has no outbox; {_MAKE}")
        keys = {each["AttributeName"] for each in found["KeySchema"]}
        if keys != {"grp", "place"}:
            raise StoreUnusable(f"{self.name}: is no outbox: its key is {' and '.join(sorted(keys))}; name another")
        if not found.get("StreamSpecification", {}).get("StreamEnabled"):
            raise StoreUnusable(f"{self.name}: has no stream, which relays need; turn it on, with KEYS_ONLY or more")

    def schema(self) -> str:
        raise ConfigError(f"outbox: {self.name} has no SQL; outbox.create() makes it")

    def _description(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._server.call("describe_table", TableName=self.place.name)["Table"]
        except StoreUnusable as error:
            if isinstance(error, Denied) or "does not exist" not in str(error):
                raise
            return None
        return found

    # --- the relay's side ---

    def read(self, keys: Sequence[Key]) -> dict[Key, PendingRow]:
        """The items that are there, as they are now."""
        found: dict[Key, PendingRow] = {}
        parts = [keys[at : at + _READ_AT_ONCE] for at in range(0, len(keys), _READ_AT_ONCE)]
        for items in self._server.each(self._read, parts):
            for item in items:
                row = self._pending(item)
                found[row.number] = row
        return found

    def _read(self, keys: Sequence[Key]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        asked: Any = {self.place.name: {"Keys": [key.typed() for key in dict.fromkeys(keys)], "ConsistentRead": True}}
        while asked:
            request = asked
            answer = self._ask("batch_get_item", RequestItems=request)
            found += answer.get("Responses", {}).get(self.place.name, [])
            asked = self._left(answer.get("UnprocessedKeys"))
        return found

    def groups(self, grps: Sequence[str]) -> dict[str, list[PendingRow]]:
        """The first items of groups."""
        return dict(zip(grps, self._server.each(self._group, grps), strict=True))

    def _group(self, grp: str) -> list[PendingRow]:
        answer = self._ask(
            "query",
            TableName=self.place.name,
            KeyConditionExpression="grp = :grp",
            ExpressionAttributeValues={":grp": {"S": grp}},
            ConsistentRead=True,
            Limit=_READ_AT_ONCE,
        )
        return [self._pending(item) for item in answer.get("Items", [])]

    def scan(self) -> Iterator[Key]:
        """All that is there."""
        asked: dict[str, Any] = {"TableName": self.place.name, "ConsistentRead": True, **_KEYS}
        while True:
            answer = self._ask("scan", **asked)
            for item in answer.get("Items", []):
                yield Key(item["grp"]["S"], item["place"]["S"])
            if "LastEvaluatedKey" not in answer:
                return
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def remove(self, rows: Sequence[PendingRow]) -> None:
        """These are out."""
        parts = [rows[at : at + _WRITTEN_AT_ONCE] for at in range(0, len(rows), _WRITTEN_AT_ONCE)]
        self._server.each(self._remove, parts)

    def _remove(self, rows: Sequence[PendingRow]) -> None:
        asked: Any = {self.place.name: [{"DeleteRequest": {"Key": row.number.typed()}} for row in rows]}
        while asked:
            request = asked
            asked = self._left(self._ask("batch_write_item", RequestItems=request).get("UnprocessedItems"))

    def count_failure(self, row: PendingRow) -> None:
        """One more attempt was in vain; not where the item is gone meanwhile."""
        try:
            self._ask(
                "update_item",
                TableName=self.place.name,
                Key=row.number.typed(),
                UpdateExpression="ADD failures :one",
                ConditionExpression="attribute_exists(grp)",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )
        except Refused:
            return

    def backlog(self) -> Backlog:
        """As far as one look shows: a table cannot be counted without reading all of it."""
        answer = self._ask("scan", TableName=self.place.name, Limit=_COUNTED, **_KEYS)
        added = [Key(item["grp"]["S"], item["place"]["S"]).added for item in answer.get("Items", [])]
        return Backlog(len(added), max(0, self.clock.utc() - min(added)) if added else 0)

    def close(self) -> None:
        self._server.close()

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return ask(lambda: self._server.call(operation, **arguments), self.clock, self.place.timeout)

    def _left(self, left: Any) -> Any:
        """What DynamoDB did not get to, after a moment."""
        if left:
            self.clock.sleep(_POLL)
        return left

    def _pending(self, item: dict[str, Any]) -> PendingRow:
        key = Key(item["grp"]["S"], item["place"]["S"])
        waited = self.clock.utc() - key.added
        failures = int(item.get("failures", {"N": "0"})["N"])
        return PendingRow(key, key.identity, key.grp, item["event"]["S"].encode(), failures, max(0, waited))


_MAKE = "check name and region, or make it with outbox.create() or eventonce relay --create"
_USED = "was used before, and that transaction took effect; nothing was written now"
_KEYS = {"ProjectionExpression": "grp, place"}


def _check(items: Sequence[Mapping[str, Any]], own: int) -> None:
    """Refuse what DynamoDB would refuse, in words that say which."""
    if not isinstance(items, list | tuple):
        raise ConfigError("outbox: transact takes a list of items, as TransactWriteItems of boto3's client does")
    if len(items) > MAX_ACTIONS:
        raise TransactionRefused(f"outbox: {len(items)} items; DynamoDB takes {MAX_ACTIONS} beside the event")
    total = own
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or len(item) != 1 or next(iter(item)) not in _KINDS:
            raise ConfigError(f"outbox: items[{number}] is none of {', '.join(_KINDS)}; write {{'Put': {{...}}}}")
        total += _size(item, number)
    if total > MAX_BYTES:
        raise TransactionRefused(
            f"outbox: the items take {total:,} bytes with the event; DynamoDB takes 4 MB in one go"
        )


def _size(item: Mapping[str, Any], number: int) -> int:
    ((kind, what),) = item.items()
    try:
        found = [size(what.get(name, {})) for name in ("Item", "Key", "ExpressionAttributeValues")]
    except (AttributeError, TypeError, ValueError, KeyError):
        raise ConfigError(
            f"outbox: items[{number}]: the values of the {kind} are not typed; boto3's client wants {{'S': 'text'}}"
        ) from None
    if found[0] > MAX_ITEM:
        raise TransactionRefused(f"outbox: items[{number}] takes {found[0]:,} bytes; DynamoDB keeps {MAX_ITEM:,}")
    return sum(found)
