"""Write docs/key-vectors.json: what keys are made of, step by step, so that other languages can make the same keys.

A test checks each vector and that the file is complete. A vector that is in the file never changes: the keys in stores
out there would be lost. So this only adds vectors.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from eventonce import Once
from eventonce.engine.calls.reading import BoundCall
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_events
from eventonce.event.keys import KEY_BYTES, Digester, Key, Part, canonical, carrier_part, part
from eventonce.event.values import spell
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "key-vectors.json"
SAMPLES = ROOT / "tests" / "data" / "carriers"
CONSUMER = "billing"
Vector = dict[str, Any]


# --- canonical JSON ---

_TEXTS = {
    "names are sorted": '{"b": 1, "a": {"d": 2, "c": 3}}',
    "names are sorted by UTF-16": '{"\\ufb33": 1, "\\ud83d\\ude00": 2, "\\u20ac": 3}',
    "numbers have one form": "[1, 1.0, 1e0, -0.0, 0.10, 1e2, 1e21, 1e-7, 1.5e300, 333333333.33333329]",
    "integers of any size are exact": "[9007199254740993, 123456789012345678901234, 1000000000000000000000]",
    "escapes are few": '"\\u0007\\b\\t\\n\\f\\r\\"\\\\\\/\\u00e9\\u20ac\\ud83d\\ude00"',
    "literals and empty values": '[true, false, null, "", [], {}]',
}


def canonical_vectors() -> list[Vector]:
    """Return JSON texts with their canonical form."""
    return [
        {"name": name, "json": text, "canonical": canonical(json.loads(text)).decode()} for name, text in _TEXTS.items()
    ]


# --- spellings ---


class Colour(Enum):
    """An enum."""

    RED = "red"


class Line(msgspec.Struct):
    """A model."""

    sku: str
    price: Decimal
    at: datetime | None = None


class Pair(NamedTuple):
    """A named tuple."""

    day: date
    raw: bytes


_VALUES: tuple[tuple[str, Any], ...] = (
    ("datetime in UTC", datetime(2026, 1, 5, 9, 30, tzinfo=UTC)),
    ("datetime with an offset", datetime(2026, 1, 5, 15, 0, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    ("datetime with microseconds", datetime(2026, 1, 5, 9, 30, 0, 500, tzinfo=UTC)),
    ("datetime without a zone", datetime(2026, 1, 5, 9, 30)),  # noqa: DTZ001
    ("date", date(2026, 1, 5)),
    ("time", time(9, 30)),
    ("time with microseconds", time(9, 30, 0, 500000)),
    ("time in UTC", time(9, 30, tzinfo=UTC)),
    ("timedelta", timedelta(days=1, seconds=2, microseconds=500000)),
    ("negative timedelta", -timedelta(seconds=90)),
    ("Decimal", Decimal("1.00")),
    ("whole Decimal", Decimal("1E+3")),
    ("negative zero Decimal", Decimal("-0.0")),
    ("long Decimal", Decimal("12345678901234567890.123456789012345678900")),
    ("UUID", UUID("12345678-1234-5678-1234-567812345678")),
    ("enum", Colour.RED),
    ("bytes", b"\x00\xff"),
    ("set", {10, 9, 1}),
    ("set of strings", {"b", "a", "é"}),
    ("path", PurePosixPath("a/b")),
    ("tuple", (1, (2,))),
    ("named tuple", Pair(date(2026, 1, 5), b"a")),
    ("model", Line("a", Decimal("1.50"))),
    ("mapping with other names than strings", {1: "a", UUID(int=2): "b", date(2026, 1, 5): "c"}),
)


def value_vectors() -> list[Vector]:
    """Return Python values with their spelling and its canonical form."""
    return [
        {"name": name, "python": _shown(value), "spelling": spell(value), "canonical": canonical(spell(value)).decode()}
        for name, value in _VALUES
    ]


def _shown(value: Any) -> str:
    return "{" + ", ".join(sorted(map(repr, value))) + "}" if isinstance(value, set) else repr(value)


# --- parts and digests ---

_PARTS: tuple[tuple[str, Any], ...] = (
    ("string", "é"),
    ("string of digits", "1"),
    ("number", 1.0),
    ("true", True),
    ("null", None),
    ("list", [1, "a"]),
    ("object", {"b": 1, "a": 2}),
    ("spelt value", spell(Decimal("1.50"))),
)


def part_vectors() -> list[Vector]:
    """Return values with the type tag and the bytes that they have in a key."""
    carried = {
        "name": "name by a carrier",
        "carriers": ["arn:q"],
        "value": "m-1",
        **_part(carrier_part(["arn:q"], "m-1")),
    }
    return [{"name": name, "value": value, **_part(part(value))} for name, value in _PARTS] + [carried]


def _part(made: Part) -> Vector:
    return {"tag": made[0].decode(), "bytes": made[1].hex()}


_DIGESTS: tuple[tuple[str, str, str, list[Any], str], ...] = (
    ("one part", "orders", "id", ["7"], ""),
    ("a number instead of a string", "orders", "id", [7], ""),
    ("two parts", "orders", "id", ["a", "bc"], ""),
    ("two parts divided elsewhere", "orders", "id", ["ab", "c"], ""),
    ("no part", "orders", "id", [], ""),
    ("content", "orders", "content", ["shop", "Order", {"a": 1}], ""),
    ("paths", "orders", 'fields ["detail.id","source"]', ["7", "shop"], ""),
    ("otherwise", "orders", "otherwise content", ["shop", "Order", {"a": 1}], ""),
    ("replay", "orders", "id", ["7"], "again"),
)


def digest_vectors() -> list[Vector]:
    """Return parts with the bytes that are hashed and the key, which is the first half of their SHA-256."""
    vectors = []
    for name, rule, kind, values, replay in _DIGESTS:
        parts = [(b"j", canonical(value)) if kind.endswith("content") and index == 2 else part(value)
                 for index, value in enumerate(values)]  # fmt: skip
        vectors.append(_digest(name, (CONSUMER, rule, kind), parts, replay))
    return vectors


def _digest(name: str, scope: tuple[str, str, str], parts: list[Part], replay: str) -> Vector:
    consumer, rule, kind = scope
    hashed = hashed_bytes(["eventonce key 1", consumer, rule, kind, replay], parts)
    key = hashlib.sha256(hashed).digest()[:KEY_BYTES]
    assert key == Digester(consumer, rule, kind)(parts, replay), name
    fields = {"consumer": consumer, "rule": rule, "kind": kind, "replay": replay, "parts": list(map(_part, parts))}
    return {"name": name, **fields, "hashed": hashed.hex(), "key": key.hex()}


def hashed_bytes(scope: Iterable[str], parts: Iterable[Part]) -> bytes:
    """Return what is hashed: each string with its length before it, and each part with its tag before that."""
    sized = [_sized(text.encode()) for text in scope]
    return b"".join([*sized, *(tag + _sized(data) for tag, data in parts)])


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


# --- events ---

_EVENT = {
    "version": "0", "id": "7", "detail-type": "Order Placed", "source": "shop", "account": "111122223333",
    "time": "2026-01-05T09:30:00Z", "region": "eu-west-1", "resources": [],
    "detail": {"orderId": "o-1", "total": 1.50, "at": 5, "count": 3, "meta": {"id": "m"}, "traceparent": "00-1"},
}  # fmt: skip
_CLOUDEVENT = {"specversion": "1.0", "id": "7", "source": "shop", "type": "Order", "data": {"orderId": "o-1", "at": 1}}
_PLAIN = {"id": 7, "type": "Order", "orderId": "o-1", "at": 1}
_REPLAYED = {**_EVENT, "replay-name": "again"}
_EVENTS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("id", _EVENT, {}),
    ("id of a CloudEvent", _CLOUDEVENT, {}),
    ("id of a plain object", _PLAIN, {}),
    ("content", _EVENT, {"key": "content"}),
    ("content of a CloudEvent", _CLOUDEVENT, {"key": "content"}),
    ("content of a plain object", _PLAIN, {"key": "content"}),
    ("ignore", _EVENT, {"key": "content", "ignore": ["detail.at", "detail.meta.*"]}),
    ("ignore everywhere", _EVENT, {"key": "content", "ignore": ["**.id"]}),
    ("paths", _EVENT, {"key": ["detail.orderId", "source"]}),
    ("paths with expressions", _EVENT, {"key": ["detail.orderId || `0`", "floor_time(time, '1h')"]}),
    ("otherwise by content", _EVENT, {"key": ["detail.missing"], "otherwise": "content"}),
    ("otherwise by id", _EVENT, {"key": ["detail.missing"], "otherwise": "id"}),
    ("version", _EVENT, {"key": ["detail.orderId"], "version": "detail.count", "version_ahead": 100}),
    ("version as a time", _EVENT, {"key": ["detail.orderId"], "version": "time"}),
    ("replay that is a copy", _REPLAYED, {}),
    ("replay that runs again", _REPLAYED, {"replay": "reprocess"}),
    ("powertools, one path", _EVENT, {"key": ["detail"], "digest": "powertools"}),
    ("powertools, several paths", _EVENT, {"key": ["detail.orderId", "detail.total"], "digest": "powertools"}),
)


def event_vectors() -> list[Vector]:
    """Return documents with a rule and the key of each event in them, for all kinds of rules and all carriers."""
    vectors = [_event(name, document, rule) for name, document, rule in _EVENTS]
    for sample in sorted(SAMPLES.glob("*/*.json")):
        document = json.loads(sample.read_text())
        name = f"{sample.parent.name}/{sample.stem}"
        vectors += [_event(f"{name} by {key}", document, {"key": key}) for key in ("id", "content")]
    return vectors


def _event(name: str, document: Any, rule: dict[str, Any]) -> Vector:
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return {"name": name, "rule": rule, "body": body, "keys": event_keys(body, rule)}


def event_keys(body: str, rule: dict[str, Any]) -> list[Any]:
    """Return the key of each event in a document, with its version if its rule has one. One without a key is None."""
    rules = Rulebook(CONSUMER, [Rule(name="orders", **rule)], identity("5d", "retry"))
    return [_key(rules, event) for event in read_events(body.encode())]


def _key(rules: Rulebook, event: Event | EventRejected) -> Any:
    try:
        keyed = rules.key(event) if isinstance(event, Event) else None
    except EventRejected:
        keyed = None
    if keyed is None:
        return None
    return keyed.key.hex() if keyed.version is None else {"key": keyed.key.hex(), "version": keyed.version}


# --- calls ---


def _charge(order: Any, retries: int = 3, *lines: str, currency: str = "EUR", **more: Any) -> None:
    """A function that is called."""


class _Mailer:
    """A class with a method."""

    account = "news"

    def send(self, customer: int) -> None:
        """A method that is called."""


class _Newsletter(_Mailer):
    """Another class that the method is used on."""


def _by_customer(order: Any) -> tuple[str, str]:
    return order["customer"], order["day"]


_ORDER = {"id": "o-1", "customer": "c-7", "day": "2026-05-01", "total": Decimal("1.50")}
_CALLS: tuple[tuple[str, dict[str, Any], tuple[Any, ...], dict[str, Any]], ...] = (
    ("one path", {"key": "order.id"}, (_ORDER,), {}),
    ("several paths", {"key": ["order.id", "currency"]}, (_ORDER,), {"currency": "USD"}),
    ("content", {"key": "content"}, (_ORDER, 5), {}),
    ("content without what is spelt like a default", {"key": "content"}, (_ORDER, 3), {"currency": "EUR"}),
    ("content with more arguments", {"key": "content"}, (_ORDER, 3, "a", "b"), {"trace": "t"}),
    (
        "content with ignored paths",
        {"key": "content", "ignore": ["order.total", "more.trace"]},
        (_ORDER,),
        {"trace": 1},
    ),
    ("a function as key", {"key": _by_customer}, (_ORDER,), {}),
)


def call_vectors() -> list[Vector]:
    """Return calls of functions with what is hashed of them."""
    once = Once("memory:", consumer=CONSUMER)
    vectors = []
    for name, options, args, kwargs in _CALLS:
        function = once(name=f"charge, {name}", **options)(_charge)
        vectors.append(_call(name, options, function.bind(*args, **kwargs), function.key(*args, **kwargs)))
    options = {"key": ["self.account", "customer"]}
    method = once(name="send", **options)(_Mailer.send)
    for name, owner in (("a method", _Mailer), ("a method of a base class", _Newsletter)):
        bound = method.__get__(owner(), owner)
        vectors.append(_call(name, options, bound.bind(7), bound.key(7)))
    return vectors


def _call(name: str, options: dict[str, Any], call: BoundCall[Any], key: Key) -> Vector:
    recipe = call.scope.recipe
    parts = list(recipe.parts.make(call.values))
    args = [each for each in call.args if not isinstance(each, _Mailer)]  # without self
    vector = _digest(name, (CONSUMER, call.scope.rule.name, recipe.parts.kind), parts, "")
    assert vector["key"] == key.hex(), name
    decorator = {**options, "key": getattr(options["key"], "__name__", options["key"])}
    return {"name": name, "decorator": decorator, "arguments": spell([args, call.kwargs]), **vector}


# --- the file ---

ABOUT = (
    "Keys of eventonce, step by step; docs/keys.md explains them. "
    f"The consumer is {CONSUMER!r}, and the rule of an event is named 'orders'. Bytes are in hexadecimal. "
    "An event without a key is null."
)
SECTIONS: dict[str, Callable[[], list[Vector]]] = {
    "canonical": canonical_vectors,
    "values": value_vectors,
    "parts": part_vectors,
    "digests": digest_vectors,
    "events": event_vectors,
    "calls": call_vectors,
}


def vectors() -> dict[str, Any]:
    """Return the whole file."""
    return {"about": ABOUT, **{name: make() for name, make in SECTIONS.items()}}


def changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the names of the vectors in the old file that the new one has lost or changed."""
    return [
        f"{section}: {vector['name']}"
        for section in SECTIONS
        for vector in old.get(section, [])
        if vector not in new.get(section, [])
    ]


def text(made: dict[str, Any]) -> str:
    """Return the file with one vector on each line."""
    sections = [
        f'"{name}": [\n' + ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in made[name]) + "\n]"
        for name in SECTIONS
    ]
    return "{\n" + ",\n".join([f'"about": {json.dumps(made["about"])}', *sections]) + "\n}\n"


def main() -> None:
    """Write the file, unless a vector in it would change."""
    made = vectors()
    if PAGE.exists() and (names := changed(json.loads(PAGE.read_text()), made)):
        raise SystemExit(
            f"{PAGE.name}: these vectors would change, and with them keys in stores: {'; '.join(names)}; "
            "restore how they are made, or give the new keys a version of their own"
        )
    PAGE.write_text(text(made))


if __name__ == "__main__":
    main()
