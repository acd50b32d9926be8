"""Linting a pipeline: every finding with its line."""

from pathlib import Path
from typing import Any

import pytest

from eventonce import ConfigError
from eventonce.clock import format_duration
from eventonce.event.formats import read_event
from eventonce.lint import Lint, covers
from eventonce.rules.line_index import LineIndex
from eventonce.settings import load


def lint(folder: Path, text: str) -> Lint:
    file = folder / "pipeline.toml"
    file.write_text(text)
    return Lint(str(file))


def findings(folder: Path, text: str) -> list[tuple[int, str, str]]:
    return [tuple(finding) for finding in lint(folder, text).findings]  # type: ignore[misc]


GOOD = """\
consumer = "billing"
window   = "14d"

[[rule]]
name  = "orders"
match = { source = ["shop"] }
key   = "content"
"""


def test_a_good_pipeline_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, GOOD) == []


REGIONS = """\
source      = "{}"
sink        = "events://orders{}"
dead_letter = "sqs://dead{}"
"""


@pytest.mark.parametrize("source", ["sqs://orders{}", "kinesis://orders{}", "dynamodbstreams://orders{}"])
def test_an_aws_url_without_a_region_is_warned_of(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warnings(option: str) -> list[int]:
        pipeline = lint(tmp_path, REGIONS.format(source.format(option), option, option))
        pipeline.check_regions()
        assert all("no AWS region is set; add ?region=REGION" in text for _, _, text in pipeline.findings)
        return [line for line, _, _ in pipeline.findings]

    assert warnings("") == []
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert warnings("") == [1, 2, 3]
    assert warnings("?region=eu-west-1") == []
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert warnings("") == [1, 2, 3]
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert warnings("") == []


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (2, 'consumer = "a"\nlese = "60s"', "unknown setting 'lese'; did you mean 'lease'?"),
        (1, 'lease = "soon"', "lease: 'soon' is not a duration; write it like 500ms, 60s, 15m, 24h or 14d"),
        (1, "max_attempts = 'x'", "max_attempts: must be a whole number, not a string"),
        (1, "consumer = 5", "consumer: must be a string, not a whole number"),
        (3, "[[rule]]\nname = 'x'\nrefresh = 'yes'", "refresh: must be true or false, not a string"),
        (1, 'store = "redys://x"', "redys:// is not supported; did you mean redis://HOST"),
        (1, 'source = "ftp://x"', "ftp:// is not supported"),
        (1, 'sink = "python:nothing_here:f"', "module 'nothing_here' cannot be imported"),
        (2, '[[rule]]\nnam = "x"', "unknown setting 'nam'; did you mean 'name'?"),
        (3, '[[rule]]\nname = "x"\nwindow = "5 dayz"', "window: '5 dayz' is not a duration"),
        (3, '[[rule]]\nname = "x"\nkey = "contents"', "key: unknown key 'contents'"),
        (3, '[[rule]]\nname = "x"\nkey = ["a", "b["]', "is not a path"),
        (4, '[[rule]]\nname = "x"\nkey = "content"\nignore = ["a..b"]', "ignore: 'a..b' is not a path at character 3"),
        (3, '[[rule]]\nname = "x"\nremember = "all"', "remember: 'all' is not one of seen, note, result"),
        (4, '[[rule]]\nname = "x"\nkey = ["a"]\notherwise = "no"', "otherwise: 'no' is not one of content, id"),
        (3, '[[rule]]\nname = "x"\nmatch = { source = "shop" }', "match: source"),
        (3, '[[rule]]\nname = "x"\nversion = "a b"', "is not a path"),
        (3, '[[rule]]\nname = "x"\nignore = ["a"]', "ignore only means something"),
        (3, "[[rule]]\nname = 'x'\nkey = [\"floor_time(a, '1 sec')\"]", "rule 'x': key: \"floor_time(a, '1 sec')\""),
        (4, "[[rule]]\nname = 'x'\n\n[rule.match]\nsource = [{ prefx = 's' }]", "did you mean 'prefix'?"),
        (2, "window = '1d'\nrule = [\n  { name = 'x', window = 'soon' },\n]", "window: 'soon' is not a duration"),
        (1, f"a = {'[' * 5000}", "is nested too deep"),
        (1, "[rule]\nname = 'x'", "write each one as [[rule]], with two brackets"),
        (3, "[[rule]]\nname = 'x'\n[[rule]]\nname = 'x'", "rule 'x' exists twice"),
        (
            5,
            "".join(f"[[rule]]\nname = '{name}'\nkey = ['a']\ndigest = 'powertools'\n" for name in "xy"),
            "rules 'x' and 'y' both have keys of Powertools",
        ),
        (1, 'use = ["genesis"]', "genesis"),
        (1, 'use = "genesys"', "write the names of presets in a list"),
        (1, 'use = [["genesys"]]', "write the names of presets in a list"),
        (3, '[[rule]]\nname = "x"\nmatch = { source = [{ prefx = "s" }] }', "'prefx'; did you mean 'prefix'?"),
        (
            3,
            '[[rule]]\nname = "x"\nkey = ["detail.a && flor_time(detail.a)"]',
            "unknown function 'flor_time'; did you mean 'floor_time'?",
        ),
        (
            3,
            '[[rule]]\nname = "x"\nreplaces = { name = "old", key = "ids" }',
            "rule 'x': replaces: rule 'old': key: unknown key 'ids'",
        ),
        (1, "window = '0s'", "window: 0 remembers nothing"),
        (1, "window = 14", 'window: 14 has no unit; write "14s" for seconds or "14d" for days'),
        (3, '[[rule]]\nname = "x"\nwindow = 14', "window: 14 has no unit"),
        (2, "a = 1\nb = = 2", "is not TOML"),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, line: int, text: str, message: str) -> None:
    errors = [finding for finding in lint(tmp_path, text).findings if finding.level == "error"]
    assert any(message in error.text for error in errors), errors
    assert line in [error.line for error in errors if message in error.text]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = 'lease = "x"\n[[rule]]\nname = "a"\nwindow = "y"\n\n[[rule]]\nname = "b"\nkey = [\n  "c",\n  "d[",\n]\n'
    assert [finding.line for finding in lint(tmp_path, text).findings] == [1, 4, 8]


