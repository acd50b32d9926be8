"""Presets: each loads, its rules catch what they are for, and their keys tell copies from events that look alike."""

import json
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from eventonce.cli.presets import presets
from eventonce.clock import duration
from eventonce.errors import ConfigError, EventRejected
from eventonce.event.formats import read_event
from eventonce.event.keys import Key
from eventonce.rules import Rulebook
from eventonce.rules.files import read_rules
from eventonce.rules.preset import load_preset, preset_names, rules_of
from eventonce.rules.rule import Rule

NAMES = preset_names()
BOOK = Rulebook("test", rules_of(NAMES), Rule(name="id"))
GONE = object()
GENESYS = "aws.partner/genesys.com/cloud/2d9a8f3e-0000-4000-8000-000000000001/live"


def bridge(source: str, kind: str, detail: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    envelope = {"version": "0", "id": "e-1", "account": "111122223333", "time": "2026-03-01T10:00:00Z"}
    return {**envelope, "source": source, "detail-type": kind, "region": "eu-west-1", "detail": dict(detail), **more}


def genesys(kind: str, body: Mapping[str, Any], topic: str = "") -> dict[str, Any]:
    meta = {"CorrelationId": "c-1"}
    detail = {"topicName": topic or kind.replace("{id}", "conv-1"), "version": "2", "eventBody": body, "metadata": meta}
    return bridge(GENESYS, kind, {**detail, "timestamp": "2026-03-01T10:00:00.123Z"})


def spoken(**more: Any) -> dict[str, Any]:
    identity = {"conversationId": "conv-1", "participantId": "part-1", "sessionId": "sess-1"}
    return {"eventTime": 1772359200123, **identity, "mediaType": "VOICE", **more}


def transcription(**more: Any) -> dict[str, Any]:
    utterance = {"utteranceId": "u-1", "isFinal": True, "alternatives": [{"transcript": "hello", "confidence": 0.5}]}
    body = {"eventTime": "2026-03-01T10:00:00.000Z", "conversationId": "conv-1", "communicationId": "comm-1"}
    payload = {**body, "transcripts": [utterance], "status": {"status": "SESSION_ONGOING", "offsetMs": 10}, **more}
    return genesys("v2.conversations.{id}.transcription", payload)


def contact(kind: str, **more: Any) -> dict[str, Any]:
    times = {"initiationTimestamp": "2026-03-01T09:00:00.000Z", "disconnectTimestamp": "1970-01-01T00:00:00.001Z"}
    detail = {"eventType": kind, "contactId": "k-1", "instanceArn": "arn:i", "channel": "VOICE", **times, **more}
    return bridge("aws.connect", "Amazon Connect Contact Event", detail)


def case(kind: str, **more: Any) -> dict[str, Any]:
    detail = {"eventType": kind, "approximateChangeTime": "2026-03-01T10:00:00.893Z", **more}
    return bridge("aws.cases", "Amazon Connect Cases Change", detail)


def stored(kind: str, **more: Any) -> dict[str, Any]:
    file = {"key": "a/b.txt", "etag": "e0", "sequencer": "0064"}
    return bridge("aws.s3", kind, {"bucket": {"name": "box"}, "object": file, "request-id": "R1", **more})


def finding(**more: Any) -> dict[str, Any]:
    stable = {"Id": "f-1", "UpdatedAt": "2026-03-01T09:00:00Z", "Workflow": {"Status": "NEW"}, **more}
    return {"ProcessedAt": "2026-03-01T09:00:01Z", "approximateArrivalTimestamp": 1772.5, **stable}


HUB = "Security Hub Findings - "
MATCHED = {"ruleName": "CANCEL", "actionName": "NOTIFY", "contactArn": "arn:c/1", "instanceArn": "arn:i"}
RECORD: dict[str, Any] = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "eventName": "ObjectCreated:Put",
    "responseElements": {"x-amz-request-id": "R1"},
    "s3": {"configurationId": "one", "bucket": {"name": "box"}, "object": {"key": "a", "sequencer": "01"}},
}
HOOK = {"action": "opened", "issue": {"id": 7, "updated_at": "2026-03-01T10:00:00Z"}}
SHOP = {"X-Shopify-Topic": "orders/create", "X-Shopify-Shop-Domain": "a.myshopify.com", "X-Shopify-Hmac-SHA256": "h1"}
REQUEST = {
    "x-shopify-topic": "orders/create",
    "x-shopify-shop-domain": "a.myshopify.com",
    "x-shopify-webhook-id": "w-1",
}
CLOUD = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created", "data": {"n": 1}}
DIGITAL = {"eventId": "d-1", "eventObject": "Message", "eventType": "MessageCreated", "createdAt": "t", "data": {}}


