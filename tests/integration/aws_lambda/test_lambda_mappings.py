"""The Lambda handler behind event source mappings: queues, streams and rules of an AWS-compatible server."""

import io
import json
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jmespath
import msgspec
import pytest

import eventonce
from eventonce.clients.aws import client
from tests.servers import Ministack

APP = """
from pathlib import Path
from eventonce import Once

FOLDER = Path({folder!r})
once = Once(f"sqlite:///{{FOLDER}}/claims.db", consumer="billing")


def handle(event):
    name = str(event.data.get("n"))
    with open(FOLDER / "effects.txt", "a") as file:
        file.write(name + "\\n")
    if name == "bad":
        raise ValueError(name)


handler = once.aws_lambda(handle)
"""
ROLE = "arn:aws:iam::000000000000:role/lambda"


class Account:
    """An account of its own for one test: a function, what feeds it, and its effects."""

    def __init__(self, server: Ministack, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self.name = f"t{uuid.uuid4().hex[:10]}"
        code = self._package(APP.format(folder=str(folder)))
        self.function: str = self.service("lambda").create_function(
            FunctionName=self.name,
            Runtime="python3.11",
            Role=ROLE,
            Handler="app.handler",
            Code={"ZipFile": code},
            Timeout=30,
        )["FunctionArn"]

    def service(self, name: str) -> Any:
        return client(name, region="us-east-1", endpoint=self._server.endpoint())

    def feed(self, arn: str, **more: Any) -> str:
        mapping: dict[str, Any] = self.service("lambda").create_event_source_mapping(
            EventSourceArn=arn, FunctionName=self.name, FunctionResponseTypes=["ReportBatchItemFailures"], **more
        )
        return str(mapping["UUID"])

    def queue(self, name: str, **attributes: str) -> tuple[str, str]:
        sqs = self.service("sqs")
        url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url, sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]

    def effects(self) -> list[str]:
        file = self._folder / "effects.txt"
        return file.read_text().splitlines() if file.exists() else []

    @staticmethod
    def _package(app: str) -> bytes:
        """The function with what it needs, as a zip file."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("app.py", app)
            for module in (eventonce, msgspec, jmespath):
                root = Path(str(module.__file__)).parent
                for file in root.rglob("*"):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, file.relative_to(root.parent))
        return packed.getvalue()


@pytest.fixture
def account(ministack: Ministack, tmp_path: Path) -> Iterator[Account]:
    account = Account(ministack, tmp_path)
    yield account
    functions = account.service("lambda")
    for mapping in functions.list_event_source_mappings(FunctionName=account.name)["EventSourceMappings"]:
        functions.delete_event_source_mapping(UUID=mapping["UUID"])
    functions.delete_function(FunctionName=account.name)


def body(n: str, name: str | None = None) -> str:
    return json.dumps({"version": "0", "id": name or f"id-{n}", "detail-type": "O", "source": "s", "detail": {"n": n}})


def until(so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not so():
        assert time.monotonic() < give_up, "it did not come true"
        time.sleep(0.1)


@pytest.mark.long
def test_a_queue_with_copies_and_a_poison_message(account: Account) -> None:
    _, dead = account.queue(f"{account.name}-dead")
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 2})
    # Longer than a cold start on a busy machine: what shows up again while it runs would use up its receives.
    url, arn = account.queue(account.name, VisibilityTimeout="15", RedrivePolicy=redrive)
    sqs = account.service("sqs")
    names = ["1", "2", "bad", "1", "3", "2"]
    entries = [{"Id": str(at), "MessageBody": body(n)} for at, n in enumerate(names)]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)
    account.feed(arn, BatchSize=10)
    dead_url = sqs.get_queue_url(QueueName=f"{account.name}-dead")["QueueUrl"]
    messages: list[Any] = []

    def dead_letter() -> bool:
        messages.extend(sqs.receive_message(QueueUrl=dead_url, WaitTimeSeconds=1).get("Messages", []))
        return bool(messages)

    until(dead_letter)
    assert json.loads(messages[0]["Body"])["detail"] == {"n": "bad"}
    assert sorted(each for each in account.effects() if each != "bad") == ["1", "2", "3"]
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert left["ApproximateNumberOfMessages"] == "0"


def test_a_stream_of_kinesis(account: Account) -> None:
    # This server takes no notice of a checkpoint in the answer, so the unit tests have that.
    kinesis = account.service("kinesis")
    kinesis.create_stream(StreamName=account.name, ShardCount=1)

    def stream() -> Any:
        return kinesis.describe_stream_summary(StreamName=account.name)["StreamDescriptionSummary"]

    until(lambda: bool(stream()["StreamStatus"] == "ACTIVE"))
    account.feed(stream()["StreamARN"], StartingPosition="TRIM_HORIZON", BatchSize=100)
    records = [{"Data": body(n).encode(), "PartitionKey": "p"} for n in ("1", "2", "1", "3")]
    kinesis.put_records(StreamName=account.name, Records=records)
    until(lambda: "3" in account.effects())
    assert account.effects() == ["1", "2", "3"]


def test_a_stream_of_dynamodb(account: Account) -> None:
    dynamodb = account.service("dynamodb")
    dynamodb.create_table(
        TableName=account.name,
        KeySchema=[{"AttributeName": "n", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "n", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    arn = dynamodb.describe_table(TableName=account.name)["Table"]["LatestStreamArn"]
    account.feed(arn, StartingPosition="TRIM_HORIZON", BatchSize=100)
    for number in range(3):
        dynamodb.put_item(TableName=account.name, Item={"n": {"S": str(number)}})
    until(lambda: len(account.effects()) >= 3)
    time.sleep(1)
    assert len(account.effects()) == 3


def test_a_rule_of_eventbridge(account: Account) -> None:
    events, functions = account.service("events"), account.service("lambda")
    rule = events.put_rule(Name=account.name, EventPattern=json.dumps({"source": [account.name]}))["RuleArn"]
    functions.add_permission(
        FunctionName=account.name, StatementId="e", Action="lambda:InvokeFunction",
        Principal="events.amazonaws.com", SourceArn=rule,
    )  # fmt: skip
    events.put_targets(Rule=account.name, Targets=[{"Id": "f", "Arn": account.function}])
    entries = [{"Source": account.name, "DetailType": "O", "Detail": json.dumps({"n": n})} for n in ("1", "2")]
    events.put_events(Entries=entries)
    until(lambda: len(account.effects()) >= 2)
    assert sorted(account.effects()) == ["1", "2"]
