"""Small hostile bodies: what they cost is counted in steps, not in seconds, and grows no faster than they do."""

import gzip
import hashlib
import json
import random
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from eventonce import Once, Rule
from eventonce.errors import EventRejected
from eventonce.event import Delivery, Event, decoding
from eventonce.event import paths as path
from eventonce.event.formats import MAX_BYTES, Carried, read_event, read_events, read_message, text, unpack
from eventonce.event.formats.text import read_json
from eventonce.event.paths import ignored_path
from eventonce.event.reading import split_events
from eventonce.requests.reading import deliveries
from eventonce.rules.rulebook import CompiledRule

Make = Callable[[int], bytes]


def filled(item: str) -> Make:
    """An event of about so many bytes, most of which are copies of this item."""
    return lambda size: b'{"id":"1","d":[%s]}' % b",".join([item.encode()] * max(1, size // (len(item) + 1)))


def nested(depth: int, begin: str, end: str, core: str = "0") -> Make:
    return filled(begin * depth + core + end * depth)


NUMBERS = {
    name: filled(name) for name in ("1e300", "9.5E+300", "5e-324", "2.2E-308", "1e-0000324", "1e23", "1e-7", "1.0")
}
BODIES: dict[str, Make] = {
    **NUMBERS,
    "zeros": filled("0"),
    "integers of 30 digits": filled("1" * 30),
    "lists": nested(160, "[", "]"),
    "objects": nested(160, '{"a":', "}"),
    "objects and lists": nested(80, '{"a":[', "]}"),
    "names beyond U+E000": nested(100, '{"\ue000":', "}"),
    "empty objects": filled("{}"),
    "escapes": filled(r'"\u0041\"\\"'),
    "names": lambda size: b'{"id":"1",%s}' % b",".join(b'"%d":0' % number for number in range(size // 10)),
}
RULES = {
    "plain": (),
    "one": ("**.traceId",),
    "two": ("**.a.**.at",),
    "three": ("**.a.**.a.**.at",),
    "many": ("**.a.**.b.**.c", "**.*.*.*.*.x", "a[*].**.b[*].at", "**.a.a.a.a.a.a.z", "*.*.*.**[*].*.q"),
}


def content_rule(*ignore: str) -> CompiledRule:
    return CompiledRule("billing", Rule(name="all", key="content", ignore=ignore))


def steps(function: Callable[[], Any]) -> int:
    """Return how many calls of Python and C this makes."""
    count = 0

    def profile(frame: Any, kind: str, _: Any) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def cost(body: bytes, rule: CompiledRule) -> int:
    """The steps from the bytes of a message to its key."""
    return steps(lambda: [rule.key(event) for event in read_message(Carried(body)) if isinstance(event, Event)])


@pytest.mark.parametrize("ignore", RULES.values(), ids=RULES)
@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
def test_reading_and_keying_takes_so_many_steps_for_each_byte(make: Make, ignore: tuple[str, ...]) -> None:
    rule = content_rule(*ignore)
    cost(make(1_000), rule)  # what is made once
    small, large = make(5_000), make(20_000)
    assert cost(small, rule) < 6 * len(small)
    assert cost(large, rule) / len(large) < 1.2 * cost(small, rule) / len(small)


@pytest.mark.parametrize("ignore", list(RULES.values())[1:], ids=list(RULES)[1:])
def test_depth_costs_no_more_than_width(ignore: tuple[str, ...]) -> None:
    rule = content_rule(*ignore)
    flat, deep = nested(8, '{"a":', "}")(30_000), nested(190, '{"a":', "}")(30_000)
    cost(flat, rule)
    assert cost(deep, rule) / len(deep) < 1.5 * cost(flat, rule) / len(flat)


def test_the_cache_of_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern like **.a.*.*.* has a great many states, and whoever sends events chooses which of them come up."""
    monkeypatch.setattr(path, "_MAX_STATES", 16)
    search = path._Search([ignored_path("**.a." + "*." * 14 + "z")])
    rng = random.Random(1)
    for _ in range(100):
        names = [rng.choice("ab") for _ in range(150)]
        nest: Any = {"z": 1}
        for name in names:
            nest = {name: nest}
        stripped = search(nest)
        assert (stripped == nest) is (names[14] != "a")
    assert len(search._cache) <= 16


# --- numbers ---


def decoders_used(body: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the decoders that read a body to its end, or tried to."""
    used: list[str] = []

    class Spy:
        def __init__(self, name: str, decoder: Callable[[bytes], Any]) -> None:
            self._name, self._decoder = name, decoder

        def decode(self, raw: bytes) -> Any:
            used.append(self._name)
            return self._decoder(raw)

        __call__ = decode

    ordinary = text._ordinary_decoder()
    monkeypatch.setattr(text, "_ordinary_decoder", lambda: Spy("ordinary", ordinary.decode))
    monkeypatch.setattr(decoding, "_decode_fast", Spy("quick", decoding._decode_fast))
    monkeypatch.setattr(decoding, "_decode_bounded", Spy("steady", decoding._decode_bounded))
    read_json(body)
    return used


@pytest.mark.parametrize("number", ["1e300", "1E+300", "1e0000300", "9.5e300", "1e23", "-7e23"])
def test_large_exponents_are_read_by_what_they_cannot_slow_down(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The ordinary decoder ends at the first of them.
    assert decoders_used(filled(number)(1_000), monkeypatch) == ["ordinary", "steady"]


@pytest.mark.parametrize("number", ["5e-324", "5E-324", "5e-0000324", "2.2250738585072011e-308", "-1.5e-310"])
def test_small_exponents_are_read_by_what_they_cannot_slow_down(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoders_used(filled(number)(10_000), monkeypatch) == ["steady"]


def test_slow_numbers_are_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are at random offsets. That 32 of them miss a third of the document never happens."""
    body = filled('5e-324,"' + "text" * 4 + '"')(100_000)
    assert decoders_used(body, monkeypatch) == ["steady"]


def test_ordinary_documents_are_read_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"id": "3e-4a1b", "ids": ["0c3e-3001-4e-100f"] * 500, "price": [19.99, 1e-7, 5] * 500}).encode()
    assert decoders_used(body, monkeypatch) == ["ordinary"]
    assert decoders_used(b'{"n":1e300,"deep":[[[1e23]]]}', monkeypatch) == ["ordinary", "quick"]


def test_many_small_events_in_one_message_are_looked_through_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    steady: list[bytes] = []
    decode = decoding._decode_bounded

    def noted(raw: bytes) -> Any:
        steady.append(raw)
        return decode(raw)

    monkeypatch.setattr(decoding, "_decode_bounded", noted)
    hidden = r'{"d":[' + ",".join([r"5e-324"] * 50) + "]}"
    bodies = [{"eventSource": "aws:sqs", "messageId": str(n), "body": hidden} for n in range(5)]
    batch = json.dumps({"Records": bodies}).replace("e-324", r"\u0065-324").encode()
    assert len(read_message(Carried(batch))) == 5
    assert len(steady) == 5


def _kinesis(body: bytes) -> object:
    record = {"eventSource": "aws:kinesis", "eventID": "1", "kinesis": {"data": b64encode(body).decode()}}
    return read_message(unpack({"Records": [record]})[0])


def _cloudevent(body: bytes) -> object:
    envelope = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "datacontenttype": "application/json"}
    return read_event({**envelope, "data_base64": b64encode(body).decode()})


DOORS: dict[str, Callable[[bytes], object]] = {
    "file": read_event,
    "document": read_events,
    "SQS": lambda body: read_message(Carried(body.decode(), "sqs", "m-1")),
    "SQS, in gzip": lambda body: read_message(Carried(gzip.compress(body), "sqs", "m-1")),
    "Kinesis to Lambda": _kinesis,
    "SNS to SQS": lambda body: read_message(
        Carried(json.dumps({"Type": "Notification", "TopicArn": "a", "Message": body.decode()}), "sqs", "m-1")
    ),
    "EventBridge, detail as text": lambda body: read_event(
        {"source": "s", "detail-type": "t", "id": "1", "detail": body.decode()}
    ),
    "EventBridge as it writes it": lambda body: read_event(
        b'{"version":"0","id":"1","detail-type":"t","source":"s","account":"1","time":"2026-01-05T09:00:00Z",'
        b'"region":"r","resources":[],"detail":%s}' % body
    ),
    "CloudEvent": _cloudevent,
    "new bus": lambda body: read_event({"Data": body.decode(), "SystemMetadata": {"aws:EventId": "1"}}),
    "webhook": lambda body: deliveries({}, body, 1024 * 1024, "http"),
    "webhook, binary CloudEvent": lambda body: deliveries(
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "content-type": "application/json"},
        body,
        1024 * 1024,
        "http",
    ),
}


@pytest.mark.parametrize("number", ["5e-324", "1e300"])
@pytest.mark.parametrize("read", DOORS.values(), ids=DOORS)
def test_every_door_reads_slow_numbers_decode_bounded(
    read: Callable[[bytes], object], number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    decode = decoding._decode_bounded

    def noted(raw: bytes) -> Any:
        seen.append(raw)
        return decode(raw)

    monkeypatch.setattr(decoding, "_decode_bounded", noted)
    body = filled(number)(10_000)
    read(body)
    assert seen
    assert body in seen[-1]  # what wraps it may look the same


def some_number(rng: random.Random) -> str:
    digits = str(rng.getrandbits(rng.randint(1, 90)))
    fraction = rng.choice(["", f".{rng.getrandbits(40)}", ".0"])
    return rng.choice(["", "-"]) + digits + fraction + rng.choice(["", "e", "E+", "e-"])


def test_both_ways_to_read_numbers_agree() -> None:
    rng = random.Random(2)
    for _ in range(20_000):
        number = some_number(rng)
        if not number[-1].isdigit():
            number += str(rng.choice([0, 5, 22, 23, 290, 300, 308, 309, 324, 345, 400]))
        body = f'{{"n":{number}}}'.encode()
        assert _value_or_none(decoding._decode_fast, body) == _value_or_none(decoding._decode_bounded, body), number


def _value_or_none(decode: Callable[[bytes], Any], body: bytes) -> str | None:
    try:
        return repr(decode(body))
    except msgspec.MsgspecError:
        return None


@pytest.mark.parametrize("number", ["1e300", "5e-324", "1e-7", "1.0", "123456789012345678901234567890"])
def test_the_key_does_not_depend_on_how_numbers_are_read(number: str) -> None:
    """By itself each is read in the quick way."""
    rule = content_rule()
    together = read_event(filled(number)(10_000))
    count = len(together.data["d"])
    alone = read_event(filled(number)(1)).data["d"][0]
    assert repr(together.data["d"]) == repr([alone] * count)
    assert rule.content(together) == rule.content(Event(data={"id": "1", "d": [alone] * count}))


def test_what_is_out_of_range_is_refused_in_both_ways() -> None:
    for body in (b'{"n":1e400}', filled("1e400")(10_000), filled("-1e999999999999")(10_000)):
        with pytest.raises(EventRejected, match="Number out of range"):
            read_event(body)


# --- values ---


def test_values_are_bounded_by_the_bytes_that_an_event_may_have() -> None:
    ordinary = json.dumps({"id": "1", "d": [{"name": "n", "at": 12.5}] * 150_000}).encode()
    assert len(ordinary) < MAX_BYTES
    read_event(ordinary)
    with pytest.raises(EventRejected, match="holds more than 524,288 values"):
        read_event(filled("0")(2 * 1024 * 1024))
    with pytest.raises(EventRejected, match="holds more than 65,536 values"):
        read_event(filled("{}")(250_000), 300_000)
    read_event(filled("0")(60_000), 60_100)


@pytest.mark.parametrize("string", [',{["' * 80_000, '\\"[{,' * 80_000, "\\" * 80_000 + "," * 80_000])
def test_characters_in_a_string_do_not_count_as_values(string: str) -> None:
    event = read_event(json.dumps({"id": "1", "d": string}).encode(), 600_000)
    assert event.data["d"] == string


def test_what_a_text_without_an_end_looks_like_is_counted_in_one_pass() -> None:
    body = b'{"d":"' + rb"\"," * 200_000
    with pytest.raises(EventRejected, match="is not JSON"):
        read_event(body, 1_000_000)
    assert steps(lambda: _rejected(body)) < 200


def _rejected(body: bytes) -> None:
    with pytest.raises(EventRejected):
        read_event(body, 1_000_000)


def test_a_text_in_an_event_may_hold_as_many_values_as_the_event() -> None:
    inner = json.dumps({"d": [0] * 50_000})
    event = read_event(json.dumps({"source": "s", "detail-type": "t", "detail": inner}).encode())
    assert len(event.data["d"]) == 50_000


def test_gzip_of_a_message_is_bounded_as_well() -> None:
    body = gzip.compress(filled("0")(3 * 1024 * 1024))
    (error,) = read_message(Carried(body))
    assert str(error) == "its message holds more than 524,288 values"


# --- gzip ---


def kinesis(data: bytes, number: int = 0) -> dict[str, Any]:
    record = {"sequenceNumber": str(number), "data": b64encode(data).decode()}
    return {"eventSource": "aws:kinesis", "eventID": str(number), "eventSourceARN": "a", "kinesis": record}


def records(parts: list[bytes]) -> bytes:
    return json.dumps({"Records": [kinesis(part, number) for number, part in enumerate(parts)]}).encode()


def aggregate(parts: list[bytes]) -> bytes:
    """Return records as the Kinesis Producer Library packs them."""
    message = b"".join(_field(_field(part)) for part in parts)
    return b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest()


def _field(value: bytes) -> bytes:
    size, left = b"", len(value)
    while left > 0x7F:
        size, left = size + bytes([left & 0x7F | 0x80]), left >> 7
    return b"\x1a" + size + bytes([left]) + value


BOMB = gzip.compress(filled("1e300")(1_000_000))
GZIPS: dict[str, Callable[[int], bytes]] = {
    "flat": lambda count: records([BOMB] * count),
    "nested": lambda count: gzip.compress(records([BOMB] * count)),
    "nested twice": lambda count: gzip.compress(records([gzip.compress(records([BOMB] * count))] * 3)),
    "too large": lambda count: gzip.compress(records([gzip.compress(b" " * 5_000_000)] * count)),
    "damaged": lambda count: gzip.compress(records([BOMB[:-8] + bytes(8)] * count)),
    "of the producer library": lambda count: aggregate([BOMB] * count),
}


def sqs_worker(once: Once, body: bytes) -> Any:
    where = {"source": "sqs://q", "message": "m", "arn": "q"}
    return once.run(list(split_events(Delivery(records([body]), where, handle="h"))), print)


MESSAGES: dict[str, Callable[[Once, bytes], Any]] = {
    "Kinesis to Lambda": lambda once, body: once.aws_lambda(print)({"Records": [kinesis(body)]}),
    "a pipe": lambda once, body: once.aws_lambda(print, enrichment=True)([kinesis(body)]),
    "Firehose": lambda once, body: once.aws_lambda(print)(
        {"invocationId": "i", "records": [{"recordId": "1", "data": b64encode(body).decode()}]}
    ),
    "SQS to Lambda": lambda once, body: once.aws_lambda(print)(
        {"Records": [{"eventSource": "aws:sqs", "messageId": "m", "body": records([body]).decode()}]}
    ),
    "a request to Lambda": lambda once, body: once.aws_lambda(print)(
        {"rawPath": "/", "requestContext": {}, "headers": {}, "body": records([body]).decode()}
    ),
    "a worker on SQS": sqs_worker,
    "a call": lambda once, body: once.run([records([body])], print),
}


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("make", GZIPS.values(), ids=GZIPS)
@pytest.mark.parametrize("door", MESSAGES.values(), ids=MESSAGES)
def test_what_gzip_unpacks_to_is_in_proportion_to_what_was_sent(
    door: Callable[[Once, bytes], Any], make: Callable[[int], bytes], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = 0
    read = gzip.GzipFile.read

    def counted(file: gzip.GzipFile, size: int | None = -1) -> bytes:
        nonlocal unpacked
        try:
            raw = read(file, size)
        except OSError:  # damaged, which shows at its end
            unpacked += 1_000_000
            raise
        unpacked += len(raw)
        return raw

    body = make(count)
    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    with Once("memory:", consumer="c") as once, suppress(EventRejected):
        door(once, body)
    assert unpacked <= max(MAX_BYTES, 32 * 4 * len(body) // 3 + 32 * 400) + 1


def test_gzip_that_unpacks_tenfold_is_read() -> None:
    """Logs, in a record of the largest size that streams usually have."""
    rng = random.Random(3)
    part = b'{"id":"%d","lines":[%s]}'
    parts = []
    for number in range(12):
        lines = [b'"%s %s"' % (rng.randbytes(34).hex().encode(), b"abc " * 150) for _ in range(1_300)]
        parts.append(gzip.compress(part % (number, b",".join(lines)), 9))
    body = aggregate(parts)
    assert 700_000 < len(body) < 1024 * 1024
    results = read_message(Carried(body, "kinesis", "1"))
    assert [type(each) for each in results] == [Event] * 12
    assert sum(len(each.raw) for each in results if isinstance(each, Event)) > 10 * len(body)


def test_gzip_in_a_message_may_hold_so_many_values_together() -> None:
    """Each document in it is small enough to be one for itself."""
    part = gzip.compress(filled("0")(130_000))
    results = read_message(Carried(gzip.compress(records([part] * 30)), "kinesis", "1"))
    kinds = [isinstance(each, Event) for each in results]
    assert kinds.count(True) == 8
    assert {str(each) for each in results if isinstance(each, EventRejected)} == {
        "in the Kinesis record: in the Kinesis record: its message holds more than 524,288 values"
    }
    ordinary = json.dumps({"d": [{"name": "n", "at": 12.5}] * 5_000}).encode()
    many = read_message(Carried(gzip.compress(records([gzip.compress(ordinary)] * 30)), "kinesis", "1"))
    assert {type(each) for each in many} == {Event}
