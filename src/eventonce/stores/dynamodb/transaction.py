"""`ctx.tx` on DynamoDB: it collects the handler's writes and sends them with the record of them, all or none."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from boto3.dynamodb.types import TypeSerializer

from eventonce.claims import protocol
from eventonce.claims.protocol import Claim, Finish
from eventonce.errors import ConfigError, EventOnceError, StoreError
from eventonce.stores.dynamodb.client import PASSING, THROTTLES, DynamoDBClient, Refused
from eventonce.stores.dynamodb.layout import Item, Layout, Value, expression
from eventonce.stores.retry import ask

MAX_ACTIONS = 99  # DynamoDB takes 100 in a transaction, and one of them is ours
MAX_ITEM = 400 * 1024
MAX_BYTES = 4 * 1024 * 1024
_FAILED = "ConditionalCheckFailed"


class TransactionRefused(EventOnceError):
    """DynamoDB refused the handler's own writes, so none of them was made."""


class Writes:
    """What a handler writes through: `ctx.tx`. Takes the names of boto3 and plain Python values.

    Nothing is written before the handler has returned. What is read meanwhile is read without it.
    """

    def __init__(self) -> None:
        self.actions: list[dict[str, Any]] = []
        self.bytes = 0
        self._touched: list[tuple[str, Item, bool]] = []  # table; the key, or the item where the key is not known
        self._open = True
        self._serialize: Callable[[Any], Value] = TypeSerializer().serialize

    def put_item(
        self,
        *,
        TableName: str,  # noqa: N803  # as boto3 spells them
        Item: Mapping[str, Any],  # noqa: N803
        ConditionExpression: str | None = None,  # noqa: N803
        ExpressionAttributeNames: Mapping[str, str] | None = None,  # noqa: N803
        ExpressionAttributeValues: Mapping[str, Any] | None = None,  # noqa: N803
    ) -> None:
        item = self._typed(Item)
        if size(item) > MAX_ITEM:
            raise TransactionRefused(
                f"ctx.tx: an item for {TableName!r} takes {size(item):,} bytes; 400 KB is the most"
            )
        self._add(
            "Put", TableName, {"Item": item}, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues
        )

    def update_item(
        self,
        *,
        TableName: str,  # noqa: N803
        Key: Mapping[str, Any],  # noqa: N803
        UpdateExpression: str,  # noqa: N803
        ConditionExpression: str | None = None,  # noqa: N803
        ExpressionAttributeNames: Mapping[str, str] | None = None,  # noqa: N803
        ExpressionAttributeValues: Mapping[str, Any] | None = None,  # noqa: N803
    ) -> None:
        what = {"Key": self._typed(Key), "UpdateExpression": UpdateExpression}
        self._add("Update", TableName, what, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues)

    def delete_item(
        self,
        *,
        TableName: str,  # noqa: N803
        Key: Mapping[str, Any],  # noqa: N803
        ConditionExpression: str | None = None,  # noqa: N803
        ExpressionAttributeNames: Mapping[str, str] | None = None,  # noqa: N803
        ExpressionAttributeValues: Mapping[str, Any] | None = None,  # noqa: N803
    ) -> None:
        what = {"Key": self._typed(Key)}
        self._add("Delete", TableName, what, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues)

    def condition_check(
        self,
        *,
        TableName: str,  # noqa: N803
        Key: Mapping[str, Any],  # noqa: N803
        ConditionExpression: str,  # noqa: N803
        ExpressionAttributeNames: Mapping[str, str] | None = None,  # noqa: N803
        ExpressionAttributeValues: Mapping[str, Any] | None = None,  # noqa: N803
    ) -> None:
        what = {"Key": self._typed(Key)}
        self._add(
            "ConditionCheck", TableName, what, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues
        )

    def touch(self, table: str, key: Item) -> None:
        """This item is written too, so that nothing else may."""
        self._touched.append((table, key, True))

    def end(self) -> None:
        self._open = False

    def _typed(self, values: Mapping[str, Any]) -> dict[str, Value]:
        return {name: self._serialize(value) for name, value in values.items()}

    def _add(
        self,
        kind: str,
        table: str,
        what: dict[str, Any],
        condition: str | None,
        names: Mapping[str, str] | None,
        values: Mapping[str, Any] | None,
    ) -> None:
        if not self._open:
            raise ConfigError("ctx.tx has ended with its handler; write through it inside the handler only")
        action = {"TableName": table, **what}
        if condition is not None:
            action["ConditionExpression"] = condition
        if names:
            action["ExpressionAttributeNames"] = dict(names)
        if values:
            action["ExpressionAttributeValues"] = self._typed(values)
        self._check_texts(action)
        self._check_room(action)
        self._check_once(table, what)
        self.actions.append({kind: action})

    @staticmethod
    def _check_texts(action: dict[str, Any]) -> None:
        for name in ("TableName", "UpdateExpression", "ConditionExpression"):
            if not isinstance(action.get(name, ""), str):
                raise ConfigError(f"ctx.tx: {name} is a {type(action[name]).__name__}; write it as text")

    def _check_room(self, action: dict[str, Any]) -> None:
        if len(self.actions) == MAX_ACTIONS:
            raise TransactionRefused(f"ctx.tx: DynamoDB takes {MAX_ACTIONS} writes beside eventonce's own, not more")
        parts = (action.get(name, {}) for name in ("Item", "Key", "ExpressionAttributeValues"))
        self.bytes += sum(size(part) for part in parts)
        if self.bytes > MAX_BYTES:
            raise TransactionRefused(f"ctx.tx: the writes take {self.bytes:,} bytes; DynamoDB takes 4 MB in one go")

    def _check_once(self, table: str, what: dict[str, Any]) -> None:
        """Where it can be seen; DynamoDB itself sees the rest."""
        own = (table, what.get("Key") or what["Item"], "Key" in what)
        if any(_same(own, other) for other in self._touched):
            raise TransactionRefused(
                f"ctx.tx: an item of {table!r} is written twice; DynamoDB takes one write for each"
            )
        self._touched.append(own)


