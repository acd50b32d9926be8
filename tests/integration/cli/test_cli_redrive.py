"""`eventonce redrive`, as a real process: files, queues, tables, and a redrive that is killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.servers import Ministack, Postgres
from tests.until import until

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]

HANDLER = """
import os

def handle(event):
    if os.environ.get("BROKEN"):
        raise ValueError(f"no luck with {event.id}")
    with open("done", "a") as file:
        file.write(event.id + "\\n")

def stored(event, ctx):
    ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT)")
    ctx.tx.execute("INSERT INTO effects VALUES (?)", (event.id,))
    if os.environ.get("BROKEN"):
        raise ValueError("no luck")
    if os.environ.get("DEADLY") == event.id:
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    (tmp_path / "handler.py").write_text(HANDLER)

    def run(*args: str, stdin: int = subprocess.DEVNULL, **env: str) -> Finished:
        return subprocess.run(
            [sys.executable, "-m", "eventonce", *args],
            check=False,
            cwd=tmp_path,
            stdin=stdin,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path), **env},
            timeout=120,
        )

    return run


def pipeline(folder: Path, **options: Any) -> str:
    settings = {
        "store": "sqlite:///store.db",
        "source": "in.jsonl",
        "sink": "python:handler:handle",
        "dead_letter": "dead.jsonl",
        "max_attempts": 1,
        **options,
    }
    (folder / "p.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    return "p.toml"


def write(folder: Path, *names: str) -> None:
    (folder / "in.jsonl").write_text("".join(json.dumps({"id": name}) + "\n" for name in names))


def done(folder: Path) -> list[str]:
    file = folder / "done"
    return sorted(file.read_text().split()) if file.exists() else []


def reported(finished: Finished) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return what `--json` reports: the letters, and the counts at the end."""
    *each, counts = [json.loads(line) for line in finished.stderr.splitlines()]
    return each, counts


# --- a file ---


def test_the_plan_comes_first(cli: Command, tmp_path: Path) -> None:
    name = pipeline(tmp_path)
    write(tmp_path, "a1", "a2", "a3")
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write("junk\n")
    assert cli("run", name, BROKEN="1").returncode == 1

    plan = cli("redrive", name, "--dry-run")
    assert (plan.returncode, plan.stderr) == (0, "")
    first, second, third = plan.stdout.splitlines()
    assert first == "4 dead letters in dead.jsonl; 4 match, 4 to redrive"
    assert second.split(maxsplit=1) == ["3", "id  failed: no luck with a1"]
    assert third.split(maxsplit=1)[0] == "1"
    assert done(tmp_path) == []

    refused = cli("redrive", name)
    assert refused.returncode == 2
    assert "add --yes to redrive, or --dry-run to look" in refused.stderr
    assert done(tmp_path) == []


@pytest.mark.parametrize(("answer", "expected"), [("n", []), ("y", ["a"])])
def test_on_a_terminal_it_asks(cli: Command, tmp_path: Path, answer: str, expected: list[str]) -> None:
    name = pipeline(tmp_path)
    write(tmp_path, "a")
    cli("run", name, BROKEN="1")
    terminal, theirs = os.openpty()
    os.write(terminal, f"{answer}\n".encode())

    finished = cli("redrive", name, stdin=theirs)
    os.close(terminal)
    os.close(theirs)

    assert finished.returncode == 0
    assert "redrive 1? [y/N]" in finished.stdout + finished.stderr
    assert done(tmp_path) == expected


def test_letters_are_redriven_and_each_outcome_is_reported(cli: Command, tmp_path: Path) -> None:
    name = pipeline(tmp_path)
    write(tmp_path, "a", "b")
    cli("run", name, BROKEN="1")

    failed = cli("redrive", name, "--yes", BROKEN="1")
    assert failed.returncode == 1
    assert "in.jsonl:1: failed: no luck with a" in failed.stderr
    assert failed.stderr.splitlines()[-1] == "2 of 2 tried: 2 failed; 2 letters remain"

    again = cli("redrive", name, "--yes", "--json")
    each, counts = reported(again)
    assert again.returncode == 0
    assert [(one["place"], one["outcome"]) for one in each] == [
        ("in.jsonl:1", "processed"),
        ("in.jsonl:2", "processed"),
    ]
    assert (counts["letters"], counts["processed"]) == (2, 2)
    assert done(tmp_path) == ["a", "b"]

    empty = cli("redrive", name)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert empty.stderr == "0 dead letters in dead.jsonl; 0 match, 0 to redrive\n"


def test_filters(cli: Command, tmp_path: Path) -> None:
    name = pipeline(tmp_path)
    write(tmp_path, "a", "b", "c")
    cli("run", name, BROKEN="1")
    listed = [json.loads(line) for line in cli("redrive", name, "--dry-run", "--json").stdout.splitlines()]

    def matches(*args: str) -> str:
        return cli("redrive", name, "--dry-run", *args).stdout.splitlines()[0].partition("; ")[2]

    assert matches("--reason", "WITH b") == "1 match, 1 to redrive"
    assert matches("--rule", "orders") == "0 match, 0 to redrive"
    assert matches("--rule", "id", "--limit", "2") == "3 match, 2 to redrive"
    assert matches("--since", "2h") == "3 match, 3 to redrive"
    assert matches("--since", "0s") == "0 match, 0 to redrive"
    assert matches("--with-key", listed[2]["key"]) == "1 match, 1 to redrive"

    assert cli("redrive", name, "--yes", "--reason", "with b").returncode == 0
    assert done(tmp_path) == ["b"]
    assert matches() == "2 match, 2 to redrive"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--from", "none.jsonl"], "none.jsonl: no such file, so nothing has failed yet, or the path is wrong"),
        (["--from", "-"], "stdout cannot be read back"),
        (["--from", "sns://x"], "sns:// is not supported"),
        (["--since", "soon"], "--since: 'soon' is not a duration"),
        (["--with-key", "xyz"], "'xyz' is not a key"),
        (["--limit", "0"], "0 is not in the range"),
        (["-p", "p.toml"], "name the pipeline once"),
    ],
)
def test_wrong_usage(cli: Command, tmp_path: Path, args: list[str], message: str) -> None:
    finished = cli("redrive", pipeline(tmp_path), *args)
    assert finished.returncode == 2
    assert message in finished.stderr


def test_events_go_to_stdout_and_nothing_else_does(cli: Command, tmp_path: Path) -> None:
    name = pipeline(tmp_path)
    write(tmp_path, "a")
    cli("run", name, BROKEN="1")
    assert cli("redrive", name, "--sink", "-", "--yes").stdout == '{"id": "a"}\n'


# --- killed half-way ---


def test_a_redrive_that_is_killed_and_run_again_loses_nothing_and_does_nothing_twice(
    cli: Command, tmp_path: Path
) -> None:
    names = [f"e{number:03}" for number in range(70)]
    place = pipeline(
        tmp_path,
        store="sqlite:///store.db",
        sink="python:handler:stored",
        dead_letter="store",
        lease="1s",
        busy_wait="5s",
    )
    write(tmp_path, *names)
    cli("run", place, BROKEN="1")

    for victim in ("e010", "e025", "e061"):  # some may be busy until their leases expire
        until(lambda victim=victim: cli("redrive", place, "--yes", DEADLY=victim).returncode == -signal.SIGKILL)  # type: ignore[misc]
    until(lambda: cli("redrive", place, "--yes").returncode == 0)

    with sqlite3.connect(tmp_path / "store.db") as connection:
        effects = [name for (name,) in connection.execute("SELECT id FROM effects ORDER BY id")]
        assert connection.execute("SELECT count(*) FROM eventonce_dead_letters").fetchone() == (0,)
    connection.close()
    assert effects == names


# --- a queue ---


class Queue:
    def __init__(self, server: Ministack, *, fifo: bool = False) -> None:
        self.client: Any = boto3.client("sqs", endpoint_url=server.endpoint(), region_name="us-east-1")
        self.name = f"dead-{uuid.uuid4().hex}{'.fifo' if fifo else ''}"
        attributes = {"FifoQueue": "true"} if fifo else {}
        self.url = self.client.create_queue(QueueName=self.name, Attributes=attributes)["QueueUrl"]
        self.place = f"sqs://{self.name}?region=us-east-1&endpoint={server.endpoint()}"

    def send(self, body: str, **attributes: str) -> None:
        message_attributes = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
        self.client.send_message(QueueUrl=self.url, MessageBody=body, MessageAttributes=message_attributes)

    def counted(self) -> int:
        """Return the number of messages, hidden or not."""
        asked = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=asked)["Attributes"]
        return sum(map(int, found.values()))

    def messages(self) -> list[dict[str, Any]]:
        """All there are, which stay."""
        request = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "VisibilityTimeout": 0}
        messages = self.client.receive_message(QueueUrl=self.url, **request).get("Messages", [])
        return list({message["MessageId"]: message for message in messages}.values())


@pytest.mark.parametrize("fifo", [True, pytest.param(False, marks=pytest.mark.long)])
def test_dead_letters_in_a_queue(cli: Command, tmp_path: Path, ministack: Ministack, fifo: bool) -> None:
    queue = Queue(ministack, fifo=fifo)
    name = pipeline(tmp_path, dead_letter=queue.place)
    write(tmp_path, "a", "b\uffff")
    assert cli("run", name, BROKEN="1").returncode == 1
    message, _ = queue.messages()
    message_attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert message_attributes == {"eventonce-outcome": "failed", "eventonce-rule": "id"}

    assert cli("redrive", name, "--dry-run").stdout.splitlines()[0].endswith("2 match, 2 to redrive")
    assert cli("redrive", name, "--yes", BROKEN="1").returncode == 1
    assert sorted(json.loads(each["Body"])["attempts"] for each in queue.messages()) == [2, 2]

    assert cli("redrive", name, "--yes").returncode == 0
    assert done(tmp_path) == ["a", "b\uffff"]
    assert queue.messages() == []


@pytest.mark.long
def test_a_redrive_of_a_queue_that_is_killed_and_run_again(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    queue = Queue(ministack)
    store = {"store": "sqlite:///store.db", "sink": "python:handler:stored", "lease": "1s", "busy_wait": "5s"}
    name = pipeline(tmp_path, dead_letter=queue.place, **store)
    names = [f"e{number:03}" for number in range(25)]
    write(tmp_path, *names)
    assert cli("run", name, BROKEN="1").returncode == 1
    again = ("redrive", name, "--from", f"{queue.place}&visibility=2s")

    until(lambda: cli(*again, "--yes", DEADLY="e010").returncode == -signal.SIGKILL)
    until(lambda: cli(*again, "--yes").returncode == 0 and not queue.counted())

    with sqlite3.connect(tmp_path / "store.db") as connection:
        effects = [name for (name,) in connection.execute("SELECT id FROM effects ORDER BY id")]
    connection.close()
    assert effects == names


def test_letters_that_another_process_hides_are_counted(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    queue = Queue(ministack)
    for each in ("a", "b"):
        queue.send(json.dumps({"id": each}))
    queue.client.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=1, VisibilityTimeout=600)
    plan = cli("redrive", pipeline(tmp_path), "--from", queue.place, "--dry-run").stdout
    assert "; 1 match, 1 to redrive" in plan
    assert "       1  more, hidden by another process or by a redrive that was killed: look again later" in plan


def test_a_large_letter_is_packed(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    queue = Queue(ministack)
    name = pipeline(tmp_path, dead_letter=queue.place)
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "a", "text": "x" * 2_000_000}) + "\n")
    assert cli("run", name, BROKEN="1").returncode == 1
    (message,) = queue.messages()
    assert len(message["Body"]) < 10_000
    assert cli("redrive", name, "--yes").returncode == 0
    assert done(tmp_path) == ["a"]


def test_letters_that_others_wrote(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    queue = Queue(ministack)
    event = {"id": "from-eventbridge", "source": "s", "detail-type": "t", "detail": {}}
    queue.send(json.dumps(event), RULE_ARN="arn:aws:events:r:1:rule/orders", ERROR_CODE="NO_PERMISSIONS")
    queue.send(json.dumps({"id": "moved"}))
    record = {"busArn": "arn:bus", "errorCode": "ACCESS_DENIED", "failedMessages": [{"eventId": "x-1"}]}
    queue.send(json.dumps(record))
    name = pipeline(tmp_path)

    plan = cli("redrive", name, "--from", queue.place, "--dry-run").stdout
    assert plan.splitlines()[0].endswith("3 match, 2 to redrive")
    assert "orders  undelivered: NO_PERMISSIONS" in plan
    assert "cannot be redriven: it names its events and does not hold them; replay x-1 from arn:bus" in plan

    failed = cli("redrive", name, "--from", queue.place, "--yes", BROKEN="1")
    assert failed.returncode == 1
    assert len(queue.messages()) == 3
    assert cli("redrive", name, "--from", queue.place, "--yes").returncode == 1  # one cannot be redriven
    assert done(tmp_path) == ["from-eventbridge", "moved"]
    (left,) = queue.messages()
    assert json.loads(left["Body"]) == record


@pytest.mark.long
def test_what_sqs_has_moved_never_counts_as_our_letter(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    queue, source = Queue(ministack), Queue(ministack)
    request = {"QueueUrl": queue.url, "AttributeNames": ["QueueArn"]}
    arn = queue.client.get_queue_attributes(**request)["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    source.client.set_queue_attributes(QueueUrl=source.url, Attributes={"RedrivePolicy": policy})
    name = pipeline(tmp_path, dead_letter=queue.place)
    write(tmp_path, "ours")
    assert cli("run", name, BROKEN="1").returncode == 1
    (ours,) = queue.messages()

    letter = {**json.loads(ours["Body"]), "rule": "orders", "reason": "chosen", "body": '{"id": "forged"}'}
    source.send(json.dumps(letter), **{"eventonce-outcome": "failed", "eventonce-rule": "orders"})
    source.send(json.dumps({"busArn": "arn:chosen", "failedMessages": [{"eventId": "chosen"}]}))
    source.send(json.dumps({"id": "moved"}), RULE_ARN="arn:aws:events:r:1:rule/chosen", ERROR_CODE="CHOSEN")

    def moved() -> bool:
        source.client.receive_message(QueueUrl=source.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return queue.counted() == 4

    until(moved)

    plan = cli("redrive", name, "--dry-run").stdout
    assert plan.splitlines()[0].endswith("4 match, 2 to redrive")
    for number in (1, 2):
        assert f"       {number}  -  undelivered: was received too often from {source.name}\n" in plan
    assert plan.count("cannot be redriven: SQS moved it here, and only its sender calls it a dead letter") == 1
    assert "chosen" not in plan.lower()
    assert cli("redrive", name, "--rule", "orders", "--yes").returncode == 0
    assert done(tmp_path) == []

    assert cli("redrive", name, "--yes").returncode == 1  # what SQS moved remains
    assert done(tmp_path) == ["moved", "ours"]
    assert queue.counted() == 2


def test_what_does_not_match_can_be_received_again(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    queue = Queue(ministack)
    queue.send(json.dumps({"id": "a"}))
    name = pipeline(tmp_path)
    assert cli("redrive", name, "--from", queue.place, "--yes", "--reason", "nothing like it").returncode == 0
    assert len(queue.messages()) == 1


def test_a_missing_queue_is_reported_and_nothing_is_acked(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    name = pipeline(tmp_path, dead_letter=f"sqs://no-such-queue?region=us-east-1&endpoint={ministack.endpoint()}")
    write(tmp_path, "a")
    finished = cli("run", name, BROKEN="1")
    assert finished.returncode == 2
    assert "sqs://no-such-queue cannot be used" in finished.stderr
    assert cli("redrive", name, "--yes").returncode == 2


# --- a table of PostgreSQL ---


def test_dead_letters_in_postgresql(cli: Command, tmp_path: Path, postgres_server: Postgres) -> None:
    import psycopg

    database = f"d{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"'.encode())
    url = postgres_server.url().rpartition("/")[0] + f"/{database}?timeout=5s"
    name = pipeline(tmp_path, store=url, dead_letter="store")
    write(tmp_path, "a", "b")
    assert cli("run", name, BROKEN="1").returncode == 1
    assert cli("redrive", name, "--yes", BROKEN="1").returncode == 1
    plan = cli("redrive", name, "--dry-run", "--json").stdout.splitlines()
    assert [json.loads(line)["attempts"] for line in plan] == [2, 2]
    assert cli("redrive", name, "--yes").returncode == 0
    assert done(tmp_path) == ["a", "b"]
    assert cli("redrive", name, "--dry-run").stdout.startswith("0 dead letters in the table eventonce_dead_letters of")
