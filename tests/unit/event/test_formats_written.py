"""Events as EventBridge writes them are read in one step, and all others in several: both give the same."""

import json
import random
from typing import Any

import msgspec
import pytest

from eventonce import Event, EventRejected, Rule
from eventonce.event.formats import read_event, read_events
from eventonce.event.formats.eventbridge import read_written
from eventonce.rules import Rulebook, identity
from tests.unit.event.test_formats import EVENTBRIDGE

WRITTEN: dict[str, Any] = {
    **{name: value for name, value in EVENTBRIDGE.items() if name != "replay-name"},
    "detail": {"orderId": "o-1", "at": 1.5, "items": [{"n": 1}, [2, None, True]]},
}
BOOK = Rulebook("c", [Rule(name="r", key="content", ignore=["at"])], identity("14d", "retry"))
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a replay": {"replay-name": "monday"},
    "another field": {"hello": 1},
    "an id that is a number": {"id": 7},
    "an empty id": {"id": ""},
    "no time": {"time": "yesterday"},
    "a time without a zone": {"time": "2026-01-05T09:00:00"},
    "a type in a list": {"detail-type": ["Order"]},
    "resources that are not names": {"resources": [1]},
    "data that is text": {"detail": '{"a": 1}'},
    "data that is nothing": {"detail": None},
    "a CloudEvent": {"detail": {"specversion": "1.0", "id": "1", "source": "com.example.shop", "type": "Order Placed"}},
    "a number with two spellings": {"detail": {"n": [1.0, 1e-7, -0.0]}},
    "a large number": {"detail": {"n": 1e15}},
    "a larger integer": {"detail": {"n": 2**64}},
    "a surrogate pair": {"detail": {"\ud83d\ude00": "\u2028"}},
    "half of one": {"detail": {"n": "\ud83d"}},
    "names beyond U+E000": {"detail": {"\ufb33": 1, "\U0001f600": 2}},
    "a stamp": {"detail": {"_eventonce": {"id": "x", "attempt": 1}}},
    **{f"{levels} levels": {"detail": json.loads('{"a":' * levels + "1" + "}" * levels)} for levels in (6, 7, 8, 250)},
}


def by_both(raw: bytes) -> list[Any]:
    """Return the result of reading it, and of the same with a blank, which prevents reading in one step."""
    return [_read(body) for body in (raw, b"{ " + raw[1:])]


def _read(body: bytes) -> Any:
    try:
        event = read_event(body)
    except EventRejected as error:
        return str(error).partition(" (byte ")[0]  # the blank moves it by one
    return BOOK.key(event).key, msgspec.structs.replace(event, raw=b"")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_both_ways_agree(change: dict[str, Any]) -> None:
    one, other = by_both(json.dumps({**WRITTEN, **change}).encode())
    assert one == other


@pytest.mark.parametrize("name", WRITTEN)
def test_both_ways_agree_where_a_field_is_missing_or_there_twice(name: str) -> None:
    text = json.dumps({**WRITTEN, "again": 0})
    for other in ({key: value for key, value in WRITTEN.items() if key != name}, {**WRITTEN, name: [{}]}):
        one, another = by_both(json.dumps(other).encode())
        assert one == another
    twice = text.replace('"again": 0', f'"{name}": {json.dumps(WRITTEN[name])}').replace("o-1", "o-2", 1)
    one, another = by_both(twice.encode())
    assert one == another


def test_both_ways_agree_on_broken_bytes() -> None:
    chance, raw = random.Random(1), json.dumps(WRITTEN).encode()
    for _ in range(3000):
        at = chance.randrange(11, len(raw))
        broken = chance.choice((raw[:at], raw[:at] + bytes([chance.randrange(256)]) + raw[at + chance.randrange(2) :]))
        one, other = by_both(broken)
        assert one == other


def test_what_is_written_by_eventbridge_takes_one_step_by_every_route() -> None:
    raw = json.dumps(WRITTEN).encode()
    event = read_written(raw)
    assert event == Event(
        id="e-1",
        source="com.example.shop",
        type="Order Placed",
        time=read_event({"time": WRITTEN["time"]}).time,
        data=WRITTEN["detail"],
        attributes={name: WRITTEN[name] for name in ("version", "account", "time", "region", "resources")},
        raw=raw,
        form="eventbridge",
        plain_numbers=True,
    )
    assert read_events(raw) == [event]
    carried = {"Records": [{"messageId": "m", "body": raw.decode(), "eventSource": "aws:sqs", "attributes": {}}]}
    assert read_events(json.dumps(carried)) == [event]


@pytest.mark.parametrize("read", [read_event, read_events])
def test_what_is_too_large_is_refused(read: Any) -> None:
    raw = json.dumps(WRITTEN).encode()
    assert read(raw, len(raw))
    try:
        (result,) = read(raw, len(raw) - 1)
    except EventRejected as error:
        result = error
    assert "over the limit" in str(result)
