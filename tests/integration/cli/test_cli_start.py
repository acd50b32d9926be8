"""`eventonce run` and `relay` start while a server that they need is away, and end at once where a setting is wrong."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import boto3
import psycopg
import pytest

from eventonce import open_store
from eventonce.outbox import Outbox
from eventonce.stores.dynamodb.store import DynamoDBStore
from eventonce.testing import FaultProxy
from eventonce.testing.proxy import free_port
from tests.integration.sources.test_sqs_source import Gateway, wrong
from tests.servers import Dynoxide, Ministack, Postgres, Redis

AWAY = " does not answer, trying again until it does: "
HANDLER = """
import os
def handle(event):
    with open("effects.log", "a") as log:
        log.write(event.id + "\\n")
"""


class Process:
    """A command that runs, and what it has said so far."""

    def __init__(self, folder: Path, *words: str) -> None:
        # A shell that runs tests in the background has SIGINT ignored, and that is inherited.
        program = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
            "os.execv(sys.executable, [sys.executable, '-m', 'eventonce', *sys.argv[1:]])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(iter(self._process.stderr.readline, ""))

    def wait_for(self, true: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 90
        while not true():
            assert self._process.poll() is None, self.lines
            assert time.monotonic() < give_up, self.lines
            time.sleep(0.05)

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        code = self._process.wait(timeout=90)
        self._reader.join()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "handlers.py").write_text(HANDLER)
    begun: list[Process] = []

    def begin(*words: str) -> Process:
        begun.append(Process(tmp_path, *words))
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()


@pytest.fixture
def queue(ministack: Ministack) -> Iterator[tuple[Any, str]]:
    """A client and the URL of a queue."""
    client: Any = boto3.client("sqs", endpoint_url=ministack.endpoint(), region_name="us-east-1")
    yield client, client.create_queue(QueueName=f"q-{uuid.uuid4().hex}")["QueueUrl"]
    client.close()


def source(url: str, endpoint: str) -> str:
    return f"sqs://{url.rpartition('/')[2]}?region=us-east-1&wait=1s&endpoint={endpoint}"


def effects(folder: Path) -> list[str]:
    log = folder / "effects.log"
    return log.read_text().split() if log.exists() else []


def runs_after_an_absence(worker: Process, proxy: FaultProxy, folder: Path) -> None:
    """It says once that it waits, and runs the event that is there when the server is."""
    worker.wait_for(lambda: worker.says(AWAY))
    time.sleep(1)  # a few tries more
    proxy.refusing = False
    worker.wait_for(lambda: effects(folder) == ["a"])
    worker.send_signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.lines
    assert len([line for line in worker.lines if AWAY in line]) == 1, worker.lines
    assert worker.says("answers now")
    assert not worker.says("Traceback")


# --- it waits ---


def test_a_queue_that_is_away(start: Start, queue: tuple[Any, str], ministack: Ministack, tmp_path: Path) -> None:
    client, url = queue
    client.send_message(QueueUrl=url, MessageBody='{"id": "a"}')
    with FaultProxy(ministack.port) as proxy:
        proxy.refusing = True
        place = source(url, f"http://127.0.0.1:{proxy.port}")
        worker = start("run", "--store", "memory:", "--source", place, "--sink", "python:handlers:handle")
        runs_after_an_absence(worker, proxy, tmp_path)


def test_something_else_at_the_endpoint_of_a_queue(start: Start) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        queue = source("http://localhost/000000000000/orders", f"http://127.0.0.1:{server.server_port}")
        worker = start("run", "--store", "memory:", "--source", queue, "--sink", "python:handlers:handle")
        worker.wait_for(lambda: worker.says("the answer has no QueueUrl; is something else at this endpoint?"))
        worker.send_signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.lines
        server.shutdown()
        thread.join()


def test_a_stream_that_is_away(start: Start, ministack: Ministack, tmp_path: Path) -> None:
    name = f"s-{uuid.uuid4().hex}"
    client: Any = boto3.client("kinesis", endpoint_url=ministack.endpoint(), region_name="us-east-1")
    client.create_stream(StreamName=name, ShardCount=1)
    client.put_record(StreamName=name, Data=b'{"id": "a"}', PartitionKey="a")
    client.close()
    with FaultProxy(ministack.port) as proxy:
        proxy.refusing = True
        place = f"kinesis://{name}?region=us-east-1&wait=200ms&endpoint=http://127.0.0.1:{proxy.port}"
        worker = start("run", "--store", "memory:", "--source", place, "--sink", "python:handlers:handle")
        runs_after_an_absence(worker, proxy, tmp_path)


def server_and_url(kind: str, request: pytest.FixtureRequest) -> tuple[int, str]:
    """A server's port, and the URL of a store in it, in which {} stands for a port."""
    if kind == "redis":
        redis: Redis = request.getfixturevalue("redis_server")
        redis.cli("flushall")
        return redis.port, "redis://127.0.0.1:{}?timeout=1s"
    if kind == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres_server")
        return postgres.port, new_database(postgres).replace(f":{postgres.port}", ":{}")
    dynoxide: Dynoxide = request.getfixturevalue("dynoxide")
    table = f"t-{uuid.uuid4().hex}"
    with closing(cast(DynamoDBStore, open_store(dynoxide.url(table)))) as store:
        store.create_table()
    return dynoxide.port, dynoxide.url(table).replace(f":{dynoxide.port}", ":{}")