def altered(event: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The event with other values at these paths, or without them."""
    copy: dict[str, Any] = deepcopy(dict(event))
    for path, value in changes.items():
        *outer, last = path.split("/")
        inside = copy
        for name in outer:
            inside = inside.setdefault(name, {})
        if value is GONE:
            del inside[last]
        else:
            inside[last] = value
    return copy


# One event for each rule.
EVENTS: dict[str, dict[str, Any]] = {
    "genesys audits": genesys(
        "v2.audits.entitytype.{id}.entityid.{id}",
        {"id": "a-1", "action": "Delete", "eventTime": "2026-03-01T10:00:00Z"},
    ),
    "genesys attributes": genesys(
        "v2.detail.events.conversation.{id}.attributes",
        {"eventTime": 1772359200123, "conversationId": "conv-1", "participantId": "part-1", "attributes": {"a": "1"}},
    ),
    "genesys conversations": genesys("v2.detail.events.conversation.{id}.acd.start", spoken(queueId="q-1")),
    "genesys transcription": transcription(),
    "genesys routing updates": bridge(
        "genesyscloud",
        "interaction.routing.update",
        {"interaction-id": "i-1", "state": "queued", "timestamp": "2026-03-01T10:00:00.100Z"},
    ),
    "genesys analytics contacts": bridge(
        "genesys.cloud", "interaction.analytics.contact", {"interactionId": "i-1", "talk": 3}
    ),
    "genesys other topics": genesys("v2.users.{id}.routingStatus", {"id": "user-1", "status": "IDLE"}),
    "nice-cxone digital events": bridge("my.bridge", "webhook", DIGITAL),
    "nice-cxone interactions": bridge(
        "com.example.cxone", "InteractionCreated", {"payload": {"interactionId": "i-1", "eventId": "1"}, "at": "t1"}
    ),
    "amazon-connect initiated": contact("INITIATED"),
    "amazon-connect connected to system": contact(
        "CONNECTED_TO_SYSTEM", connectedToSystemTimestamp="2026-03-01T09:00:05Z"
    ),
    "amazon-connect queued": contact("QUEUED", queueInfo={"enqueueTimestamp": "2026-03-01T09:01:00Z"}),
    "amazon-connect connected to agent": contact(
        "CONNECTED_TO_AGENT", agentInfo={"connectedToAgentTimestamp": "2026-03-01T09:02:00Z"}
    ),
    "amazon-connect ended": contact("DISCONNECTED", disconnectTimestamp="2026-03-01T09:09:00Z"),
    "amazon-connect contact data updates": contact("CONTACT_DATA_UPDATED", updatedProperties=["Tags"]),
    "amazon-connect other contact events": contact("PAUSED"),
    "amazon-connect contact lens rules": bridge("aws.connect", "Contact Lens Realtime Rules Matched", MATCHED),
    "amazon-connect cases": case("CASE.UPDATED", case={"caseId": "case-1"}, changedFieldIds=["status"]),
    "cloudevents events": CLOUD,
    "cloudtrail records": bridge(
        "aws.s3", "AWS API Call via CloudTrail", {"eventID": "ct-1", "requestID": "r-1", "eventName": "CreateBucket"}
    ),
    "s3 objects": stored("Object Created", reason="PutObject"),
    "s3 object changes": stored("Object Tags Added", object={"key": "a/b.txt", "version-id": "v1"}),
    "s3 notifications": {"Records": [RECORD]},
    "guardduty findings": bridge(
        "aws.guardduty",
        "GuardDuty Finding",
        {"id": "g-1", "updatedAt": "2026-03-01T09:00:00Z", "service": {"count": 1}},
    ),
    "securityhub findings": bridge("aws.securityhub", HUB + "Imported", {"findings": [finding()]}),
    "securityhub custom actions": bridge("aws.securityhub", HUB + "Custom Action", {"findings": [finding()]}),
    "stripe events": bridge(
        "aws.partner/stripe.com/ed_1", "invoice.paid", {"id": "evt_1", "object": "event", "pending_webhooks": 2}
    ),
    "shopify webhooks": bridge(
        "aws.partner/shopify.com/1/bus",
        "shopifyWebhook",
        {"payload": {"id": 1}, "metadata": {**SHOP, "X-Shopify-Event-Id": "s-1", "X-Shopify-Webhook-Id": "w-1"}},
    ),
    "github webhooks": bridge("github.com", "issues", {**HOOK, "headers": {"X-GitHub-Delivery": "gh-1"}}),
    "github requests": {**bridge("my.hook", "issues", HOOK), "headers": {"x-github-delivery": "gh-1"}},
    "shopify requests": {**bridge("my.hook", "order", {"id": 1}), "headers": {**REQUEST, "x-shopify-event-id": "s-1"}},
    "okta log events": bridge(
        "aws.partner/okta.com/acme/log", "SystemLog", {"uuid": "o-1", "published": "t1", "transaction": {"id": "t-1"}}
    ),
}
BY_ID = {"amazon-connect other contact events", "securityhub custom actions"}

# What may differ between two copies: they are the same.
SAME: list[tuple[str, dict[str, Any]]] = [
    ("genesys audits", {"detail/metadata/CorrelationId": "c-2-archival", "detail/timestamp": "later"}),
    ("genesys attributes", {"detail/metadata/CorrelationId": "c-2", "detail/timestamp": "later"}),
    ("genesys attributes", {"detail/eventBody/conversationExternalContactIds": ["x"]}),
    ("genesys conversations", {"detail/metadata/CorrelationId": "c-2", "detail/timestamp": "later"}),
    ("genesys conversations", {"detail/eventBody/externalContactId": "known by now"}),
    ("genesys conversations", {"detail/eventBody/eventTime": 1772359200123.0}),
    ("genesys transcription", {"detail/metadata/CorrelationId": "c-2", "detail/timestamp": "later"}),
    ("genesys routing updates", {"detail/timestamp": "2026-03-01T10:00:00.937Z"}),
    ("genesys routing updates", {"detail/timestamp": "2026-03-01T11:00:00.100+01:00"}),
    ("genesys routing updates", {"detail/timestamp": 1772359200}),
    ("genesys routing updates", {"detail/timestamp": 1772359200400}),
    ("genesys routing updates", {"detail/interaction-id": GONE, "detail/interaction_id": "i-1"}),
    ("genesys analytics contacts", {"detail/talk": 4}),
    ("genesys analytics contacts", {"detail/interactionId": "", "detail/interaction-id": "i-1"}),
    ("genesys other topics", {"detail/metadata/CorrelationId": "c-2"}),
    ("nice-cxone digital events", {"detail/receivedAt": "t2"}),
    ("nice-cxone interactions", {"detail/at": "t2"}),
    ("nice-cxone interactions", {"detail/payload": {}, "detail/event_id": "1", "detail/interaction-id": "i-1"}),
    ("amazon-connect initiated", {"detail/contactId": GONE, "detail/ContactId": "k-1"}),
    ("amazon-connect connected to system", {"detail/answeringMachineDetectionStatus": "HUMAN_ANSWERED"}),
    ("amazon-connect queued", {"detail/eventType": GONE, "detail/EventType": "QUEUED"}),
    (
        "amazon-connect queued",
        {"detail/queueInfo": GONE, "detail/QueueInfo": {"enqueueTimestamp": "2026-03-01T09:01:00Z"}},
    ),
    (
        "amazon-connect connected to agent",
        {"detail/agentInfo": GONE, "detail/AgentInfo": {"connectedToAgentTimestamp": "2026-03-01T09:02:00Z"}},
    ),
    ("amazon-connect ended", {"detail/channel": "Voice"}),
    ("amazon-connect ended", {"detail-type": "Connect Customer Contact Event"}),
    ("amazon-connect contact data updates", {"detail/traceparent": "00-1"}),
    ("amazon-connect contact lens rules", {"detail/agentArn": "arn:a"}),
    ("amazon-connect cases", {"detail-type": "Amazon Connect Cases Event"}),
    ("cloudevents events", {"time": "2026-03-01T10:00:09Z", "data": {"n": 2}}),
    ("cloudtrail records", {"region": "us-east-1", "detail/eventTime": "later"}),
    ("s3 objects", {"detail/request-id": "R2"}),
    ("s3 object changes", {"detail/requester": "someone"}),
    ("s3 notifications", {"Records": [altered(RECORD, {"s3/configurationId": "two"})]}),
    ("guardduty findings", {"detail/service/count": 2}),
    ("securityhub findings", {"detail/findings": [finding(ProcessedAt="later", approximateArrivalTimestamp=9)]}),
    ("stripe events", {"detail/pending_webhooks": 1}),
    (
        "shopify webhooks",
        {"detail/metadata/X-Shopify-Hmac-SHA256": "h2", "detail/metadata/X-Shopify-Webhook-Id": "w-2"},
    ),
    ("github webhooks", {"detail/headers/X-Hub-Signature-256": "sha256=2"}),
    ("github webhooks", {"detail/headers": {"x-github-delivery": "gh-1"}}),
    ("github requests", {"headers/x-github-hook-id": "2"}),
    ("shopify requests", {"headers/x-shopify-webhook-id": "w-2", "detail/id": 2}),
    ("okta log events", {"detail/published": "t2"}),
]

# What makes two events of the same kind distinct.
DIFFERENT: list[tuple[str, dict[str, Any]]] = [
    ("genesys audits", {"detail/eventBody/id": "a-2"}),
    ("genesys attributes", {"detail/eventBody/attributes": {"a": "2"}}),
    ("genesys attributes", {"detail/eventBody/eventTime": 1772359200124}),
    ("genesys attributes", {"detail/eventBody/participantId": "part-2"}),
    ("genesys attributes", {"detail/eventBody/participantId": GONE}),
    ("genesys attributes", {"detail/eventBody/conversationId": "conv-2"}),
    ("genesys attributes", {"detail/topicName": "v2.detail.events.conversation.conv-2.attributes"}),
    ("genesys conversations", {"detail/eventBody/eventTime": 1772359260000, "detail/eventBody/queueId": "q-2"}),
    ("genesys conversations", {"detail/eventBody/participantId": "part-2"}),
    ("genesys conversations", {"detail/eventBody/sessionId": "sess-2"}),
    ("genesys conversations", {"detail/eventBody/sessionId": GONE}),
    ("genesys conversations", {"detail/eventBody/flowOutcomeId": "fo-1"}),
    ("genesys conversations", {"detail/eventBody/conversationId": "conv-2"}),
    ("genesys conversations", {"detail/topicName": "v2.detail.events.conversation.conv-1.acd.end"}),
    ("genesys transcription", {"detail/eventBody/transcripts": [{"utteranceId": "u-1", "isFinal": False}]}),
    ("genesys transcription", {"detail/eventBody/transcripts": [{"utteranceId": "u-2", "isFinal": True}]}),
    ("genesys transcription", {"detail/eventBody/transcripts": GONE}),
    ("genesys transcription", {"detail/eventBody/communicationId": "comm-2"}),
    ("genesys transcription", {"detail/eventBody/eventTime": "2026-03-01T10:00:35.000Z"}),
    ("genesys transcription", {"detail/eventBody/status/status": "SESSION_ENDED"}),
    ("genesys routing updates", {"detail/timestamp": "2026-03-01T10:00:01.000Z"}),
    ("genesys routing updates", {"detail/state": "connected"}),
    ("genesys routing updates", {"detail/interaction-id": "i-2"}),
    ("genesys analytics contacts", {"detail/interactionId": "i-2"}),
    ("genesys other topics", {"detail/timestamp": "2026-03-01T10:05:00.000Z"}),
    ("nice-cxone digital events", {"detail/eventId": "d-2"}),
    ("nice-cxone interactions", {"detail/payload/eventId": "2"}),
    ("nice-cxone interactions", {"detail/payload/interactionId": "i-2"}),
    ("amazon-connect initiated", {"detail/contactId": "k-2", "detail/initialContactId": "k-1"}),
    ("amazon-connect initiated", {"detail/initiationTimestamp": "2026-03-01T09:30:00Z"}),
    ("amazon-connect connected to system", {"detail/contactId": "k-2"}),
    ("amazon-connect queued", {"detail/contactId": "k-2"}),
    ("amazon-connect connected to agent", {"detail/contactId": "k-2"}),
    ("amazon-connect connected to system", {"detail/connectedToSystemTimestamp": "2026-03-01T09:00:06Z"}),
    ("amazon-connect queued", {"detail/queueInfo/enqueueTimestamp": "2026-03-01T09:05:00Z"}),
    ("amazon-connect connected to agent", {"detail/agentInfo/connectedToAgentTimestamp": "2026-03-01T09:06:00Z"}),
    ("amazon-connect ended", {"detail/eventType": "COMPLETED"}),
    ("amazon-connect ended", {"detail/contactId": "k-2"}),
    ("amazon-connect ended", {"detail/disconnectTimestamp": "2026-03-01T09:10:00Z"}),
    ("amazon-connect contact data updates", {"detail/updatedProperties": ["ScheduledTimestamp"]}),
    ("amazon-connect contact data updates", {"detail/tags": {"vip": "yes"}}),
    ("amazon-connect contact lens rules", {"detail/contactArn": "arn:c/2"}),
    ("amazon-connect contact lens rules", {"detail/ruleName": "OTHER"}),
    ("amazon-connect contact lens rules", {"detail/actionName": "ESCALATE"}),
    ("amazon-connect contact lens rules", {"detail-type": "Contact Lens Post Call Rules Matched"}),
    ("amazon-connect cases", {"detail/approximateChangeTime": "2026-03-01T10:00:01Z"}),
    ("amazon-connect cases", {"detail/eventType": "CASE.CREATED"}),
    ("amazon-connect cases", {"detail/case/caseId": "case-2"}),
    ("cloudevents events", {"id": "2"}),
    ("cloudevents events", {"source": "/other"}),
    ("cloudtrail records", {"detail/eventID": "ct-2"}),
    ("s3 objects", {"detail/object/sequencer": "0065"}),
    ("s3 objects", {"detail/object/key": "a/c.txt"}),
    ("s3 objects", {"detail/bucket/name": "box2"}),
    ("s3 objects", {"detail/object/version-id": "v2"}),
    ("s3 objects", {"detail/object/etag": "e1"}),
    ("s3 objects", {"detail-type": "Object Deleted"}),
    ("s3 object changes", {"detail/request-id": "R2"}),
    ("s3 object changes", {"detail/object/key": "a/c.txt"}),
    ("s3 object changes", {"detail/object/version-id": "v2"}),
    ("s3 object changes", {"detail/bucket/name": "box2"}),
    ("s3 object changes", {"detail-type": "Object Tags Deleted"}),
    ("s3 notifications", {"Records": [altered(RECORD, {"s3/bucket/name": "box2"})]}),
    ("s3 notifications", {"Records": [altered(RECORD, {"s3/object/key": "b"})]}),
    ("s3 notifications", {"Records": [altered(RECORD, {"eventName": "ObjectRemoved:Delete"})]}),
    ("s3 notifications", {"Records": [altered(RECORD, {"s3/object/sequencer": "02"})]}),
    ("s3 notifications", {"Records": [altered(RECORD, {"s3/object/versionId": "v2"})]}),
    ("guardduty findings", {"detail/updatedAt": "2026-03-01T15:00:00Z", "detail/service/count": 9}),
    ("guardduty findings", {"detail/id": "g-2"}),
    ("securityhub findings", {"detail/findings": [finding(UpdatedAt="2026-03-02T00:00:00Z")]}),
    ("securityhub findings", {"detail/findings": [finding(Workflow={"Status": "SUPPRESSED"})]}),
    ("securityhub findings", {"detail/findings": [finding(Id="f-2")]}),
    ("securityhub custom actions", {"id": "e-2"}),
    ("stripe events", {"detail/id": "evt_2"}),
    ("shopify webhooks", {"detail/metadata/X-Shopify-Event-Id": "s-2"}),
    ("shopify webhooks", {"detail/metadata/X-Shopify-Topic": "orders/paid"}),
    ("shopify webhooks", {"detail/metadata/X-Shopify-Shop-Domain": "b.myshopify.com"}),
    ("github webhooks", {"detail/headers/X-GitHub-Delivery": "gh-2"}),
    ("github requests", {"headers/x-github-delivery": "gh-2"}),
    ("shopify requests", {"headers/x-shopify-event-id": "s-2"}),
    ("shopify requests", {"headers/x-shopify-topic": "orders/paid"}),
    ("shopify requests", {"headers/x-shopify-shop-domain": "b.myshopify.com"}),
    ("shopify requests", {"headers/x-shopify-event-id": GONE}),
    ("okta log events", {"detail/uuid": "o-2"}),
]


def again(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event put on the bus a second time, as a producer or partner does when it retries."""
    fresh = {"id": "e-2", "time": "2026-03-03T12:00:00Z"}
    return altered(event, fresh if "detail-type" in event else {})


def rule_of(event: Mapping[str, Any], rules: Rulebook = BOOK) -> str:
    return rules.find(read_event(event)).name


def key(event: Mapping[str, Any]) -> Key:
    return BOOK.key(read_event(event)).key


# --- loading ---


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_says_what_it_is_and_why(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert preset.rules
    assert all(text.strip() for text in (preset.title, preset.note, preset.window_why))
    assert duration(preset.window) >= duration("24h")
    for each in preset.rules:
        assert len(each.why) > 40
        assert each.rule.name.startswith(f"{name} ")
        assert each.rule.match is not None
        assert duration(each.rule.window) >= duration(preset.window)


def test_the_window_of_genesys_covers_its_retries() -> None:
    assert {rule.window for rule in rules_of(["genesys"])} == {"5d"}


def test_a_queue_between_makes_the_window_longer_for_that_rule_only() -> None:
    assert {rule.name: rule.window for rule in rules_of(["s3"])} == {
        "s3 objects": "2d",
        "s3 object changes": "2d",
        "s3 notifications": "14d",
    }


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("genesis", "genesys"), ("connect", "amazon-connect"), ("Stripe", "stripe"), ("cxone", "cxone")],
)
def test_an_unknown_preset_is_refused_with_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown preset {wrong!r}; .*{right}"):
        load_preset(wrong)


