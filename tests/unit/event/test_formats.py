"""Reading bodies."""

import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest

from eventonce import Event, EventRejected
from eventonce.event.formats import read_binary, read_event, read_events
from eventonce.rules import Rulebook, identity

EVENTBRIDGE = {
    "version": "0",
    "id": "e-1",
    "detail-type": "Order Placed",
    "source": "com.example.shop",
    "account": "111122223333",
    "time": "2026-01-05T09:00:00Z",
    "region": "eu-west-1",
    "resources": ["arn:x"],
    "detail": {"orderId": "o-1"},
    "replay-name": "monday",
}
CLOUDEVENT = {
    "specversion": "1.0",
    "id": "c-1",
    "source": "/shop",
    "type": "order.placed",
    "time": "2026-01-05T10:00:00+01:00",
    "subject": "o-1",
    "data": {"orderId": "o-1"},
}


def test_an_eventbridge_event() -> None:
    event = read_event(json.dumps(EVENTBRIDGE))
    assert (event.id, event.source, event.type) == ("e-1", "com.example.shop", "Order Placed")
    assert event.time == datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert event.data == {"orderId": "o-1"}
    assert event.replay == "monday"
    assert event.attributes["account"] == "111122223333"
    assert event.document() == EVENTBRIDGE


def test_a_cloudevent() -> None:
    event = read_event(json.dumps(CLOUDEVENT).encode())
    assert (event.id, event.source, event.type, event.data) == ("c-1", "/shop", "order.placed", {"orderId": "o-1"})
    assert event.time == datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert event.attributes["subject"] == "o-1"
    assert event.form == "cloudevents"


def test_plain_json() -> None:
    event = read_event({"id": 7, "orderId": "o-1", "time": "yesterday"})
    assert (event.id, event.source, event.time) == ("7", "", None)
    assert event.data["orderId"] == "o-1"
    assert event.document()["detail"]["orderId"] == event.document()["orderId"] == "o-1"


def test_an_event_is_already_one_and_gets_data_of_its_own() -> None:
    event = Event(id="x", data={"lines": []})
    assert read_event(event) == event
    assert read_event(event).data["lines"] is not event.data["lines"]


def test_a_list_of_one_type_is_that_type() -> None:
    assert read_event({**EVENTBRIDGE, "detail-type": ["Order Placed"]}).type == "Order Placed"


def test_unknown_fields_of_the_envelope_are_attributes() -> None:
    assert read_event({**EVENTBRIDGE, "debug": True}).attributes["debug"] is True


@pytest.mark.parametrize(
    ("detail", "data"),
    [
        ('{"orderId": "o-1"}', {"orderId": "o-1"}),
        (' {"orderId": "o-1"}', {"orderId": "o-1"}),
        ('{"orderId": ', '{"orderId": '),
        ("[1]", "[1]"),
        ("7", "7"),
        ("", ""),
        ('{"a":' * 300 + "1" + "}" * 300, '{"a":' * 300 + "1" + "}" * 300),
        ('{"\ud800": 1}', '{"\ud800": 1}'),
    ],
)
def test_a_detail_that_spells_an_object_is_one(detail: str, data: Any) -> None:
    assert read_event({**EVENTBRIDGE, "detail": detail}).data == data


def test_a_cloudevent_inside_an_eventbridge_event_is_its_data() -> None:
    event = read_event({**EVENTBRIDGE, "detail": CLOUDEVENT})
    assert (event.form, event.id, event.data) == ("eventbridge", "e-1", CLOUDEVENT)


