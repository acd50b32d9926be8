"""Canonical JSON, paths and digests."""

import hashlib
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce import Once, Rule
from eventonce.errors import ConfigError, EventRejected
from eventonce.event.formats import read_event
from eventonce.event.keys import Digester, canonical, canonical_parsed, part
from eventonce.rules import Rulebook, identity

# The number samples published with RFC 8785 (appendix B): the bits of a double and how it is written.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_the_rfc_says(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number).decode() == text


def test_names_are_ordered_by_utf16() -> None:
    given_names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(dict.fromkeys(given_names, 0)))) == ordered


def test_strings_are_escaped_as_little_as_possible() -> None:
    text = "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f"
    assert canonical(text) == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()


@pytest.mark.parametrize("number", [2**53 + 1, 10**21 + 1, -(10**30) - 7, 10**400, 2**64])
def test_integers_of_any_size_stay_exact(number: int) -> None:
    assert canonical(number) == str(number).encode()
    assert canonical(number) != canonical(number + 1)


@pytest.mark.parametrize("same", [("1", "1.0", "1e0", "10e-1"), ("1e21", "1" + "0" * 21), ("0", "-0", "-0.0", "0e9")])
def test_the_spelling_of_a_number_does_not_matter(same: tuple[str, ...]) -> None:
    assert len({canonical(msgspec.json.decode(text)) for text in same}) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), {1: 2}, {"a": {1, 2}}, [b"x"], "\ud800", object()])
def test_what_json_has_no_form_for_is_rejected(bad: Any) -> None:
    with pytest.raises(EventRejected):
        canonical(bad)


def test_what_is_too_deep_is_rejected() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EventRejected, match="nested deeper"):
        canonical(deep)


def documents(floats: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )


JSON = documents(st.floats(allow_nan=False, allow_infinity=False))
# Beyond 2^53 a double is written with the digits that name it, which as an integer would be another number.
EXACT = documents(st.floats(min_value=-(2.0**53), max_value=2.0**53))


def shuffled(value: Any) -> Any:
    """The same value with its names in another order."""
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(JSON)
def test_every_way_to_write_the_same_json_has_one_canonical_form(value: Any) -> None:
    texts = [json.dumps(value), json.dumps(shuffled(value), ensure_ascii=False, indent=2)]
    forms = {canonical(msgspec.json.decode(text.encode())) for text in texts}
    assert forms == {canonical(value)}


@given(EXACT)
def test_the_canonical_form_reads_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical(value)) == value


def same(left: Any, right: Any) -> bool:
    """Equality as JSON has it: true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


PARTS = st.lists(
    st.sampled_from(["", "a", "b", "ab", "1", 1, 1.0, 0, True, False, 1.5, [], [1], {"a": 1}]) | EXACT, max_size=5
)


@given(PARTS, PARTS)
def test_different_part_lists_have_different_keys(left: list[Any], right: list[Any]) -> None:
    digest = Digester("c", "r", "fields")
    equal = digest(map(part, left), "") == digest(map(part, right), "")
    assert equal == same(left, right)


@pytest.mark.parametrize(
    ("left", "right"), [(["ab", "c"], ["a", "bc"]), ([1], ["1"]), ([True], [1]), (["a", ""], ["a"]), (["[]"], [[]])]
)
def test_parts_keep_their_type_and_length(left: list[Any], right: list[Any]) -> None:
    digest = Digester("c", "r", "fields")
    assert digest(map(part, left), "") != digest(map(part, right), "")


def test_consumer_rule_kind_and_replay_each_make_another_key() -> None:
    made = {
        Digester("a", "b", "id")([part("x")], ""),
        Digester("ab", "", "id")([part("x")], ""),
        Digester("a", "b", "content")([part("x")], ""),
        Digester("a", "b", "id")([part("x")], "replay-1"),
        Digester("a", "b", "id")([part("x")], "replay-2"),
    }
    assert len(made) == 5


def test_keys_stay_what_they_are() -> None:
    """Stores hold these: a change here makes every remembered event new."""
    digest = Digester("billing", "orders", "content")
    assert digest([part("s"), part(1), part({"b": 1.0, "a": None})], "").hex() == "13637a046a9f6a6d168584b4859f7935"


@given(JSON)
def test_the_quick_way_for_parsed_json_agrees(value: Any) -> None:
    parsed = msgspec.json.decode(json.dumps(value))
    assert canonical_parsed(parsed) == canonical(parsed)


@pytest.mark.parametrize(
    "text",
    [
        "[1.5]",
        "[1e0]",
        "[-0.0]",
        "1" + "0" * 21,
        "-1" + "0" * 22,
        '{"\ue000": 1, "\U0001f600": 2}',
        '"\ud7ff"',
        "9" * 21,
    ],
)
def test_the_quick_way_agrees_where_it_is_not_enough(text: str) -> None:
    parsed = msgspec.json.decode(text)
    assert canonical_parsed(parsed) == canonical(parsed)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50))
def test_the_quick_way_spells_numbers_alike(numbers: list[float]) -> None:
    parsed = msgspec.json.decode(json.dumps(numbers))
    assert canonical_parsed(parsed) == canonical(parsed)


# --- keys of Powertools ---


def powertools_rule(name: str, path: str, **more: Any) -> Rule:
    return Rule(name=name, match={"detail-type": [name]}, key=[path], **{"digest": "powertools", **more})


@pytest.mark.parametrize("replaced", [{}, {"digest": "eventonce", "replaces": {"name": "old", "digest": "powertools"}}])
def test_rules_that_would_share_the_keys_of_powertools_are_refused(replaced: dict[str, Any]) -> None:
    rules = [powertools_rule("orders", "detail.orderId"), powertools_rule("customers", "detail.customerId", **replaced)]
    with pytest.raises(ConfigError, match="rules 'orders' and 'customers' both have keys of Powertools") as refused:
        Once("memory:", rules=rules)
    assert str(refused.value).endswith("give each a consumer and a function= of its own")
    for rule in rules:
        Once("memory:", rules=[rule, Rule(name="all")]).close()


def test_the_name_of_a_replay_does_not_run_into_the_values_of_powertools() -> None:
    rulebook = Rulebook("c", [powertools_rule("n", "detail.n", replay="reprocess")], identity("1d", "retry"))

    def key(number: int, **more: str) -> bytes:
        event = read_event({"id": "1", "source": "s", "detail-type": "n", "detail": {"n": number}, **more})
        return rulebook.key(event).key

    keys = [key(1), key(12), key(1, **{"replay-name": "2"}), key(12, **{"replay-name": ""})]
    assert len(set(keys)) == 3
    assert keys[0] == hashlib.md5(b"1", usedforsecurity=False).digest()
