"""What the command line says of a wrong word, option or place: the option as it was written, and the remedy."""

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from eventonce import Once
from eventonce.cli.main import VERBS, cli
from eventonce.cli.main import main as run_main
from eventonce.cli.redrive import _confirmed
from eventonce.cli.top import address
from eventonce.errors import ConfigError, StoreError
from eventonce.observe.outage import awaited
from eventonce.sinks import open_sink
from eventonce.stores import open_store

NAMES = [name for group in VERBS.values() for name in group]
KEY = "3f9c2b6c0d4f4b0f9d6a4c1f2e7a8b90"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    return tmp_path


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def message(*words: str) -> str:
    """Return what a command ends with."""
    done = command(*words)
    assert done.exception is not None
    return done.output if isinstance(done.exception, SystemExit) else str(done.exception)


@pytest.mark.parametrize("words", [[], *([name] for name in NAMES)], ids=["eventonce", *NAMES])
def test_no_line_of_a_help_is_wider_than_80_columns(words: list[str]) -> None:
    assert [line for line in command(*words, "--help").output.splitlines() if len(line) > 80] == []


# --- options ---


def test_a_host_to_allow_is_a_name() -> None:
    done = message("run", "--listen", "0", "--allow-host", "http://bad host")

    assert "--allow-host: 'http://bad host' is not a host name; write it like worker.example.com" in done


@pytest.mark.parametrize("words", [["run"], ["relay", "--outbox", "sqlite:///o.db", "--to", "-"]])
def test_a_host_to_allow_needs_an_address(words: list[str]) -> None:
    assert "--allow-host is for --listen; add --listen, or leave it out" in message(*words, "--allow-host", "a")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["send", "e.jsonl", "--to"], "sqq://q"),
        (["relay", "--outbox", "sqlite:///o.db", "--to"], "sqq://q"),
        (["relay", "--outbox", "sqlite:///o.db", "--to"], "sqs://q?colour=red"),
        (["publish", "e.jsonl", "--to"], "sqq://q"),
        (["publish", "e.jsonl", "--to"], "sqs://q?colour=red"),
    ],
)
def test_a_mistake_in_to_names_the_option(words: list[str], wrong: str) -> None:
    Path("e.jsonl").write_text('{"id": "a"}\n')

    assert message(*words, wrong).startswith("--to: sq")


def test_a_list_of_choices_has_no_escapes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["eventonce", "completion"])
    with pytest.raises(SystemExit):
        run_main()

    assert "bash" in (err := capsys.readouterr().err)
    assert "\\t" not in err


@pytest.mark.parametrize("port", ["0", "99999", "9" * 5000])
def test_a_number_that_is_not_a_port(port: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a port; use a number from 1 to 65535$"):
        address(port)


# --- stores of commands that only look ---


@pytest.mark.parametrize("verb", ["peek", "explain", "forget"])
def test_a_store_in_memory_is_always_empty(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("eventonce.cli").addHandler(caplog.handler)
    try:
        assert command(verb, "--store", "memory:", KEY).exit_code == 0
    finally:
        logging.getLogger("eventonce.cli").removeHandler(caplog.handler)
    assert caplog.messages == [
        "store: memory: is always empty here: it ends with its process; name the store of the worker"
    ]


@pytest.mark.parametrize("verb", ["peek", "explain", "forget"])
def test_a_file_in_place_of_a_key_is_reported_before_the_store(verb: str) -> None:
    assert "events are read with --events" in message(verb, "e.jsonl")


@pytest.mark.parametrize("verb", ["peek", "explain", "forget"])
def test_the_default_store_that_is_missing_comes_with_the_option(verb: str) -> None:
    done = message(verb, KEY)

    assert done == (
        "store: eventonce.db: there is no such file; check its name, or name another store with --store or a pipeline"
    )


def test_explain_counts_the_attempts_of_redrives() -> None:
    def fails(event: Any) -> None:
        raise ValueError("no luck")

    with Once("sqlite:///a.db") as once:
        once.run([{"id": "a"}], fails)
        once.run([{"id": "a"}], fails)
    with Once("sqlite:///a.db", max_attempts=1) as once:
        outcome = once.preview({"id": "a"})

    assert str(outcome.error).startswith("failed 2 times; ")


# --- redrive ---


def test_a_file_without_letters_cannot_be_redriven() -> None:
    Path("e.jsonl").write_text('{"id": "a"}\n')

    assert command("redrive", "--from", "e.jsonl", "--yes").exit_code == 1
    assert command("redrive", "--from", "e.jsonl", "--dry-run").exit_code == 0


def test_an_end_at_the_question_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def abort(*args: object, **options: object) -> bool:
        raise click.Abort

    monkeypatch.setattr("eventonce.cli.redrive.sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("eventonce.cli.redrive.click.confirm", abort)
    try:
        with pytest.raises(SystemExit, match="130"):
            _confirmed(1, as_json=False)
    finally:
        logging.getLogger("eventonce.cli").removeHandler(caplog.handler)
    assert caplog.messages == ["stopped; nothing was redriven"]


def test_dead_letters_that_do_not_exist_yet() -> None:
    assert message("redrive") == "eventonce-dead.jsonl: no such file, so nothing has failed yet, or the path is wrong"


# --- others ---


def test_advise_ends_with_one_sentence_if_nothing_can_be_read() -> None:
    done = command("advise", "nofile")

    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("nofile: ")


def test_key_on_a_terminal_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.cli.options.sys.stdin.isatty", lambda: True, raising=False)

    with pytest.raises(click.UsageError, match="name files or folders of events, or pass them on stdin"):
        cli.get_command(click.Context(cli), "key").main([], standalone_mode=False)  # type: ignore[union-attr]


def test_what_was_not_sent_is_not_called_refused(caplog: pytest.LogCaptureFixture) -> None:
    Path("e.jsonl").write_text('{"id": "a"}\n')

    done = command("send", "e.jsonl", "--to", "http://127.0.0.1:9/")

    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "0 of 1 sent, 1 not sent"
    assert caplog.messages[0].startswith("not sent: http://127.0.0.1:9/ did not answer")


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("python:h.py:charge", "'h.py' is a file; name its module, as python:h:charge"),
        ("python:./app/h.py:charge", "name its module, as python:app.h:charge"),
    ],
)
def test_a_file_in_place_of_a_module(url: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        open_sink(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("unix://", "names no socket, as in unix:///run/redis.sock"),
        ("dynamodb://x", "is not the name of a table; one has 3 to 255 letters"),
        ("dynamodb://", "names no table; use dynamodb://TABLE"),
    ],
)
def test_a_store_without_an_address(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_store(url)


def test_a_postgresql_server_that_is_away_comes_with_the_remedy() -> None:
    store: Any = open_store("postgresql://127.0.0.1:9/x")
    with pytest.raises(StoreError, match=r"; check that it runs and is at this address$"):
        store.check()
    store.close()


def test_a_wait_at_the_start_names_the_service(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()

    assert awaited(lambda: "ready", stop, StoreError("it is down")) == "ready"
    assert caplog.messages == [
        "the store does not answer, trying again until it does: it is down",
        "the store answers now",
    ]