def test_odd_envelopes_do_not_crash() -> None:
    odd = {"detail-type": ["a", "b"], "source": None, "detail": "text", "id": ""}
    event = read_event(odd)
    assert (event.type, event.source, event.id, event.data) == ('["a","b"]', "", "", "text")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (
            b'["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "b", "s3Key": "k"}]',
            "is a pointer to a payload in S3 by the extended client of SQS or SNS, not the event; read it with",
        ),
        (b"[]", "is a list, not a JSON object; write each of its events on a line of its own"),
        (b"null", "is null"),
        (b"true", "is a boolean"),
        (b"1.5", "is a number"),
        (b'"x"', "is a string"),
        (b'{"a": NaN}', "is not JSON"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "is nested deeper than 200 levels"),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", "is nested deeper than 200 levels"),
        (b'{"a": "' + b"x" * 5_000_000 + b'"}', "has 5,000,009 bytes, over the limit of 4,194,304"),
        ("\ud800", "half a surrogate"),
        (42, "is of type int, not an event"),
        (None, "is None, not an event"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_event_is_rejected_with_the_reason(body: Any, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        read_event(body)


def test_wide_documents_are_not_deep() -> None:
    wide = {"id": "1", "list": [{"x": [number]} for number in range(1000)]}
    assert read_event(json.dumps(wide)).id == "1"


@pytest.mark.parametrize(
    ("body", "kind"), [('"text"', "a string"), ('"{}"', "a string"), ("7", "a number"), ("null", "null")]
)
def test_a_document_is_an_object_or_a_list_of_them(body: str, kind: str) -> None:
    (rejected,) = read_events(body)
    assert str(rejected) == f"is {kind}, not a JSON object"


def test_of_repeated_names_the_last_one_counts() -> None:
    assert read_event('{"id": "1", "id": "2"}').id == "2"


def test_an_event_is_written_as_one_line() -> None:
    pretty = json.dumps(EVENTBRIDGE, indent=2).encode()
    assert json.loads(read_event(pretty).line()) == EVENTBRIDGE
    assert b"\n" not in read_event(pretty).line()
    assert read_event(b'{"id": 1.0}').line() == b'{"id": 1.0}'
    assert json.loads(read_event(EVENTBRIDGE).line()) == EVENTBRIDGE


# --- wrappings of bytes ---


@pytest.mark.parametrize(
    "wrap", [lambda raw: b"\xef\xbb\xbf" + raw, gzip.compress, lambda raw: "\ufeff" + raw.decode()]
)
def test_a_bom_and_gzip_are_taken_off(wrap: Any) -> None:
    raw = json.dumps(EVENTBRIDGE).encode()
    event = read_event(wrap(raw))
    assert event.id == "e-1"
    assert event.raw == raw


def test_a_bom_inside_gzip_and_several_members() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(EVENTBRIDGE).encode()
    assert read_event(gzip.compress(raw[:40]) + gzip.compress(raw[40:])).id == "e-1"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (gzip.compress(b"x" * 200_000, mtime=0), "unpacks to more than the limit of 1,000 bytes"),
        (gzip.compress(b'{"id": 1}', mtime=0)[:-6], "is not gzip"),
        (b"\x1f\x8b", "is not gzip"),
        (b"\x1f\x8bnot so", "is not gzip"),
        (gzip.compress(b"{}", mtime=0) + b"more", "is not gzip"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "is not JSON|is not UTF-8"),
        (b" " * 2000, "has 2,000 bytes, over the limit of 1,000"),
    ],
)
def test_what_cannot_be_unpacked_is_rejected(body: bytes, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        read_event(body, max_bytes=1000)


# --- the new bus ---

METADATA = {  # as EventBridge writes it for PutEvents and for an event source
    "aws:EventId": EVENTBRIDGE["id"],
    "aws:Source": EVENTBRIDGE["source"],
    "aws:DetailType": EVENTBRIDGE["detail-type"],
    "aws:DeliveryType": "LIVE",
}
RAW = {"aws:EventId": "bus-1", "aws:DeliveryType": "LIVE"}  # for PutRawEvents: it knows neither source nor type
BOOK = Rulebook("c", [], identity("14d", "retry"))


@pytest.mark.parametrize("data", [EVENTBRIDGE, json.dumps(EVENTBRIDGE), "\ufeff" + json.dumps(EVENTBRIDGE)])
def test_an_envelope_that_the_new_bus_confirms_counts(data: Any) -> None:
    event = read_event({"Data": data, "Metadata": {"tenant": "t"}, "SystemMetadata": METADATA})
    inner = read_event(EVENTBRIDGE)
    assert (event.form, event.id, event.source, event.type) == ("eventbridge", "e-1", inner.source, inner.type)
    assert (event.time, event.data, event.replay) == (inner.time, inner.data, "monday")
    assert event.attributes["SystemMetadata"] == METADATA
    assert event.attributes["Metadata"] == {"tenant": "t"}
    assert read_event(event.line()).id == "e-1"
    assert BOOK.key(event).key == BOOK.key(inner).key


@pytest.mark.parametrize("name", ["aws:Source", "aws:DetailType"])
@pytest.mark.parametrize("form", [EVENTBRIDGE, CLOUDEVENT])
def test_data_that_contradicts_the_new_bus_is_rejected(form: dict[str, Any], name: str) -> None:
    confirmed = {"aws:Source": form["source"], "aws:DetailType": form.get("detail-type") or form["type"]}
    for data in (form, json.dumps(form)):
        with pytest.raises(EventRejected, match=rf"^in its Data: .* but the bus confirms {name} 'evil'") as caught:
            read_event({"Data": data, "SystemMetadata": {**METADATA, **confirmed, name: "evil"}})
        assert confirmed[name] in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {**EVENTBRIDGE, "source": "aws.s3"},
        {**CLOUDEVENT, "source": "aws.s3"},
        {"source": "aws.s3", "n": 1},
        '{"source": "aws.partner/example.com/1", "detail-type": "t", "detail": {}}',
    ],
)
def test_nobody_but_the_new_bus_says_that_an_event_is_of_aws(data: Any) -> None:
    with pytest.raises(EventRejected, match="which the bus does not confirm"):
        read_event({"Data": data, "SystemMetadata": RAW})


