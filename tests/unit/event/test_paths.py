"""Paths: getting values, and leaving them out."""

from typing import Any

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.errors import ConfigError
from eventonce.event.paths import (
    Ignored,
    Wildcard,
    constant,
    floor_time,
    getter,
    ignored_path,
    plain,
    quoted,
    roots,
    unread_times,
    value_at,
)

DOCUMENT = {"detail": {"interaction-id": "x", "a.b": {"c": 0}, "list": [{"n": 1}, {"n": 2}], "empty": "", "no": None}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("detail", DOCUMENT["detail"]),
        ('detail."interaction-id"', "x"),
        ('detail."a.b".c', 0),
        ("detail.none.more", None),
        ("detail.no", None),
        ("detail.empty", ""),
        ("detail.list[0].n", 1),
        ("detail.list[*].n", [1, 2]),
        ("detail.missing || detail.list[1].n", 2),
        ("length(detail.list)", 2),
        ("floor_time('2026-01-05T09:00:01.999Z', '1s')", 1767603601000),
        ("floor_time(detail.missing, '1s')", None),
        ("floor_time(detail.list, '1s')", None),
        ("floor_time(detail.list, '1s') || 'otherwise'", "otherwise"),
    ],
)
def test_paths_lead_to_values(text: str, value: Any) -> None:
    assert getter(text)(DOCUMENT) == value


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a b", 'a."b', "a[", "nothing(a)", "floor_time(a)", "a ||"]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"key: .* is not a path"):
        getter(text, "key")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flor_time(a, '1s')", "unknown function 'flor_time'; did you mean 'floor_time'?"),
        ("a && lenght(a)", "unknown function 'lenght'; did you mean 'length'?"),
        ("a[?xyz(@)][1:2]", "unknown function 'xyz'; use one of abs, avg, "),
    ],
)
def test_a_function_that_is_unknown_is_reported_wherever_it_is(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getter(text, "key")
    assert f"key: {text!r} is not a path: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "position", "step"),
    [
        ("floor_time(detail.t, 1s)", 22, "1s"),
        ("floor_time(max(detail.times), 15m) || 'none'", 31, "15m"),
        ("detail.t || floor_time(time,500ms)", 29, "500ms"),
    ],
)
def test_a_step_without_quotes_is_reported_as_such(text: str, position: int, step: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getter(text, "key")
    assert str(caught.value) == (
        f"key: {text!r} is not a path at character {position}; write the step in quotes: '{step}'"
    )


@pytest.mark.parametrize("step", ["0s", "0.4ms", "25h", "1w", "99w"])
def test_a_step_is_a_day_at_most(step: str) -> None:
    message = f"floor_time: '{step}' is not a step; use one from 1ms to 1d, such as '1s'"
    with pytest.raises(ConfigError, match=f"^key: .* is not a path: {message}$"):
        getter(f"floor_time(at, '{step}')", "key")
    assert getter("floor_time(at, step)")({"at": 1, "step": step}) is None


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("detail-type", 'character 7; write the name in quotes: "detail-type"'),
        ("detail.x || detail.order-line-id.y", 'character 25; write the name in quotes: "order-line-id"'),
        ("detail.1st", 'character 8; write the name in quotes: "1st"'),
        ("detail.sentAt + 1", "character 15; JMESPath has no arithmetic, use a path to a value"),
        ("detail.a - 1", "character 10; JMESPath has no arithmetic, use a path to a value"),
        ("detail..x", "character 8; write names with dots between, such as detail.orderId, or another expression"),
        ("a[", "character 3; write names with dots between"),
    ],
)
def test_what_is_wrong_with_a_path_comes_with_its_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getter(text, "key")
    assert str(caught.value).startswith(f"key: {text!r} is not a path at {remedy}")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a.b", {"a"}),
        ("a[*].b", {"a"}),
        ("a[0].b | c", {"a"}),
        ("a || b.c", {"a", "b"}),
        ("a[?b == `1`].c", {"a"}),
        ("sort_by(a, &b)[0].c", {"a"}),
        ("{x: a.b, y: [c, 'd']}", {"a", "c"}),
        ("@.a", {"a"}),
        ("@ | a", {"a"}),
        ("*.a", set()),
        ("keys(@)", set()),
        ("'a'", set()),
        ('"a.b".c', {"a.b"}),
    ],
)
def test_the_fields_with_which_a_path_begins(text: str, fields: set[str]) -> None:
    assert roots(text) == fields


