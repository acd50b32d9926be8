"""A pipeline file becomes settings, and an error in it names its position and the remedy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce.engine import Once
from eventonce.errors import ConfigError
from eventonce.event.keys import KEY_BYTES
from eventonce.rules.rule import Rule
from eventonce.settings import Settings, load, rulebook, settings
from eventonce.wire import Pipeline, open_once


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes pipeline.toml into the current folder."""
    monkeypatch.chdir(tmp_path)

    def make(text: str) -> str:
        Path("pipeline.toml").write_text(text)
        return "pipeline.toml"

    return make


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=re.escape(message))


FULL = """
consumer = "billing"
store = "sqlite:///billing.db"
source = "events.jsonl"
sink = "python:billing:charge"
dead_letter = "dead.jsonl"
window = "5d"
lease = "30s"
busy_wait = "250ms"
max_attempts = 3
on_store_error = "process"
batch = 10

[[rule]]
name = "orders"
match = { source = ["shop"] }
key = "content"
ignore = ["detail.timestamp", "detail.metadata.requestId"]
window = "1h"

[[rule]]
name = "rides"
key = ["source", "detail.rideId"]
version = "detail.count"
refresh = true
max_age = "15m"
replay = "reprocess"
remember = "result"
"""


# --- what it says ---


def test_without_a_file_everything_has_a_default() -> None:
    assert load() == Settings()
    assert Settings() == Settings(
        consumer="default",
        store="sqlite:///eventonce.db",
        source="-",
        sink="-",
        dead_letter="eventonce-dead.jsonl",
        window="14d",
        lease="60s",
        busy_wait="0s",
        max_attempts=5,
        on_store_error="retry",
        batch=None,
        rule=[],
    )


def test_an_empty_file_says_nothing(write: Callable[[str], str]) -> None:
    assert load(write("")) == Settings()


def test_a_file_says_everything(write: Callable[[str], str]) -> None:
    assert load(write(FULL)) == Settings(
        consumer="billing",
        store="sqlite:///billing.db",
        source="events.jsonl",
        sink="python:billing:charge",
        dead_letter="dead.jsonl",
        window="5d",
        lease="30s",
        busy_wait="250ms",
        max_attempts=3,
        on_store_error="process",
        batch=10,
        rule=[
            Rule(
                name="orders",
                match={"source": ["shop"]},
                key="content",
                ignore=["detail.timestamp", "detail.metadata.requestId"],
                window="1h",
                on_store_error="process",
            ),
            Rule(
                name="rides",
                key=["source", "detail.rideId"],
                version="detail.count",
                window="5d",
                refresh=True,
                max_age="15m",
                replay="reprocess",
                remember="result",
                on_store_error="process",
            ),
        ],
    )


def test_what_is_remembered_where_no_rule_says_it(write: Callable[[str], str]) -> None:
    http, rule = "source = 'http://127.0.0.1:8080/'\n", "[[rule]]\nname = 'all'\nkey = 'content'\n"
    own = [rulebook(load(write(text))).all[-1].remember for text in ("", http, http + "remember = 'seen'")]
    assert own == ["seen", "note", "seen"]
    assert [load(write(text + rule)).rule[0].remember for text in (http, "remember = 'note'\n")] == ["seen", "note"]


def test_a_path_is_a_file_too(write: Callable[[str], str]) -> None:
    assert load(Path(write('consumer = "billing"'))).consumer == "billing"


def test_options_override_the_file(write: Callable[[str], str]) -> None:
    settings = load(write(FULL), consumer="other", store="memory:", batch=7, sink=None, source=None)

    assert (settings.consumer, settings.store, settings.batch) == ("other", "memory:", 7)
    assert (settings.sink, settings.source) == ("python:billing:charge", "events.jsonl")


def test_given_rules_count_more_than_the_file(write: Callable[[str], str]) -> None:
    assert [rule.name for rule in load(write(FULL), rule=[{"name": "content", "key": "content"}]).rule] == ["content"]


def test_a_table_is_enough() -> None:
    assert settings({"batch": 3, "rule": [{"name": "all"}]}, "here") == Settings(batch=3, rule=[Rule(name="all")])


# --- names ---


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("stor", "store"),
        ("sorce", "source"),
        ("deadletter", "dead_letter"),
        ("dead-letter", "dead_letter"),
        ("max_attempt", "max_attempts"),
        ("busywait", "busy_wait"),
        ("rules", "rule"),
        ("windows", "window"),
    ],
)
def test_an_unknown_name_gets_the_nearest_right_one(write: Callable[[str], str], wrong: str, right: str) -> None:
    with refused(f"pipeline.toml: unknown setting {wrong!r}; did you mean {right!r}?"):
        load(write(f'{wrong} = "x"'))


