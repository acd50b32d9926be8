"""The command line, as a real process."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eventonce
from tests.missing import missing

VERBS = [
    "demo", "run", "check", "key", "presets", "audit", "advise", "peek", "forget", "sweep", "setup", "template", "send",
    "completion", "explain", "top", "redrive",
]  # fmt: skip
OUTCOMES = ["processed", "duplicate", "busy", "stale", "expired", "failed", "rejected", "unknown", "unrouted"]
Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    """Runs the command line in a folder of its own."""

    def run(*args: str, stdin: str | bytes = b"", **env: str) -> Finished:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "eventonce", *args],
            check=False,
            cwd=tmp_path,
            input=data,
            capture_output=True,
            env={**os.environ, **env},
            timeout=120,
        )
        return Finished(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def lines(*ids: object) -> str:
    return "".join(json.dumps({"id": str(each), "n": number}) + "\n" for number, each in enumerate(ids))


def ids(text: str) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


def summary(done: Finished) -> dict[str, int]:
    """The closing line of `run --json`, which is all there is on stderr."""
    (line,) = done.stderr.splitlines()
    counts: dict[str, int] = json.loads(line)
    return counts


def letters(folder: Path, name: str = "eventonce-dead.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


# --- help ---


def test_version(cli: Command) -> None:
    done = cli("--version")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"eventonce, version {eventonce.__version__}\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_verb(cli: Command, flag: str) -> None:
    done = cli(flag)

    assert done.returncode == 0
    assert [verb for verb in VERBS if f"\n  {verb} " not in done.stdout] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_an_example(cli: Command, verb: str) -> None:
    done = cli(verb, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    reported = [line for line in done.stdout.splitlines() if not line.startswith("Usage:")]
    assert [line for line in reported if f"eventonce {verb}" in line]


def test_the_installed_command_is_the_same(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("eventonce")
    if not script.exists():
        missing("eventonce is not installed as a command beside this Python")

    done = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == f"eventonce, version {eventonce.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: Command, shell: str) -> None:
    done = cli("completion", shell)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"_EVENTONCE_COMPLETE={shell}_complete" in done.stdout
    assert "eventonce" in done.stdout


def test_completion_of_an_unknown_shell_is_refused(cli: Command) -> None:
    done = cli("completion", "tcsh")

    assert done.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr


def test_completion_completes(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("eventonce")
    if not script.exists():
        missing("eventonce is not installed as a command beside this Python")
    env = {**os.environ, "_EVENTONCE_COMPLETE": "bash_complete", "COMP_WORDS": "eventonce ru", "COMP_CWORD": "1"}

    done = subprocess.run([script], check=False, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert "plain,run" in done.stdout


# --- wrong usage ---


@pytest.mark.parametrize(
    "args",
    [
        ["frobnicate"],
        ["--frobnicate"],
        ["run", "--frobnicate"],
        ["run", "--batch", "0"],
        ["run", "--batch", "many"],
        ["run", "--key", "colour"],
        ["run", "a.toml", "b.toml"],
        ["run", "a.toml", "-p", "b.toml"],
        ["run", "no-such.toml"],
        ["run", "--source", "no-such.jsonl"],
        ["run", "--source", "sqs://"],
        ["run", "--sink", "ftp://example.com"],
        ["run", "--sink", "python:nothing"],
        ["run", "--sink", "python:no_such_module:function"],
        ["run", "--sink", "no-such-folder/out.jsonl"],
        ["run", "--dead-letter", "no-such-folder/dead.jsonl"],
        ["run", "--dead-letter", "-"],
        ["run", "--consumer", ""],
        ["peek", "not-hex"],
        ["peek", "abcd"],
        ["peek", "--events", "no-such.jsonl"],
        ["forget", "not-hex"],
        ["forget", "no-such.toml", "00" * 16],
        ["sweep", "--store", "nothing"],
        ["completion"],
        ["demo", "--orders", "1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_leaves_nothing_behind(cli: Command, tmp_path: Path, args: list[str]) -> None:
    done = cli(*args, stdin=lines(1))

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir() if file.name != "eventonce.db"] == []


@pytest.mark.parametrize("args", [["run", "no-such.toml"], ["run", "--source", "x.jsonl"], ["peek", "abcd"]])
def test_an_error_is_one_sentence(cli: Command, args: list[str]) -> None:
    (line,) = cli(*args).stderr.splitlines()

    assert line.startswith("eventonce: ")


def test_a_demo_does_not_write_into_a_folder_that_exists(cli: Command, tmp_path: Path) -> None:
    done = cli("demo", "--keep", str(tmp_path))

    assert done.returncode == 2
    assert "exists; name a new folder" in done.stderr


@pytest.mark.parametrize(
    ("args", "closed"), [(["run"], 0), (["run", "--source", "in.jsonl"], 1), (["peek"], 0)], ids=["in", "out", "peek"]
)
def test_closed_standard_streams_are_reported(tmp_path: Path, args: list[str], closed: int) -> None:
    # given a service manager or a shell that closed them: eventonce run <&-
    (tmp_path / "in.jsonl").write_text(lines(1))
    program = (
        f"import os, sys; os.close({closed}); os.execv(sys.executable, [sys.executable, '-m', 'eventonce', *{args}])"
    )

    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=tmp_path, capture_output=True, text=True)

    assert "Traceback" not in done.stderr
    assert done.returncode == 2


# --- run: forms of input ---


def test_run_from_stdin_to_stdout(cli: Command) -> None:
    done = cli("run", stdin=lines(1, 2, 1, 3, 2))

    assert done.returncode == 0
    assert ids(done.stdout) == ["1", "2", "3"]
    assert done.stderr == "5 events: 3 processed, 2 duplicate\n"


def test_run_from_file_to_file(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(lines(1, 2, 1))

    done = cli("run", "--source", "in.jsonl", "--sink", "out.jsonl")

    assert (done.returncode, done.stdout) == (0, "")
    assert ids((tmp_path / "out.jsonl").read_text()) == ["1", "2"]


@pytest.mark.parametrize(
    "stdin",
    [
        gzip.compress(lines(1, 2, 1).encode(), mtime=0),
        gzip.compress(lines(1).encode(), mtime=0) + gzip.compress(lines(2, 1).encode(), mtime=0),
        b'{"id":"1"}{"id":"2"}{"id":"1"}',
        b'{"id":"1"} {"id":"2"}\n{"id":"1"}',
        b'{\n  "id": "1"\n}\n{\n  "id": "2"\n}\n{"id":"1"}\n',
        b'\xef\xbb\xbf{"id":"1"}\r\n{"id":"2"}\r\n\r\n{"id":"1"}\r\n',
    ],
    ids=["gzip", "gzip of two members", "concatenated", "mixed", "indented", "bom and crlf"],
)
@pytest.mark.parametrize("way", ["stdin", "file"])
def test_run_reads_every_form(cli: Command, tmp_path: Path, stdin: bytes, way: str) -> None:
    (tmp_path / "in").write_bytes(stdin)

    done = cli("run", "--json", stdin=stdin) if way == "stdin" else cli("run", "--json", "--source", "in")

    assert done.returncode == 0
    assert ids(done.stdout) == ["1", "2"]
    assert (summary(done)["processed"], summary(done)["duplicate"]) == (2, 1)


def test_run_of_nothing(cli: Command) -> None:
    done = cli("run", stdin="")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "0 events\n")


def test_run_of_more_than_one_batch(cli: Command) -> None:
    done = cli("run", "--json", "--batch", "7", stdin=lines(*range(100), *range(50)))

    assert ids(done.stdout) == [str(number) for number in range(100)]
    assert (summary(done)["processed"], summary(done)["duplicate"]) == (100, 50)


def test_run_hands_over_what_a_quiet_pipe_has_brought(tmp_path: Path) -> None:
    # given a pipe that brings one event and then nothing
    command = [sys.executable, "-m", "eventonce", "run"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"id":"1"}\n')
        process.stdin.flush()

        # then it comes out before the pipe ends
        assert process.stdout.readline() == b'{"id":"1"}\n'
        process.stdin.write(b'{"id":"2"}\n')
        process.stdin.flush()
        assert process.stdout.readline() == b'{"id":"2"}\n'
        process.stdin.close()
        assert process.wait() == 0


# --- run: what it says ---


def test_the_json_summary_is_one_line_with_every_count(cli: Command) -> None:
    done = cli("run", "--json", stdin=lines(1, 2, 1) + "broken\n")

    counts = summary(done)
    assert [name for name in ["events", *OUTCOMES] if name not in counts] == []
    assert counts["events"] == sum(counts[name] for name in OUTCOMES) == 4
    assert (counts["processed"], counts["duplicate"], counts["rejected"]) == (2, 1, 1)
    assert counts["dead_lettered"] == 1


def test_a_plain_run_says_what_went_wrong_and_where(cli: Command) -> None:
    done = cli("run", stdin=lines(1) + "broken\n")

    assert done.returncode == 1
    assert "\r" not in done.stderr
    assert "\033" not in done.stderr
    first, second, third = done.stderr.splitlines()
    assert first.startswith("stdin:2: rejected: is not JSON")
    assert second == "2 events: 1 processed, 1 rejected, 1 dead lettered"
    assert third == "dead letters are in eventonce-dead.jsonl"


def test_a_run_reports_failures_up_to_a_limit(cli: Command, tmp_path: Path) -> None:
    done = cli("run", stdin="broken\n" * 1000)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) < 30
    assert "1,000 events: 1,000 rejected" in done.stderr
    assert len(letters(tmp_path)) == 1000


# --- run: what makes two events the same ---


def test_duplicates_across_two_runs(cli: Command) -> None:
    first = cli("run", "--json", stdin=lines(1, 2))
    second = cli("run", "--json", stdin=lines(2, 3))

    assert (ids(first.stdout), ids(second.stdout)) == (["1", "2"], ["3"])
    assert (second.returncode, summary(second)["duplicate"]) == (0, 1)


def test_two_consumers_both_get_every_event(cli: Command) -> None:
    for consumer in ("billing", "shipping"):
        assert ids(cli("run", "--consumer", consumer, stdin=lines(1, 1)).stdout) == ["1"]


def test_two_stores_know_nothing_of_each_other(cli: Command) -> None:
    for store in ("sqlite:///a.db", "sqlite:///b.db", "memory:", "memory:"):
        assert ids(cli("run", "--store", store, stdin=lines(1, 1)).stdout) == ["1"]


def test_key_by_id_drops_the_same_id_with_other_content(cli: Command) -> None:
    done = cli("run", "--key", "id", "--json", stdin='{"id":"1","n":1}\n{"id":"1","n":2}\n')

    assert done.stdout == '{"id":"1","n":1}\n'


def test_key_by_content_drops_the_same_content_however_it_is_written(cli: Command) -> None:
    events = [
        '{"id":"1","source":"shop","detail-type":"Order","detail":{"a":1,"b":"\\u00e4"}}',
        '{"id":"2","source":"shop","detail-type":"Order","detail":{"b":"ä","a":1.0}}',
        '{"id":"3","source":"shop","detail-type":"Order","detail":{"b":"ä","a":2}}',
        '{"id":"4","source":"shop","detail-type":"Refund","detail":{"b":"ä","a":1}}',
    ]

    done = cli("run", "--key", "content", "--json", stdin="\n".join(events))

    assert ids(done.stdout) == ["1", "3", "4"]
    assert done.returncode == 0


PIPELINE = """
consumer = "billing"
store = "sqlite:///billing.db"
source = "in.jsonl"
sink = "out.jsonl"
dead_letter = "dead.jsonl"