@pytest.mark.parametrize("name", ["", "../presets/genesys", "genesys.toml", "/etc/passwd"])
def test_a_preset_is_never_a_path(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown preset"):
        load_preset(name)


def test_rules_come_in_the_order_of_the_presets_and_once() -> None:
    names = [rule.name for rule in rules_of(["stripe", "okta", "stripe"])]
    assert names == ["stripe events", "okta log events"]
    assert rules_of([]) == []


# --- which rule ---


def test_every_rule_has_an_event() -> None:
    assert sorted(EVENTS) == sorted(rule.name for rule in rules_of(NAMES))


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_falls_under_its_rule_whichever_presets_are_beside_it(name: str) -> None:
    backwards = Rulebook("test", rules_of(NAMES[::-1]), Rule(name="id"))
    assert rule_of(EVENTS[name]) == name
    assert rule_of(EVENTS[name], backwards) == name


STRANGERS = {
    "no preset": bridge("com.example.orders", "OrderCreated", {"id": "o-1", "eventID": "x"}),
    "a look-alike partner": altered(EVENTS["genesys audits"], {"source": "aws.partner/genesys.company/cloud/1/a"}),
    "an evaluation, of which a contact has many": bridge(
        "aws.connect", "Contact Lens Evaluation Rules Matched", MATCHED
    ),
    "plain JSON": {"id": 1, "object": "event"},
    "an event of S3 itself": bridge("aws.s3", "Bucket Created", {}),
    "a detail that names a version and is not a CloudEvent": bridge(
        "my.bus", "order.created", altered(CLOUD, {"type": GONE})
    ),
    "a detail without an id": bridge("my.bus", "order.created", altered(CLOUD, {"id": GONE})),
    "a detail with id, source and type of its own": bridge(
        "my.bus", "order.created", altered(CLOUD, {"specversion": GONE})
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_others_are_left_to_their_own_id(name: str) -> None:
    assert rule_of(STRANGERS[name]) == "id"


def test_an_api_call_to_a_service_is_no_event_of_that_service() -> None:
    calls = [bridge(source, "AWS API Call via CloudTrail", {"eventID": "1"}) for source in ("aws.cases", "aws.connect")]
    assert [rule_of(call) for call in calls] == ["cloudtrail records"] * 2


def test_a_cloudtrail_record_is_the_same_on_the_bus_and_in_a_log_file() -> None:
    record = {"eventVersion": "1.08", "eventSource": "s3.amazonaws.com", "eventName": "CreateBucket", "eventID": "ct-1"}
    assert rule_of({"Records": [record]}) == "cloudtrail records"
    assert key({"Records": [record]}) == key(EVENTS["cloudtrail records"])


def test_genesys_test_organisations_are_known() -> None:
    for name in ("audits", "attributes", "conversations", "transcription", "other topics"):
        event = altered(EVENTS[f"genesys {name}"], {"source": "aws.partner/genesys.com.test/cloud/1/bus"})
        assert rule_of(event) == f"genesys {name}"


# --- which key ---


@pytest.mark.parametrize(("name", "changes"), SAME)
def test_copies_are_the_same(name: str, changes: dict[str, Any]) -> None:
    copy = again(altered(EVENTS[name], changes))
    assert rule_of(copy) == name
    assert key(copy) == key(EVENTS[name])


@pytest.mark.parametrize(("name", "changes"), DIFFERENT)
def test_distinct_events_are_different(name: str, changes: dict[str, Any]) -> None:
    other = altered(EVENTS[name], changes)
    assert rule_of(other) == name
    assert key(other) != key(EVENTS[name])


@pytest.mark.parametrize("name", EVENTS)
def test_a_second_put_is_a_copy_unless_only_the_id_can_tell(name: str) -> None:
    event = EVENTS[name]
    assert key(altered(event, {"replay-name": "r"})) == key(event)
    assert (key(again(event)) == key(event)) == (name not in BY_ID)


@pytest.mark.parametrize("name", [name for name in EVENTS if name not in BY_ID])
def test_every_rule_is_tried_both_ways(name: str) -> None:
    assert name in dict(SAME)
    assert name in dict(DIFFERENT)


def test_keep_alives_of_a_transcription_are_distinct() -> None:
    first = transcription(transcripts=None)
    later = transcription(transcripts=None, eventTime="2026-03-01T10:05:00.000Z")
    assert key(first) == key(again(first)) == key(transcription(transcripts=[]))
    assert key(first) != key(later)


def test_topics_without_participant_and_session_still_have_a_key() -> None:
    topic = "v2.detail.events.conversation.{id}.outbound"
    first, second = (genesys(topic, {"eventTime": at, "conversationId": "conv-1"}) for at in (1772359200, 1772359201))
    assert key(first) == key(altered(again(first), {"detail/timestamp": "later"}))
    assert key(first) != key(second)


def test_a_detail_event_without_a_time_goes_by_its_content() -> None:
    event = altered(EVENTS["genesys conversations"], {"detail/eventBody/eventTime": GONE})
    assert key(event) == key(altered(again(event), {"detail/metadata/CorrelationId": "c-2"}))
    assert key(event) != key(altered(event, {"detail/eventBody/queueId": "q-2"}))


@pytest.mark.parametrize("missing", ["interaction-id", "state", "timestamp"])
def test_a_routing_update_without_its_fields_is_rejected(missing: str) -> None:
    with pytest.raises(EventRejected, match=missing):
        key(altered(EVENTS["genesys routing updates"], {f"detail/{missing}": GONE}))


@pytest.mark.parametrize("empty", [GONE, ""])
def test_a_contact_summary_without_an_id_goes_by_its_content(empty: Any) -> None:
    event = altered(EVENTS["genesys analytics contacts"], {"detail/interactionId": empty})
    assert key(event) == key(again(event))
    assert key(event) != key(altered(event, {"detail/talk": 4}))


def test_a_bridge_without_event_ids_goes_by_content() -> None:
    event = altered(EVENTS["nice-cxone interactions"], {"detail/payload/eventId": GONE})
    assert key(event) == key(again(event))
    assert key(event) != key(altered(event, {"detail/at": "t2"}))


def test_completed_may_follow_disconnected_with_the_same_data() -> None:
    times = {"disconnectTimestamp": "2026-03-01T09:09:00Z"}
    assert key(contact("DISCONNECTED", **times)) != key(contact("COMPLETED", **times))


CAPITALS = ["initiated", "connected to system", "queued", "connected to agent", "ended"]


def capital(value: Any) -> Any:
    return (
        {name[0].upper() + name[1:]: capital(item) for name, item in value.items()}
        if isinstance(value, dict)
        else value
    )


@pytest.mark.parametrize("name", CAPITALS)
def test_connect_may_write_names_with_a_capital(name: str) -> None:
    event = EVENTS[f"amazon-connect {name}"]
    copy = {**again(event), "detail": capital(event["detail"])}
    assert rule_of(copy) == f"amazon-connect {name}"
    assert key(copy) == key(event)


SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "genesys routing updates": [{name: "i-9"} for name in ("interaction-id", "interactionId", "interaction_id")],
    "genesys analytics contacts": [{name: "i-9"} for name in ("interaction-id", "interactionId", "interaction_id")],
    "nice-cxone interactions": [
        *({"interactionId": "i-9", name: "7"} for name in ("eventId", "event-id", "event_id")),
        *({name: "i-9", "eventId": "7"} for name in ("interaction-id", "interaction_id")),
        {"payload": {"interactionId": "i-9", "eventId": "7"}},
    ],
    "github webhooks": [
        *({name: "gh-9"} for name in ("X-GitHub-Delivery", "x-github-delivery")),
        *({"headers": {name: "gh-9"}} for name in ("X-GitHub-Delivery", "x-github-delivery")),
        {"metadata": {"X-GitHub-Delivery": "gh-9"}},
    ],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_ids_are_found_under_every_spelling(name: str) -> None:
    base = {"state": "queued", "timestamp": 1772359200}
    events = [{**EVENTS[name], "detail": {**base, **ids}} for ids in SPELLINGS[name]]
    assert {rule_of(event) for event in events} == {name}
    assert len({key(event) for event in events}) == 1


@pytest.mark.parametrize("kind", ["QUEUED", "CONNECTED_TO_AGENT", "PAUSED", "SOMETHING_NEW"])
def test_a_contact_event_without_its_time_goes_by_id(kind: str) -> None:
    event = contact(kind)
    assert key(event) == key(altered(event, {"time": "2026-03-01T11:00:00Z"}))
    assert key(event) != key(again(event))


def test_two_comments_on_a_case_are_two_events() -> None:
    one, two = (
        case("RELATED_ITEM.CREATED", relatedItem={"caseId": "case-1", "relatedItemId": item}) for item in ("i-1", "i-2")
    )
    assert rule_of(one) == "amazon-connect cases"
    assert key(one) == key(again(one)) != key(two)


def test_cloudevents_with_an_equal_id_of_two_sources_are_distinct_and_one_without_is_refused() -> None:
    assert key({**CLOUD, "source": "/a"}) != key({**CLOUD, "source": "/b"})
    with pytest.raises(EventRejected, match="has no id"):
        key({**CLOUD, "id": ""})


def test_a_cloudevent_has_the_same_key_direct_and_inside_eventbridge() -> None:
    over = bridge("my.bus", "order.created", CLOUD)
    assert rule_of(CLOUD) == rule_of(over) == "cloudevents events"
    assert key(CLOUD) == key(over) == key(again(over))
    for changes in ({"id": "2"}, {"source": "/other"}):
        direct = altered(CLOUD, changes)
        assert key(direct) == key(bridge("my.bus", "order.created", direct)) != key(CLOUD)


def test_a_cloudevent_is_known_by_its_own_id_and_not_by_that_of_its_data() -> None:
    inner = altered(CLOUD, {"id": "inner"})
    assert key(altered(CLOUD, {"data": inner})) == key(CLOUD) != key(inner)
    with pytest.raises(EventRejected, match="has no id"):
        key(altered(CLOUD, {"id": GONE, "data": inner}))


def test_stripe_has_the_same_key_by_webhook_and_by_eventbridge() -> None:
    body = {"id": "evt_1", "object": "event", "type": "invoice.paid", "data": {"object": {"id": "in_1"}}}
    assert rule_of(body) == "stripe events"
    assert key(body) == key(EVENTS["stripe events"]) == key(bridge("stripe.com", "invoice.paid", body))


def test_shopify_without_ids_goes_by_content_but_not_by_its_signature() -> None:
    event = bridge("aws.partner/shopify.com/1/bus", "shopifyWebhook", {"payload": {"id": 1}, "metadata": SHOP})
    assert key(event) == key(altered(again(event), {"detail/metadata/X-Shopify-Hmac-SHA256": "h2"}))
    assert key(event) != key(altered(event, {"detail/payload/id": 2}))
    named = altered(event, {"detail/metadata/X-Shopify-Webhook-Id": "w-1"})
    assert key(named) == key(altered(named, {"detail/metadata/X-Shopify-Triggered-At": "later"})) != key(event)


def test_github_without_headers_goes_by_content() -> None:
    event = bridge("github.com", "issues", HOOK)
    assert key(event) == key(again(event))
    assert key(event) != key(altered(event, {"detail/action": "closed"}))


# --- the command ---


def run_presets(*args: str) -> Result:
    return CliRunner().invoke(presets, args)


def test_the_list_names_every_preset() -> None:
    lines = run_presets().output.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert lines[NAMES.index("genesys")].split()[1:4] == ["5d", "7", "rules"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_can_be_pasted(name: str) -> None:
    output = run_presets(name).output
    assert read_rules(tomllib.loads(output), "pasted") == rules_of([name])
    comments = " ".join(line.removeprefix("#").strip() for line in output.splitlines() if line.startswith("#"))
    for each in load_preset(name).rules:
        assert " ".join(each.why.split()) in comments


def test_json_says_the_same() -> None:
    everything = [json.loads(line) for line in run_presets("--json").output.splitlines()]
    (one,) = [json.loads(line) for line in run_presets("genesys", "--json").output.splitlines()]
    assert [each["name"] for each in everything] == NAMES
    assert one in everything
    assert one["rules"][0]["name"] == "genesys audits"
    assert one["rules"][0]["key"] == ["detail.eventBody.id"]
    assert all(rule["why"] for rule in one["rules"])


def test_an_unknown_name_is_a_wrong_setting() -> None:
    error = run_presets("genesis").exception
    assert isinstance(error, ConfigError)
    assert error.exit_code == 2


def test_the_help_has_an_example() -> None:
    assert isinstance(presets, click.Command)
    assert "eventonce presets genesys" in run_presets("--help").output
