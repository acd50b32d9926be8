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

from eventonce.testing.proxy import free_port

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


def ask(url: str, body: bytes | None = None, **headers: str) -> str:
    """The answer, as soon as somebody listens."""
    give_up = time.monotonic() + 120
    while True:
        try:
            request_headers = {"Content-Type": "application/json", **headers}
            request = urllib.request.Request(
                url, body, {name.replace("_", "-"): each for name, each in request_headers.items()}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < give_up
            time.sleep(0.05)


def test_a_worker_reports_its_state(start: Start) -> None:
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


def test_duplicates_are_logged_for_people_too(start: Start) -> None:
    worker = start("--log-level", "info")
    _, err = worker.communicate('{"id": "1"}\n{"id": "1"}\n{"n": 1}\n', timeout=60)
    assert worker.returncode == 1
    assert [line.partition(" (")[0] for line in err.splitlines() if ": stdin:" in line] == [
        "eventonce: info: stdin:2: duplicate",
        "eventonce: warning: stdin:3: rejected",
    ]
    assert err.count("stdin:3") == 1


def test_every_line_of_a_json_log_is_json(start: Start) -> None:
    port = free_port()
    place = f"http://127.0.0.1:{port}/events"
    worker = start("--source", place, "--log-format", "json", "--log-level", "info")
    for body in (b'{"id": "7"}', b'{"id": "7"}'):
        ask(place, body)
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        ask(place, b"{")
    refused.value.close()
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line.get("outcome", line.get("message")) for line in lines[:-1]] == [
        "started",
        f"listening on {place}",
        "duplicate",
        "rejected",
        "finishing events in progress; a second signal stops at once",
    ]
    assert (lines[-1]["events"], lines[-1]["dead_lettered"]) == (3, 1)


PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))

def handle(event):
    pass
"""


def test_a_run_links_to_the_trace_of_its_request(start: Start, tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(PROVIDER)
    port = free_port()
    worker = start("--source", f"http://127.0.0.1:{port}/events", "--sink", "python:traced:handle", "--opentelemetry")
    place = f"http://127.0.0.1:{port}/events"
    ask(place, b'{"id": "7"}', traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=60)
    span = json.loads(out)
    (link,) = span["links"]
    assert (span["name"], span["parent_id"]) == ("eventonce process id", None)
    assert link["context"]["trace_id"] == "0x" + "a" * 32 != span["context"]["trace_id"]
    assert "go nowhere" not in err


def test_spans_that_go_nowhere_are_warned_of(start: Start) -> None:
    _, err = start("--opentelemetry").communicate("", timeout=60)
    assert "--opentelemetry: no provider is set up" in err


def test_a_key_that_is_repeated_with_another_body_is_422(start: Start) -> None:
    port = free_port()
    start("--source", f"http://127.0.0.1:{port}/events", "--json")
    place = f"http://127.0.0.1:{port}/events"
    ask(place, b'{"cents": 5}', idempotency_key="k")
    assert json.loads(ask(place, b'{"cents": 5}', idempotency_key="k"))["outcome"] == "duplicate"
    with pytest.raises(urllib.error.HTTPError, match="422") as refused:
        ask(place, b'{"cents": 6}', idempotency_key="k")
    refused.value.close()


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


def test_a_port_in_use_is_reported(start: Start) -> None:
    port = free_port()
    first = start("--source", f"http://127.0.0.1:{port}/events")
    ask(f"http://127.0.0.1:{port}/events", b'{"id": "1"}')
    second = start("--source", f"http://127.0.0.1:{port}/events")
    _, error_output = second.communicate(timeout=60)
    assert second.returncode == 2
    assert str(port) in error_output
    assert "Traceback" not in error_output
    assert first.poll() is None
