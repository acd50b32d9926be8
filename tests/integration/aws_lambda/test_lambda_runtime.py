"""The Lambda handler under AWS's own runtime client: cold and warm starts, errors, and a time-out that kills it."""

import hmac
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest

from eventonce.dead_letters import open_box
from tests.missing import missing
from tests.servers import Postgres

APP = """
import json, os, sys, time
from eventonce import Once

once = Once("sqlite:///claims.db", consumer="billing")
started = time.time()


def handle(event):
    with open("effects.txt", "a") as file:
        file.write(f"begin {event.id}\\n")
    if event.data.get("hangs") and os.environ["ROUND"] == "1":
        time.sleep(600)
    if event.data.get("fails"):
        raise ValueError("no money")
    with open("effects.txt", "a") as file:
        file.write(f"end {event.id}\\n")
    return {"started": started, "drivers": sorted({"boto3", "botocore", "asyncio"} & set(sys.modules))}


handler = once.aws_lambda(handle)
"""


class Reply(NamedTuple):
    """What the function answered: a result, or an error."""

    kind: str
    body: Any


class Runtime:
    """Lambda's Runtime API. It runs one invocation at a time, and kills a function that exceeds its time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._invocations: Queue[tuple[str, bytes, int]] = Queue()
        self._replies: dict[str, Reply] = {}
        self._replied = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.rounds = 0
        self.handler = "app.handler"

    def invoke(self, event: Any, seconds: float = 60) -> Reply | None:
        """Start the function if necessary, and return its response, or None if it exceeded its time."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        name = str(uuid.uuid4())
        self._invocations.put((name, json.dumps(event).encode(), int((time.time() + seconds) * 1000)))
        with self._replied:
            if not self._replied.wait_for(lambda: name in self._replies, seconds):
                self.kill()
                return None
            return self._replies.pop(name)

    def exit_code(self) -> int:
        """Start the function, which ends by itself, and return its exit code."""
        self._start()
        assert self._process is not None
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _start(self) -> None:
        """Start a process with its own server and queue: the previous one may have died while it polled."""
        self.close()
        self.rounds += 1
        self._invocations = Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(self._invocations))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        port = self._server.server_address[1]
        own = {"AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}", "ROUND": str(self.rounds), "LAMBDA_TASK_ROOT": "."}
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "awslambdaric", self.handler],
                cwd=self._folder,
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _handler(self, invocations: "Queue[tuple[str, bytes, int]]") -> type[BaseHTTPRequestHandler]:
        runtime = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                name, body, deadline = invocations.get()
                self._send(200, body, name, deadline)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                *_, name, kind = self.path.split("/")
                with runtime._replied:
                    runtime._replies[name] = Reply(kind, json.loads(body or b"null"))
                    runtime._replied.notify_all()
                self._send(202, b"{}")

            def _send(self, status: int, body: bytes, name: str = "", deadline: int = 0) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")  # without it the runtime client crashes
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Lambda-Runtime-Aws-Request-Id", name)
                self.send_header("Lambda-Runtime-Deadline-Ms", str(deadline))
                self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:1:function:f")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        return Handler


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    if find_spec("awslambdaric") is None:
        missing("awslambdaric is not installed")
    (tmp_path / "app.py").write_text(APP)
    runtime = Runtime(tmp_path)
    yield runtime
    runtime.close()


Effects = Callable[[], list[str]]


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return lambda: (tmp_path / "effects.txt").read_text().splitlines()


def bridge(name: str, **detail: Any) -> dict[str, Any]:
    return {"version": "0", "id": name, "detail-type": "Order", "source": "shop", "detail": detail}


def sqs(*events: dict[str, Any]) -> dict[str, Any]:
    return {
        "Records": [
            {"messageId": f"m-{event['id']}", "body": json.dumps(event), "eventSource": "aws:sqs", "attributes": {}}
            for event in events
        ]
    }


def test_cold_and_warm_starts_and_no_driver_is_loaded(runtime: Runtime, effects: Effects) -> None:
    first, second = runtime.invoke(bridge("1")), runtime.invoke(bridge("2"))
    assert first is not None
    assert second is not None
    assert first.kind == second.kind == "response"
    assert first.body["started"] == second.body["started"]
    assert first.body["drivers"] == []
    runtime.kill()
    assert runtime.invoke(bridge("2")) == Reply("response", None)  # a duplicate, in a new process
    assert effects() == ["begin 1", "end 1", "begin 2", "end 2"]


def test_an_error_reaches_lambda_as_one(runtime: Runtime) -> None:
    failed = runtime.invoke(bridge("1", fails=True))
    assert failed is not None
    assert (failed.kind, failed.body["errorType"], failed.body["errorMessage"]) == ("error", "ValueError", "no money")


GUARDED = """
from eventonce import Once
from eventonce.auth import github

once = Once("sqlite:///claims.db", consumer="billing")


def handle(event):
    with open("effects.txt", "a") as file:
        file.write(f"{event.data['text']}\\n")


handler = once.aws_lambda(handle, auth=github("s-1"))
"""