def test_mistakes_of_one_rule_do_not_hide_each_other(tmp_path: Path) -> None:
    lines = ["name = 'r'", "match = { a = [{ x = 1 }] }", "key = 'ids'", "ignore = ['a..b']", "otherwise = 'ids'"]
    lines += ["max_age = 'old'", "replay = 'no'", "version = 'a['", "digest = 'powertools'"]
    mistakes = findings(tmp_path, "\n".join(["[[rule]]", *lines]))
    assert sorted(line for line, _, _ in mistakes) == [
        3,
        4,
        7,
        8,
        9,
    ]  # what depends on a wrong key waits until it is right


def test_version_ahead_is_checked_with_the_version(tmp_path: Path) -> None:
    right = "[[rule]]\nname = 'r'\nversion_ahead = '1d'\nversion = 'detail.v'\n"
    assert [line for line, level, _ in findings(tmp_path, right) if level == "error"] == []
    for wrong, line in ((right.replace("detail.v", "a["), 4), (right.replace("1d", "soon"), 3)):
        assert [line for line, level, _ in findings(tmp_path, wrong) if level == "error"] == [line]


def test_rules_in_the_wrong_brackets_are_reported_once(tmp_path: Path) -> None:
    assert len(findings(tmp_path, "[rule]\nname = 'x'")) == 1


def test_a_bad_key_is_reported_once_wherever_it_is(tmp_path: Path) -> None:
    text = '[[rule]]\notherwise = "id"\nmatch = { source = ["x"] }\nkey = ["a["]\nnam = "r"\nname = "r"\n'
    assert [(line, level) for line, level, _ in findings(tmp_path, text)] == [(5, "error"), (4, "error")]