class DynamoDBTransaction:
    """A handler's writes and the record of them, in one `TransactWriteItems`."""

    holds = False  # nothing is locked: who loses the lease cannot commit

    def __init__(
        self,
        server: DynamoDBClient,
        layout: Layout,
        claim: Claim,
        within: int,
        ask_the_time: Callable[[int], None],
        plainly: Callable[[Finish], bool],
    ) -> None:
        self._server = server
        self._layout = layout
        self._within = within
        self._ask_the_time = ask_the_time
        self._plainly = plainly  # how to commit where there is nothing to write
        self.handle = Writes()
        self.handle.touch(server.table, layout.key(claim.key))

    def commit(self, finish: Finish) -> bool:
        """Write all, or nothing where the claim is lost (False) or a condition does not hold (raises)."""
        self.handle.end()
        if not self.handle.actions:
            return self._plainly(finish)
        self._ask_the_time(self._within)
        request = self._request(finish)  # once: with its token it may be repeated, but only if it says the same
        return ask(lambda: self._send(request, finish), self._server.clock, self._within)

    def rollback(self) -> None:
        """Nothing has been written."""
        self.handle.end()

    def _request(self, finish: Finish) -> dict[str, Any]:
        ours = expression(self._layout.completion(finish, self._server.time.now()))
        if self.handle.bytes + size(ours["ExpressionAttributeValues"]) > MAX_BYTES:
            raise TransactionRefused("ctx.tx: the writes take over 4 MB with the result that is remembered")
        update = {"TableName": self._server.table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD", **ours}
        token = hashlib.sha256(finish.key + finish.token).hexdigest()[:32]
        return {"ClientRequestToken": token, "TransactItems": [{"Update": update}, *self.handle.actions]}

    def _send(self, request: dict[str, Any], finish: Finish) -> bool:
        try:
            self._server.call("transact_write_items", **request)
        except Refused as refused:
            if not refused.reasons:
                raise TransactionRefused(f"ctx.tx: DynamoDB refused the writes ({refused})") from refused
            return self._cancelled(refused, finish)
        return True

    def _cancelled(self, refused: Refused, finish: Finish) -> bool:
        ours, *theirs = refused.reasons
        if ours.get("Code") == _FAILED:  # lost, unless this very commit was made before and its reply was lost
            item = ours.get("Item")
            now = self._server.time.now()
            record = self._layout.record(item, now) if item else None
            # One that still runs was not done by this, whatever its condition failed of.
            return record is not None and not record.lease and protocol.commit(record, finish, now) is not None
        reasons = list(zip(self.handle.actions, theirs, strict=False))
        for action, reason in reasons:
            if reason.get("Code") not in (None, "None", *PASSING):
                raise TransactionRefused(_why(action, reason)) from refused
        codes = {str(reason.get("Code")) for reason in refused.reasons}
        self._server.count_throttled(len(codes & THROTTLES))
        passing = ", ".join(sorted(codes & PASSING)) or "for no reason given"
        raise StoreError(f"{self._server.where()}: the transaction was cancelled: {passing}") from refused


def _why(action: dict[str, Any], reason: dict[str, Any]) -> str:
    ((kind, what),) = action.items()
    why = str(reason.get("Message") or reason["Code"])
    if reason.get("Code") == _FAILED:
        why = f"its condition {what.get('ConditionExpression', '')!r} did not hold"
    return f"ctx.tx: the {kind} on table {what['TableName']!r} was refused, and nothing was written: {why}"


def _same(one: tuple[str, Item, bool], other: tuple[str, Item, bool]) -> bool:
    """Whether two writes are known to be to the same item."""
    if one[0] != other[0]:
        return False
    if one[2] == other[2]:
        return one[1] == other[1]
    key, item = (one[1], other[1]) if one[2] else (other[1], one[1])
    return all(item.get(name) == value for name, value in key.items())


def size(values: Mapping[str, Value]) -> int:
    """The bytes that DynamoDB counts for these attributes, or a few more."""
    return sum(len(name.encode()) + _value_size(value) for name, value in values.items())


def _value_size(value: Value) -> int:
    ((kind, content),) = value.items()
    if kind == "S":
        return len(content.encode())
    if kind == "B":
        return len(bytes(content))
    if kind == "N":
        return len(content) // 2 + 3
    if kind == "M":
        return 3 + len(content) + size(content)
    if kind in ("L", "SS", "NS", "BS"):
        single = {"L": None, "SS": "S", "NS": "N", "BS": "B"}[kind]
        return 3 + sum(1 + _value_size(each if single is None else {single: each}) for each in content)
    return 1  # true, false, null
