"""`ctx.tx` on DynamoDB: it collects the handler's writes and sends them together with their record."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from boto3.dynamodb.types import TypeSerializer

from eventonce.claims import protocol
from eventonce.claims.protocol import Claim, Commit
from eventonce.errors import ConfigError, EventOnceError, StoreError
from eventonce.stores.aws_client import THROTTLES
from eventonce.stores.dynamodb.client import RETRYABLE, DynamoDBClient, RequestRefusal
from eventonce.stores.dynamodb.layout import Item, Layout, Value, call_arguments
from eventonce.stores.retry import call_with_retries
from eventonce.text import type_of

MAX_ACTIONS = 99  # DynamoDB takes 100 in a transaction, and one of them is ours
MAX_ITEM = 400 * 1024
MAX_BYTES = 4 * 1024 * 1024
_FAILED = "ConditionalCheckFailed"


class TransactionRefused(EventOnceError):
    """DynamoDB refused the handler's own writes, so none of them was made."""


class Writes:
    """The `ctx.tx` of a handler. Its methods take the parameters of boto3 and plain Python values.

    Nothing is written before the handler has returned, so a handler does not read its own writes.
    """

    def __init__(self) -> None:
        self.actions: list[dict[str, Any]] = []
        self.bytes = 0
        self._touched: list[tuple[str, Item, bool]] = []  # table; key, or whole item; whether it is a key
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
        fields = {"Key": self._typed(Key), "UpdateExpression": UpdateExpression}
        self._add("Update", TableName, fields, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues)

    def delete_item(
        self,
        *,
        TableName: str,  # noqa: N803
        Key: Mapping[str, Any],  # noqa: N803
        ConditionExpression: str | None = None,  # noqa: N803
        ExpressionAttributeNames: Mapping[str, str] | None = None,  # noqa: N803
        ExpressionAttributeValues: Mapping[str, Any] | None = None,  # noqa: N803
    ) -> None:
        fields = {"Key": self._typed(Key)}
        self._add("Delete", TableName, fields, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues)

    def condition_check(
        self,
        *,
        TableName: str,  # noqa: N803
        Key: Mapping[str, Any],  # noqa: N803
        ConditionExpression: str,  # noqa: N803
        ExpressionAttributeNames: Mapping[str, str] | None = None,  # noqa: N803
        ExpressionAttributeValues: Mapping[str, Any] | None = None,  # noqa: N803
    ) -> None:
        fields = {"Key": self._typed(Key)}
        self._add(
            "ConditionCheck",
            TableName,
            fields,
            ConditionExpression,
            ExpressionAttributeNames,
            ExpressionAttributeValues,
        )

    def touch(self, table: str, key: Item) -> None:
        """Reserve an item, so that the handler cannot write it."""
        self._touched.append((table, key, True))

    def end(self) -> None:
        self._open = False

    def _typed(self, values: Mapping[str, Any]) -> dict[str, Value]:
        return {name: self._serialize(value) for name, value in values.items()}

    def _add(
        self,
        kind: str,
        table: str,
        fields: dict[str, Any],
        condition: str | None,
        names: Mapping[str, str] | None,
        values: Mapping[str, Any] | None,
    ) -> None:
        if not self._open:
            raise ConfigError("ctx.tx has ended with its handler; write through it inside the handler only")
        action = {"TableName": table, **fields}
        if condition is not None:
            action["ConditionExpression"] = condition
        if names:
            action["ExpressionAttributeNames"] = dict(names)
        if values:
            action["ExpressionAttributeValues"] = self._typed(values)
        self._check_types(action)
        self._check_size(action)
        self._check_unique(table, fields)
        self.actions.append({kind: action})

    @staticmethod
    def _check_types(action: dict[str, Any]) -> None:
        for name in ("TableName", "UpdateExpression", "ConditionExpression"):
            if not isinstance(action.get(name, ""), str):
                raise ConfigError(f"ctx.tx: {name} is {type_of(action[name])}; use a string")

    def _check_size(self, action: dict[str, Any]) -> None:
        if len(self.actions) == MAX_ACTIONS:
            raise TransactionRefused(f"ctx.tx: DynamoDB takes at most {MAX_ACTIONS} writes besides eventonce's own")
        parts = (action.get(name, {}) for name in ("Item", "Key", "ExpressionAttributeValues"))
        self.bytes += sum(size(part) for part in parts)
        if self.bytes > MAX_BYTES:
            raise TransactionRefused(f"ctx.tx: the writes take {self.bytes:,} bytes; DynamoDB takes 4 MB in one go")

    def _check_unique(self, table: str, fields: dict[str, Any]) -> None:
        """Raise if an item is written twice, as far as that can be seen here. DynamoDB itself refuses the rest."""
        write = (table, fields.get("Key") or fields["Item"], "Key" in fields)
        if any(_is_same_item(write, other) for other in self._touched):
            raise TransactionRefused(
                f"ctx.tx: an item of {table!r} is written twice; DynamoDB takes one write for each item"
            )
        self._touched.append(write)


