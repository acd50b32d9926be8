"""What a worker says on stderr: for people, on a terminal, and as JSON lines."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "eventonce"]
HANDLER = r"""
import logging, threading, warnings

def evil(event):
    raise ValueError("evil \x1b]0;pwned\x07 \r\nforged \u202e" + str(event.data))

def noisy(event):
    warnings.warn("old \x1b[31m")
    logging.getLogger("other").warning("two\nlines")
    thread = threading.Thread(target=evil, args=(event,))
    thread.start()
    thread.join()

def log(event):
    logging.getLogger("other").warning("in between")
"""
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLER)
    (tmp_path / "in.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
    )


def on_terminal(folder: Path, *words: str, keys: bytes = b"") -> str:
    """Run a command with a terminal for stdin and stderr, and return what it wrote there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *words], cwd=folder, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL):
        os.close(theirs)
        os.write(ours, keys)
        written = b""
        try:
            while arrived := os.read(ours, 65_536):
                written += arrived
        except OSError:  # Linux ends a terminal so
            pass
    os.close(ours)
    return written.decode()


def stopped(folder: Path, *words: str) -> list[str]:
    """Run a worker until it listens, stop it, and return its lines."""
    with subprocess.Popen([*COMMAND, "run", *words], cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or "listening on" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGTERM)
        lines += process.stderr
    assert process.returncode == 0, lines
    return [line.removesuffix("\n") for line in lines]


SERVE = ("--source", "http://127.0.0.1:0/in?auth=bearer&secret_env=HOME", "--sink", "https://u:hunter2@h/x?key=hunter2")
STORES = ("--store", "sqlite:///claims.db", "--dead-letter", "dead.jsonl", "--listen", "0")


def test_a_worker_says_what_it_is_connected_to(folder: Path) -> None:
    lines = stopped(folder, *SERVE, *STORES, "--consumer", "billing")

    assert lines[0].startswith("eventonce ")
    assert lines[1:6] == [
        "  consumer      billing",
        "  source        http://127.0.0.1:0/in",
        "  store         sqlite:///claims.db",
        "  sink          https://***@h/x",
        "  dead letters  dead.jsonl",
    ]
    assert re.fullmatch(r"  health        http://127\.0\.0\.1:\d+", lines[6])
    assert re.fullmatch(TIME + r" INFO eventonce: listening on http://127\.0\.0\.1:\d+/in", lines[7])
    assert lines[-1] == "0 events"
    assert "hunter2" not in "".join(lines)


def test_the_banner_of_a_worker_that_logs_json_is_json(folder: Path) -> None:
    lines = [json.loads(line) for line in stopped(folder, *SERVE, *STORES, "--log-format", "json")]

    assert lines[0]["message"] == "started"
    assert (lines[0]["consumer"], lines[0]["sink"]) == ("default", "https://***@h/x")
    assert lines[1]["message"].startswith("listening on")
    assert lines[-1]["events"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--bogus", "--json"),
        ("run", "--log-format", "json", "--bogus"),
        ("run", "--log-format=json", "--source", "missing.jsonl"),
        ("run", "--log-format", "json", "--source", "in.jsonl", "--sink", "python:handlers:noisy"),
        ("run", "--log-format", "json", "--source", "in.jsonl", "--sink", "python:handlers:evil"),
        ("redrive", "--json", "--from", "missing.jsonl"),
        ("advise", "--json", "missing.jsonl"),
        ("audit", "--json", "missing.jsonl"),
        ("relay", "--json", "--outbox", "sqlite:///missing.db", "--to", "-"),
        ("peek", "--json"),
    ],
    ids=" ".join,
)
def test_every_line_is_json_if_that_was_requested(folder: Path, words: tuple[str, ...]) -> None:
    done = run(folder, *words)
    lines = done.stderr.decode().splitlines()

    assert lines
    assert all(isinstance(json.loads(line), dict) and line.isprintable() for line in lines)


def test_a_traceback_and_a_warning_are_lines_of_json(folder: Path) -> None:
    done = run(folder, "run", "--log-format", "json", "--source", "in.jsonl", "--sink", "python:handlers:noisy")
    lines = [json.loads(line) for line in done.stderr.decode().splitlines()]

    assert any("old" in line.get("message", "") for line in lines)
    assert any(line.get("message") == "two\nlines" for line in lines)
    assert any("Traceback" in line.get("traceback", "") for line in lines)


@pytest.mark.parametrize("level", ["warning", "info"])
def test_what_an_event_says_forges_no_line_for_people(folder: Path, level: str) -> None:
    words = ("run", "--source", "in.jsonl", "--sink", "python:handlers:evil", "--log-level", level)
    lines = run(folder, *words).stderr.decode().splitlines()

    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("forged") for line in lines)
    assert any("(rule id, key " in line for line in lines)  # also where to look


def test_a_counter_is_cleared_before_a_line(folder: Path) -> None:
    shown = on_terminal(folder, "run", "--source", "in.jsonl", "--sink", "python:handlers:log")

    assert "\x1b[Kother: warning: in between\r\n" in shown
    assert shown.endswith("2 events: 2 processed\r\n")


def test_there_is_no_counter_among_lines_of_json(folder: Path) -> None:
    words = ("run", "--source", "in.jsonl", "--sink", "python:handlers:log", "--log-format", "json")
    lines = on_terminal(folder, *words).splitlines()

    assert [json.loads(line)["message"] for line in lines[:-1]] == ["in between"] * 2
    assert json.loads(lines[-1])["processed"] == 2


def test_a_run_without_a_source_says_that_it_reads_standard_input(folder: Path) -> None:
    shown = on_terminal(folder, "run", "--sink", "out.jsonl", keys=b'{"id": "a"}\n\x04')

    assert "  source        -\r\n" in shown
    assert "eventonce: reading events from standard input" in shown
    assert "1 event: 1 processed" in shown


def test_a_plan_of_dead_letters_is_safe(folder: Path) -> None:
    letter = {"event": {"id": "a"}, "outcome": "failed", "reason": "no \x1b[31m", "rule": "a\r\nforged \x1b]0;x\x07"}
    (folder / "dead.jsonl").write_text(json.dumps(letter) + "\n")

    done = run(folder, "redrive", "--from", "dead.jsonl", "--dry-run")

    lines = (done.stdout + done.stderr).decode().splitlines()
    assert len(lines) > 1
    assert all(line.isprintable() and not line.startswith("forged") for line in lines)


def test_a_redrive_with_json_does_not_ask(folder: Path) -> None:
    run(folder, "run", "--source", "in.jsonl", "--sink", "python:handlers:evil", "--dead-letter", "dead.jsonl")

    done = run(folder, "redrive", "--json", "--from", "dead.jsonl")

    assert done.returncode == 2
    assert "add --yes" in json.loads(done.stderr)["message"]


def test_an_audit_as_json_holds_no_control_characters(folder: Path) -> None:
    name = "a\u202e\x9b\u2066"
    (folder / "in.jsonl").write_text(json.dumps({"id": "1", "source": name, "type": name}, ensure_ascii=False))

    printed = run(folder, "audit", "--json", "in.jsonl").stdout.decode().removesuffix("\n")

    assert printed.isprintable()
    assert name in json.dumps(json.loads(printed), ensure_ascii=False)


@pytest.mark.parametrize("verb", ["advise", "audit"])
def test_a_command_that_claims_nothing_releases_nothing(folder: Path, verb: str) -> None:
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", heed, *COMMAND, verb, "-"], cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b'{"id": "a"}\n' * 20_000)  # more than a pipe holds: it reads by now
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().decode() == "eventonce: stopped\n"
    assert process.returncode == 130