@pytest.mark.parametrize(
    ("text", "answer"),
    [("'x'", True), ("join('-', ['a', 'b'])", True), ("x", False), ("'x' || y", False), ("@", False), ("*", False)],
)
def test_what_is_the_same_for_all_events(text: str, answer: bool) -> None:
    assert constant(text) is answer


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("floor_time(detail.\"interaction-id\", '1s')", ["x"]),
        ("floor_time(detail.list, '1s')", [DOCUMENT["detail"]["list"]]),
        ("floor_time(detail.missing, '1s')", []),
        ("detail.missing", []),
    ],
)
def test_what_is_no_time_is_found(text: str, values: list[Any]) -> None:
    assert unread_times(text, DOCUMENT) == values


NAMES = st.sampled_from(["a", "b", "c-d", "e.f", ""])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES, st.lists(NAMES, min_size=1, max_size=4))
def test_plain_paths_agree_with_jmespath(document: Any, names: list[str]) -> None:
    text = ".".join(map(quoted, names))
    assert plain(text) == tuple(names)
    assert value_at(document, names) == jmespath.search(text, document)


@pytest.mark.parametrize(
    ("value", "step", "millis"),
    [
        ("2026-01-05T09:00:01.999Z", "1s", 1767603601000),
        ("2026-01-05T10:00:01.5+01:00", "1s", 1767603601000),
        ("2026-01-05T09:00:01", "1m", 1767603600000),
        (1767603601, "1s", 1767603601000),
        (1767603601.999, "1s", 1767603601000),
        (1767603601999, "1s", 1767603601000),
        (1767603601999000, "1s", 1767603601000),
        (-1, "1s", -1000),
        (0, "1h", 0),
        ("1767603601", "1s", 1767603601000),
        ("1767603601.5", "100ms", 1767603601500),
        ("1767603601999", "1s", 1767603601000),
        ("1767603601999000", "1s", 1767603601000),
        ("1712101500123", "1s", 1712101500000),  # not a day in 1712
        ("-1", "1s", -1000),
        ("20260105", "1s", 1767571200000),  # a day, as ISO 8601 writes it
        ("202601050930", "1s", None),  # minutes without signs between, and no number of milliseconds
        ("20260105093000", "1s", None),
        ("20260105093000123", "1s", None),
        ("2016-12-31T23:59:60Z", "1s", 1483228800000),
        ("2017-01-01 00:59:60.5+01:00", "1ms", 1483228800500),
        ("9" * 5000, "1s", None),
        ("", "1s", None),
        ("yesterday", "1s", None),
        (None, "1s", None),
        (True, "1s", None),
        (10**30, "1s", None),
        (float("nan"), "1s", None),
    ],
)
def test_times_are_floored_however_they_are_written(value: Any, step: str, millis: int | None) -> None:
    assert floor_time(value, step) == millis


def strip(data: Any, *paths: str) -> Any:
    return Ignored([ignored_path(text) for text in paths]).strip(data)


def test_ignored_paths_are_left_out_and_nothing_else() -> None:
    data = {"keep": 1, "time": 2, "meta": {"id": 3, "who": 4}, "list": [{"time": 5}], "other": "meta", "none": None}
    stripped = {"keep": 1, "meta": {"who": 4}, "list": [{"time": 5}], "other": "meta", "none": None}
    assert strip(data, "time", "meta.id", "other.deeper", "missing") == stripped
    assert data["meta"] == {"id": 3, "who": 4}
    assert strip(["a list"], "time") == ["a list"]


def test_a_short_ignored_path_swallows_longer_ones() -> None:
    for paths in (["meta", "meta.id"], ["meta.id", "meta"]):
        assert strip({"meta": {"id": 1, "who": 2}, "x": 1}, *paths) == {"x": 1}