def test_what_can_never_be_reached(tmp_path: Path) -> None:
    rules = """\
[[rule]]
name = "wide"
match = { source = ["a", "b", { prefix = "x." }] }
[[rule]]
name = "narrow"
match = { source = ["b"], detail-type = ["t"] }
[[rule]]
name = "prefixed"
match = { source = ["x.y"] }
[[rule]]
name = "other"
match = { source = ["c"] }
[[rule]]
name = "all"
[[rule]]
name = "last"
match = { source = ["d"] }
"""
    warnings = [(line, text.split(":")[0]) for line, level, text in findings(tmp_path, rules) if "reached" in text]
    assert warnings == [
        (4, "rule 'narrow' can never be reached"),
        (7, "rule 'prefixed' can never be reached"),
        (15, "rule 'last' can never be reached"),
    ]


@pytest.mark.parametrize(
    ("earlier", "later", "answer"),
    [
        (None, {"a": ["b"]}, True),
        ({"a": ["b"]}, None, False),
        ({"a": ["b"]}, {"a": ["b"]}, True),
        ({"a": ["b"], "c": ["d"]}, {"a": ["b"]}, False),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1.0]}, "c": ["d"]}, True),
        ({"a": [{"exists": True}]}, {"a": ["b"]}, False),
        ({"$or": [{"a": ["b"]}, {"c": ["d"]}]}, {"a": ["b"]}, False),
    ],
)
def test_covers(earlier: Any, later: Any, answer: bool) -> None:
    assert covers(earlier, later) is answer


def test_windows_shorter_than_a_copy_can_be_late(tmp_path: Path) -> None:
    rules = """\
[[rule]]
name = "genesys"
match = { source = [{ prefix = "aws.partner/genesys.com/" }] }
window = "1d"
[[rule]]
name = "orders"
match = { source = ["shop"] }
window = "1h"
"""
    warnings = [(line, text) for line, level, text in findings(tmp_path, rules) if level == "warning"]
    assert [line for line, _ in warnings] == [4, 8]
    texts = [text for _, text in warnings]
    assert "4d of Genesys's own retries + 24h of the EventBridge rule's = 5d" in texts[0]
    assert "misses the last 4d in which copies" in texts[0]
    assert texts[0].endswith("write window = '5d' or more")
    assert "misses the last 23h in which copies" in texts[1]
    assert texts[1].endswith("write window = '1d' or more")


def test_windows_behind_a_queue_and_before_a_replay(tmp_path: Path) -> None:
    text = 'source = "sqs://q"\nwindow = "2d"\n[[rule]]\nname = "a"\nreplay = "dedupe"\n'
    (queue_line, queue), (replay_line, replay) = [
        (line, message) for line, level, message in findings(tmp_path, text) if level == "warning"
    ]
    assert (queue_line, replay_line) == (2, 5)
    assert "2d misses the last 12d in which copies can come (SQS keeps messages, dead letters that are" in queue
    assert "those done longer than 2d ago run again" in replay


def test_the_window_of_events_that_no_rule_matches(tmp_path: Path) -> None:
    text = 'source = "sqs://q"\nwindow = "2d"\n[[rule]]\nname = "a"\nmatch = { source = ["x"] }\nwindow = "14d"\n'
    ((line, _, message),) = findings(tmp_path, text)
    assert line == 2
    assert message.startswith("for events that no rule matches: window: 2d misses the last 12d")
    assert findings(tmp_path, text.replace('match = { source = ["x"] }', "")) == []