class DynamoDBTransaction:
    """A handler's writes and their record, in one `TransactWriteItems`."""

    holds = False  # nothing is locked: an owner that loses its lease cannot commit

    def __init__(
        self,
        client: DynamoDBClient,
        layout: Layout,
        claim: Claim,
        timeout: int,
        learn_time: Callable[[int], None],
        commit_alone: Callable[[Commit], bool],
    ) -> None:
        self._client = client
        self._layout = layout
        self._timeout = timeout
        self._learn_time = learn_time
        self._commit_alone = commit_alone  # commits if the handler has written nothing
        self.handle = Writes()
        self.handle.touch(client.table, layout.key(claim.key))

    def commit(self, finish: Commit) -> bool:
        """Write all, or nothing: return False if the claim is lost, and raise if a condition does not hold."""
        self.handle.end()
        if not self.handle.actions:
            return self._commit_alone(finish)
        self._learn_time(self._timeout)
        request = self._request(finish)  # built once, because its token allows repeating only an equal request
        return call_with_retries(lambda: self._send(request, finish), self._client.clock, self._timeout)

    def rollback(self) -> None:
        """Discard the writes. None has been sent."""
        self.handle.end()

    def _request(self, finish: Commit) -> dict[str, Any]:
        record_write = call_arguments(self._layout.completion(finish, self._client.time.now()))
        if self.handle.bytes + size(record_write["ExpressionAttributeValues"]) > MAX_BYTES:
            raise TransactionRefused("ctx.tx: the writes take over 4 MB with the result that is remembered")
        update = {"TableName": self._client.table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD", **record_write}
        token = hashlib.sha256(finish.key + finish.token).hexdigest()[:32]
        return {"ClientRequestToken": token, "TransactItems": [{"Update": update}, *self.handle.actions]}

    def _send(self, request: dict[str, Any], finish: Commit) -> bool:
        try:
            self._client.call("transact_write_items", **request)
        except RequestRefusal as refused:
            if not refused.reasons:
                raise TransactionRefused(f"ctx.tx: DynamoDB refused the writes ({refused})") from refused
            return self._cancelled(refused, finish)
        return True

    def _cancelled(self, refused: RequestRefusal, finish: Commit) -> bool:
        record_reason, *handler_reasons = refused.reasons
        if record_reason.get("Code") == _FAILED:  # the claim is lost, unless this commit was made and its reply lost
            item = record_reason.get("Item")
            now = self._client.time.now()
            record = self._layout.record(item, now) if item else None
            # If it is still running, this commit was not made, whatever made the condition fail.
            return record is not None and not record.lease and protocol.commit(record, finish, now) is not None
        reasons = list(zip(self.handle.actions, handler_reasons, strict=False))
        for action, reason in reasons:
            if reason.get("Code") not in (None, "None", *RETRYABLE):
                raise TransactionRefused(_describe_refusal(action, reason)) from refused
        codes = {str(reason.get("Code")) for reason in refused.reasons}
        self._client.count_throttled(len(codes & THROTTLES))
        passing = ", ".join(sorted(codes & RETRYABLE)) or "for no reason given"
        raise StoreError(f"{self._client.address()}: the transaction was cancelled: {passing}") from refused


def _describe_refusal(action: dict[str, Any], reason: dict[str, Any]) -> str:
    ((kind, fields),) = action.items()
    text = str(reason.get("Message") or reason["Code"])
    if reason.get("Code") == _FAILED:
        text = f"its condition {fields.get('ConditionExpression', '')!r} did not hold"
    return f"ctx.tx: the {kind} on table {fields['TableName']!r} was refused, and nothing was written: {text}"


def _is_same_item(one: tuple[str, Item, bool], other: tuple[str, Item, bool]) -> bool:
    """Return whether two writes certainly go to the same item."""
    if one[0] != other[0]:
        return False
    if one[2] == other[2]:
        return one[1] == other[1]
    key, item = (one[1], other[1]) if one[2] else (other[1], one[1])
    return all(item.get(name) == value for name, value in key.items())


def size(values: Mapping[str, Value]) -> int:
    """Return the bytes that DynamoDB counts for these attributes, or a few more."""
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
        return 3 + sum(1 + _value_size(element if single is None else {single: element}) for element in content)
    return 1  # true, false, null
