"""How a record lies in a DynamoDB item, and each change of one as a conditional write.

The names and the values of `status`, `expiration`, `in_progress_expiration` and `data` are those of Powertools for AWS
Lambda, so that its records read as ours and ours as its own:

    running   INPROGRESS, in_progress_expiration is the end of the lease
    failed    INPROGRESS, in_progress_expiration is 0: anyone may take over at once
    done      COMPLETED; `tries` is then what the run took, so that a commit need not know it
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from eventonce.claims import protocol
from eventonce.claims.protocol import LONGEST_LEASE, Claim, Finish, Record, Release, Token
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key

Value = Any  # a DynamoDB value with its type: {"S": "text"}
Item = Mapping[str, Value]

RUNNING, DONE = "INPROGRESS", "COMPLETED"
LONGEST_ERROR = 500  # bytes; keeps an item without a memo below 1 KB
LARGEST_MEMO = 350 * 1024  # an item holds 400 KB
_NULL = {"NULL": True}
_RUNNING = Record(b"", 1, False, 1, None, 0, 0, 0, None, None, None, 2**62)
_NAME = r"[A-Za-z0-9_.:#-]{1,200}"
# What is compared to see that nothing has changed since an item was read.
_WITNESSES = ("status", "token", "in_progress_expiration", "tries", "until", "keep_until")
_OWN = {*_WITNESSES, "shared", "trying", "done_at", "took", "version", "memo", "error", "data"}


class ItemWrite(NamedTuple):
    """One conditional write to one item: what is set (nothing: the item is deleted), and where it applies."""

    key: Item
    sets: Sequence[tuple[str, Value]]
    where: Sequence[tuple[str, str, Value]]


class Layout:
    """Where a record's fields are in an item.

    `key` is the partition key's attribute. With `sort` the table has a sort key too: it gets the value `constant`, or,
    where a `partition` is given, the partition key gets that and the sort key tells items apart, as Powertools does.
    `results` says to keep results in Powertools' own form besides.
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

    def trouble(self) -> str | None:
        """What is wrong with the names."""
        names = [name for name in (self.key_name, self.sort_name, self.ttl) if name is not None]
        for name in names:
            if not re.fullmatch(_NAME, name):
                return f"{name!r} is no attribute name; use letters, digits and _ . : # -"
            if name in _OWN or names.count(name) > 1:
                return f"the attribute {name!r} would be used twice; eventonce's own are {', '.join(sorted(_OWN))}"
        return None

    # --- keys ---

    def key(self, key: Key) -> dict[str, Value]:
        """The primary key of a key's item."""
        return self.named(key.hex())

    def named(self, name: str) -> dict[str, Value]:
        text = {"S": self._prefix + name}
        if self.sort_name is None:
            return {self.key_name: text}
        if self._partition is None:
            return {self.key_name: text, self.sort_name: {"S": "eventonce"}}
        return {self.key_name: {"S": self._partition}, self.sort_name: text}

    def name(self, item: Item) -> str:
        """What tells an item apart from all others of this layout."""
        attribute = self.key_name if self._partition is None or self.sort_name is None else self.sort_name
        return str(item[attribute]["S"])

    # --- records ---

    def item(self, key: Key, record: Record) -> dict[str, Value]:
        """A record as an item."""
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
            **{name: value for name, value in self._remembered(record) if value != _NULL},
        }
        if record.shared:
            item["shared"] = {"BOOL": True}
        if record.trying is not None:
            item["trying"] = _number(record.trying)
        if record.attempts and not done:
            item["took"] = _number(record.attempts)
        return item

    def _remembered(self, record: Record) -> list[tuple[str, Value]]:
        remembered = [
            ("version", _NULL if record.version is None else _number(record.version)),
            ("memo", _NULL if record.memo is None else {"B": _fitting(record.memo)}),
            ("error", _NULL if record.error is None else {"S": _short(record.error)}),
        ]
        if self._results:
            result = None if record.memo is None else _result(record.memo)
            remembered.append(("data", _NULL if result is None else {"S": result}))
        return remembered

    def record(self, item: Item, now: int) -> Record:
        """The record in an item, whoever wrote it."""
        done_at, done = _int(item, "done_at"), _text(item, "status") == DONE
        if "token" not in item or (done and not done_at):
            return self._foreign(item, now)
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

    def _foreign(self, item: Item, now: int) -> Record:
        """What Powertools wrote: it compares whole seconds, and both of its ends are inclusive.

        A run to which it gives no end lasts for as long as its record, which may be longer than any lease of ours.
        """
        status, end = _text(item, "status"), (_int(item, self.ttl) + 1) * 1000
        if status not in (RUNNING, DONE):
            raise StoreUnusable(
                f"the item {self.name(item)!r} was written by something else; give eventonce another prefix= or table"
            )
        lease = _int(item, "in_progress_expiration")
        if status == DONE:  # when is not told, but it was not long before its time would have been over
            memo = _told(_text(item, "data"))
            return _RUNNING._replace(
                lease=0, tries=0, done_at=lease or 1, until=end, attempts=1, memo=memo, expires=end
            )
        return _RUNNING._replace(lease=lease + 1 if lease else min(end, now + LONGEST_LEASE), expires=end)

    # --- changes ---

    def extension(self, claim: Claim, end: int) -> ItemWrite:
        """A longer lease. A copy of it that arrives late must not shorten a later one."""
        where = [*_owned(claim.token, end - 1), ("in_progress_expiration", "<=", _number(end))]
        return ItemWrite(self.key(claim.key), [("in_progress_expiration", _number(end))], where)

    def completion(self, finish: Finish, now: int) -> ItemWrite:
        """A run that is done."""
        record = protocol.commit(_RUNNING._replace(token=finish.token), finish, now)
        assert record is not None  # the token is the same
        item = self.item(finish.key, record)
        sets = [(name, item[name]) for name in ("status", "done_at", "until", "keep_until", self.ttl)]
        return ItemWrite(self.key(finish.key), sets + self._remembered(record), _owned(finish.token, now))

    def failure(self, given: Release, now: int) -> ItemWrite:
        """A failed attempt."""
        _, record = protocol.release(_RUNNING._replace(token=given.token), given, now)
        assert record is not None  # it has an error to remember
        item = self.item(given.key, record)
        sets = [(name, item[name]) for name in ("in_progress_expiration", "error", "keep_until", self.ttl)]
        window = ("until", "<=", item["keep_until"])  # one that lasts longer must not be cut
        return ItemWrite(self.key(given.key), sets, [*_owned(given.token, now), window])

    def removal(self, given: Release, now: int) -> ItemWrite:
        """A claim given back that leaves no trace."""
        fresh = [("tries", "=", _number(1)), ("done_at", "=", _number(0))]
        return ItemWrite(self.key(given.key), [], [*_owned(given.token, now), *fresh])

    # --- conditions of whole writes ---

    def free(self, now: int) -> dict[str, Any]:
        """That there is no item, or one whose time is over."""
        return {
            "ConditionExpression": "attribute_not_exists(#key) OR #keep_until <= :now",
            "ExpressionAttributeNames": {"#key": self.key_name, "#keep_until": "keep_until"},
            "ExpressionAttributeValues": {":now": _number(now)},
        }

    def unchanged(self, item: Item | None) -> dict[str, Any]:
        """That an item is as it was read."""
        if item is None:
            return {
                "ConditionExpression": "attribute_not_exists(#key)",
                "ExpressionAttributeNames": {"#key": self.key_name},
            }
        witnesses = (*_WITNESSES, self.ttl)
        tests = [
            f"#w{number} = :w{number}" if name in item else f"attribute_not_exists(#w{number})"
            for number, name in enumerate(witnesses)
        ]
        return {
            "ConditionExpression": " AND ".join(tests),
            "ExpressionAttributeNames": {f"#w{number}": name for number, name in enumerate(witnesses)},
            "ExpressionAttributeValues": {
                f":w{number}": item[name] for number, name in enumerate(witnesses) if name in item
            },
        }