def test_a_bad_window_above_the_rules_is_reported_once(tmp_path: Path) -> None:
    rules = "".join(f'[[rule]]\nname = "{name}"\nmatch = {{ source = ["{name}"] }}\n' for name in "abc")
    for window in ('"soon"', '"0s"'):
        ((line, level, text),) = findings(tmp_path, f'consumer = "c"\nwindow = {window}\n{rules}')
        assert (line, level) == (2, "error")
        assert text.startswith("window: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("key = [\"'x'\"]", "key: it is equal for all events"),
        ("key = [\"'x'\", \"floor_time('2026-01-01', '1d')\"]", "key: it is equal for all events"),
        ('match = { sorce = ["x"] }', "match: unknown envelope field 'sorce'; did you mean 'source'?"),
        (
            'match = { detail_type = ["x"] }',
            "match: unknown envelope field 'detail_type'; did you mean 'detail-type'?",
        ),
        (
            'match = { "$or" = [{ source = ["x"] }, { detailtype = ["x"] }] }',
            "match: unknown envelope field 'detailtype'; did you mean 'detail-type'?",
        ),
        ('match = { source = ["${SHOP}"] }', "match: ${SHOP} stays as it is written here; write the value itself"),
        ('match = { detail = { a = [{ prefix = "$${A" }] } }', "match: $${ stays as it is written here"),
        ('replaces = "${OLD}-x"', "replaces: ${OLD} stays as it is written here"),
        ('replaces = { name = "${OLD:-a}" }', "replaces: ${OLD:-a} stays as it is written here"),
        ("key = ['detail.\"${ID}\"']", "key: ${ID} stays as it is written here"),
        ('max_age = "0s"', "max_age: 0 drops every event as too old"),
        ('replaces = "r"', "replaces: it names the rule itself"),
        ('replaces = { name = "r", key = "id" }', "replaces: it names the rule itself"),
    ],
)
def test_what_is_hardly_intended(tmp_path: Path, line: str, message: str) -> None:
    ((number, level, text),) = findings(tmp_path, f'[[rule]]\nname = "r"\n{line}\n')
    assert (number, level) == (3, "warning")
    assert text.startswith(f"rule 'r': {message}")


def test_a_name_takes_no_reference(tmp_path: Path) -> None:
    assert findings(tmp_path, "[[rule]]\nname = 'r-${STAGE}'\n") == [
        (2, "warning", "rule 'r-${STAGE}': name: ${STAGE} stays as it is written here; write the value itself")
    ]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ('{ sorce = ["x"] }', "unknown envelope field 'sorce'; did you mean 'source'?"),
        ('{ detailtype = ["x"] }', "unknown envelope field 'detailtype'; did you mean 'detail-type'?"),
        ('{ source = ["${SHOP}"] }', "${SHOP} stays as it is written here; write the value itself"),
    ],
)
def test_the_pattern_of_aws_is_read_as_a_match_is(tmp_path: Path, pattern: str, message: str) -> None:
    text = f"source = 'sqs://q?region=eu-west-1'\n[aws]\nbus = 'b'\npattern = {pattern}\n"
    assert findings(tmp_path, text) == [(4, "warning", f"aws: pattern: {message}")]


@pytest.mark.parametrize(
    ("key", "is_warned_of"),
    [
        ("['type(detail.orderID)']", True),
        ("['length(detail.items[*].ID)']", True),
        ("['detail.orderId']", False),
        ("'content'\nignore = ['orderId', 'at']", False),
        ("['source']\nversion = 'detail.orderId'", False),
    ],
)
def test_samples_that_all_have_one_key(tmp_path: Path, key: str, is_warned_of: bool) -> None:
    def warnings(*events: dict[str, Any]) -> list[tuple[int, str]]:
        pipeline = lint(tmp_path, f"[[rule]]\nname = 'r'\nkey = {key}\n")
        pipeline.check_samples([read_event(event | {"source": "s", "items": [1]}) for event in events])
        return [(line, text) for line, _, text in pipeline.findings]

    text = "rule 'r': key: all 2 samples have the same key, and they differ; use what identifies each of them"
    assert warnings({"orderId": 1, "at": 1}, {"orderId": 2, "at": 2}) == ([(1, text)] if is_warned_of else [])
    assert warnings({"orderId": 1, "at": 1}) == []
    assert warnings({"orderId": 1, "at": 1}, {"orderId": 1, "at": 1}) == []


@pytest.mark.parametrize(
    "line",
    [
        "match = { orderId = ['x'], id = ['y'] }",
        "key = [\"'x'\", 'id']",
        "key = ['@']",
        "key = ['[0]']",
        'replaces = { name = "r", key = "content" }',
    ],
)
def test_what_may_well_be_meant(tmp_path: Path, line: str) -> None:
    assert findings(tmp_path, f'[[rule]]\nname = "r"\n{line}\n') == []


