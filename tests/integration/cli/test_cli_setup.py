"""`eventonce setup`, `template` and `send`, on an emulator of AWS."""

import io
import json
import os
import pty
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.missing import missing
from tests.servers import Ministack

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]
pytestmark = pytest.mark.long  # each talks to a whole AWS

PIPELINE = """
consumer = "billing"
store = "dynamodb://claims"
source = "sqs://orders"
sink = "sns://next"

[aws]
bus = "shop"

[[rule]]
name = "orders"
match = { source = ["com.example.orders"], detail-type = [{ prefix = "Order" }] }
key = "content"

[[rule]]
name = "rides"
match = { source = ["com.example.rides"] }
key = "content"
"""
EVENT = {"version": "0", "id": "1", "source": "com.example.orders", "detail-type": "Order Placed", "detail": {"n": 7}}


@pytest.fixture
def aws(ministack: Ministack) -> Iterator[Callable[[str], Any]]:
    """Makes clients of an empty account."""
    ministack.reset()
    clients: dict[str, Any] = {}

    def client(service: str) -> Any:
        if service not in clients:
            session: Any = boto3.session.Session()
            clients[service] = session.client(service, endpoint_url=ministack.endpoint())
        return clients[service]

    yield client
    for each in clients.values():
        each.close()


@pytest.fixture
def cli(tmp_path: Path, ministack: Ministack) -> Command:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)

    def run(*args: str, stdin: str = "", **env: str) -> Finished:
        return subprocess.run(
            [sys.executable, "-m", "eventonce", *args],
            check=False,
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "AWS_ENDPOINT_URL": ministack.endpoint(), "PYTHONWARNINGS": "error", **env},
        )

    return run


def verbs(done: Finished) -> Counter[str]:
    return Counter(line.split()[0] for line in done.stdout.splitlines())


def attributes(aws: Callable[[str], Any], queue: str) -> dict[str, str]:
    url = aws("sqs").get_queue_url(QueueName=queue)["QueueUrl"]
    attributes: dict[str, str] = aws("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return attributes


def received(aws: Callable[[str], Any], queue: str, count: int) -> list[dict[str, Any]]:
    """The bodies of so many messages, and a little patience for one too many."""
    url = aws("sqs").get_queue_url(QueueName=queue)["QueueUrl"]
    messages: list[dict[str, Any]] = []
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        waits = 1 if len(messages) >= count else 5
        answer = aws("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=waits)
        messages += answer.get("Messages", [])
        if len(messages) >= count and not answer.get("Messages"):
            break
    return [json.loads(each["Body"]) for each in messages]


# --- setup ---


def test_setup_makes_what_is_missing_once(cli: Command, aws: Callable[[str], Any]) -> None:
    first = cli("setup", "pipeline.toml", "--yes")
    assert (first.returncode, first.stderr) == (0, "")
    assert verbs(first) == {"create": 8, "created": 8}

    second = cli("setup", "pipeline.toml")
    assert (second.returncode, second.stderr) == (0, "")
    assert verbs(second) == {"keep": 8, "nothing": 1}

    queue = attributes(aws, "orders")
    assert (queue["VisibilityTimeout"], queue["MessageRetentionPeriod"]) == ("60", "1209600")
    assert json.loads(queue["RedrivePolicy"])["maxReceiveCount"] == 10
    (target,) = aws("events").list_targets_by_rule(Rule="eventonce-billing", EventBusName="shop")["Targets"]
    assert target["DeadLetterConfig"]["Arn"].endswith(":orders-undelivered")
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}
    ttl = aws("dynamodb").describe_time_to_live(TableName="claims")["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expiration")
    rule = aws("events").describe_rule(Name="eventonce-billing", EventBusName="shop")
    for name in ("orders", "orders-undelivered"):
        (statement,) = json.loads(attributes(aws, name)["Policy"])["Statement"]
        assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": rule["Arn"]}}


def test_events_take_the_way_that_was_set_up(cli: Command, aws: Callable[[str], Any]) -> None:
    cli("setup", "pipeline.toml", "--yes")
    others = [{**EVENT, "source": "com.example.other"}, {**EVENT, "detail-type": "Return"}]
    events = "".join(json.dumps(each) + "\n" for each in [EVENT, *others])
    assert cli("send", "--to", "events://shop", stdin=events).returncode == 0
    assert [each["detail"] for each in received(aws, "orders", 1)] == [{"n": 7}]


def test_a_fifo_queue(cli: Command, tmp_path: Path, aws: Callable[[str], Any]) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE.replace("sqs://orders", "sqs://orders.fifo"))
    assert cli("setup", "pipeline.toml", "--yes").returncode == 0
    assert verbs(cli("setup", "pipeline.toml")) == {"keep": 8, "nothing": 1}
    assert attributes(aws, "orders.fifo")["ContentBasedDeduplication"] == "true"
    assert "FifoQueue" not in attributes(aws, "orders-undelivered")  # EventBridge wants it so
    assert cli("send", "--to", "events://shop", stdin=json.dumps(EVENT)).returncode == 0
    assert [each["detail"] for each in received(aws, "orders.fifo", 1)] == [{"n": 7}]


