"""What a pipeline needs of AWS: the plan, what is changed about what is there, templates, and errors in our words."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from eventonce import ConfigError
from eventonce.aws_setup.account import Account
from eventonce.aws_setup.apply import look
from eventonce.aws_setup.apply_function import function_steps
from eventonce.aws_setup.cloudformation import cloudformation, sam
from eventonce.aws_setup.plan import Bus, QueueResource, SetupPlan, Topic, make_plan
from eventonce.aws_setup.queue import changes, desired_attributes
from eventonce.aws_setup.step import SetupStep
from eventonce.aws_setup.terraform import terraform
from eventonce.clients.aws import AwsUrl
from eventonce.errors import EventOnceError
from eventonce.settings import settings
from tests.missing import need

ORDERS = {"name": "orders", "match": {"source": ["com.example.orders"]}}
RIDES = {"name": "rides", "match": {"source": ["com.example.rides"]}}


def planned(*, in_lambda: bool = False, **table: Any) -> SetupPlan:
    return make_plan(settings({"source": "sqs://in", **table}, "pipeline.toml"), function=in_lambda)


def dead(plan: SetupPlan) -> str:
    assert plan.source is not None
    assert plan.source.dead is not None
    return plan.source.dead.name


# --- the plan ---


def test_a_queue_comes_after_its_dead_letters() -> None:
    plan = planned(rule=[ORDERS], aws={})
    assert [queue.name for queue in plan.queues] == ["in-undelivered", "in-dead", "in"]


def test_a_pipeline_without_aws_needs_nothing() -> None:
    plan = planned(source="events.jsonl", sink="https://example.com")
    assert plan.addresses == []
    assert not plan.buses


def test_the_dead_letters_of_the_pipeline_are_those_of_its_queue() -> None:
    plan = planned(dead_letter="sqs://morgue")
    assert dead(plan) == "morgue"
    assert [queue.name for queue in plan.queues] == ["morgue", "in"]


@pytest.mark.parametrize(
    ("source", "letters", "expected"),
    [
        ("sqs://in.fifo", "sqs://morgue", "in-dead.fifo"),  # SQS wants both to be FIFO, or none
        ("sqs://in.fifo", "sqs://morgue.fifo", "morgue.fifo"),
        ("sqs://in", "sqs://morgue?region=eu-west-1", "in-dead"),  # and in one region
        ("sqs://in", "sqs://123456789012/morgue", "in-dead"),  # and account
        ("sqs://in", "dead.jsonl", "in-dead"),
    ],
)
def test_dead_letters_that_sqs_would_not_take(source: str, letters: str, expected: str) -> None:
    assert dead(planned(source=source, dead_letter=letters)) == expected


@pytest.mark.parametrize(
    ("lease", "function", "expected"),
    [("60s", False, 60), ("1500ms", False, 30), ("90.5s", False, 91), ("60s", True, 180), ("10m", True, 600)],
)
def test_messages_are_hidden_for_a_lease_and_for_six_timeouts_of_a_function(
    lease: str, function: bool, expected: int
) -> None:
    source = planned(lease=lease, in_lambda=function).source
    assert source is not None
    assert source.visibility == expected


def test_a_lease_beyond_what_sqs_can_hide() -> None:
    source = planned(lease="1d").source
    assert source is not None
    assert source.visibility == 43_200


@pytest.mark.parametrize(("attempts", "receives"), [(1, 10), (5, 10), (8, 16), (5000, 1000)])
def test_sqs_is_more_patient_than_the_worker(attempts: int, receives: int) -> None:
    source = planned(max_attempts=attempts).source
    assert source is not None
    assert source.receives == receives


def test_the_rule_takes_all_that_the_pipeline_s_rules_match() -> None:
    again = {**ORDERS, "name": "again"}
    plan = planned(consumer="billing", rule=[ORDERS, RIDES, again], aws={})
    assert plan.rule is not None
    assert plan.rule.name == "eventonce-billing"
    assert plan.rule.pattern == {"$or": [ORDERS["match"], RIDES["match"]]}
    alone = planned(rule=[ORDERS], aws={}).rule
    assert alone is not None
    assert alone.pattern == ORDERS["match"]


def test_the_pattern_of_a_rule_names_fields_as_eventbridge_does() -> None:
    match = {"type": ["a"], "$or": [{"data": {"n": [1]}}, {"detail": {"m": [2]}}]}
    rule = planned(rule=[{"name": "r", "match": match}], aws={}).rule
    assert rule is not None
    assert rule.pattern == {"detail-type": ["a"], "$or": [{"detail": {"n": [1]}}, {"detail": {"m": [2]}}]}


@pytest.mark.parametrize("preset", ["genesys", "amazon-connect", "guardduty", "s3"])
def test_the_patterns_of_a_preset_fit_into_a_rule(preset: str) -> None:
    assert planned(use=[preset], aws={}).rule is not None


def test_an_explicit_pattern_overrides_the_rules() -> None:
    rule = planned(rule=[{"name": "all"}], aws={"pattern": {"source": ["x"]}, "rule": "r", "bus": "b"}).rule
    assert rule is not None
    assert (rule.pattern, rule.name, rule.bus.name) == ({"source": ["x"]}, "r", "b")


LONG = [{"name": f"r{number}", "match": {"source": [f"com.example.{number:040}"]}} for number in range(50)]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"aws": {}}, "no rule says which events to take"),
        ({"aws": {}, "rule": [ORDERS, {"name": "all"}]}, "rule 'all' matches every event; name the events in .aws."),
        ({"aws": {}, "rule": LONG}, "of 2048 characters together; name the events in .aws."),
        ({"aws": {}, "rule": [ORDERS], "source": "-"}, 'write source = "sqs://QUEUE"'),
        ({"aws": {}, "rule": [ORDERS], "source": "sqs://123456789012/theirs"}, "a queue of this account"),
        ({"aws": {}, "rule": [ORDERS], "consumer": "my shop"}, "'eventonce-my shop' is not a valid rule name"),
        ({"aws": {"bus": "my shop"}}, "aws: bus: 'my shop' is not a valid bus name"),
        ({"aws": {"rule": "my shop"}}, "aws: rule: 'my shop' is not a valid rule name"),
        ({"aws": {"pattern": {"source": "x"}}}, "aws: pattern: source: must be a list"),
        ({"aws": {"buss": "x"}}, "unknown setting 'buss'; did you mean 'bus'"),
        ({"function": {"name": "my shop"}}, "function: name: 'my shop' is not a valid function name"),
        ({"function": {}, "consumer": "my shop"}, "'eventonce-my shop' is not a valid function name"),
        ({"function": {"code": "s3://bucket"}}, "use a zip file or s3://BUCKET/KEY"),
        ({"function": {"memory": 64}}, "64 is not between 128 and 10240 MB"),
        ({"function": {}, "source": "-"}, "nothing invokes it; name a queue or a stream as source, or a rule"),
        ({"function": {}, "source": "http://localhost:8080/"}, "http://localhost:8080/ cannot invoke it"),
        ({"function": {}, "source": "kinesis://in", "aws": {}, "rule": [ORDERS]}, "leave source out"),
        ({"source": "sqs://a.b"}, "is not a queue name"),
        ({"source": f"sqs://{'a' * 78}"}, "its name is too long"),
        ({"sink": "sqs://in"}, "is the queue for sink and source"),
        ({"aws": {}, "rule": [ORDERS], "dead_letter": "sqs://in-undelivered"}, "for undelivered and letters"),
    ],
)
def test_what_cannot_be_planned(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(**table)


@pytest.mark.parametrize(
    ("sink", "kind", "queues"),
    [
        ("sqs://next?group=source", QueueResource, ["in-dead", "next", "in"]),
        ("sqs://123456789012/next", QueueResource, ["in-dead", "in"]),
        ("sns://next", Topic, ["in-dead", "in"]),
        ("events://next", Bus, ["in-dead", "in"]),
    ],
)
def test_sinks(sink: str, kind: type, queues: list[str]) -> None:
    plan = planned(sink=sink)
    assert isinstance(plan.sink, kind)
    assert [queue.name for queue in plan.queues] == queues


def test_which_buses_are_made() -> None:
    assert planned(sink="events://default", rule=[ORDERS], aws={}).buses == []
    assert planned(sink="events://arn:aws:events:us-east-1:123456789012:event-bus/x").buses == []
    both = planned(sink="events://next", rule=[ORDERS], aws={"bus": "shop"}).buses
    assert [bus.name for bus in both] == ["next", "shop"]
    same = planned(sink="events://shop", rule=[ORDERS], aws={"bus": "shop"}).buses
    assert [bus.name for bus in same] == ["shop"]


def test_the_table_is_as_its_url_says() -> None:
    usual, special = planned(store="dynamodb://t").table, planned(store="dynamodb://t?key=a&sort=b&ttl=c").table
    assert usual is not None
    assert special is not None
    assert (usual.name, usual.key, usual.sort, usual.ttl) == ("t", "id", None, "expiration")
    assert (special.key, special.sort, special.ttl) == ("a", "b", "c")


# --- what is changed about a queue ---

DEAD = "arn:aws:sqs:us-east-1:123456789012:in-dead"
OURS = {"Sid": "eventonce_r", "Resource": "in", "Condition": {"ArnEquals": {"aws:SourceArn": "rule"}}}


def in_desired_attributes() -> dict[str, str]:
    source = planned().source
    assert source is not None
    return desired_attributes(source, DEAD, OURS)


def test_a_queue_as_it_should_be_is_left_alone() -> None:
    assert changes(in_desired_attributes(), in_desired_attributes()) == {}


def test_what_is_more_generous_is_left_alone() -> None:
    redrive = json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": "20"})
    assert (
        changes(
            {**in_desired_attributes(), "VisibilityTimeout": "900", "RedrivePolicy": redrive}, in_desired_attributes()
        )
        == {}
    )


def test_values_that_are_too_low_are_raised() -> None:
    has = {**in_desired_attributes(), "VisibilityTimeout": "30", "MessageRetentionPeriod": "345600"}
    assert changes(has, in_desired_attributes()) == {"VisibilityTimeout": "60", "MessageRetentionPeriod": "1209600"}


def test_how_long_a_sink_hides_messages_is_for_its_readers_to_say() -> None:
    sink = planned(sink="sqs://next").sink
    assert isinstance(sink, QueueResource)
    assert (
        changes({"MessageRetentionPeriod": "1209600", "VisibilityTimeout": "5"}, desired_attributes(sink, None, None))
        == {}
    )


@pytest.mark.parametrize("policy", ["", "{}", json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 3})])
def test_dead_letters_that_go_nowhere_or_too_soon(policy: str) -> None:
    assert list(changes({**in_desired_attributes(), "RedrivePolicy": policy}, in_desired_attributes())) == [
        "RedrivePolicy"
    ]


@pytest.mark.parametrize("receives", [1, 1000])
def test_dead_letters_that_go_elsewhere_still_do(receives: int) -> None:
    policy = json.dumps({"deadLetterTargetArn": f"{DEAD}-too", "maxReceiveCount": receives})
    assert changes({**in_desired_attributes(), "RedrivePolicy": policy}, in_desired_attributes()) == {}


THEIRS = {"Sid": "theirs", "Effect": "Deny"}


LIKE_OURS = {**OURS, "Condition": {"ArnEquals": {"aws:SourceArn": ["rule", "another"]}}}


def policy(*statements: dict[str, Any]) -> dict[str, str]:
    return {**in_desired_attributes(), "Policy": json.dumps({"Version": "2008-10-17", "Statement": statements})}


@pytest.mark.parametrize("statement", [THEIRS, [THEIRS], [THEIRS, {"Effect": "Deny"}]])
def test_what_others_allow_or_deny_stays(statement: Any) -> None:
    has = {**in_desired_attributes(), "Policy": json.dumps({"Version": "2008-10-17", "Statement": statement})}
    changed = json.loads(changes(has, in_desired_attributes())["Policy"])
    others = statement if isinstance(statement, list) else [statement]
    assert changed == {"Version": "2008-10-17", "Statement": [*others, OURS]}


def test_what_others_allow_under_our_name_stays_too() -> None:
    changed = json.loads(changes(policy(LIKE_OURS), in_desired_attributes())["Policy"])["Statement"]
    assert changed == [LIKE_OURS, {**OURS, "Sid": "eventonce_r_2"}]


@pytest.mark.parametrize("sid", [{"Sid": "theirs"}, {}])
def test_what_is_allowed_already_is_not_allowed_again(sid: dict[str, str]) -> None:
    ours = {name: value for name, value in OURS.items() if name != "Sid"}
    assert changes(policy({**ours, **sid}), in_desired_attributes()) == {}


@pytest.mark.parametrize("write", [cloudformation, terraform])
def test_each_rule_has_a_statement_of_its_own(write: Callable[[SetupPlan], str]) -> None:
    named = [("shop", "orders.new"), ("shop", "orders_new"), ("shop.orders", "new"), ("default", "orders.new")]
    plans = [planned(rule=[ORDERS], aws={"bus": bus, "rule": rule}) for bus, rule in named]
    sids = [set(re.findall(r"eventonce_[0-9a-f]{16}", write(plan))) for plan in plans]
    assert all(len(each) == 1 for each in sids)
    assert len(set.union(*sids)) == len(named)


@pytest.mark.parametrize("write", [cloudformation, terraform])
@pytest.mark.parametrize("names", [("shop.eu", "shop-eu"), ("Shop", "shop"), ("shop.eu", "shopeu")])
def test_each_bus_is_made(write: Callable[[SetupPlan], str], names: tuple[str, str]) -> None:
    made = write(planned(sink=f"events://{names[0]}", rule=[ORDERS], aws={"bus": names[1]}))
    labels = re.findall(r'"(Bus\w+|bus_\w+)": ', made)
    assert len(set(labels)) == 2


# --- templates ---

FULL: dict[str, Any] = {
    "consumer": "billing",
    "sink": "sns://next",
    "store": "dynamodb://claims",
    "rule": [ORDERS, RIDES],
    "aws": {"bus": "shop"},
}
NEW_BUS = "arn:aws:events:us-east-1:123456789012:event-busv2/orders/abcdefghijklmnopqrstuvwxy"
STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/next"
PIPELINES = {
    "full": FULL,
    "fifo": {
        **FULL,
        "source": "sqs://in.fifo",
        "sink": "sns://next.fifo",
        "store": "dynamodb://claims?key=pk&sort=sk&ttl=gone",
        "dead_letter": "sqs://letters",
    },
    "partner": {**FULL, "sink": "events://default", "aws": {"bus": "aws.partner/genesys.com/cloud/1/x"}},
    "theirs": {"source": "sqs://123456789012/in", "sink": "sqs://210987654321/next?region=eu-west-1"},
    "strange": {"consumer": "what's ${this}?", "aws": {"rule": "r", "pattern": {"detail": {"a.b": ["${c}", "%{d}"]}}}},
    "bus": {**FULL, "sink": "events://shop"},
    "new-bus": {**FULL, "sink": f"events://{NEW_BUS}"},
    "streams": {"source": "kinesis://in", "sink": "kinesis://next", "store": "dynamodb://claims"},
    "changes": {"source": "dynamodbstreams://orders?region=eu-west-1", "sink": f"kinesis://{STREAM}"},
    "direct": {**FULL, "source": "-", "function": {"name": "bill", "code": "s3://code/f.zip", "memory": 1024}},
    "fed": {**FULL, "function": {"architecture": "arm64"}},
    "kinesis-fed": {"source": "kinesis://in?start=latest", "store": "dynamodb://claims", "function": {}},
    "table-fed": {"source": "dynamodbstreams://orders", "store": "dynamodb://claims", "function": {}},
}


def resources(text: str, kind: str) -> list[dict[str, Any]]:
    return [each["Properties"] for each in json.loads(text)["Resources"].values() if each["Type"] == kind]


def test_the_role_allows_what_is_needed_and_no_more() -> None:
    (role,) = resources(cloudformation(planned(**FULL)), "AWS::IAM::Role")
    statements = role["Policies"][0]["PolicyDocument"]["Statement"]
    allowed = {json.dumps(each["Resource"]): each["Action"] for each in statements}
    assert list(allowed) == [
        '{"Fn::GetAtt": ["SourceQueue", "Arn"]}',
        '{"Ref": "Topic"}',
        '{"Fn::GetAtt": ["Table", "Arn"]}',
    ]
    assert "*" not in json.dumps(statements)
    assert allowed['{"Ref": "Topic"}'] == ["sns:Publish"]
    assert "dynamodb:Scan" not in json.dumps(statements)


def grants(text: str) -> dict[str, list[str]]:
    """Return the actions that a role allows, by the resource in the template."""
    (role,) = resources(text, "AWS::IAM::Role")
    statements = role["Policies"][0]["PolicyDocument"]["Statement"]
    return {json.dumps(each["Resource"]): each["Action"] for each in statements}


def test_a_role_may_read_the_stream_that_is_the_source_and_write_to_the_one_that_is_the_sink() -> None:
    allowed = grants(cloudformation(planned(**PIPELINES["streams"])))
    at = "arn:${AWS::Partition}:kinesis:${AWS::Region}:${AWS::AccountId}:stream"
    assert allowed[json.dumps({"Fn::Sub": f"{at}/in"})] == [
        "kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards",
    ]  # fmt: skip
    assert allowed[json.dumps({"Fn::Sub": f"{at}/next"})] == ["kinesis:PutRecords"]
    function = cloudformation(planned(**PIPELINES["streams"], in_lambda=True), function=True)
    assert "kinesis:DescribeStream" in grants(function)[json.dumps({"Fn::Sub": f"{at}/in"})]


def test_a_role_may_read_the_changes_of_a_table() -> None:
    allowed = grants(cloudformation(planned(**PIPELINES["changes"])))
    table = "arn:${AWS::Partition}:dynamodb:eu-west-1:${AWS::AccountId}:table/orders"
    assert allowed == {
        json.dumps([{"Fn::Sub": table}, {"Fn::Sub": f"{table}/stream/*"}]): [
            "dynamodb:DescribeStream", "dynamodb:DescribeTable", "dynamodb:GetRecords", "dynamodb:GetShardIterator",
        ],
        json.dumps(STREAM): ["kinesis:PutRecords"],
    }  # fmt: skip


def test_a_new_bus_is_not_looked_up() -> None:
    assert grants(cloudformation(planned(**PIPELINES["new-bus"])))[json.dumps(NEW_BUS)] == ["events:PutEvents"]


def test_only_the_rule_may_send_to_the_queues() -> None:
    policies = resources(cloudformation(planned(**FULL)), "AWS::SQS::QueuePolicy")
    assert len(policies) == 2
    for each in policies:
        (statement,) = each["PolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "events.amazonaws.com"}
        assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": ["EventRule", "Arn"]}}}


def test_a_target_is_tried_for_a_day_and_then_kept() -> None:
    (rule,) = resources(cloudformation(planned(**PIPELINES["fifo"])), "AWS::Events::Rule")
    (target,) = rule["Targets"]
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["UndeliveredQueue", "Arn"]}}
    assert target["SqsParameters"] == {"MessageGroupId": "eventonce-billing"}


def test_a_function_answers_for_each_event_of_its_batch() -> None:
    text = sam(planned(**PIPELINES["fed"]))
    (function,) = resources(text, "AWS::Serverless::Function")
    (mapping,) = resources(text, "AWS::Lambda::EventSourceMapping")
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    source = next(each for each in resources(text, "AWS::SQS::Queue") if each["QueueName"] == "in")
    assert source["VisibilityTimeout"] >= 6 * function["Timeout"]


def test_a_rule_invokes_a_function_alone() -> None:
    text = cloudformation(planned(**PIPELINES["direct"]))
    (rule,) = resources(text, "AWS::Events::Rule")
    (target,) = rule["Targets"]
    assert target["Arn"] == {"Fn::GetAtt": ["Function", "Arn"]}
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["UndeliveredQueue", "Arn"]}}
    (permission,) = resources(text, "AWS::Lambda::Permission")
    assert permission["SourceArn"] == {"Fn::GetAtt": ["EventRule", "Arn"]}
    (invocation,) = resources(text, "AWS::Lambda::EventInvokeConfig")
    assert (invocation["MaximumRetryAttempts"], invocation["MaximumEventAgeInSeconds"]) == (2, 21_600)
    failed = {"Fn::GetAtt": ["FailedQueue", "Arn"]}
    assert invocation["DestinationConfig"] == {"OnFailure": {"Destination": failed}}
    assert grants(text)[json.dumps(failed)] == ["sqs:SendMessage"]
    (function,) = resources(text, "AWS::Lambda::Function")
    assert (function["FunctionName"], function["MemorySize"]) == ("bill", 1024)
    assert function["Code"] == {"S3Bucket": "code", "S3Key": "f.zip"}
    names = [each["QueueName"] for each in resources(text, "AWS::SQS::Queue")]
    assert names == ["bill-undelivered", "bill-failed"]


@pytest.mark.parametrize(("name", "start"), [("kinesis-fed", "LATEST"), ("table-fed", "TRIM_HORIZON")])
def test_a_stream_feeds_a_function(name: str, start: str) -> None:
    text = sam(planned(**PIPELINES[name]))
    (feed,) = resources(text, "AWS::Lambda::EventSourceMapping")
    assert feed["StartingPosition"] == start
    assert feed["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert feed["BisectBatchOnFunctionError"]
    assert feed["MaximumRecordAgeInSeconds"] == 43_200  # what is given up can be read for as long again
    assert feed["DestinationConfig"]["OnFailure"]["Destination"] == {"Fn::GetAtt": ["FailedQueue", "Arn"]}
    assert grants(text)['{"Fn::GetAtt": ["FailedQueue", "Arn"]}'] == ["sqs:SendMessage"]


def test_a_function_of_its_own_may_write_dead_letters() -> None:
    text = cloudformation(planned(**PIPELINES["direct"], dead_letter="sqs://letters"))
    assert grants(text)['{"Fn::GetAtt": ["LettersQueue", "Arn"]}'] == ["sqs:GetQueueUrl", "sqs:SendMessage"]


def test_the_table_of_claims_is_protected() -> None:
    (table,) = resources(cloudformation(planned(**FULL)), "AWS::DynamoDB::Table")
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["DeletionProtectionEnabled"]


def test_code_on_the_disk_is_a_parameter_of_a_stack_and_a_path_of_sam() -> None:
    template = json.loads(cloudformation(planned(**PIPELINES["fed"])))
    assert set(template["Parameters"]) == {"CodeBucket", "CodeKey"}
    (function,) = resources(sam(planned(**PIPELINES["fed"])), "AWS::Serverless::Function")
    assert function["CodeUri"] == "function.zip"


def checked(program: str, *args: str) -> None:
    """Check the output with a tool. If it is not installed, skip on a laptop and fail in CI."""
    need(program)
    done = subprocess.run([program, *args], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cfn_lint_finds_nothing(tmp_path: Path) -> None:
    for name, table in PIPELINES.items():
        function = planned(**table, in_lambda=True)
        (tmp_path / f"{name}-worker.json").write_text(cloudformation(planned(**table)))
        (tmp_path / f"{name}-function.json").write_text(cloudformation(function, function=True))
        (tmp_path / f"{name}-sam.json").write_text(sam(planned(**{"function": {"name": "f"}, **table})))
    checked("cfn-lint", *map(str, tmp_path.iterdir()))


def configuration(table: dict[str, Any], *, function: bool = False) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(terraform(planned(**table, in_lambda=function), function=function))
    return document


def evaluated(template: str) -> Any:
    """Return the document that Terraform makes of a template in which expressions stand for themselves."""
    return json.loads(template.replace("$${", "${").replace("%%{", "%{"))


@pytest.mark.parametrize("name", PIPELINES)
def test_terraform_refers_only_to_what_exists(name: str) -> None:
    document = configuration(PIPELINES[name])
    made = {
        f"{prefix}{kind}.{label}"
        for prefix, blocks in (("", document.get("resource", {})), ("data.", document.get("data", {})))
        for kind, labels in blocks.items()
        for label in labels
    }
    used = set(re.findall(r"[^$]\$\{((?:data\.)?aws_\w+\.\w+)\.\w+\}", json.dumps(document)))
    assert used
    assert used <= made


# A type of CloudFormation with its name, the same of Terraform.
SAME_TYPES = {
    "AWS::SQS::Queue": ("QueueName", "aws_sqs_queue"),
    "AWS::SNS::Topic": ("TopicName", "aws_sns_topic"),
    "AWS::Events::EventBus": ("Name", "aws_cloudwatch_event_bus"),
    "AWS::Events::Rule": ("Name", "aws_cloudwatch_event_rule"),
    "AWS::DynamoDB::Table": ("TableName", "aws_dynamodb_table"),
}


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_terraform_makes_what_cloudformation_makes(name: str, *, function: bool) -> None:
    text = cloudformation(planned(**PIPELINES[name], in_lambda=function), function=function)
    made = configuration(PIPELINES[name], function=function)["resource"]
    for kind, (named, ours) in SAME_TYPES.items():
        assert [each[named] for each in resources(text, kind)] == [each["name"] for each in made.get(ours, {}).values()]
    for theirs, ours in zip(resources(text, "AWS::SQS::Queue"), made.get("aws_sqs_queue", {}).values(), strict=True):
        assert theirs["VisibilityTimeout"] == ours["visibility_timeout_seconds"]
        assert theirs["MessageRetentionPeriod"] == ours["message_retention_seconds"]
        assert ("RedrivePolicy" in theirs) == ("redrive_policy" in ours)
    (role,), (allowed,) = resources(text, "AWS::IAM::Role"), made["aws_iam_role_policy"].values()
    statements = role["Policies"][0]["PolicyDocument"]["Statement"]
    assert [each["Action"] for each in evaluated(allowed["policy"])["Statement"]] == [
        each["Action"] for each in statements
    ]


def test_terraform_feeds_a_function() -> None:
    direct = configuration(PIPELINES["direct"])["resource"]
    (invoke,) = direct["aws_lambda_function_event_invoke_config"].values()
    assert (invoke["maximum_retry_attempts"], invoke["maximum_event_age_in_seconds"]) == (2, 21_600)
    assert invoke["destination_config"] == {"on_failure": {"destination": "${aws_sqs_queue.failed.arn}"}}
    (permission,) = direct["aws_lambda_permission"].values()
    assert permission["source_arn"] == "${aws_cloudwatch_event_rule.rule.arn}"
    made = configuration(PIPELINES["table-fed"])["resource"]
    (feed,) = made["aws_lambda_event_source_mapping"].values()
    assert feed["event_source_arn"] == "${data.aws_dynamodb_table.source.stream_arn}"
    assert feed["destination_config"] == {"on_failure": {"destination_arn": "${aws_sqs_queue.failed.arn}"}}
    assert feed["bisect_batch_on_function_error"]
    (function,) = made["aws_lambda_function"].values()
    assert function["source_code_hash"] == '${filebase64sha256("function.zip")}'


def test_terraform_admits_the_rule_alone() -> None:
    policies = configuration(FULL)["resource"]["aws_sqs_queue_policy"]
    assert set(policies) == {"source", "undelivered"}
    for label, each in policies.items():
        assert each["queue_url"] == f"${{aws_sqs_queue.{label}.url}}"
        (statement,) = evaluated(each["policy"])["Statement"]
        assert statement["Resource"] == f"${{aws_sqs_queue.{label}.arn}}"
        assert statement["Condition"]["ArnEquals"]["aws:SourceArn"] == "${aws_cloudwatch_event_rule.rule.arn}"


STRANGE: dict[str, Any] = {"detail": {"a.b${x}": ["${c}", "%{d}", "$${e}", 'é"\\n']}}


def test_terraform_names_a_queue_of_another_account_exactly() -> None:
    made = configuration({**PIPELINES["theirs"], "function": {}})["resource"]
    (feed,) = made["aws_lambda_event_source_mapping"].values()
    here = "${data.aws_partition.current.partition}:sqs:${data.aws_region.current.id}"
    assert feed["event_source_arn"] == f"arn:{here}:123456789012:in"
    (allowed,) = made["aws_iam_role_policy"].values()
    queues = [each["Resource"] for each in evaluated(allowed["policy"])["Statement"] if "sqs" in str(each["Resource"])]
    assert queues == [
        feed["event_source_arn"],
        "arn:${data.aws_partition.current.partition}:sqs:eu-west-1:210987654321:next",
    ]


def test_plain_text_is_escaped_for_terraform() -> None:
    rules = configuration({"aws": {"rule": "r", "pattern": STRANGE}})["resource"]["aws_cloudwatch_event_rule"]
    assert not re.search(r"(?<!\$)\$\{|(?<!%)%\{", rules["rule"]["event_pattern"])
    assert evaluated(rules["rule"]["event_pattern"]) == STRANGE


def with_terraform(folder: Path, *args: str) -> str:
    """Run Terraform, which needs no network as long as there is no provider to install."""
    need("terraform")
    environment = {**os.environ, "CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        ["terraform", f"-chdir={folder}", *args], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_terraform_reads_plain_text_as_it_is(tmp_path: Path) -> None:
    rules = configuration({"aws": {"rule": "r", "pattern": STRANGE}})["resource"]["aws_cloudwatch_event_rule"]
    outputs = {"output": {"pattern": {"value": rules["rule"]["event_pattern"]}}}
    (tmp_path / "main.tf.json").write_text(json.dumps(outputs))
    with_terraform(tmp_path, "apply", "-auto-approve")
    assert json.loads(json.loads(with_terraform(tmp_path, "output", "-json"))["pattern"]["value"]) == STRANGE


def test_terraform_reads_every_configuration(tmp_path: Path) -> None:
    modules: dict[str, Any] = {}
    for name, table in PIPELINES.items():
        for function in (False, True):
            module = f"{name}-{'function' if function else 'worker'}"
            (tmp_path / module).mkdir()
            text = terraform(planned(**table, in_lambda=function), function=function)
            (tmp_path / module / "eventonce.tf.json").write_text(text)
            modules[module] = {"source": f"./{module}"}
    (tmp_path / "main.tf.json").write_text(json.dumps({"module": modules}))
    with_terraform(tmp_path, "get")


# --- errors ---

PLACE = AwsUrl("sqs://in?region=us-east-1", "source")
Services = tuple[Account, dict[str, Stubber]]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """An account whose services give prepared answers."""
    stubs: dict[str, Stubber] = {}

    def client(self: AwsUrl, service: str) -> Any:
        made: Any = boto3.session.Session().client(service, region_name="us-east-1")  # type: ignore[call-overload]
        stubs[service] = Stubber(made)
        stubs[service].activate()
        return made

    monkeypatch.setattr(AwsUrl, "client", client)
    account = Account()
    for service in ("sqs", "events", "sts", "iam", "lambda", "logs"):
        account._client(PLACE, service)
    yield account, stubs
    account.close()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("AccessDenied", ConfigError, "sqs:CreateQueue is not allowed on in "),
        ("InvalidClientTokenId", ConfigError, "does not accept the credentials"),
        ("AWS.SimpleQueueService.QueueDeletedRecently", EventOnceError, "in was just deleted.* in 60 s"),
        ("OverLimit", EventOnceError, "sqs:CreateQueue failed on in .OverLimit"),
    ],
)
def test_refusals(account: Services, code: str, kind: type, words: str) -> None:
    made, stubs = account
    stubs["sqs"].add_client_error("create_queue", code, "they said")
    with pytest.raises(kind, match=words):
        made.call(PLACE, "sqs", "create_queue", QueueName="in")


def test_a_partner_that_has_set_up_nothing(account: Services) -> None:
    made, stubs = account
    plan = planned(**PIPELINES["partner"] | {"source": PLACE.url})._replace(queues=[], table=None)
    stubs["events"].add_client_error("describe_event_bus", "ResourceNotFoundException")
    stubs["events"].add_client_error("describe_event_source", "ResourceNotFoundException")
    with pytest.raises(ConfigError, match="the partner has no such event source"):
        list(look(plan, made))


def test_an_existing_target_stays(account: Services) -> None:
    made, stubs = account
    plan = planned(source=PLACE.url, rule=[ORDERS], aws={"rule": "r"})._replace(queues=[])
    identity = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:x"}
    stubs["sts"].add_response("get_caller_identity", identity)
    stubs["events"].add_response("describe_rule", {"EventPattern": '{"source":["com.example.orders"]}'})
    old = {"Id": "eventonce", "Arn": "arn:aws:sqs:us-east-1:123456789012:old"}
    stubs["events"].add_response("list_targets_by_rule", {"Targets": [old]})
    _, target = look(plan, made)
    assert target.verb == "create"
    put: list[dict[str, Any]] = []
    made._client(PLACE, "events").meta.events.register(
        "provide-client-params.*.PutTargets", lambda params, **_: put.append(params)
    )
    stubs["events"].add_response("put_targets", {"FailedEntryCount": 0, "FailedEntries": []})
    assert target.apply is not None
    target.apply()
    (sent,) = put[0]["Targets"]
    assert sent["Id"] == "eventonce-2"  # under the same id the new one would take its place


@pytest.fixture
def creation(account: Services, monkeypatch: pytest.MonkeyPatch) -> SetupStep:
    """The step that creates a function whose role is new."""
    monkeypatch.setattr("eventonce.aws_setup.apply_function._POLL", 0)
    made, stubs = account
    code = {"name": "bill", "code": "s3://code/f.zip"}
    table = "dynamodb://claims?region=us-east-1"
    plan = planned(source="-", store=table, function=code, rule=[ORDERS], aws={"rule": "r"})
    assert plan.function is not None
    arn = "arn:aws:iam::123456789012:role/bill"
    role = {"Arn": arn, "RoleName": "bill", "Path": "/", "RoleId": "r" * 16, "CreateDate": "2026-01-01T00:00:00Z"}
    stubs["sts"].add_response("get_caller_identity", {"Account": "123456789012", "Arn": arn})
    stubs["logs"].add_response("describe_log_groups", {"logGroups": [{"logGroupName": "/aws/lambda/bill"}]})
    stubs["lambda"].add_client_error("get_function_configuration", "ResourceNotFoundException")
    stubs["iam"].add_response("get_role", {"Role": role})
    stubs["iam"].add_client_error("get_role_policy", "NoSuchEntity")
    steps = function_steps(plan, plan.function, made)
    _, allow, create = next(steps), next(steps), next(steps)
    assert (allow.verb, create.verb) == ("change", "create")
    stubs["iam"].add_response("get_role", {"Role": role})
    return create


def test_a_new_role_takes_a_moment_to_be_known(account: Services, creation: SetupStep) -> None:
    _, stubs = account
    refusal = "The role defined for the function cannot be assumed by Lambda."
    stubs["lambda"].add_client_error("create_function", "InvalidParameterValueException", refusal)
    stubs["lambda"].add_response("create_function", {"FunctionName": "bill"})
    for state in ("Pending", "Active"):
        stubs["lambda"].add_response("get_function_configuration", {"State": state})
    assert creation.apply is not None
    creation.apply()
    stubs["lambda"].assert_no_pending_responses()


def test_code_that_lambda_refuses_is_not_sent_again(account: Services, creation: SetupStep) -> None:
    _, stubs = account
    stubs["lambda"].add_client_error("create_function", "InvalidParameterValueException", "a non-empty zip")
    assert creation.apply is not None
    with pytest.raises(EventOnceError, match="a non-empty zip"):
        creation.apply()


def test_pods_of_eks_may_take_the_role_of_a_worker() -> None:
    (worker,) = resources(cloudformation(planned(**FULL)), "AWS::IAM::Role")
    (function,) = resources(cloudformation(planned(**FULL, in_lambda=True), function=True), "AWS::IAM::Role")
    allowed = [each["AssumeRolePolicyDocument"]["Statement"][0]["Action"] for each in (worker, function)]
    assert allowed == [["sts:AssumeRole", "sts:TagSession"], ["sts:AssumeRole"]]


def test_a_rule_that_someone_has_disabled_stays_so(account: Services) -> None:
    made, stubs = account
    plan = planned(source=PLACE.url, rule=[ORDERS], aws={"rule": "r"})._replace(queues=[])
    arn = "arn:aws:events:us-east-1:123456789012:rule/r"
    has = {"Description": "ours", "State": "DISABLED"}
    stubs["events"].add_response("describe_rule", {"Arn": arn, "EventPattern": '{"source":["x"]}', **has})
    stubs["sts"].add_response("get_caller_identity", {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:x"})
    stubs["events"].add_response("list_targets_by_rule", {})
    rule, _ = look(plan, made)
    assert rule.verb == "change"
    pattern = {"Name": "r", "EventBusName": "default", "EventPattern": '{"source":["com.example.orders"]}'}
    stubs["events"].add_response("put_rule", {"RuleArn": arn}, {**pattern, **has})
    assert rule.apply is not None
    rule.apply()
    stubs["events"].assert_no_pending_responses()