def test_an_envelope_that_the_new_bus_does_not_confirm_reaches_no_other_event_by_its_id() -> None:
    forged = {"Data": {**EVENTBRIDGE, "replay-name": "again"}, "SystemMetadata": RAW}
    event, genuine = read_event(forged), read_event({"Data": EVENTBRIDGE, "SystemMetadata": METADATA})
    assert (event.id, event.source, event.type) == (genuine.id, genuine.source, genuine.type)
    assert (event.data, event.replay) == (genuine.data, None)
    assert BOOK.key(event).key != BOOK.key(genuine).key
    again = read_event(event.line())  # as a letter or a sink has it
    assert BOOK.key(again).key == BOOK.key(event).key
    other = {"Data": {**EVENTBRIDGE, "source": "another"}, "SystemMetadata": RAW}
    assert BOOK.key(read_event(other)).key != BOOK.key(event).key


@pytest.mark.parametrize("number", ["x-1", 7, ["e-1"]])
def test_an_id_that_is_not_the_buss_own_reaches_no_event_of_another_source(number: Any) -> None:
    """Its sender may publish as evil.app, and names the event that it wants to have dropped."""
    system = {**METADATA, "aws:Source": "evil.app", "aws:EventId": number}
    forged = read_event({"Data": {**EVENTBRIDGE, "source": "evil.app"}, "SystemMetadata": system})
    genuine = read_event({"Data": EVENTBRIDGE, "SystemMetadata": METADATA})
    assert (forged.id, forged.source, forged.form, forged.replay) == (genuine.id, "evil.app", "plain", None)
    assert BOOK.key(forged).key != BOOK.key(genuine).key
    assert BOOK.key(read_event(forged.line())).key == BOOK.key(forged).key


def test_metadata_without_an_id_confirms_by_the_source() -> None:
    without = {name: value for name, value in METADATA.items() if name != "aws:EventId"}
    event = read_event({"Data": EVENTBRIDGE, "SystemMetadata": without})
    assert BOOK.key(event).key == BOOK.key(read_event(EVENTBRIDGE)).key


def test_an_id_in_data_does_not_stand_for_one_of_the_new_bus() -> None:
    event = read_event({"Data": {"id": "e-1"}, "SystemMetadata": {"aws:DeliveryType": "LIVE"}})
    assert event.id == "e-1"
    assert BOOK.key(event).key != BOOK.key(read_event(EVENTBRIDGE)).key
    assert BOOK.key(read_event(event.line())).key == BOOK.key(event).key


def test_a_replay_of_the_new_bus_has_no_name() -> None:
    plain = {name: value for name, value in EVENTBRIDGE.items() if name != "replay-name"}
    replayed = {**METADATA, "aws:DeliveryType": "REPLAY"}
    assert read_event({"Data": plain, "SystemMetadata": replayed}).replay == "REPLAY"
    assert read_event({"Data": plain, "SystemMetadata": METADATA}).replay is None


def test_a_replay_that_the_new_bus_does_not_confirm_is_none() -> None:
    """Also where the envelope holds a CloudEvent: under a rule with replay = "reprocess" that one would run again."""
    source, kind = CLOUDEVENT["source"], CLOUDEVENT["type"]
    data = {"source": source, "detail-type": kind, "detail": CLOUDEVENT, "replay-name": "monday"}
    proven = {**METADATA, "aws:Source": source, "aws:DetailType": kind}
    assert read_event({"Data": data, "SystemMetadata": RAW}).replay is None
    assert read_event({"Data": data, "SystemMetadata": {**RAW, "aws:DeliveryType": "REPLAY"}}).replay == "REPLAY"
    assert read_event({"Data": data, "SystemMetadata": proven}).replay == "monday"