ENVELOPES = 'match = { source = ["shop"], "$or" = [{ type = ["a"] }, { detail = { b = [1] } }] }'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'key = ["orderId"]',
            "key: orderId: an envelope has no field 'orderId'; write detail.orderId for one of the data",
        ),
        (
            "key = ['length(lines[*].n)']",
            "key: length(lines[*].n): an envelope has no field 'lines'; write detail.lines ",
        ),
        (
            "key = ['source || \"a-b\".c']",
            'key: source || "a-b".c: an envelope has no field \'a-b\'; write detail."a-b" ',
        ),
        ('version = "count"', "version: count: an envelope has no field 'count'; write detail.count "),
        (
            'key = "content"\nignore = ["sentAt"]',
            "ignore: sentAt: an envelope has no field 'sentAt'; write detail.sentAt ",
        ),
        ('key = "content"\nignore = ["time"]', "ignore: time: only the data counts as content; write detail.time "),
    ],
)
def test_a_path_that_starts_at_no_field_of_an_envelope(tmp_path: Path, line: str, message: str) -> None:
    rule = f'[[rule]]\nname = "r"\n{line}\n'
    ((number, level, text),) = findings(tmp_path, f"{rule}{ENVELOPES}\n")
    assert (number, level) == (2 + len(line.splitlines()), "warning")
    assert text.startswith(f"rule 'r': {message}")
    # These may be for plain objects, or for CloudEvents with an attribute of their own.
    for match in ("", 'match = { type = ["a"] }', 'match = { source = ["a"], tenant = [{ exists = true }] }'):
        assert findings(tmp_path, f"{rule}{match}\n") == []


@pytest.mark.parametrize(
    "lines",
    [
        "key = ['source', 'type', '\"detail-type\"', 'data.n', 'detail.n', 'headers.id', 'subject', '*.id', '@.id']",
        "key = 'content'\nignore = ['detail.a', 'data.b', '**.c', '*.d']",
        "key = ['sort_by(detail.lines, &n)[0].sku', \"floor_time(time, '1s')\"]\nversion = 'data.version'",
    ],
)
def test_paths_that_start_at_the_event(tmp_path: Path, lines: str) -> None:
    assert findings(tmp_path, f'[[rule]]\nname = "r"\n{ENVELOPES}\n{lines}\n') == []


def test_a_rule_without_a_name_is_reported_by_the_name_it_gets(tmp_path: Path) -> None:
    assert findings(tmp_path, "[[rule]]\nkey = ['a[']\n")[0][2].startswith("rule 'paths': key: ")
    checked = lint(tmp_path, "[[rule]]\nkey = 'content'\nignore = ['detail.gone']\n")
    checked.check_samples([read_event({"source": "shop", "detail-type": "t", "detail": {}})])
    assert [finding.text for finding in checked.findings] == ["rule 'content': ignore: detail.gone is in 0 of 1 sample"]


def test_a_pattern_that_cannot_be_read_is_reported_once(tmp_path: Path) -> None:
    for branches in ("7", "[1, 2]", "[{ source = 1 }, {}]"):
        found = findings(tmp_path, f'[[rule]]\nname = "r"\nkey = ["x"]\nmatch = {{ "$or" = {branches} }}\n')
        assert [level for _, level, _ in found] == ["error"]


def test_a_preset_that_is_named_twice(tmp_path: Path) -> None:
    assert findings(tmp_path, 'consumer = "c"\nuse = ["stripe", "okta", "stripe"]') == [
        (2, "warning", "use: 'stripe' is listed 2 times; once is enough")
    ]


def test_files_and_folders_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'source = "in.jsonl"\nsink = "out/x.jsonl"\ndead_letter = "dead/x.jsonl"\n'
    assert findings(tmp_path, text) == [
        (1, "warning", "source: no such file 'in.jsonl'; create it, or run in another folder"),
        (2, "warning", "sink: no such folder 'out'; create it, or run in another folder"),
        (3, "warning", "dead_letter: no such folder 'dead'; create it, or run in another folder"),
    ]
    (tmp_path / "in.jsonl").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "dead").write_text("")
    assert [line for line, _, _ in findings(tmp_path, text)] == [1, 3]
    (tmp_path / "in.jsonl").rmdir()
    (tmp_path / "in.jsonl").write_text("")
    assert findings(tmp_path, 'source = "in.jsonl"\nsink = "new.jsonl"\ndead_letter = "-"\n') == []


