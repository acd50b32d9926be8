"""`eventonce dedupe` and the engines of `eventonce audit`, as real processes."""

import contextlib
import gzip
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]
EVENTONCE = [sys.executable, "-m", "eventonce"]


@pytest.fixture
def eventonce(tmp_path: Path) -> Command:
    """Return a function that runs `eventonce` in its own folder."""

    def run(*args: str, limit: int | None = None) -> Finished:
        limited = f"ulimit -f {limit}; " if limit else ""  # blocks of 1024 bytes that a file may have
        command = ["bash", "-c", f"{limited}exec {shlex.join([*EVENTONCE, *args])}"]
        return subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    return run


def lines(*ids: object) -> bytes:
    return b"".join(b'{"id": "%s", "pad": "%s"}\n' % (str(each).encode(), b"x" * 100) for each in ids)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.jsonl").write_bytes(lines(*range(number * 1000, number * 1000 + 1500)))
    return folder


def output(done: Finished) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(done.stdout)
    return fields


def events(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted((folder / "events").rglob("*")) if each.is_file())


def test_duplicates_are_dropped(eventonce: Command, recorded: Path, tmp_path: Path) -> None:
    done = eventonce("dedupe", "in", "out")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "9,000 events in 9,000 documents of 6 files: 6,500 kept, 2,500 dropped, 0 rejected.\n"
    assert events(tmp_path / "out") == lines(*range(6500))
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


def test_rules_and_json_and_a_rejected_event_exits_1(eventonce: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text('[[rule]]\nname = "n"\nkey = ["detail.n"]\n')
    (tmp_path / "in.jsonl").write_bytes(b'{"id": "1", "n": 1}\n{"id": "2", "n": 1}\n{"id": "3"}\n')

    done = eventonce("dedupe", "pipeline.toml", "--json", "in.jsonl", "out")

    assert (done.returncode, done.stderr) == (1, "")
    counts = output(done)
    assert (counts["kept"], counts["duplicates"], counts["rejected"]) == (1, 1, 1)
    assert "has no detail.n" in (tmp_path / "out" / "rejected" / "in.jsonl.jsonl").read_text()


def test_a_killed_run_leaves_no_output_and_the_same_command_resumes(
    eventonce: Command, recorded: Path, tmp_path: Path
) -> None:
    for _ in range(20):
        running = subprocess.Popen([*EVENTONCE, "dedupe", "in", "out"], cwd=tmp_path, start_new_session=True)
        while not list((tmp_path / "out.partial" / "keys").glob("*.json")) and running.poll() is None:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        if not (tmp_path / "out").exists():
            break
        shutil.rmtree(tmp_path / "out")  # it was quicker than the kill

    assert list((tmp_path / "out.partial" / "keys").glob("*.json"))
    assert not (tmp_path / "out").exists()
    done = eventonce("dedupe", "in", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert events(tmp_path / "out") == lines(*range(6500))
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


def test_a_full_disk_leaves_no_incomplete_file(eventonce: Command, recorded: Path, tmp_path: Path) -> None:
    # A bound on the size of files has the same effect on a write as a full disk, and needs no disk of its own.
    (recorded / "large.jsonl").write_bytes(lines(*range(100_000, 108_000)))

    done = eventonce("dedupe", "in", "out", limit=400)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("eventonce: ")
    assert "File too large" in done.stderr
    assert "out was not made" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "out.partial" / "unfinished").iterdir()) == []
    assert not (tmp_path / "out.partial" / "result" / "events" / "large.jsonl").exists()

    assert eventonce("dedupe", "in", "out").returncode == 0
    assert events(tmp_path / "out") == lines(*range(6500), *range(100_000, 108_000))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["in", "there"], "already exists; choose another folder, or use --overwrite"),
        (["in", "s3://clean"], "s3://clean: is a URL, and the output is a folder; write ./s3://clean if it is one"),
        (["in", "s3:clean"], "s3:clean: is a URL, and the output is a folder"),
        (["nowhere", "out"], "nowhere: no such file or folder"),
        (["-", "out"], "stdin cannot be"),
        (["in", "no/such/out"], "no such folder; create it first"),
        (["in", "in/out"], "inside each other"),
        (["--format", "csv", "in", "out"], "'csv' is not one of"),
        (["--engine", "hive", "in", "out"], "unknown engine 'hive'; use memory, duckdb"),
        (["--engine", "memory", "in", "out"], "dropped by duckdb or by Spark"),
        (["in"], "Missing argument"),
    ],
)
def test_wrong_options_exit_2(
    eventonce: Command, recorded: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    (tmp_path / "there").mkdir()

    done = eventonce("dedupe", *args)

    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {"in", "there"}


def test_overwrite(eventonce: Command, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    assert eventonce("dedupe", "--overwrite", "in", "out").returncode == 0
    assert events(tmp_path / "out") == lines(*range(6500))


def test_the_audit_has_the_same_result_on_every_engine(eventonce: Command, recorded: Path) -> None:
    in_memory, on_duckdb = (eventonce("audit", "--json", "--engine", engine, "in") for engine in ("memory", "duckdb"))

    assert (in_memory.returncode, on_duckdb.returncode, on_duckdb.stderr) == (0, 0, "")
    assert in_memory.stdout == on_duckdb.stdout
    assert output(on_duckdb)["totals"]["duplicates"] == 2500


def test_a_pipe_is_read_in_memory_only(eventonce: Command) -> None:
    done = eventonce("audit", "--engine", "duckdb", "-")

    assert done.returncode == 2
    assert "duckdb cannot read a pipe; write it to a file first" in done.stderr


# A bar knows the remaining time after a second. By this clock that is a millisecond.
WITH_A_QUICK_CLOCK = """
import time
from types import SimpleNamespace
import click._termui_impl as bar
start = time.time()
bar.time = SimpleNamespace(time=lambda: start + 1000 * (time.time() - start))
from eventonce.cli.main import main
main()
"""


def test_a_bar_with_the_remaining_time_on_a_terminal(recorded: Path, tmp_path: Path) -> None:
    (recorded / "more.gz").write_bytes(gzip.compress(lines(*range(10_000, 30_000))))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", WITH_A_QUICK_CLOCK, "dedupe", "in", "out"]
    done = subprocess.run(command, check=False, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, timeout=120)
    os.close(theirs)
    drawn = os.read(ours, 100_000).decode()
    os.close(ours)

    assert done.returncode == 0
    assert "100%" in drawn
    assert re.search(r"\d\d:\d\d:\d\d", drawn)


def test_help_has_an_example(eventonce: Command) -> None:
    done = eventonce("dedupe", "--help")

    assert done.returncode == 0
    assert "eventonce dedupe pipeline.toml archive/ clean/" in done.stdout
