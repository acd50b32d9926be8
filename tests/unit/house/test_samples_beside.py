"""Real events, if a folder with them is beside the repository. They are read there and never copied.

The samples of our own in tests/data show the same without it (test_samples.py).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from eventonce import Event, EventRejected, Once
from eventonce.event.formats import read_events
from eventonce.event.formats.eventbridge import read_written
from eventonce.rules.pattern import Pattern
from tests.unit.event.test_formats_written import by_both
from tests.unit.rules.test_pattern import BROAD
from tests.unit.rules.test_presets import BY_ID, again, key, rule_of

FOLDER = Path(__file__).resolve().parents[3].parent / "shared" / "events"
FILES = sorted(FOLDER.rglob("*.json"))
NAMES = [f"{file.parent.name}/{file.name}" for file in FILES]
WITHOUT_A_BODY = {"http/ptpy__lambdaFunctionUrlEvent.json", "sqs/ptjava__sqs_event_no_body.json"}

if not FILES:
    pytest.skip(
        "an extra: no folder of real events beside the repository; test_samples.py covers the same",
        allow_module_level=True,
    )


def read(name: str) -> list[Event | EventRejected]:
    return read_events((FOLDER / name).read_bytes())


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8-sig"))  # some files were saved with a byte order mark


# --- formats ---


@pytest.mark.parametrize("name", NAMES)
def test_every_event_is_read(name: str) -> None:
    results = read(name)
    assert results
    if name in WITHOUT_A_BODY:
        assert [str(each).rpartition(": ")[2] for each in results] == ["has no body"]
    else:
        assert [each for each in results if not isinstance(each, Event)] == []


@pytest.mark.parametrize(
    ("name", "count", "form", "first", "source", "kind"),
    [
        ("cloudevents/cejava__v03_json_data.json", 1, "cloudevents", "1", "http://localhost/source", "mock.test"),
        ("cloudevents/cejava__base64_json_data.json", 1, "cloudevents", "1", "http://localhost/source", "mock.test"),
        ("cloudevents/gce__SchedulerJobData-simple.json", 1, "plain", "", "", ""),
        (
            "connect/awsdocs__connect-contact-event-disconnected.json",
            1,
            "eventbridge",
            "abcabcab-abca-abca-abca-abcabcabcabc",
            "aws.connect",
            "Amazon Connect Contact Event",
        ),
        ("connect/scv__flow_request_event.json", 1, "plain", "", "", ""),
        (
            "dynamodb/ddjs__dynamodb-two-key-table.json",
            1,
            "plain",
            "0123456789abcdef09123456789abcdef",
            "someTableName",
            "INSERT",
        ),
        ("dynamodb/go__dynamodb-time-window-event.json", 3, "plain", "1", "", "INSERT"),
        (
            "eventbridge/dotnet__batch-job-state-change-event.json",  # with a BOM
            1,
            "eventbridge",
            "c8f9c4b5-76e5-d76a-f980-7011e206042b",
            "aws.batch",
            "Batch Job State Change",
        ),
        ("eventbridge/mb__aws-config.json", 1, "eventbridge", "...", "aws.config", "Config Rules Compliance Change"),
        ("eventbridge/ruler__bigEvent.json", 1, "eventbridge", "", "aws.route53", "AWS API Call via CloudTrail"),
        (
            "eventbridge_sqs/ddpy__eventbridge-sqs.json",
            1,
            "eventbridge",
            "af718b2a-b987-e8c0-7a2b-a188fad2661a",
            "my.Source",
            "my.Detail",
        ),
        ("firehose/ptpy__kinesisFirehosePutEvent.json", 2, "plain", None, "", ""),
        (
            "genesys/genesys__OAuthClientDelete.json",
            1,
            "eventbridge",
            "e9938ff0-50e2-45f8-950f-ad02d95fee85",
            None,
            "v2.audits.entitytype.{id}.entityid.{id}",
        ),
        ("http/ptpy__apiGatewayProxyV2Event.json", 1, "plain", "", "", ""),
        ("kinesis/ptjava__kinesis_event_big.json", 13, "plain", None, "", ""),
        ("kinesis/ptpy__kinesisStreamCloudWatchLogsEvent.json", 6, "plain", None, None, "DATA_MESSAGE"),
        ("other/ptpy__kafkaEventMsk.json", 1, "plain", None, "", ""),
        ("other/ptpy__s3Event.json", 1, "plain", "", "aws:s3", "ObjectCreated:Put"),
        ("partner/patterns__shopify-eventbridge-lambda__event.json", 1, "eventbridge", None, None, "shopifyWebhook"),
        ("pipes/awsdocs__pipes-dynamodb.json", 2, "plain", "1", "EventSourceTable", "INSERT"),
        ("pipes/awsdocs__pipes-sqs-standard.json", 2, "plain", None, "", ""),
        ("putevents/ebpolicy__put_events.json", 5, "eventbridge", "", "com.aws.orders", "Order Notification"),
        ("sns/ptpy__snsEvent.json", 1, "plain", None, "", ""),
        ("sns_sqs/ptpy__snsSqsEvent.json", 1, "plain", None, "", ""),
        ("sqs/ptpy__s3SqsEvent.json", 1, "plain", None, "aws:s3", "ObjectCreated:Put"),
        ("sqs/ptjava__sqs_event_big.json", 25, "plain", None, "", ""),
    ],
)
def test_events_are_what_they_are(
    name: str, count: int, form: str, first: str | None, source: str | None, kind: str
) -> None:
    results = read(name)
    assert len(results) == count
    event = results[0]
    assert isinstance(event, Event)
    assert event.form == form
    assert event.id if first is None else event.id == first
    assert source is None or event.source == source
    assert event.type == kind


def test_what_is_inside() -> None:
    def data(name: str) -> object:
        event = read(name)[0]
        return event.data if isinstance(event, Event) else event

    assert data("cloudevents/cejava__base64_json_data.json") == {}
    assert data("sns_sqs/ptpy__snsSqsEvent.json") == {"message": "hello world", "username": "lessa"}
    assert data("http/ptpy__apiGatewayProxyV2Event.json") == {"message": "hello world", "username": "tom"}
    assert data("other/ptpy__kafkaEventMsk.json") == {"key": "value"}
    assert data("sns/ptpy__snsEvent.json") == "Hello from SNS!"
    replayed = read("eventbridge/ptpy__eventBridgeEvent.json")[0]
    assert isinstance(replayed, Event)
    assert replayed.replay == "replay_archive"


def test_both_ways_agree() -> None:
    bodies = [json.dumps(load(name)).encode() for name in NAMES]
    written = [body for body in bodies if read_written(body)]
    assert len(written) >= 20
    for body in written:
        one, other = by_both(body)
        assert one == other


# --- the Lambda door ---


@pytest.mark.parametrize(
    "folder",
    ["sqs", "sns", "sns_sqs", "eventbridge_sqs", "kinesis", "dynamodb", "firehose", "pipes", "http", "eventbridge"],
)
def test_invocations_are_answered(folder: str) -> None:
    once = Once("memory:")
    handler = once.aws_lambda(lambda event: None)
    answered = 0
    for file in sorted((FOLDER / folder).rglob("*.json")):
        try:
            handler(json.loads(file.read_bytes()), None)
            answered += 1
        except (EventRejected, json.JSONDecodeError):
            continue
    assert answered
    once.close()


# --- presets ---

FALL_UNDER = {
    "genesys/genesys__OAuthClientDelete.json": "genesys audits",
    "genesys/genesys__aws-event-bridge-conversation-start-event.json": "genesys conversations",
    "genesys/genesys__aws-event-bridge-conversation-end-event.json": "genesys conversations",
    "genesys/genesys__aws-event-bridge-non-conversation-event.json": "genesys other topics",
    "genesys/genesys__aws-kinesis-conversation-start-event.json": "id",
    "connect/awsdocs__connect-cases-case-updated.json": "amazon-connect cases",
    "connect/awsdocs__connect-contact-event-disconnected.json": "amazon-connect ended",
    "connect/awsdocs__contact-lens-post-call-rules-matched.json": "amazon-connect contact lens rules",
    "cloudevents/cejava__min.json": "cloudevents events",
    "cloudevents/cejava__v03_json_data.json": "cloudevents events",
    "cloudevents/cejava__base64_json_data.json": "cloudevents events",
    "cloudevents/ffc__storage-cloudevent-input.json": "cloudevents events",
    "cloudevents/gce__MessagePublishedData.json": "cloudevents events",
    "cloudevents/gce__SchedulerJobData-simple.json": "id",
    "partner/patterns__cdk-python__event.json": "okta log events",
    "partner/patterns__shopify-eventbridge-lambda__event.json": "shopify webhooks",
    "eventbridge/custodian__ec2-duty-event.json": "guardduty findings",
    "eventbridge/custodian__event-cloud-trail-s3.json": "cloudtrail records",
    "eventbridge/custodian__event-securityhub-cloudtrail-finding-action.json": "securityhub custom actions",
    "eventbridge/ptpy__s3EventBridgeNotificationObjectCreatedEvent.json": "s3 objects",
    "eventbridge/ptpy__s3EventBridgeNotificationObjectDeletedEvent.json": "s3 objects",
    "other/ptpy__s3Event.json": "s3 notifications",
    "sqs/ptpy__s3SqsEvent.json": "s3 notifications",
    "eventbridge/custodian__event-scheduled.json": "id",
    "eventbridge/ptpy__eventBridgeEvent.json": "id",
}


@pytest.mark.parametrize("name", FALL_UNDER)
def test_an_event_falls_under_its_rule(name: str) -> None:
    assert rule_of(load(name)) == FALL_UNDER[name]


@pytest.mark.parametrize("name", [name for name, rule in FALL_UNDER.items() if rule not in BY_ID | {"id"}])
def test_an_event_put_again_is_a_copy(name: str) -> None:
    assert key(again(load(name))) == key(load(name))


def test_events_that_share_an_id_or_a_sequencer_are_distinct() -> None:
    names = [name for name, rule in FALL_UNDER.items() if rule not in ("id", "cloudevents events")]
    keys = [key(load(name)) for name in names]
    assert len(set(keys)) == len(keys)


# --- patterns ---

# Worked out by hand: of the pairs in the collection these do not match, all others do.
NO_MATCH = {
    "flat: 2-field exists, one missing",
    "flat: exact mismatch",
    "objarray: split",
    "objarray: 3-field, split 3 ways",
    "objarray: exact split",
    "objarray: prefix split",
    "primarray: no match",
    "nested: inner split",
    "nested: outer split",
    "nested2: split leaf",
    "mixed: array+scalar fail",
    "exists-false: present",
    "empty object",
    "empty array",
    "primarray: large + scalar, no match",
    "primarray: empty prim array",
    "mixed: obj-array split + prim-array",
    "suffix match split",
}


def test_the_collected_pairs_match_as_worked_out_by_hand() -> None:
    cases = load("patterns/ruler__correctness-cases.json")
    assert {case["name"] for case in cases} >= NO_MATCH

    for case in cases:
        assert Pattern(case["rule"]).matches(case["event"]) is (case["name"] not in NO_MATCH), case["name"]


def test_the_collected_alarm_rule_matches_its_alarm_only() -> None:
    rule = load("patterns/ruler__arrayRule1.json")
    alarm = load("patterns/ruler__arrayEvent1.json")

    assert Pattern(rule).matches(alarm)
    assert not Pattern(rule).matches({**alarm, "detail": {**alarm["detail"], "state": {"value": "OK"}}})
    assert Pattern(rule).exact("source") == frozenset({"aws.cloudwatch"})


def test_events_match_patterns_made_from_them() -> None:
    events = [load(f"eventbridge/{file.name}") for file in sorted((FOLDER / "eventbridge").glob("*.json"))]
    sources = {event["source"] for event in events}
    assert sources

    for event in events:
        matching = {source for source in sources if Pattern({"source": [source]}).matches(event)}
        assert matching == {event["source"]}
        for pattern in BROAD:
            pattern.matches(event)