[[rule]]
name = "orders"
match = { source = ["shop"] }
key = "content"
ignore = ["detail.timestamp", "detail.metadata.requestId"]
"""


def test_a_pipeline_file_with_content_and_ignore(cli: Command, tmp_path: Path) -> None:
    def order(number: str, amount: int, time: int, request: str) -> str:
        detail = {"amount": amount, "timestamp": time, "metadata": {"requestId": request, "user": "u"}}
        return json.dumps({"id": number, "source": "shop", "detail-type": "Order", "detail": detail}) + "\n"

    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text(order("1", 5, 100, "x") + order("2", 5, 101, "y") + order("3", 6, 100, "x"))

    done = cli("run", "pipeline.toml", "--json")

    assert done.returncode == 0
    assert ids((tmp_path / "out.jsonl").read_text()) == ["1", "3"]
    assert summary(done)["duplicate"] == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["billing.db", "in.jsonl", "out.jsonl", "pipeline.toml"]


def test_options_override_the_pipeline_file(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)

    done = cli("run", "-p", "pipeline.toml", "--source", "-", "--sink", "-", stdin=lines(1))

    assert ids(done.stdout) == ["1"]


def test_key_and_rules_at_once_are_refused(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)

    done = cli("run", "pipeline.toml", "--key", "id")

    assert done.returncode == 2
    assert "leave --key out" in done.stderr


def test_a_pipeline_file_may_come_from_a_pipe(cli: Command, tmp_path: Path) -> None:
    # given a file that can be read once only, as eventonce run <(make-pipeline) gives
    (tmp_path / "in.jsonl").write_text(lines(1, 1))
    text = 'source = "in.jsonl"\nsink = "out.jsonl"\nbatch = 1\n'

    done = cli("run", "/dev/stdin", "--key", "id", stdin=text)

    assert done.returncode == 0
    assert ids((tmp_path / "out.jsonl").read_text()) == ["1"]


# --- run: Python functions ---

HANDLERS = """
import asyncio, json, os, pathlib, time
from eventonce import EventRejected

