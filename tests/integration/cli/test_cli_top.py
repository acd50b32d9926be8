"""`eventonce top`, as a real process that looks at a real worker's numbers."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from eventonce import ConfigError, Once
from eventonce.cli.top import address, table
from eventonce.observe.health import Health
from eventonce.observe.status import Snapshot, Status

COMMAND = [sys.executable, "-m", "eventonce", "top"]


@pytest.fixture
def worker() -> Iterator[Health]:
    status = Status("billing")
    with Once("memory:", hooks=[status]) as once:
        once.run([{"id": "a"}, {"id": "a"}], lambda event: None)
        with Health(status, lambda: None) as health:
            yield health


def snapshot(uptime: float, processed: int, **more: object) -> Snapshot:
    fields = {
        "consumer": "billing", "uptime_seconds": uptime, "in_flight": 3, "runs": 4, "handler_seconds": 0.02,
        "lag_seconds": 1.25, "dead_letters": 1, "lease_lost": 0, "outcomes": {"orders": {"processed": processed}},
        "store_calls": {"claim": 5, "commit": 4}, "store_errors": {"claim": 1}, "last_store_error": None, **more,
    }  # fmt: skip
    return Snapshot(**fields)  # type: ignore[arg-type]


def test_one_look(worker: Health) -> None:
    done = subprocess.run(
        [*COMMAND, str(worker.port), "--once"], check=False, capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stderr) == (0, "")
    numbers = json.loads(done.stdout)
    assert (numbers["consumer"], numbers["outcomes"]) == ("billing", {"id": {"processed": 1, "duplicate": 1}})


# What a shell runs in the background has interrupts ignored, and that is inherited.
_HEED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
HEEDING = [sys.executable, "-c", _HEED]


def test_it_goes_on_until_it_is_stopped(worker: Health) -> None:
    with subprocess.Popen(
        [*HEEDING, *COMMAND, f"127.0.0.1:{worker.port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        while "up " not in (again := running.stdout.readline()):
            pass
        running.send_signal(signal.SIGINT)
        _, complaints = running.communicate(timeout=60)

    assert first.startswith("consumer billing   up")
    assert again.startswith("consumer billing   up")
    assert "\033" not in first
    assert (running.returncode, complaints) == (0, "")


def test_it_waits_for_a_worker_that_restarts() -> None:
    status = Status("billing")
    health = Health(status, lambda: None)
    with subprocess.Popen(
        [*HEEDING, *COMMAND, str(health.port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("consumer billing")
        health.close()
        while "waiting for the worker" not in (line := running.stdout.readline()):
            before = line
        with Health(status, lambda: None, port=health.port):
            while not running.stdout.readline().startswith("consumer billing"):
                pass
        running.send_signal(signal.SIGINT)
        _, complaints = running.communicate(timeout=60)

    assert before == (
        f"http://127.0.0.1:{health.port}/status.json: Connection refused; check that a worker runs with --listen\n"
    )
    assert (running.returncode, complaints) == (0, "")


def test_a_name_that_is_not_allowed_is_reported_with_the_remedy() -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b"start with --allow-host NAME\x1b[31m\n")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.handle_request, daemon=True).start()
        done = subprocess.run(
            [*COMMAND, str(server.server_port), "--once"], check=False, capture_output=True, text=True, timeout=120
        )

    assert done.returncode == 2
    assert done.stderr.endswith("/status.json: answered 403: start with --allow-host NAME [31m\n")


def test_rates_are_those_since_the_previous_snapshot() -> None:
    lines = table(snapshot(12.0, 130), snapshot(10.0, 100))

    assert lines.splitlines() == [
        "consumer billing   up 12 s   in flight 3",
        "lag 1.2 s   handler 5.0 ms   dead letters 1   leases lost 0",
        "store calls 9   errors 1   it answers",
        "",
        "rule, per second   processed",
        "orders                  15.0",
    ]


def test_at_first_rates_are_those_since_its_start() -> None:
    lines = table(snapshot(10.0, 100, runs=0, lag_seconds=None, last_store_error="no\x1banswer"), None)

    assert "orders                  10.0" in lines
    assert "lag unknown   handler not run yet" in lines
    assert "no answer" in lines


def test_a_worker_that_is_not_running() -> None:
    done = subprocess.run([*COMMAND, "1", "--once"], check=False, capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("eventonce: http://127.0.0.1:1/status.json: Connection refused; ")
    assert "check that a worker runs with --listen" in done.stderr


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"consumer": 7}'])
def test_an_address_of_something_else_is_reported(body: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.handle_request, daemon=True).start()
        done = subprocess.run(
            [*COMMAND, f"http://127.0.0.1:{server.server_port}/", "--once"],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert done.returncode == 2
    assert "does not answer like an eventonce worker" in done.stderr


@pytest.mark.parametrize(
    ("worker", "url"),
    [
        ("9090", "http://127.0.0.1:9090/status.json"),
        (":9090", "http://127.0.0.1:9090/status.json"),
        ("host:9090", "http://host:9090/status.json"),
        ("https://host/w", "https://host/w/status.json"),
        ("http://host:1/status.json", "http://host:1/status.json"),
    ],
)
def test_worker_addresses(worker: str, url: str) -> None:
    assert address(worker) == url


@pytest.mark.parametrize("worker", ["host", "host:", "host:x", "file:///etc/passwd", ""])
def test_invalid_worker_addresses_are_refused(worker: str) -> None:
    with pytest.raises(ConfigError, match="is not a worker address"):
        address(worker)
