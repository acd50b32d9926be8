"""`eventonce relay`, and what comes out at the other end."""

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from eventonce.clients.aws import client
from eventonce.outbox import Outbox, Publisher, Relay
from eventonce.testing.proxy import FaultProxy
from tests.integration.outboxes import PATIENCE, event, sqlite_database
from tests.servers import Ministack


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "eventonce", "relay", "--outbox", f"sqlite:///{folder}/shop.db", *options]


def relay(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(folder, *options), cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a database that has an outbox."""
    database = sqlite_database(tmp_path)
    database.outbox.create()
    database.outbox.close()
    return tmp_path


def add(folder: Path, *documents: dict[str, Any], group: str | None = None) -> None:
    connection, outbox = sqlite3.connect(folder / "shop.db"), Outbox(f"sqlite:///{folder}/shop.db")
    with connection:
        for document in documents:
            outbox.add(connection, document, group=group)
    connection.close()


def test_drain_publishes_in_order_and_ends(shop: Path) -> None:
    add(shop, *(event(number) for number in range(5)), group="g")
    done = relay(shop, "--to", "-", "--drain", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [line["detail"]["n"] for line in lines] == list(range(5))
    assert [line["detail"]["_eventonce"] for line in lines] == [{"id": f"e{n}", "attempt": 1} for n in range(5)]
    assert json.loads(done.stderr) == {"published": 5, "deduplicated": 0, "refused": 0, "failed": 0, "left": 0}
    again = relay(shop, "--to", "-", "--drain")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "eventonce: 0 published\n"


def test_what_is_refused_is_a_dead_letter_and_exit_1(shop: Path, ministack: Ministack) -> None:
    add(shop, event(1), {"source": "shop", "detail": {"n": 2}}, event(3))
    bus = f"events://default?region=us-east-1&endpoint={ministack.endpoint()}"
    done = relay(shop, "--to", bus, "--drain")
    assert done.returncode == 1
    assert "2 published, 1 refused" in done.stderr
    (letter,) = (json.loads(line) for line in (shop / "eventonce-dead.jsonl").read_text().splitlines())
    assert "has no type" in letter["reason"]
    assert letter["source"] == "outbox"


def test_what_cannot_be_sent_stays_and_exit_1(shop: Path) -> None:
    add(shop, event(1))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"sqs://orders?region=us-east-1&endpoint=http://127.0.0.1:{closed.getsockname()[1]}"
        done = relay(shop, "--to", url, "--drain")
    assert done.returncode == 1
    assert "1 left" in done.stderr
    assert not (shop / "eventonce-dead.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--to", "python:json:dumps"], "unsupported URL"),
        (["--to", "mysql://x"], "is not supported"),
        (["--to", "-", "--lease", "soon"], "is not a duration"),
        (["--to", "-", "--lease", "0s"], "lease: 0 is too short"),
        (["--to", "-", "--outbox", "redis://x"], "outbox: redis:// is not supported; use postgresql://HOST/DATABASE"),
        (["--to", "-", "--listen", "here"], "is not an address"),
        (["--to", "-", "--batch", "0"], "--batch"),
        ([], "--to"),
    ],
)
def test_wrong_options_end_with_exit_2(shop: Path, options: list[str], reason: str) -> None:
    done = relay(shop, "--drain", *options)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_outbox_is_reported_and_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    for options in ([], ["--drain"]):
        done = relay(tmp_path, "--to", "-", *options)
        assert done.returncode == 2
        assert "has no outbox; create it with outbox.create() or eventonce relay --create" in done.stderr
    assert relay(tmp_path, "--to", "-", "--drain", "--create").returncode == 0
    add(tmp_path, event(1))
    assert relay(tmp_path, "--to", "-", "--drain", "--create").stdout.count("\n") == 1


def test_it_runs_until_a_signal_and_reports_its_lag(shop: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = shop / "out.jsonl"
    process = subprocess.Popen(
        command(shop, "--to", str(file), "--listen", str(port)), cwd=shop, stderr=subprocess.PIPE, text=True
    )
    try:
        add(shop, *(event(number) for number in range(3)), group="g")
        wait_for(lambda: file.exists() and file.read_text().count("\n") == 3)
        wait_for(lambda: 'eventonce_outbox_events_total{outcome="published"} 3.0' in page(port, "metrics"))
        assert re.search(r"^eventonce_outbox_lag_seconds \d", page(port, "metrics"), re.MULTILINE)
        assert page(port, "readyz") == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "3 published" in errors


def page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def wait_for(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- with real carriers ---


def receive(queue: Any, url: str, count: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE
    while len(events) < count:
        assert time.monotonic() < deadline
        answer = queue.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in answer.get("Messages", []):
            events.append(json.loads(message["Body"]))
            queue.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return events


def test_groups_come_out_of_a_fifo_queue_in_order(shop: Path, ministack: Ministack) -> None:
    name, queue = f"q{uuid.uuid4().hex[:8]}.fifo", client("sqs", region="us-east-1", endpoint=ministack.endpoint())
    url = queue.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in range(30):
        add(shop, event(number), group=f"g{number % 3}")
    done = relay(shop, "--to", f"sqs://{name}?region=us-east-1&endpoint={ministack.endpoint()}", "--drain")
    assert done.returncode == 0, done.stderr
    groups = defaultdict(list)
    for document in receive(queue, url, 30):
        groups[document["detail"]["n"] % 3].append(document["detail"]["n"])
    queue.close()
    assert groups == {group: list(range(group, 30, 3)) for group in range(3)}


def test_an_answer_of_the_bus_that_is_lost_is_a_second_copy_under_one_identity(
    shop: Path, ministack: Ministack
) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    bus, queue = (client(each, region="us-east-1", endpoint=ministack.endpoint()) for each in ("events", "sqs"))
    url = queue.create_queue(QueueName=name)["QueueUrl"]
    arn = queue.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    bus.put_rule(Name=name, EventPattern=json.dumps({"detail-type": [name]}))
    bus.put_targets(Rule=name, Targets=[{"Id": "q", "Arn": arn}])
    add(shop, {**event(1), "detail-type": name})
    outbox = Outbox(f"sqlite:///{shop}/shop.db")
    with FaultProxy(ministack.port) as proxy:
        at = f"events://default?region=us-east-1&endpoint={ministack.endpoint(proxy.port)}"
        with Publisher(at, max_attempts=3) as publisher:
            proxy.cut_answers(1)
            made = Relay(outbox, publisher, dead_letter=str(shop / "dead.jsonl"))
            assert made.drain() == 0
            assert proxy.cut == 1
    stamps = [document["detail"]["_eventonce"] for document in receive(queue, url, 2)]
    assert sorted(stamps, key=lambda each: each["attempt"]) == [{"id": "e1", "attempt": 1}, {"id": "e1", "attempt": 2}]
    made.close()
    outbox.close()
    bus.close()
    queue.close()