tried = {}

def note(event, **more):
    with open("effects.jsonl", "a") as file:
        file.write(json.dumps({"id": event.id, **more}) + "\\n")

def plain(event):
    note(event)

async def slow(event):
    await asyncio.sleep(0.01)
    note(event)

def told(event, ctx):
    ctx.check()
    note(event, attempt=ctx.attempt, key=ctx.idempotency_key, deadline=ctx.deadline.isoformat())

async def told_slow(event, ctx):
    note(event, attempt=ctx.attempt, key=ctx.idempotency_key, deadline=ctx.deadline.isoformat())

class Charger:
    def __call__(self, event):
        note(event)

charger = Charger()

def third_time(event, ctx):
    tried[event.id] = tried.get(event.id, 0) + 1
    if tried[event.id] < 3:
        raise ValueError(f"not yet, attempt {ctx.attempt}")
    note(event, attempt=ctx.attempt)

async def third_time_slow(event, ctx):
    third_time(event, ctx)

def never(event, ctx):
    note(event, attempt=ctx.attempt)
    if event.id == "bad":
        raise ValueError(f"no, attempt {ctx.attempt}")

def refuses(event):
    if event.id == "bad":
        raise EventRejected("has no amount")
    note(event)

def odd(event):
    raise ValueError("cannot open caf\\udce9.txt")

