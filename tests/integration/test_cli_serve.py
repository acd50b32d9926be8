"""`eventonce run` as a service: it listens, tells of itself, and stops when told."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce.testing.servers.process import free_port

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-m", "eventonce", "run", "--store", "memory:", *words]
        started.append(subprocess.Popen(command, cwd=tmp_path, text=True, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ask(url: str, body: bytes | None = None) -> str:
    """The answer, as soon as somebody listens."""
    give_up = time.monotonic() + 30
    while True:
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < give_up
            time.sleep(0.05)


def test_a_worker_tells_of_itself(start: Start) -> None:
    port = free_port()
    worker = start("--listen", str(port), "--log-format", "json", "--log-level", "info", "--json")
    assert worker.stdin is not None
    worker.stdin.write('{"id": "1"}\n{"id": "1"}\n')
    worker.stdin.flush()
    assert ask(f"http://127.0.0.1:{port}/readyz") == "ready\n"
    while '"duplicate":1' not in ask(f"http://127.0.0.1:{port}/status.json"):
        time.sleep(0.05)
    assert 'eventonce_events_total{outcome="processed",rule="id"} 1.0' in ask(f"http://127.0.0.1:{port}/metrics")
    out, err = worker.communicate()
    assert worker.returncode == 0
    assert out == '{"id": "1"}\n'
    assert json.loads(err.splitlines()[-1])["duplicate"] == 1


def test_requests_are_served_until_sigterm(start: Start) -> None:
    port = free_port()
    worker = start("--source", f"http://127.0.0.1:{port}/events", "--json")
    place = f"http://127.0.0.1:{port}/events"
    assert [json.loads(ask(place, b'{"id": "7"}'))["outcome"] for _ in range(2)] == ["processed", "duplicate"]
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert out == '{"id": "7"}\n'
    assert json.loads(err.splitlines()[-1])["events"] == 2


def test_a_port_that_is_taken_is_told(start: Start) -> None:
    port = free_port()
    first = start("--source", f"http://127.0.0.1:{port}/events")
    ask(f"http://127.0.0.1:{port}/events", b'{"id": "1"}')
    second = start("--source", f"http://127.0.0.1:{port}/events")
    _, told = second.communicate(timeout=60)
    assert second.returncode == 2
    assert str(port) in told
    assert "Traceback" not in told
    assert first.poll() is None