def test_a_name_that_is_like_none_gets_all_of_them(write: Callable[[str], str]) -> None:
    with refused("pipeline.toml: unknown setting 'xyzzy'; use consumer, store, store_password, source, sink,"):
        load(write("xyzzy = 1"))


def test_an_unknown_name_in_a_rule_tells_which_rule(write: Callable[[str], str]) -> None:
    with refused("pipeline.toml: rule 2: unknown setting 'ignored'; did you mean 'ignore'?"):
        load(write('[[rule]]\nname = "a"\n[[rule]]\nname = "b"\nignored = ["x"]'))


def test_an_unknown_option_is_refused_without_a_file() -> None:
    with refused("options: unknown setting 'stor'; did you mean 'store'?"):
        load(stor="memory:")


# --- types ---


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("consumer = 5", "consumer"),
        ("store = true", "store"),
        ("source = ['a']", "source"),
        ("batch = '10'", "batch"),
        ("batch = 1.5", "batch"),
        ("max_attempts = true", "max_attempts"),
        ("window = true", "window"),
        ("window = ['1d']", "window"),
        ("lease = { seconds = 5 }", "lease"),
        ("on_store_error = 'panic'", "on_store_error"),
        ("remember = 'everything'", "remember"),
    ],
)
def test_a_wrong_type_is_reported_with_the_file_and_the_name(write: Callable[[str], str], line: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(line))

    assert str(caught.value).startswith("pipeline.toml: ")
    assert name in str(caught.value)


@pytest.mark.parametrize("batch", [0, -1, 10_001])
def test_a_batch_out_of_bounds_is_refused(write: Callable[[str], str], batch: int) -> None:
    with refused(f"pipeline.toml: batch: {batch} is not between 1 and 10,000"):
        load(write(f"batch = {batch}"))


@pytest.mark.parametrize("name", ["window", "lease", "busy_wait"])
@pytest.mark.parametrize("value", ["'soon'", "'5 parsecs'", "'-1s'", "''", "-1", "'1d1'"])
def test_a_bad_duration_is_reported_with_file_and_name(write: Callable[[str], str], name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_once(load(write(f"store = 'memory:'\n{name} = {value}"))).close()

    assert str(caught.value).startswith(f"pipeline.toml: {name}: ")
    assert "is not a duration; write it like 500ms, 60s, 15m, 24h or 14d" in str(caught.value)


@pytest.mark.parametrize(
    "line", ["window = 14", "lease = 30", "busy_wait = 0.5", "[[rule]]\nname = 'r'\nmax_age = 900"]
)
def test_a_number_is_not_a_duration(write: Callable[[str], str], line: str) -> None:
    with pytest.raises(ConfigError, match=r"pipeline.toml: .*: [\d.]+ has no unit; write "):
        load(write(line))


@pytest.mark.parametrize(("line", "message"), [("max_attempts = 0", "max_attempts"), ("lease = '0s'", "lease")])
def test_a_number_that_is_too_low_is_refused(write: Callable[[str], str], line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message}: .*0"):
        open_once(load(write(f"store = 'memory:'\n{line}"))).close()


def test_a_lease_that_is_too_long_is_refused(write: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match=r"pipeline.toml: lease: 1d1h is longer than a day"):
        load(write("lease = '25h'"))


def test_an_empty_consumer_is_refused(write: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match="consumer: is empty; name the consumer"):
        open_once(load(write("store = 'memory:'\nconsumer = ''"))).close()


# --- files ---


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("consumer = billing", 1),
        ('consumer = "a"\nstore = "unclosed\n', 2),
        ('consumer = "a"\n\n[[rule]\nname = "x"', 3),
        ("a = 1\na = 2", 2),
    ],
)
def test_bad_toml_is_reported_with_its_line(write: Callable[[str], str], text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"^pipeline\.toml: is not TOML: .*(line {line}|end of document)"):
        load(write(text))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match=r"pipeline\.toml: is not UTF-8"):
        load(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: cannot be read: No such file or directory"):
        load(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


# --- rules ---


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("key = 'ids'", 'key: unknown key \'ids\'; use "id", "content" or a list of paths'),
        ("key = []", "key: name at least one path"),
        ("key = ['detail.order-id']", "key: 'detail.order-id' is not a path at character 13"),
        ("ignore = ['a']", 'ignore only means something with key = "content"'),
        ("key = 'content'\nignore = ['a..b']", "ignore: 'a..b' is not a path at character 3"),
        ("version = ''", "version: '' is not a path"),
        ("window = 'soon'", "window: 'soon' is not a duration"),
        ("window = '0s'", "a window of 0 remembers nothing"),
        ("max_age = 'old'", "max_age: 'old' is not a duration"),
    ],
)
def test_an_error_in_a_rule_is_reported_with_the_rule(write: Callable[[str], str], rule: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(f"[[rule]]\nname = 'first'\n[[rule]]\nname = 'orders'\n{rule}"))

    assert str(caught.value).startswith("pipeline.toml: rule 'orders': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "line", ["replay = 'sometimes'", "remember = 'all'", "refresh = 'yes'", "key = 5", "match = 1"]
)
def test_a_wrong_value_in_a_rule_is_reported_with_the_rule(write: Callable[[str], str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(f"[[rule]]\nname = 'first'\n[[rule]]\nname = 'orders'\n{line}"))

    assert str(caught.value).startswith("pipeline.toml: rule 2: ")
    assert line.partition(" ")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [("key = 'id'", "id"), ("name = ''", "id"), ("key = 'content'", "content"), ("key = ['detail.n']", "paths")],
)
def test_a_rule_without_a_name_is_called_after_its_key(write: Callable[[str], str], text: str, name: str) -> None:
    assert [rule.name for rule in load(write(f"[[rule]]\n{text}")).rule] == [name]


