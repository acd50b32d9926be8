"""Reading bodies."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from eventonce import Event, EventRejected
from eventonce.formats import read_event

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


def test_an_event_is_already_one() -> None:
    event = Event(id="x", data=None)
    assert read_event(event) is event


def test_odd_envelopes_do_not_crash() -> None:
    odd = {"detail-type": ["a", "b"], "source": None, "detail": "text", "id": ""}
    event = read_event(odd)
    assert (event.type, event.source, event.id, event.data) == ('["a","b"]', "", "", "text")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"[]", "is a list, not a JSON object"),
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
        (42, "is a int, not an event"),
        (None, "is a NoneType, not an event"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_event_is_rejected_with_the_reason(body: Any, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        read_event(body)


def test_wide_documents_are_not_deep() -> None:
    wide = {"id": "1", "list": [{"x": [number]} for number in range(1000)]}
    assert read_event(json.dumps(wide)).id == "1"


def test_of_repeated_names_the_last_one_counts() -> None:
    assert read_event('{"id": "1", "id": "2"}').id == "2"


def test_an_event_is_written_as_one_line() -> None:
    pretty = json.dumps(EVENTBRIDGE, indent=2).encode()
    assert json.loads(read_event(pretty).line()) == EVENTBRIDGE
    assert b"\n" not in read_event(pretty).line()
    assert read_event(b'{"id": 1.0}').line() == b'{"id": 1.0}'
    assert json.loads(read_event(EVENTBRIDGE).line()) == EVENTBRIDGE