def test_a_function_url_takes_what_its_sender_has_signed(runtime: Runtime, effects: Effects, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(GUARDED)
    body = '{"text": "\u20ac 5"}'.encode()
    signature = f"sha256={hmac.new(b's-1', body, 'sha256').hexdigest()}"

    def send(body: bytes, signature: str, *, packed: bool = False) -> tuple[int, str]:
        document = {
            "version": "2.0",
            "rawPath": "/",
            "headers": {"x-hub-signature-256": signature, "content-type": "application/json"},
            "requestContext": {"http": {"method": "POST"}, "accountId": "anonymous"},
            "body": b64encode(body).decode() if packed else body.decode(),
            "isBase64Encoded": packed,
        }
        reply = runtime.invoke(document)
        assert reply is not None
        assert reply.kind == "response"
        return reply.body["statusCode"], reply.body["headers"].get("eventonce-outcome", "")

    assert send(body, "sha256=" + "0" * 64) == (401, "")
    assert send(body + b" ", signature) == (401, "")
    assert send(body, signature) == (200, "processed")
    assert send(body, signature, packed=True) == (200, "duplicate")
    assert effects() == ["\u20ac 5"]


def test_a_partial_answer_reaches_lambda(runtime: Runtime, tmp_path: Path) -> None:
    answer = runtime.invoke(sqs(bridge("1"), bridge("2", fails=True), bridge("3")))
    assert answer == Reply("response", {"batchItemFailures": [{"itemIdentifier": "m-2"}]})
    records = [
        json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines() if line.startswith('{"_aws"')
    ]
    assert [(each["processed"], each["failed"]) for each in records] == [(2, 1)]


@pytest.mark.long
def test_what_a_time_out_killed_runs_again_soon(runtime: Runtime, effects: Effects) -> None:
    batch = sqs(bridge("1"), bridge("2", hangs=True), bridge("3"))
    assert runtime.invoke(bridge("0")) is not None  # a cold start takes none of its time
    assert runtime.invoke(batch, seconds=8) is None
    assert effects()[2:] == ["begin 1", "end 1", "begin 2"]
    time.sleep(1.5)  # its claims end with the function's time, and not with a lease of a minute
    assert runtime.invoke(batch) == Reply("response", {"batchItemFailures": []})
    assert effects().count("end 1") == 1  # it was committed before the time ran out
    assert [each for each in effects() if each.startswith("end")] == ["end 0", "end 1", "end 2", "end 3"]


POISON = """
import os
from eventonce import Once

once = Once("sqlite:///claims.db", consumer="billing", max_attempts=2)


def handle(event):
    with open("effects.txt", "a") as file:
        file.write(f"begin {event.id}\\n")
    if event.data.get("kills"):
        os._exit(1)


handler = once.aws_lambda(handle, dead_letters="sqlite:///dead.db")
"""


@pytest.mark.long
def test_an_event_that_kills_its_function_ends_as_a_dead_letter(
    runtime: Runtime, effects: Effects, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(POISON)
    batch = sqs(bridge("1"), bridge("2", kills=True), bridge("3"))
    replies = []
    for _ in range(12):  # a slow start may take an invocation's time too
        replies.append(runtime.invoke(batch, seconds=3))
        if replies[-1] == Reply("response", {"batchItemFailures": []}):
            break
        time.sleep(1.2)  # until the claims of a dead function expire
    assert replies[-1] == Reply("response", {"batchItemFailures": []})
    assert "begin 1" in effects()
    assert effects().count("begin 3") == 1
    assert effects().count("begin 2") <= 3  # once in company, which counts for none of them, and twice alone
    (letter,) = open_box(f"sqlite:///{tmp_path}/dead.db").letters()
    assert (letter.event_id or letter.origin["message"], letter.attempts) == ("2", 2)
    assert "its worker died each time" in letter.reason


PIPELINE_APP = """
def charge(event) -> dict:
    with open("effects.txt", "a") as file:
        file.write(f"begin {event.id}\\n")
    if event.data.get("fails"):
        raise ValueError("no money")
    return {"charged": event.id}
"""


def test_a_pipeline_file_is_a_whole_function(
    runtime: Runtime, effects: Effects, tmp_path: Path, postgres_server: Postgres
) -> None:
    store = postgres_server.url()
    (tmp_path / "app.py").write_text(PIPELINE_APP)
    (tmp_path / "pipeline.toml").write_text(
        f"""
consumer     = "{tmp_path.name}"
store        = "{store}"
sink         = "python:app:charge"
dead_letter  = "store"
max_attempts = 2

[[rule]]
name     = "orders"
key      = "id"
remember = "result"
"""
    )
    runtime.handler = "eventonce.lambda_function.handler"
    for _ in range(2):
        assert runtime.invoke(bridge("1")) == Reply("response", {"charged": "1"})
    batch = sqs(bridge(f"{tmp_path.name}-2", fails=True), bridge("3"))
    first, second = runtime.invoke(batch), runtime.invoke(batch)
    assert first == Reply("response", {"batchItemFailures": [{"itemIdentifier": f"m-{tmp_path.name}-2"}]})
    assert second == Reply("response", {"batchItemFailures": []})
    assert effects() == ["begin 1", f"begin {tmp_path.name}-2", "begin 3", f"begin {tmp_path.name}-2"]
    letters = [each for each in open_box(store).letters() if each.event_id or b"no" in each.body]
    assert any(f"{tmp_path.name}-2".encode() in each.body and each.attempts == 2 for each in letters)


def test_a_pipeline_file_with_a_mistake_is_one_sentence_in_the_log(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text('store = "memory:"\nsink = "python:nowhere:charge"\n')
    runtime.handler = "eventonce.lambda_function.handler"
    assert runtime.exit_code() == 2
    log = (tmp_path / "log.txt").read_text()
    assert "sink: python:nowhere:charge: module 'nowhere' cannot be imported" in log
    assert log.count("nowhere:charge") == 1
    assert "Traceback" not in log