class Untold(Exception):
    def __str__(self):
        raise RuntimeError("not even that")

def untold(event):
    raise Untold

def quits(event):
    raise SystemExit(7)

def in_store(event, ctx):
    ctx.tx.execute("CREATE TABLE IF NOT EXISTS charges (id TEXT)")
    ctx.tx.execute("INSERT INTO charges VALUES (?)", (event.id,))
    if event.id == "bad":
        raise ValueError("after the write")

def waits(event):
    if "FAST" not in os.environ and event.id == "2":
        pathlib.Path("waiting").touch()
        time.sleep(600)
    note(event)

async def waits_async(event):
    if "FAST" not in os.environ and event.id == "2":
        pathlib.Path("waiting").touch()
        await asyncio.sleep(600)
    note(event)
"""


@pytest.fixture
def effects(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Handlers in the current folder, and what they have done."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "three.toml").write_text("max_attempts = 3")
    (tmp_path / "effects.jsonl").touch()
    return lambda: letters(tmp_path, "effects.jsonl")


Effects = Callable[[], list[dict[str, Any]]]


@pytest.mark.parametrize("name", ["plain", "slow", "told", "told_slow", "charger"])
def test_a_function_gets_each_event_once(cli: Command, effects: Effects, name: str) -> None:
    done = cli("run", "--json", "--sink", f"python:handlers:{name}", stdin=lines(1, 2, 1))

    assert (done.returncode, done.stdout) == (0, "")
    assert sorted(each["id"] for each in effects()) == ["1", "2"]
    assert (summary(done)["processed"], summary(done)["duplicate"]) == (2, 1)


@pytest.mark.parametrize("name", ["told", "told_slow"])
def test_a_function_sees_the_details_of_its_run(cli: Command, effects: Effects, name: str) -> None:
    cli("run", "--sink", f"python:handlers:{name}", stdin=lines(1, 2))

    first, second = sorted(effects(), key=lambda each: str(each["id"]))
    assert (first["attempt"], second["attempt"]) == (1, 1)
    assert len(first["key"]) == 32
    assert first["key"] != second["key"]


@pytest.mark.parametrize("name", ["third_time", "third_time_slow"])
def test_a_function_that_fails_twice_gets_its_third_time(cli: Command, effects: Effects, name: str) -> None:
    done = cli("run", "--json", "--sink", f"python:handlers:{name}", stdin=lines(1, 2, 1))

    assert done.returncode == 0
    assert sorted((each["id"], each["attempt"]) for each in effects()) == [("1", 3), ("2", 3)]
    assert (summary(done)["events"], summary(done)["processed"], summary(done)["duplicate"]) == (3, 2, 1)


def test_what_always_fails_ends_as_a_dead_letter_with_its_history(
    cli: Command, effects: Effects, tmp_path: Path
) -> None:
    stdin = lines("good", "bad", "fine")

    done = cli("run", "three.toml", "--json", "--sink", "python:handlers:never", stdin=stdin)

    # then it was tried three times, the others went on, and its letter says so
    assert done.returncode == 1
    assert [each["attempt"] for each in effects() if each["id"] == "bad"] == [1, 2, 3]
    assert [each["id"] for each in effects() if each["id"] != "bad"] == ["good", "fine"]
    assert (summary(done)["processed"], summary(done)["failed"], summary(done)["dead_lettered"]) == (2, 1, 1)
    (letter,) = letters(tmp_path)
    assert (letter["outcome"], letter["error"], letter["attempts"]) == ("failed", "ValueError", 3)
    assert letter["reason"] == "no, attempt 3"
    assert (letter["source"], letter["line"], letter["byte"]) == ("stdin", 2, stdin.index('{"id": "bad"'))
    assert letter["body"] == stdin.splitlines()[1]


def test_attempts_are_remembered_across_runs(cli: Command, effects: Effects, tmp_path: Path) -> None:
    # given an event that has used up its attempts
    sink = ("--sink", "python:handlers:never")
    cli("run", "three.toml", *sink, stdin=lines("bad"))

    # when it is repeated, it is not tried again, and its letter has the reason
    again = cli("run", "three.toml", *sink, stdin=lines("bad"))
    assert again.returncode == 1
    assert [each["attempt"] for each in effects()] == [1, 2, 3]
    assert letters(tmp_path)[1]["reason"] == "failed 3 times; the last one ended with ValueError: no, attempt 3"
    assert letters(tmp_path)[1]["attempts"] == 3

    # when it is forgotten, it is
    cli("forget", stdin=lines("bad"))
    cli("run", "three.toml", *sink, stdin=lines("bad"))
    assert [each["attempt"] for each in effects()] == [1, 2, 3, 1, 2, 3]


def test_a_function_may_reject_an_event_at_once(cli: Command, effects: Effects, tmp_path: Path) -> None:
    done = cli("run", "--json", "--sink", "python:handlers:refuses", stdin=lines("good", "bad", "fine"))

    assert done.returncode == 1
    assert [each["id"] for each in effects()] == ["good", "fine"]
    assert (summary(done)["processed"], summary(done)["rejected"], summary(done)["failed"]) == (2, 1, 0)
    (letter,) = letters(tmp_path)
    assert (letter["outcome"], letter["reason"], letter["attempts"]) == ("rejected", "has no amount", 1)


@pytest.mark.parametrize("name", ["odd", "untold"])
def test_an_error_that_cannot_be_printed_is_an_error_like_any_other(
    cli: Command, effects: Effects, tmp_path: Path, name: str
) -> None:
    done = cli("run", "three.toml", "--sink", f"python:handlers:{name}", stdin=lines(1, 2))

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert sorted(letter["body"] for letter in letters(tmp_path)) == lines(1, 2).splitlines()


def test_a_function_that_quits_releases_its_claims(cli: Command, effects: Effects) -> None:
    done = cli("run", "--sink", "python:handlers:quits", stdin=lines(1, 2))

    assert done.returncode == 7
    assert states(cli, 1, 2) == ["unknown", "unknown"]


def test_effects_in_the_store_itself_are_rolled_back_with_their_event(
    cli: Command, effects: Effects, tmp_path: Path
) -> None:
    import sqlite3

    done = cli("run", "three.toml", "--sink", "python:handlers:in_store", stdin=lines("1", "bad", "2", "1"))
    cli("run", "three.toml", "--sink", "python:handlers:in_store", stdin=lines("1", "2"))

    assert done.returncode == 1
    connection = sqlite3.connect(tmp_path / "eventonce.db")
    assert connection.execute("SELECT id FROM charges ORDER BY id").fetchall() == [("1",), ("2",)]
    connection.close()


# --- peek, forget, sweep ---


def states(cli: Command, *numbers: object) -> list[str]:
    done = cli("peek", stdin=lines(*numbers))
    assert done.returncode == 0
    return [json.loads(line)["state"] for line in done.stdout.splitlines()]


def test_peek_shows_what_is_remembered(cli: Command, effects: Effects) -> None:
    cli("run", "three.toml", "--sink", "python:handlers:never", stdin=lines("1", "bad"))

    done, failed, unknown = (json.loads(line) for line in cli("peek", stdin=lines(1, "bad", 3)).stdout.splitlines())

    assert (done["state"], done["attempts"]) == ("done", 1)
    assert done["done_at"] < done["remembered_until"]
    assert (failed["state"], failed["attempts"]) == ("failed", 3)
    assert failed["last_error"] == "ValueError: no, attempt 3"
    assert unknown == {"key": unknown["key"], "state": "unknown"}


def test_peek_takes_keys_and_files(cli: Command, tmp_path: Path) -> None:
    cli("run", stdin=lines(1))
    (tmp_path / "in.jsonl").write_text(lines(1))

    (by_event,) = cli("peek", "--events", "in.jsonl").stdout.splitlines()
    (by_key,) = cli("peek", json.loads(by_event)["key"]).stdout.splitlines()

    assert json.loads(by_event)["state"] == "done"
    assert by_key == by_event


def test_peek_uses_the_rules_of_a_pipeline(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    event = {"id": "1", "source": "shop", "detail-type": "Order", "detail": {"amount": 1, "timestamp": 1}}
    cli("run", "pipeline.toml", "--source", "-", stdin=json.dumps(event))

    copy = {**event, "id": "2", "detail": {"amount": 1, "timestamp": 2}}
    (reported,) = cli("peek", "pipeline.toml", stdin=json.dumps(copy)).stdout.splitlines()

    assert json.loads(reported)["state"] == "done"


def test_peek_names_the_line_that_holds_no_event(cli: Command) -> None:
    cli("run", stdin=lines(1))
    done = cli("peek", stdin=lines(1) + "broken\n")

    assert done.returncode == 2
    assert "stdin:2: is not JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_forget_lets_an_event_run_again(cli: Command) -> None:
    cli("run", stdin=lines(1, 2))

    reported = [json.loads(line) for line in cli("forget", stdin=lines(1, 3)).stdout.splitlines()]
    assert [each["forgotten"] for each in reported] == [True, False]

    assert ids(cli("run", stdin=lines(1, 2, 3)).stdout) == ["1", "3"]


def test_forget_takes_keys(cli: Command) -> None:
    cli("run", stdin=lines(1))
    key = json.loads(cli("peek", stdin=lines(1)).stdout)["key"]

    done = cli("forget", key)

    assert json.loads(done.stdout) == {"key": key, "forgotten": True}
    assert states(cli, 1) == ["unknown"]


def test_sweep_removes_expired_records_and_nothing_else(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text('[[rule]]\nname = "short"\nwindow = "1ms"')
    cli("run", "short.toml", stdin=lines(1, 2, 3))
    cli("run", stdin=lines(4))

    first, second = cli("sweep"), cli("sweep")

    assert first.returncode == second.returncode == 0
    assert json.loads(first.stdout) == {"removed": 3}
    assert json.loads(second.stdout) == {"removed": 0}
    assert states(cli, 4) == ["done"]


def test_the_window_of_a_pipeline_without_rules_holds(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text('window = "1ms"')
    cli("run", "short.toml", stdin=lines(1))

    assert ids(cli("run", "short.toml", stdin=lines(1)).stdout) == ["1"]


# --- stopping ---


@pytest.fixture
def started(tmp_path: Path, effects: Effects) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a run over events 1 to 4 and returns when its handler waits in event 2."""
    begun: list[subprocess.Popen[str]] = []

    def start(name: str, *args: str) -> subprocess.Popen[str]:
        (tmp_path / "in.jsonl").write_text(lines(1, 2, 3, 4))
        # A shell that runs tests in the background has SIGINT ignored, and that is inherited.
        program = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
            "os.execv(sys.executable, [sys.executable, '-m', 'eventonce', *sys.argv[1:]])"
        )
        run = ["run", "--source", "in.jsonl", "--sink", f"python:handlers:{name}", *args]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *run],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        while not (tmp_path / "waiting").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["waits", "waits_async"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("batch", ["100", "1"])
def test_a_run_that_is_stopped_releases_its_claims(
    cli: Command,
    started: Callable[..., subprocess.Popen[str]],
    effects: Effects,
    name: str,
    number: signal.Signals,
    code: int,
    batch: str,
) -> None:
    # given a run whose handler is slow
    process = started(name, "--batch", batch)

    # when it is asked to stop
    process.send_signal(number)
    _, reported = process.communicate(timeout=60)

    # then it says so, nothing is left running, and what had taken effect is remembered
    assert process.returncode == code
    assert "Traceback" not in reported
    assert reported.count("stopped; unfinished events were released") == 1
    finished = [each["id"] for each in effects()]
    assert "1" in finished
    assert "2" not in finished
    assert states(cli, 1, 2, 3, 4) == ["done" if str(each) in finished else "unknown" for each in (1, 2, 3, 4)]

    # and the next run does the rest, at once
    sink = f"python:handlers:{name}"
    done = cli("run", "--json", "--source", "in.jsonl", "--sink", sink, FAST="1")
    assert done.returncode == 0
    assert sorted(each["id"] for each in effects()) == ["1", "2", "3", "4"]
    assert summary(done)["processed"] == 4 - len(finished)
    assert summary(done)["busy"] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_a_run_that_waits_for_its_input_can_be_stopped(tmp_path: Path, number: signal.Signals, code: int) -> None:
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.executable, [sys.executable, '-m', 'eventonce', 'run'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b'{"id":"1"}\n')
        process.stdin.flush()
        assert process.stdout.readline() == b'{"id":"1"}\n'

        process.send_signal(number)

        assert process.wait(timeout=60) == code
        assert b"Traceback" not in process.stderr.read()


def test_a_killed_run_leaves_events_that_run_again(
    cli: Command, started: Callable[..., subprocess.Popen[str]], effects: Effects, tmp_path: Path
) -> None:
    # given a worker that is killed without a chance to give anything back
    (tmp_path / "lease.toml").write_text('lease = "300ms"')
    process = started("waits", "-p", "lease.toml")
    process.kill()
    process.communicate()

    # when the next one comes, it waits for the lease to end
    done = cli("run", "--json", "--source", "in.jsonl", "--sink", "python:handlers:waits", FAST="1")

    assert done.returncode == 0
    assert sorted({each["id"] for each in effects()}) == ["1", "2", "3", "4"]
    assert summary(done)["events"] == 4
    assert states(cli, 1, 2, 3, 4) == ["done"] * 4


def test_a_reader_that_goes_away_ends_the_run_and_the_rest_comes_with_the_next_one(
    cli: Command, tmp_path: Path
) -> None:
    # given eventonce run | head -1
    (tmp_path / "in.jsonl").write_text(lines(*range(20_000)))
    command = [sys.executable, "-m", "eventonce", "run", "--source", "in.jsonl"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        seen = process.stdout.read(2000)
        process.stdout.close()
        reported = process.stderr.read().decode()

    assert process.returncode != 0
    assert "Traceback" not in reported
    assert seen
    rest = cli("run", "--json", "--source", "in.jsonl")
    assert rest.returncode == 0
    assert ids(rest.stdout)[-1] == "19999"
    assert summary(rest)["busy"] == 0


@pytest.mark.parametrize("verb", ["peek", "forget", "sweep"])
def test_looking_at_a_store_does_not_create_one(tmp_path: Path, verb: str) -> None:
    keys = [] if verb == "sweep" else ["00" * 16]
    command = [sys.executable, "-m", "eventonce", verb, "--store", "sqlite:///typo.db", *keys]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "eventonce: store: typo.db: there is no such file; check its name\n"
    assert list(tmp_path.iterdir()) == []