@pytest.mark.parametrize(
    ("path", "stripped"),
    [
        ("items[*].at", {"at": 1, "items": [{"n": 1, "sub": [{"at": 3}]}, {"n": 2}], "x": {"at": 4, "*": 5}}),
        ("**.at", {"items": [{"n": 1, "sub": [{}]}, {"n": 2}], "x": {"*": 5}}),
        ("*.at", {"at": 1, "items": [{"at": 2, "n": 1, "sub": [{"at": 3}]}, {"n": 2}], "x": {"*": 5}}),
        ("items[*].sub[*].at", {"at": 1, "items": [{"at": 2, "n": 1, "sub": [{}]}, {"n": 2}], "x": {"at": 4, "*": 5}}),
        ("items[*]", {"at": 1, "items": [], "x": {"at": 4, "*": 5}}),
        ("items.**.at", {"at": 1, "items": [{"n": 1, "sub": [{}]}, {"n": 2}], "x": {"at": 4, "*": 5}}),
        ('x."*"', {"at": 1, "items": [{"at": 2, "n": 1, "sub": [{"at": 3}]}, {"n": 2}], "x": {"at": 4}}),
        ("*", {}),
    ],
)
def test_wildcards(path: str, stripped: Any) -> None:
    data = {"at": 1, "items": [{"at": 2, "n": 1, "sub": [{"at": 3}]}, {"n": 2}], "x": {"at": 4, "*": 5}}
    assert strip(data, path) == stripped


@pytest.mark.parametrize(
    "text", ["", ".", "a.", "a..b", "a b", "a-b", "a[0]", "**", "a.**", "***", "[*]", "a[*", 'a."b']
)
def test_what_cannot_be_ignored_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a path at character"):
        ignored_path(text)


PLAIN = st.lists(NAMES, min_size=1, max_size=3).map(tuple)


@given(VALUES, st.lists(PLAIN, max_size=4))
def test_both_ways_to_leave_out_plain_paths_agree(data: Any, paths: list[tuple[str, ...]]) -> None:
    never = ignored_path("*.never.there")
    assert Ignored(paths).strip(data) == Ignored([*paths, never]).strip(data)


def left_out(value: Any, paths: list[tuple[str, ...]]) -> Any:
    """Apply each path on its own at every position, the obvious and slow way."""
    if isinstance(value, dict):
        below = {name: [rest for path in paths for rest in rests(path, name)] for name in value}
        return {name: left_out(item, below[name]) for name, item in value.items() if () not in below[name]}
    if isinstance(value, list):
        inside = [rest for path in paths for rest in rests(path, None)]
        return [] if () in inside else [left_out(item, inside) for item in value]
    return value


def rests(path: tuple[str, ...], name: str | None) -> list[tuple[str, ...]]:
    if not path:
        return []
    head, rest = path[0], path[1:]
    if not isinstance(head, Wildcard):
        return [rest] if head == name else []
    if head == "**":
        return [path, *rests(rest, name)]
    return [rest] if head == ("[*]" if name is None else "*") else []


FEW = st.sampled_from(["a", "b", "*"])
NESTED = st.recursive(
    st.integers(0, 3), lambda some: st.lists(some, max_size=3) | st.dictionaries(FEW, some), max_leaves=12
)
WILD = st.lists(st.sampled_from(["a", "b", '"*"', "*", "**", "a[*]", "*[*]"]), max_size=4).map(
    lambda steps: ".".join([*steps, "a"])
)


@given(NESTED, st.lists(WILD, min_size=1, max_size=3))
def test_wildcards_leave_out_what_each_path_alone_names(data: Any, paths: list[str]) -> None:
    steps = [ignored_path(text) for text in [*paths, "*.never"]]
    assert Ignored(steps).strip(data) == left_out(data, steps)


def test_a_step_that_comes_from_an_event_does_not_stop_what_reads_it() -> None:
    floored = getter("floor_time(at, step)")
    assert floored({"at": 1_700_000_001, "step": "1m"}) == 1_699_999_980_000
    assert floored({"at": 1_700_000_001, "step": "soon"}) is None
    with pytest.raises(
        ConfigError, match=r"path: \"floor_time\(at, 'soon'\)\" is not a path: floor_time: 'soon' is not"
    ):
        getter("floor_time(at, 'soon')")
