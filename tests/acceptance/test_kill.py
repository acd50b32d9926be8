"""`eventonce run` killed with SIGKILL at random moments, over and over: nothing lost, nothing twice."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

MOST = 100  # events that a worker runs which is to be killed; then it waits for that
HANDLER = """
import itertools, os, time

LOG = os.open("plain.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
NUMBERS = itertools.count(1)

def handle(event, ctx):
    if next(NUMBERS) > int(os.environ.get("MOST", "1000000")):
        time.sleep(600)
    os.write(LOG, event.id.encode() + b"\\n")
    ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT)")
    ctx.tx.execute("INSERT INTO effects VALUES (?)", (event.id,))
"""


def write_events(file: Path, count: int, dice: random.Random) -> set[str]:
    """Events in order, each third with a copy somewhere near."""
    lines = [json.dumps({"id": f"e{number:05}", "n": number}) for number in range(count)]
    for number in range(0, count, 3):
        lines.insert(min(len(lines), number + dice.randrange(300)), lines[number])
    file.write_text("\n".join(lines) + "\n")
    return {f"e{number:05}" for number in range(count)}


def start(folder: Path, *options: str, **more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "eventonce", "run", "--source", "in.jsonl", "--json", *options]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **more},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at_random(folder: Path, times: int, dice: random.Random, log: str, bytes_each: int, *options: str) -> int:
    """Start workers, let each write a little and kill it. Return how many were at work."""
    met = 0
    for _ in range(times):
        before, more = size(folder / log), dice.randrange(bytes_each)
        worker = start(folder, *options, MOST=str(MOST))
        while size(folder / log) <= before + more and worker.poll() is None:
            time.sleep(0.001)
        time.sleep(dice.uniform(0.0, 0.02))
        met += worker.poll() is None
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    return met


def kill_while_it_starts(folder: Path, times: int, dice: random.Random, *options: str) -> None:
    for _ in range(times):
        worker = start(folder, *options, MOST=str(MOST))
        time.sleep(dice.uniform(0.0, 0.5))
        worker.send_signal(signal.SIGKILL)
        worker.communicate()


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def finish(folder: Path, *options: str) -> dict[str, int]:
    worker = start(folder, *options)
    _, errors = worker.communicate(timeout=240)
    assert worker.returncode == 0, errors
    counts: dict[str, int] = json.loads(errors)
    return counts


def pipeline(folder: Path, text: str) -> str:
    (folder / "pipeline.toml").write_text(text)
    return "pipeline.toml"


def test_fifty_kills_lose_nothing_and_double_no_transaction(tmp_path: Path) -> None:
    dice = random.Random(2026)
    ids = write_events(tmp_path / "in.jsonl", 6000, dice)
    (tmp_path / "handler.py").write_text(HANDLER)
    toml = pipeline(tmp_path, 'store = "sqlite:///store.db"\nsink = "python:handler:handle"\nlease = "500ms"\n')
    line = len("e00000\n")
    met = kill_at_random(tmp_path, 20, dice, "plain.log", MOST // 2 * line, toml)
    kill_while_it_starts(tmp_path, 10, dice, toml)
    met += kill_at_random(tmp_path, 20, dice, "plain.log", MOST // 2 * line, toml)
    counts = finish(tmp_path, toml)
    connection = sqlite3.connect(tmp_path / "store.db")
    effects = Counter(each for (each,) in connection.execute("SELECT id FROM effects"))
    connection.close()
    assert met == 40
    assert effects == Counter(ids)
    assert set((tmp_path / "plain.log").read_text().split()) == ids
    assert counts["events"] == 8000
    assert counts["processed"] + counts["duplicate"] == 8000
    assert not (tmp_path / "eventonce-dead.jsonl").exists()


@pytest.mark.parametrize("store", ["sqlite:///store.db", "journal:///store.journal"])
def test_kills_lose_and_tear_nothing_in_a_file(tmp_path: Path, store: str) -> None:
    dice = random.Random(7)
    ids = write_events(tmp_path / "in.jsonl", 20_000, dice)
    toml = pipeline(tmp_path, f'store = "{store}"\nsink = "out.jsonl"\nlease = "300ms"\n')
    kill_at_random(tmp_path, 12, dice, "out.jsonl", 40_000, toml)
    kill_while_it_starts(tmp_path, 3, dice, toml)
    finish(tmp_path, toml)
    written = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert set(written) == ids
