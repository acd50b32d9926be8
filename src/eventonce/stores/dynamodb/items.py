"""The items of a DynamoDB table: conditional writes that tell what is there where they are refused, and reads."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from eventonce.claims.protocol import Record
from eventonce.errors import StoreError
from eventonce.event.keys import Key
from eventonce.stores.dynamodb.client import RETRYABLE, THROTTLES, DynamoDBClient, Refused
from eventonce.stores.dynamodb.layout import Item, Layout
from eventonce.stores.retry import call_with_retries

STATEMENTS = 25  # in one call
_BYTES = 512 * 1024  # of memos in one call
_READS = 100  # keys in one call
_FIRST_PAUSE, _LONGEST_PAUSE = 50, 1000
_REFUSALS = {"ConditionalCheckFailed", "ConditionalCheckFailedException", "DuplicateItem", "DuplicateItemException"}

# What became of a write: made (True), refused by this item or by there being none (None), or not done at all.
Fate = Literal[True] | Item | None
Statement = dict[str, Any]
Each = TypeVar("Each")
Result = TypeVar("Result")


class Items:
    """The items of a store's table."""

    def __init__(self, server: DynamoDBClient, layout: Layout) -> None:
        self.server = server
        self.layout = layout

    def record(self, item: Item | None) -> Record | None:
        return None if item is None else self.layout.record(item, self.server.time.now())

    def patiently(self, act: Callable[[], Result], within: int) -> Result:
        return call_with_retries(act, self.server.clock, within)

    # --- one item ---

    def put(self, item: Item, condition: dict[str, Any]) -> Fate:
        """Write an item where the condition holds."""
        found = self._write("put_item", {"Item": item, **condition})
        return True if found == item else found  # then the write before was ours, and only its reply was lost

    def delete(self, arguments: dict[str, Any]) -> Fate:
        """Delete an item where the condition holds."""
        return self._write("delete_item", arguments)

    def drop(self, key: Key) -> Item | None:
        """Delete an item whatever it is; what it was."""
        answer = self.server.call(
            "delete_item", TableName=self.server.table, Key=self.layout.key(key), ReturnValues="ALL_OLD"
        )
        item: Item | None = answer.get("Attributes")
        return item

    def _write(self, operation: str, arguments: dict[str, Any]) -> Fate:
        try:
            self.server.call(
                operation, TableName=self.server.table, ReturnValuesOnConditionCheckFailure="ALL_OLD", **arguments
            )
        except Refused as refused:
            item: Item | None = refused.item
            return item
        return True

    # --- many ---

    def execute(self, keys: Sequence[Key], statements: Sequence[Statement], within: int) -> list[Fate | StoreError]:
        """Run the statements of these keys in one call; a `StoreError` for each that is throttled for too long."""
        made = self._run(statements, within)
        unread = [key for key, fate in zip(keys, made, strict=True) if fate is False]
        items = self.read(unread, within)
        return [items.get(key) if fate is False else fate for key, fate in zip(keys, made, strict=True)]

    def _run(self, statements: Sequence[Statement], within: int) -> list[bool | Item | StoreError]:
        """Those that are throttled go out again, alone and ever later, so that they hold up nothing else."""
        fates: list[bool | Item | StoreError] = [False] * len(statements)
        waiting, pauses = [*range(len(statements))], self._pauses(within)
        while waiting:
            asked = [statements[each] for each in waiting]
            answer = self.server.call("batch_execute_statement", required="Responses", Statements=asked)
            for each, response in zip(waiting, answer["Responses"], strict=True):
                fates[each] = self._fate(response)
            waiting = [each for each in waiting if isinstance(fates[each], StoreError)]
            if waiting and not next(pauses, False):
                break
        return fates

    def _fate(self, response: dict[str, Any]) -> bool | Item | StoreError:
        error = response.get("Error")
        if error is None:
            return True
        code = error.get("Code", "")
        if code in _REFUSALS:
            item: Item | None = error.get("Item")
            return item or False  # not told, so it must be read
        if code in THROTTLES:
            self.server.count_throttled()
        trouble = self.server.trouble(code, response, "a statement")
        if code not in RETRYABLE:
            raise trouble
        return trouble

    def read(self, keys: Sequence[Key], within: int) -> dict[Key, Item]:
        """The items of these keys that there are, as they are now."""
        parts = [keys[start : start + _READS] for start in range(0, len(keys), _READS)]
        found = self.server.map_parts(lambda part: self.patiently(lambda: self._read(part, within), within), parts)
        return {key: item for part in found for key, item in part.items()}

    def _read(self, keys: Sequence[Key], within: int) -> dict[Key, Item]:
        names = {self.layout.name(self.layout.key(key)): key for key in keys}
        asked = {self.server.table: {"Keys": [self.layout.key(key) for key in keys], "ConsistentRead": True}}
        found: dict[Key, Item] = {}
        pauses = self._pauses(within)
        while asked:
            answer = self.server.call("batch_get_item", required="Responses", RequestItems=asked)
            for item in answer["Responses"].get(self.server.table, ()):
                found[names[self.layout.name(item)]] = item
            asked = answer.get("UnprocessedKeys") or {}
            if asked:
                self.server.count_throttled()
                if not next(pauses, False):
                    raise StoreError(f"{self.server.where()} throttles reads; trying again later may help")
        return found

    def _pauses(self, within: int) -> Iterator[bool]:
        """Wait a little, and ever longer, for as long as we may."""
        clock, pause = self.server.clock, _FIRST_PAUSE
        give_up = clock.steady() + within
        while clock.steady() + pause <= give_up:
            clock.sleep(random.randint(pause // 2, pause))  # noqa: S311  # jitter, not a secret
            yield True
            pause = min(2 * pause, _LONGEST_PAUSE)

    def in_parts(
        self,
        act: Callable[[Sequence[Each]], list[Result]],
        asked: Sequence[Each],
        weight: Callable[[Each], int] = lambda _: 0,
    ) -> list[Result]:
        """Let a function act on what fits into one call each, several at a time."""
        return [result for results in self.server.map_parts(act, list(_parts(asked, weight))) for result in results]


def _parts(asked: Sequence[Each], weight: Callable[[Each], int]) -> Iterator[list[Each]]:
    part: list[Each] = []
    heavy = 0
    for each in asked:
        if part and (len(part) == STATEMENTS or heavy + weight(each) > _BYTES):
            yield part
            part, heavy = [], 0
        part.append(each)
        heavy += weight(each)
    if part:
        yield part
