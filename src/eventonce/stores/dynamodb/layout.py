"""The layout of a record in a DynamoDB item, and each change of a record as a conditional write.

The names and values of `status`, `expiration`, `in_progress_expiration` and `data` are those of Powertools for AWS
Lambda, so that each can read the records of the other:

    running   INPROGRESS, in_progress_expiration is the end of the lease
    failed    INPROGRESS, in_progress_expiration is 0: anyone may take over at once
    done      COMPLETED, with the attempts of the run in `tries`, so that a commit need not know them
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from eventonce.claims import protocol
from eventonce.claims.protocol import LONGEST_LEASE, Claim, Commit, Record, Release, Token
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key

Value = Any  # a DynamoDB value with its type: {"S": "text"}
Item = Mapping[str, Value]

RUNNING, DONE = "INPROGRESS", "COMPLETED"
LONGEST_ERROR = 500  # bytes, so that an item without a memo is smaller than 1 KB
LARGEST_MEMO = 350 * 1024  # an item holds 400 KB
_NULL = {"NULL": True}
_RUNNING = Record(b"", 1, False, 1, None, 0, 0, 0, None, None, None, 2**62)
_NAME = r"[A-Za-z0-9_.:#-]{1,200}"
# Every write changes one of these attributes. They are compared to detect a change since an item was read.
_COMPARED = ("status", "token", "in_progress_expiration", "tries", "until", "keep_until")
_OWN = {*_COMPARED, "shared", "trying", "done_at", "took", "version", "memo", "error", "data"}


class ItemWrite(NamedTuple):
    """One conditional write: assignments to an item (none: the item is deleted), and conditions."""

    key: Item
    assignments: Sequence[tuple[str, Value]]
    conditions: Sequence[tuple[str, str, Value]]


class Layout:
    """The attributes in which an item stores the fields of a record.

    `key` is the attribute of the partition key. With `sort` the table has a sort key too, whose value is always
    `eventonce`. With `partition`, the partition key has that value, and the sort key identifies the item, as with
    Powertools. With `results`, a result is stored in the form of Powertools too.
    """

    def __init__(
        self,
        key: str = "id",
        sort: str | None = None,
        ttl: str = "expiration",
        prefix: str = "eventonce#",
        partition: str | None = None,
        results: bool = False,
    ) -> None:
        self.key_name = key
        self.sort_name = sort
        self.ttl = ttl
        self._prefix = prefix
        self._partition = partition
        self._results = results

    def check_names(self) -> str | None:
        """Return what is wrong with the names, or None."""
        names = [name for name in (self.key_name, self.sort_name, self.ttl) if name is not None]
        for name in names:
            if not re.fullmatch(_NAME, name):
                return f"{name!r} is not a valid attribute name; use letters, digits and _ . : # -"
            if name in _OWN or names.count(name) > 1:
                return f"the attribute {name!r} would be used twice; eventonce's own are {', '.join(sorted(_OWN))}"
        return None

    # --- keys ---

    def key(self, key: Key) -> dict[str, Value]:
        """Return the primary key of the item of a key."""
        return self.primary_key(key.hex())

    def primary_key(self, name: str) -> dict[str, Value]:
        text = {"S": self._prefix + name}
        if self.sort_name is None:
            return {self.key_name: text}
        if self._partition is None:
            return {self.key_name: text, self.sort_name: {"S": "eventonce"}}
        return {self.key_name: {"S": self._partition}, self.sort_name: text}

    def name(self, item: Item) -> str:
        """Return the value that identifies an item among all of this layout."""
        attribute = self.key_name if self._partition is None or self.sort_name is None else self.sort_name
        return str(item[attribute]["S"])

    # --- records ---

    def item(self, key: Key, record: Record) -> dict[str, Value]:
        """Return a record as an item."""
        done = not record.tries and not record.lease
        item = {
            **self.key(key),
            "status": {"S": DONE if done else RUNNING},
            "token": {"B": record.token},
            "in_progress_expiration": _number(record.lease),
            "tries": _number(record.attempts if done else record.tries),
            "done_at": _number(record.done_at),
            "until": _number(record.until),
            "keep_until": _number(record.expires),
            self.ttl: _number(-(-record.expires // 1000)),
            **{name: value for name, value in self._optional_fields(record) if value != _NULL},
        }
        if record.shared:
            item["shared"] = {"BOOL": True}
        if record.trying is not None:
            item["trying"] = _number(record.trying)
        if record.attempts and not done:
            item["took"] = _number(record.attempts)
        return item

    def _optional_fields(self, record: Record) -> list[tuple[str, Value]]:
        fields = [
            ("version", _NULL if record.version is None else _number(record.version)),
            ("memo", _NULL if record.memo is None else {"B": _limit_memo(record.memo)}),
            ("error", _NULL if record.error is None else {"S": _limit_error(record.error)}),
        ]
        if self._results:
            result = None if record.memo is None else _data_of_memo(record.memo)
            fields.append(("data", _NULL if result is None else {"S": result}))
        return fields

    def record(self, item: Item, now: int) -> Record:
        """Return the record in an item of ours or of Powertools."""
        done_at, done = _int(item, "done_at"), _text(item, "status") == DONE
        if "token" not in item or (done and not done_at):
            return self._powertools_record(item, now)
        until, tries, version = _int(item, "until"), _int(item, "tries"), _optional(item, "version")
        token, memo = bytes(item["token"]["B"]), _memo(item)
        if done:
            return Record(token, 0, False, 0, None, done_at, until, tries, version, memo, None, until)
        return Record(
            token=token,
            lease=_int(item, "in_progress_expiration"),
            shared="shared" in item,
            tries=tries,
            trying=_optional(item, "trying"),
            done_at=done_at,
            until=until,
            attempts=_int(item, "took"),
            version=version,
            memo=memo,
            error=_text(item, "error"),
            expires=_int(item, "keep_until"),
        )

    def _powertools_record(self, item: Item, now: int) -> Record:
        """Return the record in an item of Powertools. It compares whole seconds, and both its ends are inclusive.

        A run for which it stores no end lasts as long as its record, which may be longer than any of our leases.
        """
        status, end = _text(item, "status"), (_int(item, self.ttl) + 1) * 1000
        if status not in (RUNNING, DONE):
            raise StoreUnusable(
                f"the item {self.name(item)!r} was written by another program; use another prefix= or table"
            )
        lease = _int(item, "in_progress_expiration")
        if status == DONE:  # at an unknown time, shortly before its lease would have expired
            memo = _memo_of_data(_text(item, "data"))
            return _RUNNING._replace(
                lease=0, tries=0, done_at=lease or 1, until=end, attempts=1, memo=memo, expires=end
            )
        return _RUNNING._replace(lease=lease + 1 if lease else min(end, now + LONGEST_LEASE), expires=end)

    # --- changes ---

    def extension(self, claim: Claim, end: int) -> ItemWrite:
        """Return the write of a longer lease. A copy of it that arrives late must not shorten a later lease."""
        conditions = [*_owned_conditions(claim.token, end - 1), ("in_progress_expiration", "<=", _number(end))]
        return ItemWrite(self.key(claim.key), [("in_progress_expiration", _number(end))], conditions)

    def completion(self, finish: Commit, now: int) -> ItemWrite:
        """Return the write of a run that is done."""
        record = protocol.commit(_RUNNING._replace(token=finish.token), finish, now)
        assert record is not None  # the token is the same
        item = self.item(finish.key, record)
        assignments = [(name, item[name]) for name in ("status", "done_at", "until", "keep_until", self.ttl)]
        return ItemWrite(
            self.key(finish.key), assignments + self._optional_fields(record), _owned_conditions(finish.token, now)
        )

    def failure(self, release: Release, now: int) -> ItemWrite:
        """Return the write of a failed attempt."""
        _, record = protocol.release(_RUNNING._replace(token=release.token), release, now)
        assert record is not None  # it has an error to remember
        item = self.item(release.key, record)
        assignments = [(name, item[name]) for name in ("in_progress_expiration", "error", "keep_until", self.ttl)]
        window = ("until", "<=", item["keep_until"])  # a window that lasts longer must not be shortened
        return ItemWrite(self.key(release.key), assignments, [*_owned_conditions(release.token, now), window])

    def removal(self, release: Release, now: int) -> ItemWrite:
        """Return the deletion of a claim that was released unused and leaves no record."""
        fresh = [("tries", "=", _number(1)), ("done_at", "=", _number(0))]
        return ItemWrite(self.key(release.key), [], [*_owned_conditions(release.token, now), *fresh])

    # --- conditions of whole writes ---

    def if_free(self, now: int) -> dict[str, Any]:
        """Return the condition that no live item exists."""
        return {
            "ConditionExpression": "attribute_not_exists(#key) OR #keep_until <= :now",
            "ExpressionAttributeNames": {"#key": self.key_name, "#keep_until": "keep_until"},
            "ExpressionAttributeValues": {":now": _number(now)},
        }

    def if_unchanged(self, item: Item | None) -> dict[str, Any]:
        """Return the condition that an item has not changed since it was read."""
        if item is None:
            return {
                "ConditionExpression": "attribute_not_exists(#key)",
                "ExpressionAttributeNames": {"#key": self.key_name},
            }
        compared = (*_COMPARED, self.ttl)
        tests = [
            f"#w{number} = :w{number}" if name in item else f"attribute_not_exists(#w{number})"
            for number, name in enumerate(compared)
        ]
        return {
            "ConditionExpression": " AND ".join(tests),
            "ExpressionAttributeNames": {f"#w{number}": name for number, name in enumerate(compared)},
            "ExpressionAttributeValues": {
                f":w{number}": item[name] for number, name in enumerate(compared) if name in item
            },
        }


# --- requests ---


def insertion(table: str, item: Item) -> dict[str, Any]:
    """Return a PartiQL statement that inserts an item if none exists."""
    return _statement(_insert(table, tuple(item)), list(item.values()))


def statement(table: str, change: ItemWrite) -> dict[str, Any]:
    """Return a change as a PartiQL statement."""
    conditions = [*((name, "=", value) for name, value in change.key.items()), *change.conditions]
    names = tuple(name for name, _ in change.assignments)
    text = _update(table, names, tuple((name, operator) for name, operator, _ in conditions))
    return _statement(text, [value for _, value in change.assignments] + [value for _, _, value in conditions])


def call_arguments(change: ItemWrite) -> dict[str, Any]:
    """Return a change as the arguments of UpdateItem or DeleteItem."""
    assignments = ", ".join(f"#s{number} = :s{number}" for number in range(len(change.assignments)))
    operators = [operator for _, operator, _ in change.conditions]
    conditions = " AND ".join(f"#w{number} {operator} :w{number}" for number, operator in enumerate(operators))
    names = {f"#s{number}": name for number, (name, _) in enumerate(change.assignments)}
    values = {f":s{number}": value for number, (_, value) in enumerate(change.assignments)}
    for number, (name, _, value) in enumerate(change.conditions):
        names[f"#w{number}"], values[f":w{number}"] = name, value
    return {
        "Key": change.key,
        **({"UpdateExpression": f"SET {assignments}"} if assignments else {}),
        "ConditionExpression": conditions,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _statement(text: str, values: list[Value]) -> dict[str, Any]:
    return {"Statement": text, "Parameters": values, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


@lru_cache(maxsize=64)
def _insert(table: str, names: tuple[str, ...]) -> str:
    return f'INSERT INTO "{table}" VALUE {{' + ", ".join(f"'{name}': ?" for name in names) + "}"


@lru_cache(maxsize=64)
def _update(table: str, names: tuple[str, ...], conditions: tuple[tuple[str, str], ...]) -> str:
    assignments = ", ".join(f'"{name}" = ?' for name in names)
    comparisons = " AND ".join(f'"{name}" {operator} ?' for name, operator in conditions)
    return f'UPDATE "{table}" SET {assignments} WHERE {comparisons}'


# --- values ---


def _owned_conditions(token: Token, until: int) -> list[tuple[str, str, Value]]:
    """Return the conditions that a token owns its claim and the record expires later than `until`."""
    return [
        ("token", "=", {"B": token}),
        ("status", "=", {"S": RUNNING}),
        ("in_progress_expiration", ">", _number(0)),
        ("keep_until", ">", _number(until)),
    ]


def _number(value: int) -> Value:
    return {"N": str(value)}


def _optional(item: Item, name: str) -> int | None:
    value = item.get(name, _NULL)
    return int(value["N"]) if "N" in value else None


def _int(item: Item, name: str) -> int:
    return _optional(item, name) or 0


def _text(item: Item, name: str) -> str | None:
    value = item.get(name, _NULL)
    return str(value["S"]) if "S" in value else None


def _memo(item: Item) -> bytes | None:
    value = item.get("memo", _NULL)
    return bytes(value["B"]) if "B" in value else None


def _limit_error(error: str) -> str:
    return error.encode("utf-8", "backslashreplace")[:LONGEST_ERROR].decode("utf-8", "ignore")


def _limit_memo(memo: bytes) -> bytes:
    """Return the memo, or the reason for its absence if it is too large. The run must be remembered anyway."""
    if len(memo) <= LARGEST_MEMO:
        return memo
    return json.dumps({"not_kept": f"the result takes {len(memo):,} bytes, too many for a DynamoDB item"}).encode()


# --- results, in memos (see `claims/memo.py`) and as the JSON that Powertools stores ---


def _data_of_memo(memo: bytes) -> str | None:
    """Return the result for Powertools. It has no form for results of Python types, and does not distinguish None."""
    try:
        fields = json.loads(memo) if len(memo) <= LARGEST_MEMO // 2 and b'"$"' not in memo else None
    except ValueError:
        return None
    result = fields.get("value", fields.get("result")) if isinstance(fields, dict) else None
    return None if result is None else json.dumps(result)


def _memo_of_data(data: str | None) -> bytes:
    if data is not None and '"$"' in data:
        return b'{"not_kept":"Powertools kept its result in a form that is not read"}'
    return b'{"value":' + (data or "null").encode() + b"}"