# --- how DynamoDB is told ---


def insertion(table: str, item: Item) -> dict[str, Any]:
    """A PartiQL statement that makes an item unless there is one."""
    return _statement(_insert(table, tuple(item)), list(item.values()))


def statement(table: str, change: ItemWrite) -> dict[str, Any]:
    """A change as a PartiQL statement."""
    where = [*((name, "=", value) for name, value in change.key.items()), *change.where]
    text = _update(table, tuple(name for name, _ in change.sets), tuple((name, how) for name, how, _ in where))
    return _statement(text, [value for _, value in change.sets] + [value for _, _, value in where])


def expression(change: ItemWrite) -> dict[str, Any]:
    """A change as the arguments of UpdateItem or DeleteItem."""
    sets = ", ".join(f"#s{number} = :s{number}" for number in range(len(change.sets)))
    where = " AND ".join(f"#w{number} {how} :w{number}" for number, (_, how, _) in enumerate(change.where))
    names = {f"#s{number}": name for number, (name, _) in enumerate(change.sets)}
    values = {f":s{number}": value for number, (_, value) in enumerate(change.sets)}
    for number, (name, _, value) in enumerate(change.where):
        names[f"#w{number}"], values[f":w{number}"] = name, value
    return {
        "Key": change.key,
        **({"UpdateExpression": f"SET {sets}"} if sets else {}),
        "ConditionExpression": where,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _statement(text: str, values: list[Value]) -> dict[str, Any]:
    return {"Statement": text, "Parameters": values, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


@lru_cache(maxsize=64)
def _insert(table: str, names: tuple[str, ...]) -> str:
    return f'INSERT INTO "{table}" VALUE {{' + ", ".join(f"'{name}': ?" for name in names) + "}"


@lru_cache(maxsize=64)
def _update(table: str, names: tuple[str, ...], where: tuple[tuple[str, str], ...]) -> str:
    sets = ", ".join(f'"{name}" = ?' for name in names)
    return f'UPDATE "{table}" SET {sets} WHERE ' + " AND ".join(f'"{name}" {how} ?' for name, how in where)


# --- values ---


def _owned(token: Token, until: int) -> list[tuple[str, str, Value]]:
    """That a claim is held, and kept beyond then."""
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


def _short(error: str) -> str:
    return error.encode("utf-8", "backslashreplace")[:LONGEST_ERROR].decode("utf-8", "ignore")


def _fitting(memo: bytes) -> bytes:
    """The memo, or in its place why it is not there: the run must be remembered all the same."""
    if len(memo) <= LARGEST_MEMO:
        return memo
    return json.dumps({"not_kept": f"the result takes {len(memo):,} bytes, too many for a DynamoDB item"}).encode()


# --- results, between memos (see `memo.py`) and the JSON text that Powertools keeps ---


def _result(memo: bytes) -> str | None:
    """What Powertools can be told; it has no form for results that only Python has, nor a difference for None."""
    try:
        notes = json.loads(memo) if len(memo) <= LARGEST_MEMO // 2 and b'"$"' not in memo else None
    except ValueError:
        return None
    result = notes.get("result") if isinstance(notes, dict) else None
    return None if result is None else json.dumps(result)


def _told(data: str | None) -> bytes:
    if data is not None and '"$"' in data:
        return b'{"not_kept":"Powertools kept its result in a form that is not read"}'
    return b'{"result":' + (data or "null").encode() + b"}"