def test_a_cloudevent_on_the_new_bus_stays_one() -> None:
    event = read_event({"Data": CLOUDEVENT, "SystemMetadata": RAW})
    assert (event.form, event.id, event.source) == ("cloudevents", "c-1", "/shop")
    assert read_event(event.line()).form == "cloudevents"


@pytest.mark.parametrize(
    ("data", "read"),
    [
        ({"orderId": "o-1", "time": "2026-01-05T09:00:00Z"}, {"orderId": "o-1", "time": "2026-01-05T09:00:00Z"}),
        ('{"orderId": "o-1"}', {"orderId": "o-1"}),
        ("a bare text", "a bare text"),
        ("[1, 2]", "[1, 2]"),
        ([1, 2], [1, 2]),
        (None, None),
    ],
)
def test_without_an_inner_envelope_the_bus_says_what_it_is(data: Any, read: Any) -> None:
    event = read_event({"Data": data, "SystemMetadata": METADATA})
    assert (event.form, event.id, event.source) == ("eventbridge", METADATA["aws:EventId"], METADATA["aws:Source"])
    assert event.type == METADATA["aws:DetailType"]
    assert event.data == read
    again = read_event(event.line())
    assert (again.form, again.id, again.source, again.data) == (event.form, event.id, event.source, event.data)


def test_without_metadata_of_the_bus_the_data_names_itself() -> None:
    event = read_event({"Data": {"id": 7, "source": "shop", "type": "order"}, "SystemMetadata": {}})
    assert (event.id, event.source, event.type) == ("7", "shop", "order")


def test_broken_data_of_the_new_bus_is_named() -> None:
    with pytest.raises(EventRejected, match="in its Data: is not JSON"):
        read_event({"Data": '{"orderId": ', "SystemMetadata": METADATA})


# --- layers ---


def notification(message: Any, **fields: Any) -> dict[str, Any]:
    return {"Type": "Notification", "MessageId": "sns-1", "TopicArn": "arn:aws:sns:x", "Message": message, **fields}


def test_an_sns_notification_is_taken_off() -> None:
    inner = json.dumps(EVENTBRIDGE)
    event = read_event(json.dumps(notification(inner)))
    assert event.raw == inner.encode()  # the event's own bytes, not the topic's
    assert event == read_event(inner)


def test_the_message_id_is_the_last_resort() -> None:
    assert read_event(notification('{"orderId": "o-1"}')).id == "sns-1"
    assert read_event(notification(json.dumps({**EVENTBRIDGE, "id": ""}))).id == "sns-1"
    empty = read_event(notification('{"id": "", "orderId": "o-1"}'))
    assert (empty.id, "id" in empty.attributes) == ("sns-1", False)
    assert empty.data == {"id": "", "orderId": "o-1"}