def new_database(server: Postgres) -> str:
    name = f"start_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.url().rpartition("/")[0] + f"/{name}"


@pytest.mark.parametrize("kind", ["redis", "postgres", "dynamodb"])
def test_a_store_that_is_away(
    start: Start,
    queue: tuple[Any, str],
    ministack: Ministack,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    client, url = queue
    port, store = server_and_url(kind, request)
    client.send_message(QueueUrl=url, MessageBody='{"id": "a"}')
    with FaultProxy(port) as proxy:
        proxy.refusing = True
        place = source(url, ministack.endpoint())
        store = store.format(proxy.port)
        worker = start("run", "--store", store, "--source", place, "--sink", "python:handlers:handle", "--key", "id")
        runs_after_an_absence(worker, proxy, tmp_path)


def test_health_is_served_while_it_waits(start: Start, tmp_path: Path) -> None:
    port = free_port()
    place = source("/orders", f"http://127.0.0.1:{free_port()}")
    worker = start("run", "--store", "memory:", "--source", place, "--listen", str(port))
    worker.wait_for(lambda: worker.says(AWAY))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)
    with refused.value as error:
        assert error.code == 503
        assert b"it has not started yet" in error.read()


def test_an_outbox_that_is_away(start: Start, postgres_server: Postgres, tmp_path: Path) -> None:
    url = new_database(postgres_server)
    with Outbox(url) as outbox:
        outbox.create()
        with psycopg.connect(url) as connection:
            outbox.add(connection, {"id": "a", "source": "s", "detail-type": "t", "detail": {}})
    with FaultProxy(postgres_server.port) as proxy:
        proxy.refusing = True
        away = url.replace(f":{postgres_server.port}", f":{proxy.port}")
        worker = start("relay", "--outbox", away, "--to", "published.jsonl", "--create")
        worker.wait_for(lambda: worker.says("does not answer, trying again until it does: "))
        proxy.refusing = False
        worker.wait_for((tmp_path / "published.jsonl").exists)
        worker.send_signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.lines
    assert [json.loads(line)["id"] for line in (tmp_path / "published.jsonl").read_text().splitlines()] == ["a"]


# --- it is stopped while it waits ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_wait(start: Start, number: signal.Signals, tmp_path: Path) -> None:
    place = source("/orders", f"http://127.0.0.1:{free_port()}")
    worker = start("run", "--store", "memory:", "--source", place, "--json")
    worker.wait_for(lambda: worker.says(AWAY))
    worker.send_signal(number)
    assert worker.ended() == 0, worker.lines
    assert json.loads(worker.lines[-1])["events"] == 0
    assert not worker.says("Traceback")


# --- it ends at once ---


def test_a_missing_permission_ends_the_run(start: Start, tmp_path: Path) -> None:
    gateway = Gateway("http://127.0.0.1:9")
    gateway.fault = lambda name, request: wrong("AccessDenied", 403)
    worker = start("run", "--store", "memory:", "--source", source("/orders", gateway.endpoint))
    assert worker.ended() == 2
    assert worker.says("check network, credentials and permissions")
    assert not worker.says(AWAY)
    gateway.shutdown()
    gateway.server_close()


def test_a_file_is_not_waited_for_with(start: Start, tmp_path: Path) -> None:
    """The exit code reports it to the caller, and nothing was read."""
    (tmp_path / "events.jsonl").write_text('{"id": "a"}\n')
    worker = start("run", "--store", f"redis://127.0.0.1:{free_port()}", "--source", "events.jsonl")
    assert worker.ended() == 1
    assert worker.says("cannot be reached (Connection refused); check that it runs and is at this address")


def test_a_worker_whose_file_of_keys_is_deleted_ends(
    start: Start, queue: tuple[Any, str], ministack: Ministack, tmp_path: Path
) -> None:
    client, url = queue
    client.send_message(QueueUrl=url, MessageBody='{"id": "a"}')
    place = source(url, ministack.endpoint()) + "&visibility=2s"
    worker = start("run", "--store", "sqlite:///keys.db", "--source", place, "--sink", "python:handlers:handle")
    worker.wait_for(lambda: effects(tmp_path) == ["a"])
    for each in tmp_path.glob("keys.db*"):
        each.unlink()
    client.send_message(QueueUrl=url, MessageBody='{"id": "a"}')
    assert worker.ended() == 2
    assert worker.says("keys.db: was moved or deleted while it is open")
    assert effects(tmp_path) == ["a"]


@pytest.mark.parametrize("url", ["sqs://orders", "kinesis://orders", "dynamodbstreams://orders"])
def test_a_missing_region_ends_the_run_with_its_remedy(start: Start, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    worker = start("run", "--store", "memory:", "--source", url)
    assert worker.ended() == 2
    reason = f"eventonce: source: {url}: no AWS region is set; add ?region=REGION to the URL, or set AWS_REGION\n"
    assert worker.lines[-1].endswith(reason)
    assert not any("region" in line for line in worker.lines[:-1])
