"""The items of a DynamoDB table: reads, and conditional writes that return the existing item if they are refused."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from eventonce.backoff import jitter
from eventonce.claims.protocol import Record
from eventonce.errors import StoreError
from eventonce.event.keys import Key
from eventonce.stores.aws_client import THROTTLES
from eventonce.stores.dynamodb.client import RETRYABLE, DynamoDBClient, RequestRefusal
from eventonce.stores.dynamodb.layout import Item, Layout
from eventonce.stores.retry import call_with_retries

STATEMENTS = 25  # in one call
_BYTES = 512 * 1024  # of memos in one call
_READS = 100  # keys in one call
_FIRST_PAUSE, _LONGEST_PAUSE = 50, 1000
_REFUSALS = {"ConditionalCheckFailed", "ConditionalCheckFailedException", "DuplicateItem", "DuplicateItemException"}

# The result of a write: written (True), or refused because of this item, or because there is none (None).
WriteResult = Literal[True] | Item | None
Statement = dict[str, Any]
Request = TypeVar("Request")
Result = TypeVar("Result")


class Items:
    """The items of a store's table."""

    def __init__(self, client: DynamoDBClient, layout: Layout) -> None:
        self.client = client
        self.layout = layout

    def record(self, item: Item | None) -> Record | None:
        return None if item is None else self.layout.record(item, self.client.time.now())

    def with_retries(self, operation: Callable[[], Result], timeout: int) -> Result:
        return call_with_retries(operation, self.client.clock, timeout)

    # --- one item ---

    def put(self, item: Item, condition: dict[str, Any]) -> WriteResult:
        """Write an item if the condition holds."""
        result = self._write("put_item", {"Item": item, **condition})
        return True if result == item else result  # an equal item was written by us, and only the reply was lost

    def delete(self, arguments: dict[str, Any]) -> WriteResult:
        """Delete an item if the condition holds."""
        return self._write("delete_item", arguments)

    def delete_any(self, key: Key) -> Item | None:
        """Delete an item without a condition, and return it."""
        response = self.client.call(
            "delete_item", TableName=self.client.table, Key=self.layout.key(key), ReturnValues="ALL_OLD"
        )
        item: Item | None = response.get("Attributes")
        return item

    def _write(self, operation: str, arguments: dict[str, Any]) -> WriteResult:
        try:
            self.client.call(
                operation, TableName=self.client.table, ReturnValuesOnConditionCheckFailure="ALL_OLD", **arguments
            )
        except RequestRefusal as refused:
            item: Item | None = refused.item
            return item
        return True

    # --- many ---

    def execute(
        self, keys: Sequence[Key], statements: Sequence[Statement], timeout: int
    ) -> list[WriteResult | StoreError]:
        """Run the statements of these keys in one call. The result is a `StoreError` for a key that stays throttled."""
        results = self._run(statements, timeout)
        unread = [key for key, result in zip(keys, results, strict=True) if result is False]
        items = self.read(unread, timeout)
        return [items.get(key) if result is False else result for key, result in zip(keys, results, strict=True)]

    def _run(self, statements: Sequence[Statement], timeout: int) -> list[bool | Item | StoreError]:
        """Run statements. Repeat the throttled ones alone, after longer and longer pauses."""
        results: list[bool | Item | StoreError] = [False] * len(statements)
        pending, pauses = [*range(len(statements))], self._pauses(timeout)
        while pending:
            batch = [statements[index] for index in pending]
            response = self.client.call("batch_execute_statement", required="Responses", Statements=batch)
            for index, statement_response in zip(pending, response["Responses"], strict=True):
                results[index] = self._result_of(statement_response)
            pending = [index for index in pending if isinstance(results[index], StoreError)]
            if pending and not next(pauses, False):
                break
        return results

    def _result_of(self, response: dict[str, Any]) -> bool | Item | StoreError:
        error = response.get("Error")
        if error is None:
            return True
        code = error.get("Code", "")
        if code in _REFUSALS:
            item: Item | None = error.get("Item")
            return item or False  # without the item, it must be read
        if code in THROTTLES:
            self.client.count_throttled()
        store_error = self.client.translate_error(code, response, "a statement")
        if code not in RETRYABLE:
            raise store_error
        return store_error

    def read(self, keys: Sequence[Key], timeout: int) -> dict[Key, Item]:
        """Read the existing items of these keys."""
        parts = [keys[start : start + _READS] for start in range(0, len(keys), _READS)]
        results = self.client.map_parts(
            lambda part: self.with_retries(lambda: self._read(part, timeout), timeout), parts
        )
        return {key: item for items in results for key, item in items.items()}

    def _read(self, keys: Sequence[Key], timeout: int) -> dict[Key, Item]:
        names = {self.layout.name(self.layout.key(key)): key for key in keys}
        requests = {self.client.table: {"Keys": [self.layout.key(key) for key in keys], "ConsistentRead": True}}
        items: dict[Key, Item] = {}
        pauses = self._pauses(timeout)
        while requests:
            response = self.client.call("batch_get_item", required="Responses", RequestItems=requests)
            for item in response["Responses"].get(self.client.table, ()):
                items[names[self.layout.name(item)]] = item
            requests = response.get("UnprocessedKeys") or {}
            if requests:
                self.client.count_throttled()
                if not next(pauses, False):
                    raise StoreError(f"{self.client.address()} throttles reads; trying again later may help")
        return items

    def _pauses(self, timeout: int) -> Iterator[bool]:
        """Sleep longer and longer, and yield True after each pause, until the timeout."""
        clock, pause = self.client.clock, _FIRST_PAUSE
        deadline = clock.steady() + timeout
        while clock.steady() + pause <= deadline:
            clock.sleep(jitter(pause))
            yield True
            pause = min(2 * pause, _LONGEST_PAUSE)

    def in_parts(
        self,
        operation: Callable[[Sequence[Request]], list[Result]],
        requests: Sequence[Request],
        weight: Callable[[Request], int] = lambda _: 0,
    ) -> list[Result]:
        """Call a function with parts that fit into one call each, several at a time. Join their results."""
        parts = list(_split_into_parts(requests, weight))
        return [result for results in self.client.map_parts(operation, parts) for result in results]


def _split_into_parts(requests: Sequence[Request], weight: Callable[[Request], int]) -> Iterator[list[Request]]:
    part: list[Request] = []
    bytes_so_far = 0
    for request in requests:
        if part and (len(part) == STATEMENTS or bytes_so_far + weight(request) > _BYTES):
            yield part
            part, bytes_so_far = [], 0
        part.append(request)
        bytes_so_far += weight(request)
    if part:
        yield part
