"""The event pattern language, case by case: what matches, what does not, and what is refused where."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventonce.rules.pattern import Pattern, PatternError


def leaf(*choices: Any) -> dict[str, Any]:
    """A pattern about one field, so that a table row holds only what it is about."""
    return {"detail": {"x": list(choices)}}


def holding(value: Any) -> dict[str, Any]:
    return {"source": "shop", "detail": {"x": value}}


# --- One field, one value ----------------------------------------------------------------------------------

LEAVES: list[tuple[Any, Any, bool]] = [
    # exact: type and value both count
    ("red", "red", True),
    ("red", "Red", False),
    ("red", "red ", False),
    ("", "", True),
    ("", None, False),
    (None, None, True),
    (None, "", False),
    (None, "null", False),
    (None, False, False),
    (None, 0, False),
    (None, [], False),
    (True, True, True),
    (True, 1, False),
    (True, "true", False),
    (False, False, True),
    (False, 0, False),
    (1, True, False),
    (0, False, False),
    (1, "1", False),
    ("1", 1, False),
    # numbers are equal by value, however they are written
    (1, 1.0, True),
    (1.0, 1, True),
    (300, 3.0e2, True),
    (0, -0.0, True),
    (1, 1.000001, False),
    (123456789012, 123456789012, True),
    (123456789012, 123456789013, False),
    (2**63 + 1, 2**63, False),
    # prefix and suffix
    ({"prefix": "eu-"}, "eu-west-1", True),
    ({"prefix": "eu-"}, "eu-", True),
    ({"prefix": "eu-"}, "EU-west-1", False),
    ({"prefix": "eu-"}, "an eu-", False),
    ({"prefix": ""}, "anything", True),
    ({"prefix": ""}, 5, False),
    ({"prefix": "1"}, 12, False),
    ({"prefix": "n"}, None, False),
    ({"suffix": ".png"}, "a.png", True),
    ({"suffix": ".png"}, ".png", True),
    ({"suffix": ".png"}, "a.png.txt", False),
    ({"suffix": ".png"}, "a.PNG", False),
    ({"suffix": "2"}, 12, False),
    ({"prefix": {"equals-ignore-case": "EU-"}}, "eu-west-1", True),
    ({"prefix": {"equals-ignore-case": "EU-"}}, "us-west-1", False),
    ({"prefix": {"equals-ignore-case": "EU-"}}, None, False),
    ({"suffix": {"equals-ignore-case": ".png"}}, "A.PnG", True),
    ({"suffix": {"equals-ignore-case": ".png"}}, "A.jpg", False),
    # ignoring case
    ({"equals-ignore-case": "Alice"}, "aLICE", True),
    ({"equals-ignore-case": "Alice"}, "alice ", False),
    ({"equals-ignore-case": ""}, "", True),
    ({"equals-ignore-case": "true"}, True, False),
    ({"equals-ignore-case": "ΟΔΟΣ"}, "οδος", True),
    ({"prefix": {"equals-ignore-case": "ΟΔΟΣ"}}, "οδοσα", True),
    # wildcard
    ({"wildcard": "*"}, "", True),
    ({"wildcard": "*"}, "anything\nat all", True),
    ({"wildcard": "*"}, 1, False),
    ({"wildcard": ""}, "", True),
    ({"wildcard": ""}, "a", False),
    ({"wildcard": "plain"}, "plain", True),
    ({"wildcard": "plain"}, "plainer", False),
    ({"wildcard": "a*c"}, "ac", True),
    ({"wildcard": "a*c"}, "abbbc", True),
    ({"wildcard": "a*c"}, "abcd", False),
    ({"wildcard": "aa*aa"}, "aaa", False),
    ({"wildcard": "aa*aa"}, "aaaa", True),
    ({"wildcard": "*/lib/*"}, "src/lib/x.py", True),
    ({"wildcard": "*/lib/*"}, "lib/x.py", False),
    ({"wildcard": "*ab*ab*"}, "abab", True),
    ({"wildcard": "*ab*ab*"}, "aab", False),
    ({"wildcard": "*.p*g"}, "x.png", True),
    ({"wildcard": r"5\*5"}, "5*5", True),
    ({"wildcard": r"5\*5"}, "5x5", False),
    ({"wildcard": r"C:\\*"}, "C:\\temp", True),
    ({"wildcard": r"C:\\*"}, "C:/temp", False),
    ({"wildcard": r"\\\*"}, r"\*", True),
    ({"wildcard": r"*\**"}, "a*b", True),
    ({"wildcard": "a.c*"}, "abc", False),
    # numeric
    ({"numeric": ["=", 301.8]}, 3.018e2, True),
    ({"numeric": ["=", 5]}, "5", False),
    ({"numeric": ["=", 1]}, True, False),
    ({"numeric": ["=", 0]}, None, False),
    ({"numeric": ["<", 10]}, 9.999999, True),
    ({"numeric": ["<", 10]}, 10, False),
    ({"numeric": ["<=", 10]}, 10.0, True),
    ({"numeric": [">", -1]}, 0, True),
    ({"numeric": [">", -1]}, -1, False),
    ({"numeric": [">=", -1]}, -1, True),
    ({"numeric": [">", 0, "<=", 5]}, 5, True),
    ({"numeric": [">", 0, "<=", 5]}, 0, False),
    ({"numeric": [">", 0, "<=", 5]}, 6, False),
    ({"numeric": [">=", 0, "<", 5]}, 0, True),
    ({"numeric": [">=", 0, "<", 5]}, 5, False),
    ({"numeric": ["<=", 5e9]}, 5_000_000_000, True),
    ({"numeric": [">", 0]}, 6e9, False),
    ({"numeric": ["<", 0]}, -6_000_000_000, False),
    ({"numeric": [">", 0]}, 10**400, False),
    ({"numeric": [">", 0]}, float("nan"), False),
    ({"numeric": [">", 0]}, float("inf"), False),
    # cidr
    ({"cidr": "10.0.0.0/24"}, "10.0.0.255", True),
    ({"cidr": "10.0.0.0/24"}, "10.0.1.0", False),
    ({"cidr": "10.0.0.77/24"}, "10.0.0.3", True),
    ({"cidr": "0.0.0.0/0"}, "255.1.2.3", True),
    ({"cidr": "0.0.0.0/0"}, "::1", False),
    ({"cidr": "10.0.0.0/31"}, "10.0.0.1", True),
    ({"cidr": "10.0.0.0/24"}, "10.0.0.1/32", False),
    ({"cidr": "10.0.0.0/24"}, "10.0.0", False),
    ({"cidr": "10.0.0.0/24"}, "somewhere.example", False),
    ({"cidr": "0.0.0.0/0"}, 167772161, False),
    ({"cidr": "0.0.0.0/0"}, "", False),
    ({"cidr": "2001:db8::/32"}, "2001:DB8:0:0::17", True),
    ({"cidr": "2001:db8::/32"}, "2001:db9::1", False),
    # exists asks about leaves: null is one, an object or an empty array is not
    ({"exists": True}, "v", True),
    ({"exists": True}, "", True),
    ({"exists": True}, None, True),
    ({"exists": True}, False, True),
    ({"exists": True}, ["v"], True),
    ({"exists": True}, [], False),
    ({"exists": True}, [[]], False),
    ({"exists": True}, {}, False),
    ({"exists": True}, {"y": 1}, False),
    ({"exists": True}, [{"y": 1}], False),
    ({"exists": False}, "v", False),
    ({"exists": False}, None, False),
    ({"exists": False}, ["v"], False),
    ({"exists": False}, [[["v"]]], False),
    ({"exists": False}, [], True),
    ({"exists": False}, {"y": 1}, True),
    ({"exists": False}, [{"y": 1}], True),
    # anything-but wants a value, of any type, that is not named
    ({"anything-but": "stopped"}, "running", True),
    ({"anything-but": "stopped"}, "stopped", False),
    ({"anything-but": "stopped"}, "Stopped", True),
    ({"anything-but": "stopped"}, 5, True),
    ({"anything-but": "stopped"}, None, True),
    ({"anything-but": "stopped"}, True, True),
    ({"anything-but": "stopped"}, [], False),
    ({"anything-but": "stopped"}, {"y": 1}, False),
    ({"anything-but": ""}, "", False),
    ({"anything-but": 100}, 100.0, False),
    ({"anything-but": 100}, 101, True),
    ({"anything-but": 100}, "100", True),
    ({"anything-but": 1}, True, True),
    ({"anything-but": 0}, 0, False),
    ({"anything-but": ["a", "b"]}, "b", False),
    ({"anything-but": ["a", "b"]}, "c", True),
    ({"anything-but": [1, 2.5]}, 2.5, False),
    ({"anything-but": [1, 2.5]}, 3, True),
    ({"anything-but": {"prefix": "tmp-"}}, "tmp-1", False),
    ({"anything-but": {"prefix": "tmp-"}}, "a-tmp-", True),
    ({"anything-but": {"prefix": "tmp-"}}, 7, True),
    ({"anything-but": {"prefix": "tmp-"}}, None, True),
    ({"anything-but": {"prefix": ["a", "b"]}}, "bee", False),
    ({"anything-but": {"prefix": ["a", "b"]}}, "sea", True),
    ({"anything-but": {"suffix": ".log"}}, "x.log", False),
    ({"anything-but": {"suffix": ".log"}}, "x.txt", True),
    ({"anything-but": {"suffix": [".log", ".tmp"]}}, "x.tmp", False),
    ({"anything-but": {"equals-ignore-case": "init"}}, "INIT", False),
    ({"anything-but": {"equals-ignore-case": "init"}}, "inits", True),
    ({"anything-but": {"equals-ignore-case": ["init", "stop"]}}, "Stop", False),
    ({"anything-but": {"equals-ignore-case": ""}}, "", False),
    ({"anything-but": {"wildcard": "*/lib/*"}}, "a/lib/b", False),
    ({"anything-but": {"wildcard": "*/lib/*"}}, "a/src/b", True),
    ({"anything-but": {"wildcard": "*/lib/*"}}, 123, True),
    ({"anything-but": {"wildcard": ["*.a", "*.b"]}}, "x.b", False),
    # arrays: one element is enough, at any depth
    ("a", ["b", "a"], True),
    ("a", ["b", "c"], False),
    ("a", [["b"], [["a"]]], True),
    ("a", [{"a": "a"}, "a"], True),
    ("a", [{"a": "a"}], False),
    (None, [None], True),
    ({"prefix": "a"}, ["bee", "ant"], True),
    ({"numeric": [">", 9]}, [1, 10], True),
    ({"anything-but": "a"}, ["a", "b"], True),
    ({"anything-but": "a"}, ["a", "a"], False),
    # an object is not a value
    ("a", {"a": "a"}, False),
]


@pytest.mark.parametrize(("choice", "value", "expected"), LEAVES)
def test_one_choice_against_one_value(choice: Any, value: Any, expected: bool) -> None:
    assert Pattern(leaf(choice)).matches(holding(value)) is expected


@pytest.mark.parametrize("choice", [choice for choice, *_ in LEAVES if choice != {"exists": False}], ids=repr)
def test_an_absent_field_matches_nothing_but_exists_false(choice: Any) -> None:
    assert not Pattern(leaf(choice)).matches({"detail": {}})
    assert not Pattern(leaf(choice)).matches({})


def test_choices_are_alternatives() -> None:
    pattern = Pattern(leaf("a", 1, None, {"prefix": "z-"}, {"numeric": [">", 100]}))

    assert [value for value in ("a", 1.0, None, "z-9", 101) if not pattern.matches(holding(value))] == []
    assert [value for value in ("b", 2, True, "z", 100) if pattern.matches(holding(value))] == []


# --- Objects, absence and arrays ---------------------------------------------------------------------------

WHOLES: list[tuple[str, dict[str, Any], Any, bool]] = [
    ("all fields", {"a": [1], "b": {"c": [2]}}, {"a": 1, "b": {"c": 2}, "more": 0}, True),
    ("one field off", {"a": [1], "b": {"c": [2]}}, {"a": 1, "b": {"c": 3}}, False),
    ("one field missing", {"a": [1], "b": [2]}, {"a": 1}, False),
    ("names are case-sensitive", {"a": [1]}, {"A": 1}, False),
    ("a dotted name is one name", {"a.b": [1]}, {"a.b": 1}, True),
    ("an object is wanted, a string found", {"a": {"b": ["x"]}}, {"a": "x"}, False),
    ("an object is wanted, a number found", {"a": {"b": ["x"]}}, {"a": 5}, False),
    ("an object is wanted, null found", {"a": {"b": ["x"]}}, {"a": None}, False),
    ("an object is wanted, strings found", {"a": {"b": ["x"]}}, {"a": ["x", ["b"]]}, False),
    # absence
    ("absent: the name", {"a": {"b": [{"exists": False}]}}, {"a": {"c": 1}}, True),
    ("absent: the object above", {"a": {"b": [{"exists": False}]}}, {"z": 1}, True),
    ("absent: everything", {"a": {"b": [{"exists": False}]}}, {}, True),
    ("absent: a scalar above", {"a": {"b": [{"exists": False}]}}, {"a": "text"}, True),
    ("absent: null above", {"a": {"b": [{"exists": False}]}}, {"a": None}, True),
    ("absent: an empty array above", {"a": {"b": [{"exists": False}]}}, {"a": []}, True),
    ("absent or a value: absent", {"a": {"b": ["x", {"exists": False}]}}, {"a": {}}, True),
    ("absent or a value: the value", {"a": {"b": ["x", {"exists": False}]}}, {"a": {"b": "x"}}, True),
    ("absent or a value: another", {"a": {"b": ["x", {"exists": False}]}}, {"a": {"b": "y"}}, False),
    ("absent, or anything", {"a": [{"exists": False}, {"exists": True}]}, {"a": {"b": 1}}, True),
    ("absent, with a sibling", {"a": {"b": [{"exists": False}], "c": [1]}}, {"a": {"c": 1}}, True),
    ("absent, sibling missing", {"a": {"b": [{"exists": False}], "c": [1]}}, {}, False),
    # fields of one array must agree on the element
    ("array: in one element", {"a": {"x": [1], "y": [2]}}, {"a": [{"x": 1, "y": 2}]}, True),
    ("array: split", {"a": {"x": [1], "y": [2]}}, {"a": [{"x": 1, "y": 0}, {"x": 0, "y": 2}]}, False),
    ("array: the last one", {"a": {"x": [1], "y": [2]}}, {"a": [{"x": 1}, {"y": 2}, {"x": 1, "y": 2}]}, True),
    ("array: one field", {"a": {"x": [1]}}, {"a": [{"x": 0}, {"x": 1}]}, True),
    ("array: among scalars", {"a": {"x": [1]}}, {"a": [1, None, "x", {"x": 1}]}, True),
    ("array: empty", {"a": {"x": [{"exists": True}]}}, {"a": []}, False),
    *(
        (f"array, {choice}: {case}", {"a": {"x": [choice], "y": [{"exists": True}]}}, {"a": items}, case == "in one")
        for choice in ({"prefix": "ry"}, {"suffix": "ye"}, {"anything-but": "rue"}, {"wildcard": "r*ye"})
        for case, items in {
            "in one": [{"x": "rue", "y": 1}, {"x": "rye", "y": 2}],
            "split": [{"x": "rue", "y": 1}, {"x": "rye"}],
        }.items()
    ),
    ("array in array: one", {"a": {"x": [1], "y": [2]}}, {"a": [[{"x": 0}], [[{"x": 1, "y": 2}]]]}, True),
    ("array in array: split", {"a": {"x": [1], "y": [2]}}, {"a": [[{"x": 1}, {"y": 2}]]}, False),
    (
        "two arrays are independent",
        {"a": {"x": [1]}, "b": {"x": [2]}},
        {"a": [{"x": 1}], "b": [{"x": 2}]},
        True,
    ),
    ("values of an element", {"a": {"x": [1], "y": [2]}}, {"a": [{"x": [0, 1], "y": [2, 3]}]}, True),
    (
        "nested arrays: along one branch",
        {"a": {"n": ["p"], "b": {"k": ["c"], "v": ["d"]}}},
        {"a": [{"n": "q"}, {"n": "p", "b": [{"k": "z"}, {"k": "c", "v": "d"}]}]},
        True,
    ),
    (
        "nested arrays: split in the inner one",
        {"a": {"n": ["p"], "b": {"k": ["c"], "v": ["d"]}}},
        {"a": [{"n": "p", "b": [{"k": "c"}, {"v": "d"}]}]},
        False,
    ),
    (
        "nested arrays: split in the outer one",
        {"a": {"n": ["p"], "b": {"k": ["c"], "v": ["d"]}}},
        {"a": [{"n": "p", "b": []}, {"n": "q", "b": [{"k": "c", "v": "d"}]}]},
        False,
    ),
    (
        "nested arrays: inner fields from different outer elements",
        {"a": {"b": {"k": ["c"]}, "d": {"v": [1]}}},
        {"a": [{"b": [{"k": "c"}]}, {"d": [{"v": 1}]}]},
        False,
    ),
    # an element is chosen by what it has, not by what it lacks
    (
        "array, absent: from the same",
        {"a": {"x": [1], "y": [{"exists": False}]}},
        {"a": [{"x": 1}, {"y": 2}]},
        True,
    ),
    (
        "array, absent: name order",
        {"a": {"y": [2], "x": [{"exists": False}]}},
        {"a": [{"x": 1}, {"y": 2}]},
        True,
    ),
    ("array, absent: there", {"a": {"x": [1], "y": [{"exists": False}]}}, {"a": [{"x": 1, "y": 2}]}, False),
    ("array, absent: from some only", {"a": {"y": [{"exists": False}]}}, {"a": [{"x": 1}, {"y": 2}]}, False),
    ("array, absent: from all", {"a": {"y": [{"exists": False}]}}, {"a": [{"x": 1}, {"x": 2}]}, True),
    (
        "array, absent: deeper, in a chosen element",
        {"a": {"x": [1], "b": {"y": [{"exists": False}]}}},
        {"a": [{"x": 1, "b": [{"z": 1}]}, {"x": 2, "b": [{"y": 1}]}]},
        True,
    ),
    (
        "array, absent: deeper, one of several",
        {"a": {"x": [1], "b": {"y": [{"exists": False}]}}},
        {"a": [{"x": 1, "b": [{"z": 1}, {"y": 1}]}]},
        False,
    ),
]


@pytest.mark.parametrize(("pattern", "event", "expected"), [row[1:] for row in WHOLES], ids=[r[0] for r in WHOLES])
def test_whole_events(pattern: dict[str, Any], event: Any, expected: bool) -> None:
    assert Pattern(pattern).matches(event) is expected


# --- $or ---------------------------------------------------------------------------------------------------

SIDE = {"$or": [{"a": [1]}, {"b": {"c": [2]}}]}
ORS: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("first", SIDE, {"a": 1}, True),
    ("second", SIDE, {"b": {"c": 2}}, True),
    ("both", SIDE, {"a": 1, "b": {"c": 2}}, True),
    ("neither", SIDE, {"a": 2, "b": {"c": 1}}, False),
    ("and a sibling", {"s": ["x"], **SIDE}, {"s": "x", "a": 1}, True),
    ("and a sibling that fails", {"s": ["x"], **SIDE}, {"s": "y", "a": 1}, False),
    ("inside an object", {"d": SIDE}, {"d": {"b": {"c": 2}}}, True),
    ("inside an object, event above", {"d": SIDE}, {"a": 1}, False),
    ("several fields in one", {"$or": [{"a": [1], "b": [2]}, {"c": [3]}]}, {"a": 1, "c": 0}, False),
    ("two side by side", {**SIDE, "d": {"$or": [{"e": [1]}, {"f": [1]}]}}, {"a": 1, "d": {"f": 1}}, True),
    ("two, one fails", {**SIDE, "d": {"$or": [{"e": [1]}, {"f": [1]}]}}, {"a": 1, "d": {"f": 2}}, False),
    ("nested", {"$or": [{"a": [1]}, {"b": [1], "$or": [{"c": [1]}, {"d": [1]}]}]}, {"b": 1, "d": 1}, True),
    ("nested, half", {"$or": [{"a": [1]}, {"b": [1], "$or": [{"c": [1]}, {"d": [1]}]}]}, {"b": 1}, False),
    ("operators", {"$or": [{"a": [{"numeric": [">", 5]}]}, {"a": [{"exists": False}]}]}, {}, True),
    ("in an array: one element", {"d": {"k": [1], **SIDE}}, {"d": [{"k": 1, "b": {"c": 2}}]}, True),
    ("in an array: split", {"d": {"k": [1], **SIDE}}, {"d": [{"k": 1}, {"a": 1}]}, False),
    (
        "outside, about fields of the same array: one element",
        {"d": {"k": [1]}, "$or": [{"d": {"m": [1]}}, {"d": {"m": [2]}}]},
        {"d": [{"k": 0, "m": 1}, {"k": 1, "m": 2}]},
        True,
    ),
    (
        "outside, about fields of the same array: split",
        {"d": {"k": [1]}, "$or": [{"d": {"m": [1]}}, {"d": {"m": [2]}}]},
        {"d": [{"k": 0, "m": 1}, {"k": 1, "m": 3}]},
        False,
    ),
    (
        "repeats a field: the last one counts",
        {"n": ["a"], "$or": [{"n": ["b"]}, {"c": [1]}]},
        {"n": "b"},
        True,
    ),
    (
        "does not repeat it in the other",
        {"n": ["a"], "$or": [{"n": ["b"]}, {"c": [1]}]},
        {"n": "b", "c": 1},
        True,
    ),
    (
        "repeats a field: the first is gone",
        {"n": ["a"], "$or": [{"n": ["b"]}, {"c": [1]}]},
        {"n": "a"},
        False,
    ),
    ("is repeated by a field", {"$or": [{"n": ["b"]}, {"c": [1]}], "n": ["a"]}, {"n": "b"}, False),
    (
        "a name both leaf and object",
        {"n": ["a"], "$or": [{"n": {"m": [1]}}, {"c": [1]}]},
        {"n": ["a", {"m": 1}]},
        True,
    ),
    (
        "operator names are free outside",
        {"prefix": ["a"], "numeric": {"cidr": [1]}},
        {"prefix": "a", "numeric": {"cidr": 1}},
        True,
    ),
]


@pytest.mark.parametrize(("pattern", "event", "expected"), [row[1:] for row in ORS], ids=[row[0] for row in ORS])
def test_or(pattern: dict[str, Any], event: dict[str, Any], expected: bool) -> None:
    assert Pattern(pattern).matches(event) is expected


def either(name: str, count: int) -> dict[str, Any]:
    return {"$or": [{name: [number]} for number in range(count)]}


def test_a_thousand_combinations_are_allowed_and_no_more() -> None:
    tens = {**either("a", 10), "d": {**either("b", 10), "e": either("c", 10)}}
    assert Pattern(tens).matches({"a": 9, "d": {"b": 9, "e": {"c": 9}}})

    with pytest.raises(PatternError, match=r"^f\.\$or: makes more than 1000 combinations"):
        Pattern({**tens, "f": either("g", 2)})
    with pytest.raises(PatternError, match=r"^\$or: makes more than 1000"):
        Pattern(either("a", 1001))


def test_a_bomb_of_alternatives_is_refused_at_once() -> None:
    with pytest.raises(PatternError, match="1000 combinations"):
        Pattern({f"d{level}": either("a", 9) for level in range(50)})


# --- What is refused, and where ----------------------------------------------------------------------------

REFUSED: list[tuple[Any, str, str]] = [
    ([], "pattern", "must be an object, not a list"),
    ("text", "pattern", "must be an object, not a string"),
    (None, "pattern", "must be an object, not null"),
    ({}, "pattern", "must not be an empty object"),
    ({1: ["a"]}, "pattern", "a number as a field name"),
    ({"a": {}}, "a", "must not be an empty object"),
    ({"a": {"b": {}}}, "a.b", "must not be an empty object"),
    ({"a": {"b": {None: [1]}}}, "a.b", "null as a field name"),
    ({"a": "x"}, "a", "must be a list, not a string"),
    ({"a": {"b": 5}}, "a.b", "must be a list, not a number"),
    ({"a": None}, "a", "must be a list, not null"),
    ({"a": True}, "a", "must be a list, not a boolean"),
    ({"a": []}, "a", "must not be an empty list"),
    ({"a": ["x", ["y"]]}, "a[1]", "cannot be a list"),
    ({"a": [b"x"]}, "a[0]", "cannot be b'x'"),
    ({"a": [float("nan")]}, "a[0]", "cannot be nan"),
    ({"a": [float("inf")]}, "a[0]", "cannot be inf"),
    # operators
    (leaf({}), "detail.x[0]", "must hold one operator, not 0"),
    (leaf({"prefix": "a", "suffix": "b"}), "detail.x[0]", "must hold one operator, not 2"),
    (leaf("ok", {"begins": "a"}), "detail.x[1]", "unknown operator 'begins'"),
    (leaf({"PREFIX": "a"}), "detail.x[0]", "unknown operator 'PREFIX'"),
    (leaf({3: "a"}), "detail.x[0]", "unknown operator 3"),
    (leaf({"prefx": "a"}), "detail.x[0]", "unknown operator 'prefx'; did you mean 'prefix'?"),
    (leaf({"anything-but": {"sufix": "a"}}), "detail.x[0].anything-but", "'sufix'; did you mean 'suffix'?"),
    (leaf({"prefix": 3}), "detail.x[0].prefix", "must be a string, not a number"),
    (leaf({"prefix": ["a"]}), "detail.x[0].prefix", "must be a string, not a list"),
    (leaf({"prefix": None}), "detail.x[0].prefix", "must be a string, not null"),
    (leaf({"prefix": {"suffix": "a"}}), "detail.x[0].prefix", "unknown operator 'suffix'"),
    (leaf({"prefix": {}}), "detail.x[0].prefix", "must hold one operator"),
    (leaf({"prefix": {"equals-ignore-case": ["a"]}}), "detail.x[0].prefix.equals-ignore-case", "not a list"),
    (leaf({"suffix": True}), "detail.x[0].suffix", "must be a string, not a boolean"),
    (leaf({"suffix": {"equals-ignore-case": 1}}), "detail.x[0].suffix.equals-ignore-case", "not a number"),
    (leaf({"equals-ignore-case": {"prefix": "a"}}), "detail.x[0].equals-ignore-case", "not an object"),
    (leaf({"equals-ignore-case": ["a"]}), "detail.x[0].equals-ignore-case", "must be a string, not a list"),
    (leaf({"wildcard": 5}), "detail.x[0].wildcard", "must be a string, not a number"),
    (leaf({"wildcard": ["*"]}), "detail.x[0].wildcard", "must be a string, not a list"),
    (leaf({"wildcard": "a**b"}), "detail.x[0].wildcard", "consecutive wildcards"),
    (leaf({"wildcard": r"a\b"}), "detail.x[0].wildcard", "stray backslash"),
    (leaf({"wildcard": "a*\\"}), "detail.x[0].wildcard", "stray backslash"),
    (leaf({"wildcard": "\\\\\\"}), "detail.x[0].wildcard", "stray backslash"),
    (leaf({"exists": "true"}), "detail.x[0].exists", "must be true or false, not a string"),
    (leaf({"exists": 1}), "detail.x[0].exists", "must be true or false, not a number"),
    (leaf({"exists": None}), "detail.x[0].exists", "must be true or false, not null"),
    # anything-but
    (leaf({"anything-but": None}), "detail.x[0].anything-but", "cannot be null"),
    (leaf({"anything-but": True}), "detail.x[0].anything-but", "cannot be a boolean"),
    (leaf({"anything-but": []}), "detail.x[0].anything-but", "must not be an empty list"),
    (leaf({"anything-but": ["a", 1]}), "detail.x[0].anything-but[1]", "must be a string, not a number"),
    (leaf({"anything-but": [1, "a"]}), "detail.x[0].anything-but[1]", "must be a number, not a string"),
    (leaf({"anything-but": ["a", None]}), "detail.x[0].anything-but[1]", "must be a string, not null"),
    (leaf({"anything-but": [[1]]}), "detail.x[0].anything-but[0]", "cannot be a list"),
    (leaf({"anything-but": [{"prefix": "a"}]}), "detail.x[0].anything-but[0]", "cannot be an object"),
    (leaf({"anything-but": 6e9}), "detail.x[0].anything-but", "out of range"),
    (leaf({"anything-but": {}}), "detail.x[0].anything-but", "must hold one operator"),
    (
        leaf({"anything-but": {"prefix": "a", "suffix": "b"}}),
        "detail.x[0].anything-but",
        "must hold one operator",
    ),
    (leaf({"anything-but": {"numeric": ["=", 1]}}), "detail.x[0].anything-but", "unknown operator 'numeric'"),
    (leaf({"anything-but": {"prefix": ""}}), "detail.x[0].anything-but.prefix", "must not be empty"),
    (
        leaf({"anything-but": {"suffix": ["a", ""]}}),
        "detail.x[0].anything-but.suffix[1]",
        "must not be empty",
    ),
    (leaf({"anything-but": {"prefix": []}}), "detail.x[0].anything-but.prefix", "must not be an empty list"),
    (leaf({"anything-but": {"prefix": 27}}), "detail.x[0].anything-but.prefix", "must be a string"),
    (
        leaf({"anything-but": {"prefix": {"equals-ignore-case": "a"}}}),
        "detail.x[0].anything-but.prefix",
        "must be a string, not an object",
    ),
    (
        leaf({"anything-but": {"equals-ignore-case": ["a", 1]}}),
        "detail.x[0].anything-but.equals-ignore-case[1]",
        "must be a string",
    ),
    (
        leaf({"anything-but": {"wildcard": ["*", "**"]}}),
        "detail.x[0].anything-but.wildcard[1]",
        "consecutive",
    ),
    # numeric
    ({"detail": {"price": [{"numeric": []}]}}, "detail.price[0].numeric", "must not be an empty list"),
    (leaf({"numeric": 5}), "detail.x[0].numeric", "must be a list, not a number"),
    (leaf({"numeric": ["="]}), "detail.x[0].numeric", "has neither 2 nor 4 items"),
    (leaf({"numeric": [">", 0, "<"]}), "detail.x[0].numeric", "has neither 2 nor 4 items"),
    (leaf({"numeric": [">", 0, "<", 5, "<", 6]}), "detail.x[0].numeric", "has neither 2 nor 4 items"),
    (leaf({"numeric": ["==", 1]}), "detail.x[0].numeric[0]", "unknown comparison '=='"),
    (leaf({"numeric": [1, ">"]}), "detail.x[0].numeric[0]", "unknown comparison 1"),
    (leaf({"numeric": [">", 0, "!=", 5]}), "detail.x[0].numeric[2]", "unknown comparison '!='"),
    (leaf({"numeric": [["="], 1]}), "detail.x[0].numeric[0]", "unknown comparison"),
    (leaf({"numeric": ["=", "1"]}), "detail.x[0].numeric[1]", "must be a number, not a string"),
    (leaf({"numeric": ["=", True]}), "detail.x[0].numeric[1]", "must be a number, not a boolean"),
    (leaf({"numeric": [">", 0, "<", None]}), "detail.x[0].numeric[3]", "must be a number, not null"),
    (leaf({"numeric": ["=", float("nan")]}), "detail.x[0].numeric[1]", "must be a number, not nan"),
    (leaf({"numeric": [">", 5.1e9]}), "detail.x[0].numeric[1]", "out of range"),
    (leaf({"numeric": ["<", -(10**400)]}), "detail.x[0].numeric[1]", "out of range"),
    (leaf({"numeric": ["<", 5, ">", 0]}), "detail.x[0].numeric", "cannot combine"),
    (leaf({"numeric": [">", 0, ">", 5]}), "detail.x[0].numeric", "cannot combine"),
    (leaf({"numeric": ["<", 0, "<=", 5]}), "detail.x[0].numeric", "cannot combine"),
    (leaf({"numeric": ["=", 0, "=", 5]}), "detail.x[0].numeric", "cannot combine"),
    (leaf({"numeric": ["=", 0, "<", 5]}), "detail.x[0].numeric", "cannot combine"),
    (leaf({"numeric": [">", 5, "<", 1]}), "detail.x[0].numeric", "no number lies between 5 and 1"),
    (leaf({"numeric": [">=", 1, "<=", 1]}), "detail.x[0].numeric", "no number lies between"),
    (leaf({"numeric": [">", 5e9]}), "detail.x[0].numeric", "no number lies between"),
    # cidr
    (leaf({"cidr": 10}), "detail.x[0].cidr", "must be a string, not a number"),
    (leaf({"cidr": ["10.0.0.0/8"]}), "detail.x[0].cidr", "must be a string, not a list"),
    (leaf({"cidr": "10.0.0.0"}), "detail.x[0].cidr", "no mask length"),
    (leaf({"cidr": "10.0.0.0/"}), "detail.x[0].cidr", "no mask length"),
    (leaf({"cidr": "10.0.0.0/8/8"}), "detail.x[0].cidr", "no mask length"),
    (leaf({"cidr": "10.0.0.0/255.0.0.0"}), "detail.x[0].cidr", "no mask length"),
    (leaf({"cidr": "10.0.0.0/-1"}), "detail.x[0].cidr", "no mask length"),
    (leaf({"cidr": "10.0.0.0/33"}), "detail.x[0].cidr", "33"),
    (leaf({"cidr": "10.0.0.0/32"}), "detail.x[0].cidr", "a single address"),
    (leaf({"cidr": "::1/128"}), "detail.x[0].cidr", "a single address"),
    (leaf({"cidr": "300.0.0.0/8"}), "detail.x[0].cidr", "300.0.0.0"),
    (leaf({"cidr": "name.example/8"}), "detail.x[0].cidr", "name.example"),
    (leaf({"cidr": "/8"}), "detail.x[0].cidr", "does not appear"),
    # $or
    ({"$or": {"a": [1], "b": [2]}}, "$or", "at least two objects"),
    ({"$or": []}, "$or", "at least two objects"),
    ({"$or": [{"a": [1]}]}, "$or", "at least two objects"),
    ({"$or": "a"}, "$or", "at least two objects"),
    ({"d": {"$or": [{"a": [1]}, "b"]}}, "d.$or[1]", "must be an object, not a string"),
    ({"d": {"$or": [{"a": [1]}, {}]}}, "d.$or[1]", "must not be an empty object"),
    ({"$or": [{"a": [1]}, {"b": "x"}]}, "$or[1].b", "must be a list"),
    ({"$or": [{"a": [1]}, {"b": [{"numeric": ["~", 1]}]}]}, "$or[1].b[0].numeric[0]", "unknown comparison"),
    ({"$or": [{"prefix": ["a"]}, {"b": [1]}]}, "$or[0].prefix", "reserved name under $or"),
    ({"$or": [{"a": {"numeric": [1]}}, {"b": [1]}]}, "$or[0].a.numeric", "reserved name under $or"),
    ({"$or": [{"a": [1]}, {"<=": [1]}]}, "$or[1].<=", "reserved name under $or"),
    ({"$or": [{"a": [1]}, {"regex": [1]}]}, "$or[1].regex", "reserved name under $or"),
    ({"$or": [{"a": [1]}, {"b": [1], "$or": [{"c": [1]}]}]}, "$or[1].$or", "at least two objects"),
]


@pytest.mark.parametrize(("pattern", "place", "problem"), REFUSED)
def test_refused_with_place_problem_and_remedy(pattern: Any, place: str, problem: str) -> None:
    with pytest.raises(PatternError) as caught:
        Pattern(pattern)

    message = str(caught.value)
    assert message.startswith(f"{place}: ")
    assert problem in message
    assert message.rpartition("; ")[2]


def nested(levels: int, core: Any = ("v",)) -> Any:
    for _ in range(levels):
        core = {"n": core}
    return core


def test_a_hundred_levels_are_allowed_and_no_more() -> None:
    assert Pattern(nested(100)).matches(nested(100, "v"))

    with pytest.raises(PatternError, match="is deeper than 100 levels"):
        Pattern(nested(101))
    with pytest.raises(PatternError, match="is deeper than 100 levels"):
        Pattern(nested(100_000))


def test_alternatives_count_as_levels() -> None:
    core: dict[str, Any] = {"a": [1]}
    for _ in range(200):
        core = {"$or": [core, {"b": [1]}]}

    with pytest.raises(PatternError, match="is deeper than 100 levels"):
        Pattern(core)


def test_the_error_is_a_value_error_and_travels_between_processes() -> None:
    error = PatternError("a: wrong; right it")

    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == "a: wrong; right it"


# --- The pattern object ------------------------------------------------------------------------------------


def test_a_pattern_is_not_changed_by_what_happens_to_its_source() -> None:
    source: dict[str, Any] = {"a": ["x"], "b": {"c": ["y"]}}
    pattern = Pattern(source)
    source["a"].append("z")
    source["b"]["c"] = ["z"]

    assert pattern.matches({"a": "x", "b": {"c": "y"}})
    assert not pattern.matches({"a": "z", "b": {"c": "y"}})


def test_any_mapping_and_any_tuple_will_do() -> None:
    pattern = Pattern(MappingProxyType({"a": MappingProxyType({"b": ("x", "y")})}))

    assert pattern.matches(MappingProxyType({"a": (MappingProxyType({"b": ("z", "y")}),)}))


EXACT: list[tuple[dict[str, Any], set[str] | None]] = [
    ({"source": ["a"]}, {"a"}),
    ({"source": ["a", "b"], "detail": {"x": [1]}}, {"a", "b"}),
    ({"source": ["a"], "$or": [{"b": [1]}, {"c": [1]}]}, {"a"}),
    ({"source": [""]}, {""}),
    ({"detail": {"source": ["a"]}}, None),
    ({"source": {"name": ["a"]}}, None),
    ({"source": ["a", 1]}, None),
    ({"source": ["a", None]}, None),
    ({"source": ["a", True]}, None),
    ({"source": ["a", {"prefix": "b"}]}, None),
    ({"source": ["a", {"exists": False}]}, None),
    ({"source": [{"equals-ignore-case": "a"}]}, None),
    ({"$or": [{"source": ["a"]}, {"source": ["b"]}]}, None),
    ({"source": ["a"], "$or": [{"source": ["b"]}, {"c": [1]}]}, None),
    ({"$or": [{"source": ["b"]}, {"c": [1]}], "source": ["a"]}, {"a"}),
]


@pytest.mark.parametrize(("pattern", "expected"), EXACT)
def test_the_strings_a_field_is_held_to(pattern: dict[str, Any], expected: set[str] | None) -> None:
    assert Pattern(pattern).exact("source") == expected


def test_a_field_not_named_is_not_held_to_anything() -> None:
    assert Pattern({"source": ["a"]}).exact("detail-type") is None


# --- Hostile events ----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from("xyz"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcx"), inner, max_size=4),
    max_leaves=20,
)
EVERY_CHOICE = [choice for choice, *_ in LEAVES]
BROAD = [
    Pattern({"a": EVERY_CHOICE[-1:], "b": {"c": EVERY_CHOICE}}),
    Pattern({"a": {"b": {"c": [{"anything-but": {"wildcard": "*x*"}}], "x": [{"exists": False}]}}}),
    Pattern({"$or": [{"a": {"b": [1]}}, {"b": {"a": ["x"]}}, {"c": [{"cidr": "::/0"}]}], "x": [{"exists": False}]}),
    *(Pattern({"a": {"x": [choice]}}) for choice in EVERY_CHOICE),
]


@given(JSON)
@example({"a": {"x": 10**400}, "b": {"c": [10**400, float("-inf"), "\ud800"]}})
@example({"a": "text", "b": [[[]]], "c": "::1%scope"})
def test_matches_never_raises_on_json(event: Any) -> None:
    for pattern in BROAD:
        assert pattern.matches(event) in (True, False)


def test_arrays_nested_deeper_than_the_stack() -> None:
    deep: Any = ["x", {"x": "x"}]
    for _ in range(100_000):
        deep = [deep]

    assert Pattern({"a": ["x"]}).matches({"a": deep})
    assert Pattern({"a": {"x": ["x"]}}).matches({"a": deep})
    assert not Pattern({"a": {"x": ["y"]}}).matches({"a": deep})


def test_a_wildcard_takes_no_exponential_time() -> None:
    pattern = Pattern({"a": [{"wildcard": "*a" * 500 + "*b"}]})

    assert not pattern.matches({"a": "a" * 200_000})
    assert pattern.matches({"a": "a" * 200_000 + "b"})


# --- Against slower and simpler readings of the rules ------------------------------------------------------


def slow_wildcard(text: str, value: str) -> bool:
    """Tries every length for every star."""

    @cache
    def fits(at: int, pos: int) -> bool:
        if at == len(text):
            return pos == len(value)
        if text[at] == "*":
            return any(fits(at + 1, later) for later in range(pos, len(value) + 1))
        step = 2 if text[at] == "\\" else 1
        return value[pos : pos + 1] == text[at + step - 1] and fits(at + step, pos + 1)

    return fits(0, 0)


WILDCARDS = st.lists(st.sampled_from(["a", "b", "*", r"\*", r"\\"]), max_size=8).map("".join)


@given(
    WILDCARDS.filter(lambda text: "**" not in text.replace(r"\\", "-").replace(r"\*", "-")),
    st.text("ab*\\", max_size=9),
)
def test_wildcard_agrees_with_trying_everything(text: str, value: str) -> None:
    assert Pattern({"a": [{"wildcard": text}]}).matches({"a": value}) is slow_wildcard(text, value)


Fields = list[tuple[tuple[str, ...], Any, dict[int, int]]]


def flattened(value: Any, path: tuple[str, ...], at: dict[int, int], ids: Iterator[int], out: Fields) -> Fields:
    """Every scalar of an event with its path and the element of each array it comes from."""
    if isinstance(value, dict):
        for name, inner in value.items():
            flattened(inner, (*path, name), at, ids, out)
    elif isinstance(value, list):
        array = next(ids)
        for index, inner in enumerate(value):
            inside = {**at, array: index} if isinstance(inner, dict | list) else at
            flattened(inner, path, inside, ids, out)
    else:
        out.append((path, value, at))
    return out


def agree(one: dict[int, int], other: dict[int, int]) -> bool:
    return all(other.get(array, index) == index for array, index in one.items())


def slow_match(wanted: dict[tuple[str, ...], list[Any]], fields: Fields) -> bool:
    """Tries every combination of fields, one per path, None standing for "absent"."""
    paths = list(wanted)
    options = [[f for f in fields if f[0] == path and f[1] in wanted[path]] for path in paths]
    with_none = [[*o, *([None] if "absent" in wanted[p] else [])] for p, o in zip(paths, options, strict=True)]
    for picked in itertools.product(*with_none):
        spots = [field[2] for field in picked if field]
        if not all(agree(one, other) for one, other in itertools.combinations(spots, 2)):
            continue
        gone = [path for path, field in zip(paths, picked, strict=True) if field is None]
        if not any(f[0] in gone and all(agree(f[2], spot) for spot in spots) for f in fields):
            return True
    return False


def leaves(pattern: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[Any]]:
    out: dict[tuple[str, ...], list[Any]] = {}
    for name, value in pattern.items():
        if isinstance(value, dict):
            out |= leaves(value, (*path, name))
        else:
            out[(*path, name)] = ["absent" if isinstance(choice, dict) else choice for choice in value]
    return out


NAMES = st.sampled_from("abc")
CHOICES = st.lists(st.sampled_from(["x", "y", {"exists": False}]), min_size=1, max_size=2)
PATTERNS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    NAMES,
    CHOICES | st.dictionaries(NAMES, CHOICES | st.dictionaries(NAMES, CHOICES, min_size=1), min_size=1),
    min_size=1,
    max_size=2,
)
TREES = st.recursive(
    st.sampled_from("xyz"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@given(PATTERNS, st.dictionaries(NAMES, TREES, max_size=3))
def test_objects_and_arrays_agree_with_trying_everything(pattern: dict[str, Any], event: dict[str, Any]) -> None:
    fields = flattened(event, (), {}, itertools.count(), [])

    assert Pattern(pattern).matches(event) is slow_match(leaves(pattern), fields)


# --- What can be looked up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "fields"),
    [
        ({"source": ["a"]}, {"source"}),
        ({"source": ["a", "b"], "detail-type": ["t"]}, {"source", "detail-type"}),
        ({"source": [{"prefix": "a"}]}, {""}),
        ({"source": ["a"], "detail": {"n": [1]}}, {""}),
        ({"$or": [{"source": ["a"]}, {"detail-type": ["t"]}]}, {""}),
        ({"source": ["a", None]}, {""}),
    ],
)
def test_a_pattern_tells_when_it_looks_at_nothing_but_strings_at_the_top(pattern: Any, fields: set[str]) -> None:
    assert Pattern(pattern).fields == fields