def test_setup_changes_what_exists_and_leaves_the_rest(cli: Command, aws: Callable[[str], Any]) -> None:
    theirs = {"Sid": "theirs", "Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [theirs]})
    own = {"VisibilityTimeout": "900", "MessageRetentionPeriod": "3600", "DelaySeconds": "5", "Policy": policy}
    aws("sqs").create_queue(QueueName="orders", Attributes=own)
    aws("events").create_event_bus(Name="shop")
    aws("events").put_rule(Name="eventonce-billing", EventBusName="shop", EventPattern='{"source":["old"]}')
    arn = attributes(aws, "orders")["QueueArn"]
    target = {"Id": "mine", "Arn": arn, "InputPath": "$.detail"}
    aws("events").put_targets(Rule="eventonce-billing", EventBusName="shop", Targets=[target])
    key = [{"AttributeName": "id", "KeyType": "HASH"}]
    types = [{"AttributeName": "id", "AttributeType": "S"}]
    aws("dynamodb").create_table(
        TableName="claims", KeySchema=key, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST"
    )

    done = cli("setup", "pipeline.toml", "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    changed = [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("changed")]
    assert changed == [
        "changed queue orders",
        "changed table claims",
        "changed rule eventonce-billing on bus shop",
        "changed target of rule eventonce-billing",
    ]
    queue = attributes(aws, "orders")
    assert (queue["VisibilityTimeout"], queue["MessageRetentionPeriod"]) == ("900", "1209600")
    assert queue["DelaySeconds"] == "5"
    assert theirs in json.loads(queue["Policy"])["Statement"]
    (after,) = aws("events").list_targets_by_rule(Rule="eventonce-billing", EventBusName="shop")["Targets"]
    assert (after["Id"], after["InputPath"]) == ("mine", "$.detail")
    assert verbs(cli("setup", "pipeline.toml")) == {"keep": 8, "nothing": 1}


def admitted(aws: Callable[[str], Any], queue: str) -> Counter[str]:
    """The rules that may send to a queue, by what their ARNs end with."""
    statements = json.loads(attributes(aws, queue)["Policy"])["Statement"]
    sids = [each["Sid"] for each in statements]
    assert len(set(sids)) == len(sids)
    sources = [each["Condition"]["ArnEquals"]["aws:SourceArn"] for each in statements]
    return Counter(source.partition(":rule/")[2] for source in sources)


def test_each_rule_that_fills_a_queue_keeps_its_right_to(
    cli: Command, tmp_path: Path, aws: Callable[[str], Any]
) -> None:
    feeds = ['bus = "a"', 'bus = "b"', 'bus = "a"\nrule = "orders.new"', 'bus = "a"\nrule = "orders_new"']
    for number, feed in enumerate(feeds):
        (tmp_path / f"{number}.toml").write_text(PIPELINE.replace('bus = "shop"', feed))
        done = cli("setup", f"{number}.toml", "--yes")
        assert (done.returncode, done.stderr) == (0, "")
    rules = ["a/eventonce-billing", "b/eventonce-billing", "a/orders.new", "a/orders_new"]
    for queue in ("orders", "orders-undelivered"):
        assert admitted(aws, queue) == dict.fromkeys(rules, 1)
    for number in range(len(feeds)):
        assert verbs(cli("setup", f"{number}.toml")) == {"keep": 8, "nothing": 1}


def test_a_permission_added_while_the_plan_was_read_stays(
    tmp_path: Path, ministack: Ministack, aws: Callable[[str], Any]
) -> None:
    (tmp_path / "shop.toml").write_text(PIPELINE)
    aws("sqs").create_queue(QueueName="orders")
    ours, theirs = pty.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-m", "eventonce", "setup", "shop.toml"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "AWS_ENDPOINT_URL": ministack.endpoint()},
    )
    try:
        assert asking.stderr is not None
        assert asking.stderr.read(len("Apply this plan?")) == b"Apply this plan?"
        policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Sid": "theirs", "Effect": "Deny"}]})
        url = aws("sqs").get_queue_url(QueueName="orders")["QueueUrl"]
        aws("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        os.write(ours, b"y\n")
        assert asking.wait(60) == 0
    finally:
        asking.kill()
        asking.communicate()
        os.close(ours)
        os.close(theirs)
    sids = [each["Sid"] for each in json.loads(attributes(aws, "orders")["Policy"])["Statement"]]
    assert len(sids) == 2
    assert "theirs" in sids


def test_a_queue_keeps_its_own_dead_letter_queue(cli: Command, aws: Callable[[str], Any]) -> None:
    aws("sqs").create_queue(QueueName="morgue")
    redrive = {"deadLetterTargetArn": attributes(aws, "morgue")["QueueArn"], "maxReceiveCount": 1000}
    aws("sqs").create_queue(QueueName="orders", Attributes={"RedrivePolicy": json.dumps(redrive)})
    for _ in range(2):
        done = cli("setup", "pipeline.toml", "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert "its own dead-letter queue morgue stays (after 1,000 receives)" in done.stdout
        assert "to use orders-dead, remove its RedrivePolicy and run this again" in done.stdout
    after = json.loads(attributes(aws, "orders")["RedrivePolicy"])
    assert {**after, "maxReceiveCount": int(after["maxReceiveCount"])} == redrive
    assert "orders-dead" not in str(aws("sqs").list_queues()["QueueUrls"])  # nobody would use it

    url = aws("sqs").get_queue_url(QueueName="orders")["QueueUrl"]
    aws("sqs").set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert cli("setup", "pipeline.toml", "--yes").returncode == 0
    assert json.loads(attributes(aws, "orders")["RedrivePolicy"])["deadLetterTargetArn"].endswith(":orders-dead")


def test_a_target_keeps_its_own_dead_letter_queue(cli: Command, aws: Callable[[str], Any]) -> None:
    assert cli("setup", "pipeline.toml", "--yes").returncode == 0
    aws("sqs").create_queue(QueueName="morgue")
    where = {"Rule": "eventonce-billing", "EventBusName": "shop"}
    (target,) = aws("events").list_targets_by_rule(**where)["Targets"]
    own = {**target, "DeadLetterConfig": {"Arn": attributes(aws, "morgue")["QueueArn"]}}
    aws("events").put_targets(**where, Targets=[own])
    done = cli("setup", "pipeline.toml", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "what it cannot deliver goes to morgue, which stays" in done.stdout
    assert aws("events").list_targets_by_rule(**where)["Targets"] == [own]


def test_a_rule_that_feeds_others_keeps_its_pattern(cli: Command, tmp_path: Path, aws: Callable[[str], Any]) -> None:
    """Two pipelines of one consumer on one bus: by default their rules have one name."""
    assert cli("setup", "pipeline.toml", "--yes").returncode == 0
    refunds = PIPELINE.replace("sqs://orders", "sqs://refunds").replace("com.example.orders", "com.example.refunds")
    (tmp_path / "refunds.toml").write_text(refunds)
    before = aws("events").describe_rule(Name="eventonce-billing", EventBusName="shop")["EventPattern"]
    done = cli("setup", "refunds.toml", "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rule eventonce-billing on bus shop has another pattern and also feeds orders" in done.stderr
    assert "use another rule for this pipeline in [aws], such as rule =" in done.stderr
    assert aws("events").describe_rule(Name="eventonce-billing", EventBusName="shop")["EventPattern"] == before


def test_a_table_with_another_key_is_not_touched(cli: Command, aws: Callable[[str], Any]) -> None:
    key = [{"AttributeName": "pk", "KeyType": "HASH"}]
    types = [{"AttributeName": "pk", "AttributeType": "S"}]
    aws("dynamodb").create_table(
        TableName="claims", KeySchema=key, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST"
    )
    done = cli("setup", "pipeline.toml", "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert "add key=pk to the URL" in done.stderr


def test_nothing_is_done_unasked(cli: Command, aws: Callable[[str], Any]) -> None:
    dry = cli("setup", "pipeline.toml", "--dry-run")
    assert (dry.returncode, verbs(dry)) == (0, {"create": 8})
    unasked = cli("setup", "pipeline.toml")
    assert (unasked.returncode, verbs(unasked)) == (2, {"create": 8})
    assert "add --yes" in unasked.stderr
    assert not aws("sqs").list_queues().get("QueueUrls")


@pytest.mark.parametrize(("answer", "code", "made"), [(b"n\n", 1, 0), (b"y\n", 0, 3)])
def test_a_terminal_is_asked(
    tmp_path: Path, ministack: Ministack, aws: Callable[[str], Any], answer: bytes, code: int, made: int
) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [sys.executable, "-m", "eventonce", "setup", "pipeline.toml"],
        check=False,
        cwd=tmp_path,
        stdin=theirs,
        capture_output=True,
        timeout=60,
        env={**os.environ, "AWS_ENDPOINT_URL": ministack.endpoint()},
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code
    assert b"Apply this plan?" in done.stderr
    assert len(aws("sqs").list_queues().get("QueueUrls", [])) == made


def test_the_region_and_endpoint_of_a_url_count(cli: Command, tmp_path: Path, ministack: Ministack) -> None:
    where = f"?region=eu-west-1&endpoint={ministack.endpoint()}"
    (tmp_path / "pipeline.toml").write_text(f'source = "sqs://orders{where}"\nstore = "dynamodb://claims{where}"\n')
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_DEFAULT_REGION": ""}
    assert verbs(cli("setup", "pipeline.toml", "--yes", **nowhere)) == {"create": 3, "created": 3}
    sqs: Any = boto3.session.Session(region_name="eu-west-1").client("sqs", endpoint_url=ministack.endpoint())
    assert ":eu-west-1:" in attributes(lambda service: sqs, "orders")["QueueArn"]
    sqs.close()


def test_a_pipeline_without_aws_needs_nothing(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text('source = "events.jsonl"\n')
    done = cli("setup", "pipeline.toml")
    assert (done.returncode, done.stdout) == (0, "nothing to do: pipeline.toml names no AWS resource\n")
    printed = cli("template", "pipeline.toml")
    assert (printed.returncode, printed.stdout) == (2, "")
    assert "names no AWS resource" in printed.stderr


def test_streams_must_exist_and_are_kept(cli: Command, tmp_path: Path, aws: Callable[[str], Any]) -> None:
    wanted = 'source = "{}"\nsink = "kinesis://next"\nstore = "dynamodb://claims"\n'
    (tmp_path / "pipeline.toml").write_text(wanted.format("kinesis://orders"))
    aws("kinesis").create_stream(StreamName="next", ShardCount=1)
    missing = cli("setup", "pipeline.toml", "--yes")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "source: stream orders does not exist; create it, with as many shards as it needs" in missing.stderr

    aws("kinesis").create_stream(StreamName="orders", ShardCount=1)
    assert verbs(cli("setup", "pipeline.toml", "--yes")) == {"keep": 2, "create": 1, "created": 1}

    (tmp_path / "pipeline.toml").write_text(wanted.format("dynamodbstreams://claims"))
    without = cli("setup", "pipeline.toml")
    assert without.returncode == 2
    assert "source: table claims with a stream does not exist; turn the stream on" in without.stderr
    view = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    aws("dynamodb").update_table(TableName="claims", StreamSpecification=view)
    assert verbs(cli("setup", "pipeline.toml")) == {"keep": 3, "nothing": 1}
    arn = aws("dynamodb").describe_table(TableName="claims")["Table"]["LatestStreamArn"]
    (tmp_path / "pipeline.toml").write_text(wanted.format(f"dynamodbstreams://{arn}"))
    assert verbs(cli("setup", "pipeline.toml")) == {"keep": 3, "nothing": 1}


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"AWS_DEFAULT_REGION": ""}, 2, "no AWS region is set; add ?region=REGION to the URL"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, 2, "no AWS credentials were found; set AWS_PROFILE"),
        ({"AWS_PROFILE": "nobody"}, 2, "nobody"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 1, "did not answer"),
    ],
)
def test_an_environment_without_region_credentials_or_endpoint_is_reported(
    cli: Command, env: dict[str, str], code: int, words: str
) -> None:
    elsewhere = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/none",
        "AWS_SHARED_CREDENTIALS_FILE": "/none",
    }
    done = cli("setup", "pipeline.toml", "--yes", **elsewhere, **env)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_check_knows_the_table_of_aws(cli: Command, tmp_path: Path, aws: Callable[[str], Any]) -> None:
    cli("setup", "pipeline.toml", "--yes")
    assert cli("check", "pipeline.toml").returncode == 0
    (tmp_path / "pipeline.toml").write_text(PIPELINE.replace('bus = "shop"', 'bus = "my shop"'))
    done = cli("check", "pipeline.toml")
    assert done.returncode == 2
    assert "aws: bus: 'my shop' is not a valid bus name" in done.stdout


# --- template ---


def deployed(aws: Callable[[str], Any], template: str) -> str:
    stacks = aws("cloudformation")
    stacks.create_stack(
        StackName="eventonce", TemplateBody=template, Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
    )
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        stack = stacks.describe_stacks(StackName="eventonce")["Stacks"][0]
        if not stack["StackStatus"].endswith("IN_PROGRESS"):
            return f"{stack['StackStatus']} {stack.get('StackStatusReason', '')}".strip()
        time.sleep(0.1)
    return "never"


# What ministack leaves out of a stack.
LEFT_OUT = "change  table claims: time to live on expiration, point-in-time recovery"


def test_a_stack_is_what_setup_would_make(cli: Command, aws: Callable[[str], Any]) -> None:
    assert deployed(aws, cli("template", "pipeline.toml").stdout) == "CREATE_COMPLETE"
    done = cli("setup", "pipeline.toml", "--dry-run")
    left = [line for line in done.stdout.splitlines() if line.startswith(("create", "change"))]
    assert left in ([], [LEFT_OUT])
    assert cli("send", "--to", "events://shop", stdin=json.dumps(EVENT)).returncode == 0
    assert [each["detail"] for each in received(aws, "orders", 1)] == [{"n": 7}]


FUNCTION = """
def handler(event, context):
    failed = [each["messageId"] for each in event["Records"] if "bad" in each["body"]]
    return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]}
"""


def test_a_function_is_deployed_and_fed(cli: Command, aws: Callable[[str], Any]) -> None:
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("app.py", FUNCTION)
    aws("s3").create_bucket(Bucket="code")
    aws("s3").put_object(Bucket="code", Key="function.zip", Body=code.getvalue())
    template = json.loads(cli("template", "pipeline.toml", "--format", "sam").stdout)
    template["Resources"]["Function"]["Properties"] |= {"CodeUri": "s3://code/function.zip", "Handler": "app.handler"}
    try:
        ended = deployed(aws, json.dumps(template))
    except ClientError as error:
        if "aws-sam-translator" not in str(error):
            raise
        missing("ministack has no aws-sam-translator beside it")
    assert ended == "CREATE_COMPLETE"
    (mapping,) = aws("lambda").list_event_source_mappings()["EventSourceMappings"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]

    url = aws("sqs").get_queue_url(QueueName="orders")["QueueUrl"]
    for body in ("good", "bad"):
        aws("sqs").send_message(QueueUrl=url, MessageBody=body)
    give_up = time.monotonic() + 120
    left = ("2", "0")
    while left != ("0", "1") and time.monotonic() < give_up:
        counts = attributes(aws, "orders")
        left = (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"])
        time.sleep(0.1)
    assert left == ("0", "1")  # the good one is gone, the bad one is redelivered


def test_a_template_is_for_one_region(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(
        'source = "sqs://in?region=eu-west-1"\nstore = "dynamodb://claims?region=us-east-1"\n'
    )
    done = cli("template", "pipeline.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "names the regions eu-west-1 and us-east-1" in done.stderr


DIRECT = PIPELINE.replace('source = "sqs://orders"\n', "") + '[function]\nname = "bill"\nhandler = "app.handler"\n'
FED = """
store = "dynamodb://claims"
source = "{source}"

[function]
name = "bill"
handler = "app.handler"
"""
PRINTING = """
import json

def handler(event, context):
    print("took", json.dumps(event))

def failing(event, context):
    raise ValueError("poison")
"""


@pytest.fixture
def code(tmp_path: Path) -> bytes:
    """Make the code of a function, as function.zip in the current folder."""
    with zipfile.ZipFile(tmp_path / "function.zip", "w") as archive:
        archive.writestr("app.py", PRINTING)
    return (tmp_path / "function.zip").read_bytes()


def until(condition: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + 120
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.1)
    return condition()


def logged(aws: Callable[[str], Any]) -> str:
    names = [each["logGroupName"] for each in aws("logs").describe_log_groups()["logGroups"]]
    events = [event for name in names for event in aws("logs").filter_log_events(logGroupName=name)["events"]]
    return "".join(event["message"] for event in events)


def test_a_rule_invokes_the_function_that_was_set_up(
    cli: Command, tmp_path: Path, aws: Callable[[str], Any], code: bytes
) -> None:
    (tmp_path / "pipeline.toml").write_text(DIRECT)
    done = cli("setup", "pipeline.toml", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    again = cli("setup", "pipeline.toml", "--dry-run")
    assert (again.returncode, verbs(again)) == (0, {"keep": 12, "nothing": 1}), again.stdout
    assert cli("send", "--to", "events://shop", stdin=json.dumps(EVENT)).returncode == 0
    assert until(lambda: '"detail": {"n": 7}' in logged(aws))
    invoked = aws("lambda").get_function_event_invoke_config(FunctionName="bill", Qualifier="$LATEST")
    assert (invoked["MaximumRetryAttempts"], invoked["MaximumEventAgeInSeconds"]) == (2, 21_600)
    assert invoked["DestinationConfig"]["OnFailure"]["Destination"] == attributes(aws, "bill-failed")["QueueArn"]
    table = aws("dynamodb").describe_table(TableName="claims")["Table"]
    assert table["DeletionProtectionEnabled"]


def test_a_function_is_brought_up_to_date(cli: Command, tmp_path: Path, aws: Callable[[str], Any], code: bytes) -> None:
    (tmp_path / "pipeline.toml").write_text(DIRECT)
    assert cli("setup", "pipeline.toml", "--yes").returncode == 0
    aws("sqs").create_queue(QueueName="morgue")
    own = {"OnFailure": {"Destination": attributes(aws, "morgue")["QueueArn"]}}
    aws("lambda").put_function_event_invoke_config(FunctionName="bill", Qualifier="$LATEST", DestinationConfig=own)
    aws("lambda").update_function_configuration(FunctionName="bill", MemorySize=2048)
    with zipfile.ZipFile(tmp_path / "function.zip", "a") as archive:
        archive.writestr("more.py", "")
    (tmp_path / "pipeline.toml").write_text(DIRECT.replace("app.handler", "app.failing"))
    done = cli("setup", "pipeline.toml", "--yes")
    assert "change  function bill: Handler app.failing, its code\n" in done.stdout
    assert "what fails for good goes to morgue, which stays" in done.stdout
    after = aws("lambda").get_function_configuration(FunctionName="bill")
    assert (after["Handler"], after["MemorySize"]) == ("app.failing", 2048)
    aws("lambda").invoke(FunctionName="bill", InvocationType="Event", Payload=json.dumps(EVENT).encode())
    assert until(lambda: attributes(aws, "morgue")["ApproximateNumberOfMessages"] == "1")
    assert verbs(cli("setup", "pipeline.toml", "--dry-run")) == {"keep": 12, "nothing": 1}


def test_a_function_needs_its_code(cli: Command, tmp_path: Path, aws: Callable[[str], Any]) -> None:
    (tmp_path / "pipeline.toml").write_text(DIRECT)
    done = cli("setup", "pipeline.toml", "--yes")
    assert (done.returncode, done.stdout.count("created")) == (2, 0)
    assert "function: code: function.zip: No such file or directory; name a zip file of the function" in done.stderr


@pytest.mark.parametrize("source", ["kinesis://orders", "dynamodbstreams://orders"])
def test_a_stream_feeds_the_function_that_was_set_up(
    cli: Command, tmp_path: Path, aws: Callable[[str], Any], code: bytes, source: str
) -> None:
    (tmp_path / "pipeline.toml").write_text(FED.format(source=source))
    aws("kinesis").create_stream(StreamName="orders", ShardCount=1)
    aws("dynamodb").create_table(
        TableName="orders",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    done = cli("setup", "pipeline.toml", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    again = cli("setup", "pipeline.toml", "--dry-run")
    assert (again.returncode, verbs(again)) == (0, {"keep": 7, "nothing": 1}), again.stdout
    (mapping,) = aws("lambda").list_event_source_mappings()["EventSourceMappings"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["DestinationConfig"]["OnFailure"]["Destination"] == attributes(aws, "bill-failed")["QueueArn"]
    aws("kinesis").put_record(StreamName="orders", Data=b"{}", PartitionKey="a")
    aws("dynamodb").put_item(TableName="orders", Item={"id": {"S": "a"}})
    assert until(lambda: '"eventID"' in logged(aws))


def test_a_stack_has_the_function_that_setup_would_make(
    cli: Command, tmp_path: Path, aws: Callable[[str], Any], code: bytes
) -> None:
    aws("s3").create_bucket(Bucket="code")
    aws("s3").put_object(Bucket="code", Key="function.zip", Body=code)
    (tmp_path / "pipeline.toml").write_text(DIRECT.replace('"bill"', '"bill"\ncode = "s3://code/function.zip"'))
    assert deployed(aws, cli("template", "pipeline.toml").stdout) == "CREATE_COMPLETE"
    assert cli("send", "--to", "events://shop", stdin=json.dumps(EVENT)).returncode == 0
    assert until(lambda: '"detail": {"n": 7}' in logged(aws))
    done = cli("setup", "pipeline.toml", "--dry-run")
    left = [line for line in done.stdout.splitlines() if line.startswith(("create", "change"))]
    assert left in ([], [LEFT_OUT])


def test_terraform_and_the_role_of_a_function(cli: Command) -> None:
    worker = cli("template", "pipeline.toml", "--format", "terraform")
    assert (worker.returncode, worker.stderr) == (0, "")
    assert "worker" in json.loads(worker.stdout)["resource"]["aws_iam_role"]
    function = json.loads(cli("template", "pipeline.toml", "--format", "terraform", "--lambda").stdout)["resource"]
    assert "lambda.amazonaws.com" in function["aws_iam_role"]["function"]["assume_role_policy"]
    assert function["aws_sqs_queue"]["source"]["visibility_timeout_seconds"] == 180


# --- send ---

EVENTS = "".join(json.dumps({**EVENT, "id": str(number)}) + "\n" for number in range(5))


def sent(text: str) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


def test_copies_are_the_same_bytes(cli: Command) -> None:
    done = cli("send", "--to", "-", "--copies", "3", stdin=EVENTS)
    assert (done.returncode, done.stderr) == (0, "15 of 15 sent\n")
    assert Counter(done.stdout.splitlines()) == dict.fromkeys(EVENTS.splitlines(), 3)


def test_new_ids(cli: Command) -> None:
    done = cli("send", "--to", "-", "--copies", "3", "--new-ids", "--seed", "7", stdin=EVENTS)
    assert len(set(sent(done.stdout))) == 15
    assert {json.dumps({**json.loads(line), "id": ""}) for line in done.stdout.splitlines()} == {
        json.dumps({**EVENT, "id": ""})
    }
    again = cli("send", "--to", "-", "--copies", "3", "--new-ids", "--seed", "7", stdin=EVENTS)
    assert again.stdout == done.stdout
    other = cli("send", "--to", "-", "--copies", "3", "--new-ids", "--seed", "8", stdin=EVENTS)
    assert other.stdout != done.stdout


def test_copies_come_later(cli: Command) -> None:
    done = cli("send", "--to", "-", "--copies", "4", "--spread", "500ms", "--seed", "1", stdin=EVENTS)
    ids = sent(done.stdout)
    assert ids[:5] == ["0", "1", "2", "3", "4"]
    assert Counter(ids) == dict.fromkeys("01234", 4)
    assert ids[5:] != sorted(ids[5:])


def test_a_fifo_queue_takes_every_copy(cli: Command, aws: Callable[[str], Any]) -> None:
    aws("sqs").create_queue(QueueName="in.fifo", Attributes={"FifoQueue": "true"})
    for _ in range(2):
        assert cli("send", "--to", "sqs://in.fifo", "--copies", "2", stdin=EVENTS).returncode == 0
    assert attributes(aws, "in.fifo")["ApproximateNumberOfMessages"] == "20"


def test_an_event_that_is_refused(cli: Command, aws: Callable[[str], Any]) -> None:
    large = json.dumps({**EVENT, "detail": {"text": "x" * 2_000_000}})
    done = cli("send", "--to", "events://default", stdin=EVENTS + large)
    assert done.returncode == 1
    assert "refused: " in done.stderr
    assert done.stderr.splitlines()[-1] == "5 of 6 sent, 1 refused"


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        (["--to", "sqs://nowhere"], EVENTS, "nowhere"),
        (["--to", "python:json:dumps"], EVENTS, "a function is for eventonce run"),
        (["--to", "-", "--new-ids"], EVENTS, "add --copies 2 or more"),
        (["--to", "-", "--spread", "1s"], EVENTS, "add --copies 2 or more"),
        (["--to", "-", "--copies", "0"], EVENTS, "0 is not in the range"),
        (["--to", "-", "--spread", "soon"], EVENTS, "--spread: 'soon' is not a duration"),
        (["--to", "-", "nofile.jsonl"], "", "nofile.jsonl"),
        (["--to", "-"], '{"id": "1"}\nnonsense\n', "stdin:2: "),
        ([], EVENTS, "--to"),
    ],
)
def test_what_cannot_be_sent(cli: Command, aws: Callable[[str], Any], args: list[str], stdin: str, words: str) -> None:
    done = cli("send", *args, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
