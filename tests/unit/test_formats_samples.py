"""Real events, where the folder with them is at hand. They are read there and never copied."""

from pathlib import Path

import pytest

from eventonce import Event, EventRejected
from eventonce.formats import read_events

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "events"
FILES = sorted(FOLDER.rglob("*.json"))
NAMES = [f"{file.parent.name}/{file.name}" for file in FILES]
WITHOUT_A_BODY = {"http/ptpy__lambdaFunctionUrlEvent.json", "sqs/ptjava__sqs_event_no_body.json"}

pytestmark = pytest.mark.skipif(not FILES, reason="the folder with real events is not here")


def read(name: str) -> list[Event | EventRejected]:
    return read_events((FOLDER / name).read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_every_event_is_read(name: str) -> None:
    found = read(name)
    assert found
    if name in WITHOUT_A_BODY:
        assert [str(each).rpartition(": ")[2] for each in found] == ["has no body"]
    else:
        assert [each for each in found if not isinstance(each, Event)] == []


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
        ("firehose/ptpy__kinesisFirehosePutEvent.json", 2, "plain", "record1", "", ""),
        (
            "genesys/genesys__OAuthClientDelete.json",
            1,
            "eventbridge",
            "e9938ff0-50e2-45f8-950f-ad02d95fee85",
            None,
            "v2.audits.entitytype.{id}.entityid.{id}",
        ),
        ("http/ptpy__apiGatewayProxyV2Event.json", 1, "plain", "", "", ""),
        ("kinesis/ptjava__kinesis_event_big.json", 13, "plain", "1234", "", ""),
        ("kinesis/ptpy__kinesisStreamCloudWatchLogsEvent.json", 2, "plain", None, "", ""),
        ("other/ptpy__kafkaEventMsk.json", 1, "plain", "mytopic-0-15", "", ""),
        ("other/ptpy__s3Event.json", 1, "plain", "", "aws:s3", "ObjectCreated:Put"),
        ("partner/patterns__shopify-eventbridge-lambda__event.json", 1, "eventbridge", None, None, "shopifyWebhook"),
        ("pipes/awsdocs__pipes-dynamodb.json", 2, "plain", "1", "EventSourceTable", "INSERT"),
        ("pipes/awsdocs__pipes-sqs-standard.json", 2, "plain", "059f36b4-87a3-44ab-83d2-661975830a7d", "", ""),
        ("putevents/ebpolicy__put_events.json", 5, "eventbridge", "", "com.aws.orders", "Order Notification"),
        ("sns/ptpy__snsEvent.json", 1, "plain", "95df01b4-ee98-5cb9-9903-4c221d41eb5e", "", ""),
        ("sns_sqs/ptpy__snsSqsEvent.json", 1, "plain", "d88d4479-6ec0-54fe-b63f-1cf9df4bb16e", "", ""),
        (
            "sqs/ptpy__s3SqsEvent.json",
            1,
            "plain",
            "ca3e7a89-c358-40e5-8aa0-5da01403c267",
            "aws:s3",
            "ObjectCreated:Put",
        ),
        ("sqs/ptjava__sqs_event_big.json", 25, "plain", "1234", "", ""),
    ],
)
def test_events_are_what_they_are(
    name: str, count: int, form: str, first: str | None, source: str | None, kind: str
) -> None:
    found = read(name)
    assert len(found) == count
    event = found[0]
    assert isinstance(event, Event)
    assert event.form == form
    assert first is None or event.id == first
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