def test_a_name_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="a rule has the name 7, which is not a string"):
        Rule(name=7)  # type: ignore[arg-type]


def test_two_rules_need_two_names() -> None:
    with pytest.raises(ConfigError, match="rule 'content' exists twice; give each rule a name of its own"):
        Once("memory:", rules=[Rule(key="content", match={"source": ["a"]}), Rule(key="content")])


@pytest.mark.parametrize("text", ["[rule]\nname = 'orders'", "rule = 'orders'", "rule = ['orders']", "rule = [1]"])
def test_rules_in_the_wrong_brackets_are_refused(write: Callable[[str], str], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^pipeline\.toml: rule.*\[\[rule\]\]"):
        load(write(text))


def test_two_rules_of_one_name_are_refused(write: Callable[[str], str]) -> None:
    with refused("rule 'a' exists twice; give each rule a name of its own"):
        open_once(load(write("store = 'memory:'\n[[rule]]\nname = 'a'\n[[rule]]\nname = 'a'"))).close()


def test_a_bad_pattern_is_reported_with_the_rule(write: Callable[[str], str]) -> None:
    with refused("rule 'orders': match: "):
        open_once(load(write("store = 'memory:'\n[[rule]]\nname = 'orders'\nmatch = { source = 'shop' }"))).close()


# --- what becomes of it ---


def remembered_for(text: str, event: dict[str, Any], write: Callable[[str], str]) -> int:
    """For how long (milliseconds) a pipeline remembers an event that it has processed."""
    with open_once(load(write(f"store = 'memory:'\n{text}"))) as once:
        once.run([event], lambda event: None)
        (record,) = once.peek([once.key(event)])
        assert record is not None
        return record.until - record.done_at


def test_the_window_of_the_pipeline_holds_where_no_rule_matches(write: Callable[[str], str]) -> None:
    assert remembered_for("window = '2h'", {"id": "1"}, write) == 7_200_000


def test_the_window_of_the_pipeline_holds_for_rules_that_name_none(write: Callable[[str], str]) -> None:
    assert remembered_for("window = '2h'\n[[rule]]\nname = 'all'", {"id": "1"}, write) == 7_200_000
    assert remembered_for("window = '2h'\n[[rule]]\nname = 'all'\nwindow = '1h'", {"id": "1"}, write) == 3_600_000


def test_two_consumers_have_keys_of_their_own(write: Callable[[str], str]) -> None:
    keys = set()
    for consumer in ("billing", "shipping"):
        with open_once(load(write("store = 'memory:'"), consumer=consumer)) as once:
            keys.add(once.key({"id": "1"}))

    assert len(keys) == 2
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_a_pipeline_opens_all_its_parts_and_closes_them(write: Callable[[str], str]) -> None:
    write("")
    Path("in.jsonl").write_text('{"id":"1"}\n')

    parts = Pipeline(load(store="memory:", source="in.jsonl", sink="out.jsonl"))
    outcomes = parts.once.run(parts.source.receive(10), parts.handler)
    parts.close()

    assert [outcome.kind for outcome in outcomes] == ["processed"]
    assert Path("out.jsonl").read_text() == '{"id":"1"}\n'


def test_events_and_dead_letters_cannot_both_go_to_stdout() -> None:
    with refused("sink and dead_letter are both stdout; send one of them to a file"):
        Pipeline(load(dead_letter="-"))


@pytest.mark.parametrize("name", ["store", "source", "sink", "dead_letter"])
def test_a_name_with_a_nul_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: holds a NUL"):
        load(**{name: "a\0b"})