def test_what_is_ignored_but_never_there(tmp_path: Path) -> None:
    checked = lint(tmp_path, GOOD + 'ignore = ["detail.at", "**.trace", "data.gone.away"]\n')
    events = [{"id": "1", "source": "shop", "detail-type": "t", "detail": {"at": 1, "deep": [{"trace": 2}]}}]
    checked.check_samples([read_event(event) for event in events])
    assert [finding.text for finding in checked.findings] == [
        "rule 'orders': ignore: data.gone.away is in 0 of 1 sample"
    ]
    assert checked.findings[0].line == 8


def test_samples_that_no_rule_looks_at_and_samples_without_a_key(tmp_path: Path) -> None:
    text = '[[rule]]\nname = "a"\nmatch = { source = ["a"] }\nkey = "content"\nignore = ["detail.x"]\n'
    checked = lint(tmp_path, text + '[[rule]]\nname = "b"\nmatch = { source = ["b"] }\nkey = ["detail.n"]\n')
    details: list[Any] = [{"n": 1}, {"m": 1}, {}]
    checked.check_samples([read_event({"source": "b", "detail-type": "t", "detail": detail}) for detail in details])
    assert checked.findings == [
        (5, "warning", "rule 'a': it matches 0 of 3 samples, so its ignored paths were not checked"),
        (
            6,
            "warning",
            "rule 'b': 2 of 3 samples would be rejected; the first has no detail.n, which is in the key of rule 'b'",
        ),
    ]


def test_tests_in_the_file(tmp_path: Path) -> None:
    tests = """
[[test]]
name = "retry"
same = ['{"id": "1"}', '{"id": "1"}']

[[test]]
different = [{ id = "1" }, { id = "2" }]

[[test]]
sam = []

[[test]]
same = ["only one"]
"""
    checked = lint(tmp_path, tests)
    cases = list(checked.cases())
    assert [(case.line, case.name, case.same) for case in cases] == [(2, "retry", True), (6, "test 2", False)]
    assert [finding.line for finding in checked.findings] == [10, 12]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Lint(str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b'consumer = "\xff"')
    with pytest.raises(ConfigError, match="is not UTF-8"):
        Lint(str(tmp_path / "latin.toml"))


def test_a_bom_and_line_ends_of_other_kinds(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_bytes("\ufeffconsumer = 'a\u2028b\x85c'\r\nlease = 'x'\r\n".encode())
    assert [finding.line for finding in Lint(str(file)).findings] == [2]
    file.write_bytes("\ufeffconsumer = 'a'\r\n".encode())
    assert load(file).consumer == "a"


def test_lines_of_entries_in_long_values() -> None:
    lines = LineIndex(
        'a = """\n[x]\nb = 1\n"""\nc = [\n  "d = 1", # ]\n  [1],\n]\n"e f" = 2\n[[t]]\nx.y = 1\n[[t]]\nz = 1\n'
    )
    assert [lines.find(entry=name) for name in ("a", "c", "e f")] == [1, 5, 9]
    assert (lines.find("t", 1), lines.find("t", 1, "x"), lines.find("t", 2, "z")) == (10, 11, 13)
    assert lines.find("t", 2, "unknown") == 12
    assert lines.find("unknown", 1, "unknown") == 1


@pytest.mark.parametrize(("millis", "text"), [(0, "0ms"), (86_400_000, "1d"), (90_061_001, "1d1h1m1s1ms")])
def test_durations_are_spelled(millis: int, text: str) -> None:
    assert format_duration(millis) == text


def test_a_sink_on_the_bus_that_feeds_the_pipeline_is_warned_of(tmp_path: Path) -> None:
    text = 'source = "sqs://in"\nsink = "events://%s"\n\n[aws]\nbus = "shop"\n'
    ((line, level, message),) = findings(tmp_path, text % "shop")
    assert (line, level) == (2, "warning")
    assert "may come back" in message
    assert findings(tmp_path, text % "other") == []
