"""The cost of keys: unwrap, match and digest, beside reading the same bytes once and doing nothing with them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from benchmarks.harness import IGNORED, Row, Scale, Traffic, compare, costs
from eventonce.event import keys as key
from eventonce.event.formats import eventbridge, read_event
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule

SUBJECT = "keying"
PARSE, CONTENT, HUNDRED = "one orjson.loads", "by content, 1 rule", "by content, 100 rules"
LIMIT = "limit: its calls into C alone"


def rulebook(count: int) -> Rulebook:
    """Return a rulebook of this many rules with a pattern each. The last one matches the events."""
    sources = [f"com.example.shop{number}" for number in range(count - 1)] + ["com.example.shop"]
    rules = [Rule(name=source, match={"source": [source]}, key="content", ignore=IGNORED) for source in sources]
    return Rulebook("bench", rules, identity("14d", "retry"))


def each(function: Callable[[bytes], Any]) -> Callable[[Sequence[bytes]], None]:
    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            function(raw)

    return run


def keyed(rules: Rulebook) -> Callable[[Sequence[bytes]], None]:
    return each(lambda raw: rules.key(read_event(raw)))


def limit() -> Callable[[bytes], bytes]:
    """Return the least work for a key: parse, sort and encode, look for numbers with two spellings, hash."""
    parse, start = eventbridge._decoder().decode, hashlib.sha256(b"rule, source and type")

    def digest(raw: bytes) -> bytes:
        text = key._sorted(parse(raw).detail)
        if key._whole(text) or key._tiny(text):
            raise AssertionError
        state = start.copy()
        state.update(text)
        return state.digest()

    return digest


def rows(scale: Scale) -> Iterator[Row]:
    by_field = Rulebook("bench", [Rule(name="r", key=["source", "detail.orderId"])], identity("14d", "retry"))
    candidates = {
        PARSE: each(orjson.loads),
        "json.loads": each(json.loads),
        LIMIT: each(limit()),
        CONTENT: keyed(rulebook(1)),
        HUNDRED: keyed(rulebook(100)),
        "by id": keyed(Rulebook("bench", [], identity("14d", "retry"))),
        "by two fields": keyed(by_field),
    }
    for size, name in scale.sizes.items():
        traffic = Traffic(size)
        spent = compare(candidates, lambda traffic=traffic: traffic.events(scale.events), scale.rounds)  # type: ignore[misc]
        has_target = size == 1000
        yield costs(SUBJECT, f"{CONTENT}, {name}", "at most 2.5" if has_target else "", spent, CONTENT, PARSE)
        yield costs(SUBJECT, f"{CONTENT}, {name}", "", spent, CONTENT, LIMIT)
        yield costs(SUBJECT, f"{HUNDRED}, {name}", "at most 1.3" if has_target else "", spent, HUNDRED, CONTENT)
        if has_target:
            yield costs(SUBJECT, f"{LIMIT}, {name}", "", spent, LIMIT, PARSE)
            yield costs(SUBJECT, f"by id, {name}", "", spent, "by id", PARSE)
            yield costs(SUBJECT, f"by two fields, {name}", "", spent, "by two fields", PARSE)
            yield costs(SUBJECT, f"json.loads alone, {name}", "", spent, "json.loads", PARSE)
