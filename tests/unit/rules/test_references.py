"""Values of a pipeline file from outside it: variables, defaults, files, and what stays as it is written."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once
from eventonce.errors import ConfigError
from eventonce.lint import Lint
from eventonce.rules import load_rules
from eventonce.rules.references import References
from eventonce.settings import load, load_for_command
from eventonce.text import hide_value, without_hidden


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eventonce.text._hidden", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOST", "db.example")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("SIX", "6")
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.delenv("ABSENT", raising=False)
    (tmp_path / "password").write_text("hunter2\n")


def expanded(value: Any, name: str = "store") -> Any:
    references = References({name: value})
    references.check("f.toml")
    return references.table[name]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("redis://${HOST}/0", "redis://db.example/0"),
        ("${HOST}${HOST}", "db.exampledb.example"),
        ("${ABSENT:-memory:}", "memory:"),
        ("${EMPTY:-x}", "x"),
        ("${ABSENT:-}", ""),
        ("${HOST:-other}", "db.example"),
        ("redis://:${file:password}@h", "redis://:hunter2@h"),
        ("file:password", "hunter2"),
        ("$${HOST}", "${HOST}"),
        ("$HOST costs $5", "$HOST costs $5"),
        (["${HOST}", 1], ["db.example", 1]),
        ({"bus": "${HOST}"}, {"bus": "db.example"}),
        (7, 7),
    ],
)
def test_what_a_value_becomes(written: Any, value: Any) -> None:
    assert expanded(written) == value


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("${ABSENT}", "the environment variable ABSENT is not set; set it, or write ${ABSENT:-default}"),
        ("${EMPTY}", "the environment variable EMPTY is not set"),
        ("${", "${ names no variable"),
        ("${HOST", "${ names no variable"),
        ("${a b}", "${a b} names no variable"),
        ("${}", "${} names no variable"),
        ("file:nowhere", "the file 'nowhere' cannot be read: No such file or directory"),
        ("${file:.}", "the file '.' cannot be read: Is a directory"),
        ("file:empty", "the file 'empty' is empty or larger than 64 KiB"),
        ("file:large", "the file 'large' is empty or larger than 64 KiB"),
        ("file:binary", "the file 'binary' cannot be read: it is not UTF-8 text"),
        ("file:\0", "cannot be read"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, written: str, reason: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_text("x" * 70_000)
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as raised:
        expanded(written)
    assert str(raised.value).startswith("f.toml: store: ")
    assert reason in str(raised.value)


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"store: .*ABSENT.*; rule 2: window: .*OTHER"):
        References({"store": "${ABSENT}", "rule": [{"name": "a"}, {"window": "${OTHER}"}]}).check("f.toml")


@pytest.mark.parametrize("name", ["name", "key", "otherwise", "ignore", "digest", "match", "version", "replaces"])
def test_what_decides_the_key_stays_as_it_is_written(name: str) -> None:
    rule = {name: ["${HOST}"], "window": "${SIX}d"}
    assert References({"rule": [rule]}).table["rule"] == [{name: ["${HOST}"], "window": "6d"}]


@pytest.mark.parametrize("name", ["source", "sink", "dead_letter"])
def test_a_file_of_events_is_not_a_secret(name: str) -> None:
    assert expanded("file:password", name) == "file:password"
    assert expanded("${file:password}", name) == "hunter2"


def test_a_variable_cannot_add_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOST", 'memory:"\nmax_attempts = 1\nx = "${SECRET}')
    (tmp_path / "p.toml").write_text('consumer = "${HOST}"')
    settings = load("p.toml")
    assert settings.consumer.endswith("${SECRET}")
    assert settings.max_attempts == 5


def test_numbers_and_rules(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'max_attempts = "${SIX}"\nthreads = "${ABSENT:-2}"\n[[rule]]\nname = "r"\nkey = "id"\nwindow = "${SIX}h"\n'
    )
    settings = load("p.toml")
    assert (settings.max_attempts, settings.threads, settings.rule[0].window) == (6, 2, "6h")
    assert load_rules("p.toml")[0].window == "6h"
    assert Lint("p.toml").findings == []
    (tmp_path / "p.toml").write_text('max_attempts = "6"')
    with pytest.raises(ConfigError, match="must be a whole number, not a string"):
        load("p.toml")


@pytest.mark.parametrize("text", ['window = "${SECRET}"', '[[rule]]\nname="r"\nkey="id"\nwindow = "${SECRET}"'])
def test_no_message_shows_a_value(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        load("p.toml")
    assert "hunter2" not in str(raised.value)
    assert "${SECRET}" in str(raised.value)
    (finding,) = Lint("p.toml").findings
    assert "hunter2" not in finding.text
    if "rule" in text:
        with pytest.raises(ConfigError, match=r"\$\{SECRET\}"):
            Once("memory:", rules="p.toml")


def test_check_names_each_missing_value_in_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'consumer = "c"\nstore = "${ABSENT}"\n\n[[rule]]\nname = "r"\nkey = "id"\nwindow = "${OTHER}"\n'
    )
    found = [(finding.line, finding.level, finding.text.partition(" is not")[0]) for finding in Lint("p.toml").findings]
    assert found == [
        (2, "error", "store: the environment variable ABSENT"),
        (7, "error", "rule 1: window: the environment variable OTHER"),
    ]


def test_the_order_is_option_file_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENTONCE_STORE", "memory:")
    monkeypatch.setenv("EVENTONCE_CONSUMER", "from-environment")
    monkeypatch.setenv("EVENTONCE_THREADS", "3")
    (tmp_path / "p.toml").write_text('consumer = "from-file"')
    settings = load_for_command("p.toml")
    assert (settings.store, settings.consumer, settings.threads) == ("memory:", "from-file", 3)
    assert load_for_command("p.toml", consumer="from-option").consumer == "from-option"
    assert load_for_command().consumer == "from-environment"
    assert load("p.toml").store == "sqlite:///eventonce.db"  # a library does not read them
    monkeypatch.setenv("EVENTONCE_THREADS", "many")
    with pytest.raises(ConfigError, match="threads: must be a whole number"):
        load_for_command("p.toml")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("store", "password=hunter2 host=database.internal.example.com port=5432 dbname=billing"),
        ("lease", "hunter\\2"),
        ("lease", 'hunter"2'),
        ("window", "hünter2"),
        ("dead_letter", "hunter2"),
    ],
)
def test_no_message_shows_a_value_that_is_cut_or_escaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, value: str
) -> None:
    monkeypatch.setenv("VALUE", value)
    (tmp_path / "p.toml").write_text(f'{setting} = "${{VALUE}}"')
    (tmp_path / "e.jsonl").write_text('{"id": "1"}')
    for words in (["check", "p.toml"], ["check", "p.toml", "--json"], ["run", "p.toml", "--source", "e.jsonl"]):
        done = subprocess.run(
            [sys.executable, "-m", "eventonce", *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 2, words
        assert not any(part in done.stdout + done.stderr for part in ("unter", "database.internal"))
        assert "${VALUE}" in done.stdout + done.stderr or setting == "store"


def test_hidden_values_are_replaced_wherever_they_are() -> None:
    hide_value("https://user:hunter2@example.com/a/long/path", "${URL}")
    assert without_hidden("x https://user:hunter2@example.com/a/long/path y") == "x ${URL} y"
    assert without_hidden("cut: 'https://user:hunter2@exam'") == "cut: '${URL}'"
    assert without_hidden("https://user:hun2 is another") == "https://user:hun2 is another"
    assert without_hidden("https://user:hunter2@other.com/") == "https://user:hunter2@other.com/"
    hide_value("abc", "${SHORT}")
    assert without_hidden("abc") == "abc"


def test_check_finds_a_password_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('store = "sqlite:///a.db"\nstore_password = "${SECRET}"')
    (finding,) = Lint("p.toml").findings
    assert (finding.line, finding.level) == (2, "error")
    assert "sqlite: takes no password" in finding.text