def test_a_bare_text_of_a_topic_is_data() -> None:
    event = read_event(notification("hello"))
    assert (event.form, event.id, event.data) == ("plain", "sns-1", "hello")
    assert json.loads(event.line()) == {"id": "sns-1", "detail": "hello"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (notification('{"a": '), "^in the SNS message: is not JSON: Input data was truncated$"),
        (notification(""), "^in the SNS message: has no Message$"),
        (notification(None), "^in the SNS message: has no Message$"),
        (notification(7), "^in the SNS message: has a Message that is not a string$"),
        (notification("[]"), "^in the SNS message: is an empty list"),
        (notification('[{"id": 1}, {"id": 2}]'), "^carries 2 events, not one"),
        (notification("[7]"), "^in the SNS message: is a number, not a JSON object"),
        (
            {"messageId": "1", "eventSource": "aws:sqs", "body": json.dumps(notification("{"))},
            "^in the SQS message: in the SNS message: is not JSON",
        ),
    ],
)
def test_an_error_names_its_layer(body: Any, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        read_event(body)


def test_layers_are_counted() -> None:
    body = json.dumps(EVENTBRIDGE)
    for _ in range(5):
        body = json.dumps(notification(body))
    assert read_event(body).id == "e-1"
    with pytest.raises(EventRejected, match="is wrapped more than 5 times"):
        read_event(json.dumps(notification(body)))


def test_what_is_too_large_inside_is_rejected() -> None:
    packed = b64encode(gzip.compress(b'{"a": "' + b"x" * 5000 + b'"}')).decode()
    with pytest.raises(EventRejected, match="in the Kinesis record: unpacks to more than the limit of 1,000 bytes"):
        read_event({"eventSource": "aws:kinesis", "kinesis": {"data": packed}}, max_bytes=1000)
    with pytest.raises(EventRejected, match="in the SQS message: has 2,000 bytes, over the limit of 1,000"):
        read_event({"eventSource": "aws:sqs", "body": "x" * 2000}, max_bytes=1000)


# --- CloudEvents ---


def cloudevent(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in {**CLOUDEVENT, **fields}.items() if value is not ...}


PACKED = b64encode(b'{"orderId": "o-1"}').decode()


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"data": ..., "data_base64": PACKED}, {"orderId": "o-1"}),
        ({"data": ..., "data_base64": PACKED, "datacontenttype": "application/json"}, {"orderId": "o-1"}),
        ({"data": ..., "data_base64": PACKED, "datacontenttype": "a/b+JSON; charset=utf-8"}, {"orderId": "o-1"}),
        ({"data": ..., "data_base64": PACKED, "datacontenttype": "application/pdf"}, PACKED),
        ({"data": ..., "data_base64": "aGk=", "datacontenttype": "text/plain"}, "hi"),
        ({"data": ..., "data_base64": "/w==", "datacontenttype": "text/plain"}, "/w=="),
        ({"data": ..., "data_base64": "/w=="}, "/w=="),
        ({"data": "hi", "datacontenttype": "text/plain"}, "hi"),
        ({"specversion": "0.3", "data": PACKED, "datacontentencoding": "base64"}, {"orderId": "o-1"}),
        ({"specversion": "0.3"}, {"orderId": "o-1"}),
        ({"data": ...}, None),
    ],
)
def test_data_of_cloudevents(fields: dict[str, Any], data: Any) -> None:
    event = read_event(cloudevent(**fields))
    assert event.data == data
    assert "data_base64" not in event.attributes


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data_base64": "not base64"}, "has data_base64 that is not base64"),
        ({"data_base64": 7}, "has data_base64 that is not base64"),
        ({"data_base64": "ew==", "datacontenttype": "application/json"}, "in its data: is not JSON"),
    ],
)
def test_broken_data_of_cloudevents_is_rejected(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        read_event(cloudevent(**fields))


HEADERS = {
    "Content-Type": "application/json; charset=utf-8",
    "ce-specversion": "1.0",
    "CE-ID": "c-1",
    "ce-source": "/shop",
    "ce-type": "order.placed",
    "ce-time": "2026-01-05T10:00:00+01:00",
    "ce-subject": "o-1",
    "Host": "example.com",
}


def test_binary_mode_is_the_same_event() -> None:
    event = read_binary(HEADERS, b'{"orderId": "o-1"}')
    other = read_event(CLOUDEVENT)
    assert (event.form, event.id, event.source, event.type) == (other.form, other.id, other.source, other.type)
    assert (event.time, event.data) == (other.time, other.data)
    assert event.attributes == {**other.attributes, "datacontenttype": "application/json; charset=utf-8"}
    assert read_event(event.line()) == event


@pytest.mark.parametrize(
    ("kind", "body", "data"),
    [
        ("application/json", b"[1]", [1]),
        ("text/plain", b"hi", "hi"),
        ("application/octet-stream", b"\xff", "/w=="),
        ("application/json", b"", None),
        (None, b'{"a": 1}', {"a": 1}),
        (None, b"\xff", "/w=="),
    ],
)
def test_the_content_type_says_what_the_data_is(kind: str | None, body: bytes, data: Any) -> None:
    headers = {name: value for name, value in HEADERS.items() if name != "Content-Type"}
    event = read_binary(headers if kind is None else {**headers, "content-type": kind}, body)
    assert event.data == data
    assert read_event(event.line()).data == data


def test_headers_are_decoded() -> None:
    event = read_binary({**HEADERS, "ce-subject": "Euro%20%E2%82%AC", "ce-quoted": '"a \\"b\\""'}, b"")
    assert event.attributes["subject"] == "Euro \u20ac"
    assert event.attributes["quoted"] == 'a "b"'


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"ce-id": "1"}, b"", "has no ce-specversion header"),
        ({**HEADERS, "ce-source": ""}, b"", "has no ce-source header"),
        ({**HEADERS, "ce-subject": "%ff"}, b"", "has a ce-subject header that is not UTF-8"),
        (HEADERS, b"{", "in its data: is not JSON"),
        (HEADERS, b" " * 5_000_000, "has 5,000,000 bytes, over the limit"),
    ],
)
def test_broken_binary_mode_is_rejected(headers: dict[str, str], body: bytes, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        read_binary(headers, body)


def test_a_cloudevent_is_written_as_one() -> None:
    assert json.loads(read_event(CLOUDEVENT).line()) == CLOUDEVENT
    assert read_event(read_event(CLOUDEVENT).line()).form == "cloudevents"
