"""Aggregates of the Kinesis Producer Library: what goes in comes out, and no message breaks the reader."""

import hashlib
import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce import Once
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import Carried, kpl, read_events, read_message

MAGIC = b"\xf3\x89\x9a\xc2"


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def aggregate(*bodies: bytes, hash_keys: tuple[bytes, ...] = (), tags: bytes = b"") -> bytes:
    """Return an aggregate as the library writes it: the table of partition keys first, then the records."""
    keys = sorted({b"p-%d" % (number % 3) for number in range(len(bodies))})
    message = b"".join(field(1, key) for key in keys) + b"".join(field(2, key) for key in hash_keys)
    for number, body in enumerate(bodies):
        tagged = field(4, tags) if tags else b""
        hashed = field(2, 0) if hash_keys else b""
        message += field(3, field(1, number % len(keys)) + hashed + field(3, body) + tagged)
    return sealed(message)


def record(raw: bytes, sequence: str = "7") -> dict[str, Any]:
    data = {"data": b64encode(raw).decode(), "sequenceNumber": sequence, "partitionKey": "a"}
    return {"eventSource": "aws:kinesis", "eventID": f"shard:{sequence}", "kinesis": data}


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=40),
    st.lists(st.binary(max_size=20), max_size=3),
    st.binary(max_size=20),
)
def test_what_goes_in_comes_out(bodies: list[bytes], hash_keys: list[bytes], tags: bytes) -> None:
    raw = aggregate(*bodies, hash_keys=tuple(hash_keys), tags=tags)
    assert kpl.recognises(raw)
    assert kpl.read(raw) == bodies


@given(st.binary(max_size=300))
def test_no_message_breaks_it(message: bytes) -> None:
    for raw in (sealed(message), MAGIC + message):
        try:
            records = kpl.read(raw)
        except EventRejected:
            continue
        assert records
        assert sum(map(len, records)) <= len(message)


@given(st.data())
def test_a_damaged_one_is_refused(data: st.DataObject) -> None:
    raw = bytearray(aggregate(b'{"id": "1"}', b'{"id": "2"}'))
    offset = data.draw(st.integers(len(MAGIC), len(raw) - 1))
    raw[offset] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EventRejected, match="its checksum is wrong"):
        kpl.read(bytes(raw))
    with pytest.raises(EventRejected, match="its checksum is wrong"):
        kpl.read(bytes(raw[:offset]))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "it holds no record"),
        (field(1, b"key"), "it holds no record"),
        (field(3, field(1, 0)), "a record in it has no data"),
        (field(3, b"\x1a\xff\xff\xff\xff\x0fx"), "it is cut off"),
        (b"\x80" * 20, "it is cut off"),
        (b"\x1b", "a field in it has an unknown type"),
        (field(3, field(3, b"")) * 10_001, "it holds more than 10,000 records"),
    ],
)
def test_the_error_names_the_reason(message: bytes, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        kpl.read(sealed(message))


def test_fields_of_a_later_version_are_skipped() -> None:
    fixed = varint(9 << 3 | 1) + b"12345678" + varint(10 << 3 | 5) + b"1234"
    assert kpl.read(sealed(fixed + field(11, 1) + field(3, fixed + field(3, b"x")))) == [b"x"]


def test_each_record_in_it_is_an_event() -> None:
    own = json.dumps({"id": "e-1", "source": "shop", "detail-type": "Order", "detail": {}}).encode()
    events = read_events({"Records": [record(aggregate(own, b'{"n": 1}', b"text", b"\xff"))]})
    assert [each.id for each in events if isinstance(each, Event)] == ["e-1", "shard:7/2", "shard:7/3", "shard:7/4"]
    assert [each.data for each in events if isinstance(each, Event)] == [{}, {"n": 1}, "text", "/w=="]


def test_one_that_cannot_be_read_does_not_spoil_the_others() -> None:
    first, empty, broken, last = read_message(Carried(aggregate(b'{"n": 1}', b"", b"{", b'{"n": 2}'), "kinesis", "7"))
    assert isinstance(first, Event)
    assert isinstance(last, Event)
    assert isinstance(empty, Event)
    assert (first.id, empty.id, last.id) == ("7/1", "7/2", "7/4")
    assert empty.data == ""
    assert str(broken).startswith("in the Kinesis record: is not JSON")


def test_one_within_itself_comes_to_an_end() -> None:
    raw = b'{"n": 1}'
    for _ in range(7):
        raw = aggregate(raw)
    (error,) = read_message(Carried(raw, "kinesis", "7"))
    assert "is wrapped more than 5 times" in str(error)


def test_lambda_runs_each_of_them_once() -> None:
    ran: list[str] = []
    handler = Once("memory:").aws_lambda(lambda event: ran.append(event.id))
    batch = {"Records": [record(aggregate(b'{"id": "a"}', b'{"id": "b"}')), record(aggregate(b'{"id": "b"}'), "8")]}
    assert handler(batch, None) == {"batchItemFailures": []}
    assert ran == ["a", "b"]
