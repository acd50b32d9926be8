"""The contract with every engine: lines in, keys out, and keys that no upgrade may change."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from eventonce.errors import EventRejected
from eventonce.event.formats import read_event
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule
from eventonce.traffic import keys_arrow

RULES = Rulebook(
    "golden",
    [
        Rule(name="orders", match={"source": ["shop"]}, key=["detail.order"], version="detail.version"),
        Rule(name="content", match={"source": ["sensor"]}, key="content", ignore=["detail.at"]),
    ],
    identity("14d", "retry"),
)


ORDER = '{"id": "8", "source": "shop", "detail-type": "t", "detail": {"order": 5, "version": 2}}'


def sensor(detail: str) -> str:
    return f'{{"id": "1", "source": "sensor", "detail-type": "t", "detail": {detail}}}'


# Keys are in stores and archives for as long as windows last: what is pinned here may never change.
GOLDEN = [
    ('{"id": "a", "n": 1}', "bd520a1564c636c0eb3c86f0d2d2fa19"),
    ('{"id": 7, "source": "s", "type": "t"}', "e6a3033f8d3c007dff2ac45c15eba637"),
    ('{"id": "7", "source": "s", "type": "t"}', "a4320e9a94b8cd4de2b4c72df28cbcd0"),
    (
        '{"specversion": "1.0", "id": "c", "source": "/s", "type": "t", "data": {"x": 1}}',
        "f44ce7fc7264cc49f2afb1e8c984eb46",
    ),
    (
        '{"id": "1", "source": "shop", "detail-type": "t", "detail": {"order": 9007199254740993, "version": 1}}',
        "79fd0b494c55ebedb48200c84aed812a",
    ),
    (
        '{"id": "1", "source": "shop", "detail-type": "t", "detail": {"order": "\\u00fc", "version": 1}}',
        "d567cd54e9ecf44e0b5affe8595cf49b",
    ),
    (
        '{"id": "1", "source": "shop", "detail-type": "t", "detail": {"order": 1.0, "version": 1}}',
        "7dd17929702ead8269eaff6c7fb51ceb",
    ),
    ('{"id": "1", "source": "sensor", "detail-type": "t", "detail": {}}', "e1320746774e99390a852ecfbe42bc61"),
    ('{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"n": 1e2}}', "165004818ba4fcb8cf9e5b47b14a711b"),
    ('{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"n": -0.0}}', "7840f92cae38baace6ca0d227e0bb8a2"),
    (
        '{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"n": 0.1, "m": 1e-7, "k": 1e21}}',
        "1046cca10397b337807fcd60de6ae1e7",
    ),
    (
        '{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"n": 123456789012345678901234567890}}',
        "d6e4c4bb822b1c85d30b4069f8416c9b",
    ),
    (
        '{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"n": 1, "n": 2}}',
        "69c0f8925835246a87d4f310aa3398a4",
    ),
    (
        '{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"\\ud83d\\ude00": true, "\\ufb33": null}}',
        "56b021d5c121dc1ed6af8e60fc75cea4",
    ),
    (
        '{"id": "1", "source": "sensor", "detail-type": "t", "detail": {"at": "now", "list": [1, "1", [], {}, false]}}',
        "d8058abc13ddd0ec15889b3c1c2b2f5b",
    ),
]


def test_the_same_key_as_everywhere_else() -> None:
    lines = [sensor('{"a": 1}'), '{"id": "7"}', ORDER]
    table = keys_arrow(pa.array(lines), RULES)

    assert table["key"].to_pylist() == [RULES.key(read_event(line)).key for line in lines]
    assert table["ok"].to_pylist() == [True, True, True]
    assert table["reason"].null_count == 3
    assert table["line"].to_pylist() == [0, 1, 2]


def test_rule_version_and_time() -> None:
    line = ORDER.replace('"id"', '"time": "2026-01-01T00:00:00.5Z", "id"')
    (row,) = keys_arrow([line], RULES).to_pylist()

    assert (row["rule"], row["version"], row["time"].isoformat()) == ("orders", 2, "2026-01-01T00:00:00.500000+00:00")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_any_column_of_text_or_bytes(kind: pa.DataType) -> None:
    lines = pa.array(['{"id": "1"}'], pa.string()).cast(kind)

    assert keys_arrow(pa.chunked_array([lines]), RULES)["key"].to_pylist() == [RULES.key(read_event('{"id": "1"}')).key]


def test_a_line_that_carries_several_events_has_a_row_for_each() -> None:
    carried = json.dumps(
        {"Records": [{"messageId": str(n), "eventSource": "aws:sqs", "body": '{"id": "%d"}' % n} for n in (1, 2)]}  # noqa: UP031
    )
    table = keys_arrow([carried, '{"id": "2"}'], RULES)

    assert table["line"].to_pylist() == [0, 0, 1]
    keys = table["key"].to_pylist()
    assert keys[0] != keys[1] == keys[2]


def test_what_is_malformed_has_a_reason_and_shares_no_key_with_others() -> None:
    lines = ["{broken", None, "[1]", '{"id": ""}', '{"id": "8", "source": "shop", "detail-type": "t", "detail": {}}']
    table = keys_arrow(pa.array(lines), RULES)

    assert table["ok"].to_pylist() == [False] * 5
    assert table["key"].null_count == 5
    assert all(table["reason"].to_pylist())
    assert "has no detail.order" in table["reason"][4].as_py()


def test_no_lines() -> None:
    table = keys_arrow(pa.array([], pa.string()), RULES)

    assert table.num_rows == 0
    assert table.schema.field("key").type == pa.binary(16)


def test_rules_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('consumer = "golden"\n')

    assert keys_arrow(['{"id": "1"}'], file)["key"].to_pylist() == [RULES.key(read_event('{"id": "1"}')).key]


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (['{"n": 1}', '{"n": 1.0}', '{"n": 1e0}', '{"at": 5, "n": 1}'], '{"n": "1"}'),
        (['{"n": 100}', '{"n": 1e2}', '{"n": 100.0}'], '{"n": 101}'),
        (['{"n": 0}', '{"n": -0.0}', '{"n": -0}', '{"n": 0.0}'], '{"n": null}'),
        (['{"n": 9007199254740993}'], '{"n": 9007199254740992}'),
        (['{"n": 123456789012345678901234567890}'], '{"n": 123456789012345678901234567891}'),
        (['{"n": 1, "n": 2}', '{"n": 2}'], '{"n": 1}'),
        (['{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"\\u0061": 1, "b": 2}'], '{"a": 2, "b": 1}'),
    ],
)
def test_the_spelling_of_a_value_does_not_matter_and_its_value_does(same: list[str], other: str) -> None:
    keys = keys_arrow([sensor(detail) for detail in [*same, other]], RULES)["key"].to_pylist()

    assert len(set(keys[:-1])) == 1
    assert keys[-1] != keys[0]


@pytest.mark.parametrize(("line", "key"), GOLDEN)
def test_golden_keys(line: str, key: str) -> None:
    try:
        result = RULES.key(read_event(line)).key.hex()
    except EventRejected as error:
        result = str(error)
    assert result == key
    assert [each and each.hex() for each in keys_arrow([line], RULES)["key"].to_pylist()] == [key]
