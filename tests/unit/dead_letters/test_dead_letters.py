"""Dead letters: written, and read back as they were, whoever wrote them."""

import json
import sqlite3
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once, Rule
from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.clock import to_datetime
from eventonce.dead_letters import open_dead_letters
from eventonce.dead_letters.letter import after_failure, letter_deliveries, letter_fields, read_letter
from eventonce.dead_letters.queue import DeadQueue, compress_body
from eventonce.dead_letters.undelivered import read_undelivered
from eventonce.errors import ConfigError, EventRejected, SinkError, SourceError
from eventonce.event import Delivery, Event
from eventonce.event.keys import Key
from eventonce.event.reading import split_events
from eventonce.redrive import DeadLetter, LetterFilter, groups, open_box, plan
from eventonce.requests.reading import deliveries
from eventonce.settings import dead_letter_url, load
from eventonce.wire import Pipeline

NOW = 1_767_225_600_000
EVENT = b'{"id":"1"}'
FAILED = Outcome(
    kind=OutcomeKind.FAILED, error=ValueError("no money"), key=Key(bytes(16)), rule="orders", attempt=5, final=True
)


def dead(body: bytes = EVENT, **more: Any) -> tuple[Delivery, Outcome]:
    return Delivery(body, {"source": "in.jsonl", "line": 7}, **more), FAILED


def read_back(fields: dict[str, Any]) -> DeadLetter:
    return read_letter(json.dumps(fields).encode())


# --- read back ---


@pytest.mark.parametrize("body", [EVENT, b"junk", b"", b"\xff\xfe", '{"a":"ä\uffff"}'.encode()])
def test_a_letter_is_read_back_as_it_was_written(body: bytes) -> None:
    letter = read_back(letter_fields(*dead(body), NOW))
    assert (letter.body, letter.reason, letter.outcome, letter.attempts) == (body, "no money", "failed", 5)
    assert (letter.rule, letter.key, letter.time) == ("orders", "00" * 16, to_datetime(NOW))
    assert (letter.location, letter.unreadable) == ("in.jsonl:7", None)


@pytest.mark.parametrize("body", [EVENT, b"\xff" * 1000])
def test_a_packed_letter_is_read_back(body: bytes) -> None:
    assert read_back(compress_body(letter_fields(*dead(body), NOW))).body == body


def test_a_letter_has_the_id_that_only_the_carrier_knew() -> None:
    fields = letter_fields(*dead(event=Event(data={}, id="message-1/2")), NOW)
    assert fields["event_id"] == "message-1/2"
    assert read_back(fields).event_id == "message-1/2"


GITHUB = {"x-github-delivery": "d-1", "x-github-event": "push", "content-type": "application/json"}
BINARY = {"ce-id": "c-1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0", "content-type": "text/plain"}
SENT = {"source": "sqs://in", "message": "m-1"}


@pytest.mark.parametrize(
    "came",
    [
        deliveries(GITHUB, b'{"id": "repository"}', 10_000, "http"),
        deliveries({**GITHUB, "content-type": "text/plain"}, b"text", 10_000, "http"),
        deliveries(BINARY, b"text", 10_000, "http"),
        deliveries({"x-gitlab-event": "Push"}, b'{"n": 1}', 10_000, "http"),
        deliveries({}, b'{"id": 7, "headers": {"x-github-event": "push"}}', 10_000, "http"),
        deliveries({"webhook-id": "w"}, b'[{"id": 1, "n": 1}, {"n": 2}]', 10_000, "http"),
        split_events(Delivery(b'{"n": 1}', SENT, handle="h")),
        split_events(Delivery(b'{"id": 7}', SENT, handle="h")),
        split_events(Delivery(b"text", SENT, handle="h")),
        split_events(Delivery(b'{"Records": [{"n": 1}, {"n": 2}]}', SENT, handle="h")),
        split_events(Delivery(b'[{"specversion": "1.0", "id": "1", "source": "s", "type": "t"}]', SENT, handle="h")),
    ],
)
def test_an_event_has_the_key_it_had_however_it_came(came: list[Delivery]) -> None:
    rules = [
        Rule(name="hooks", match={"headers": {"x-github-event": [{"exists": True}]}}, key=["headers", "id"]),
        Rule(name="types", match={"headers": {"x-gitlab-event": [{"exists": True}]}}, key=["headers", "detail.n"]),
    ]
    with Once("memory:", rules=rules) as once:
        for delivery in came:
            (again,) = letter_deliveries(read_back(letter_fields(delivery, FAILED, NOW)))
            assert once.key(again.event or again.body) == once.key(delivery.event or delivery.body)


def test_headers_of_a_damaged_letter_are_left_out() -> None:
    (came,) = deliveries(GITHUB, b'{"n": 1}', 10_000, "http")
    for damaged in (7, ["x-github-event"], {"x-github-event": 7, "x-github-delivery": ["d-1"]}):
        (again,) = letter_deliveries(read_back({**letter_fields(came, FAILED, NOW), "headers": damaged}))
        assert again.event is not None
        assert "headers" not in again.event.attributes


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"\xff",
        EVENT,
        json.dumps({**letter_fields(*dead(), NOW), "body": 7}).encode(),
        json.dumps({**letter_fields(*dead(), NOW), "attempts": "many"}).encode(),
        json.dumps({**compress_body(letter_fields(*dead(), NOW)), "body_gzip": "****"}).encode(),
        json.dumps(
            {**compress_body(letter_fields(*dead(), NOW)), "body_gzip": b64encode(b"no gzip").decode()}
        ).encode(),
        json.dumps({**compress_body(letter_fields(*dead(), NOW)), "body_gzip": "H4sIAAAAAAAAAw=="}).encode(),
    ],
)
def test_what_cannot_be_a_letter_is_marked_and_cannot_be_redriven(raw: bytes) -> None:
    assert read_letter(raw).unreadable == "is not an eventonce dead letter, or is damaged"


def test_a_letter_keeps_its_name_when_it_fails_again() -> None:
    first = read_back(letter_fields(*dead(), NOW))
    worse = Outcome(kind=OutcomeKind.FAILED, error=KeyError("x"), key=Key(bytes(16)), rule="orders", attempt=6)
    second = read_back(dict(after_failure(first, worse, NOW + 1).fields))
    assert (second.id, second.replay_name, second.body) == (first.id, first.replay_name, first.body)
    assert (second.attempts, second.reason, second.origin) == (6, "'x'", first.origin)


def test_what_could_not_be_read_was_no_attempt() -> None:
    first = read_back(letter_fields(*dead(), NOW))
    again = after_failure(first, Outcome(kind=OutcomeKind.REJECTED, error=EventRejected("is not JSON")), NOW)
    assert again.fields["attempts"] == 5


# --- what AWS puts into such queues ---

RECEIVED = Delivery(b"", {"source": "sqs://dead", "message": "m-1"}, receive_count=4, handle="h")


def undelivered(body: bytes, attributes: dict[str, str] | None = None, **system: str) -> DeadLetter:
    message = {
        "MessageId": "m-1",
        "Attributes": {"SentTimestamp": str(NOW), **system},
        "MessageAttributes": {name: {"StringValue": value} for name, value in (attributes or {}).items()},
    }
    return read_undelivered(Delivery(body, RECEIVED.origin, receive_count=4, handle="h"), message)


def test_a_dead_letter_of_eventbridge() -> None:
    letter = undelivered(
        EVENT,
        {
            "RULE_ARN": "arn:aws:events:us-east-1:123456789012:rule/bus/orders",
            "TARGET_ARN": "arn:aws:sqs:us-east-1:123456789012:in",
            "ERROR_CODE": "NO_PERMISSIONS",
            "ERROR_MESSAGE": "it may not",
            "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
            "RETRY_ATTEMPTS": "185",
        },
    )
    assert letter.reason == "NO_PERMISSIONS: it may not (MaximumRetryAttempts)"
    assert (letter.rule, letter.attempts, letter.body, letter.unreadable) == ("orders", 185, EVENT, None)
    assert (letter.id, letter.time, letter.outcome) == ("m-1", to_datetime(NOW), "undelivered")


def test_a_dead_letter_of_the_new_bus_names_its_events_and_cannot_be_redriven() -> None:
    record = {
        "version": "1.0",
        "busArn": "arn:aws:events:us-east-1:123456789012:event-busv2/orders/x",
        "subscriberArn": "arn:aws:events:us-east-1:123456789012:subscriber/large-orders/y",
        "errorCode": "ACCESS_DENIED",
        "errorMessage": "it may not",
        "exhaustedRetryCondition": "MaximumEventAgeInSeconds",
        "retryAttempts": 4,
        "failedMessages": [{"eventId": "a-1"}, {"eventId": "b-2"}],
    }
    letter = undelivered(json.dumps(record).encode())
    assert letter.reason == "ACCESS_DENIED: it may not (MaximumEventAgeInSeconds)"
    assert (letter.rule, letter.attempts) == ("large-orders", 4)
    assert letter.unreadable == (f"it names its events and does not hold them; replay a-1, b-2 from {record['busArn']}")


@pytest.mark.parametrize("body", [EVENT, b"text", b'{"failedMessages": "no"}', b'{"failedMessages'])
def test_a_message_that_sqs_has_moved(body: bytes) -> None:
    letter = undelivered(body, DeadLetterQueueSourceArn="arn:aws:sqs:us-east-1:123456789012:in")
    assert (letter.reason, letter.attempts, letter.unreadable) == ("was received too often from in", 3, None)
    assert letter.body == body


SAID = {"eventonce-outcome": "failed", "RULE_ARN": "arn:aws:events:r:1:rule/chosen", "ERROR_CODE": "CHOSEN"}


@pytest.mark.parametrize("name", SAID)
def test_attributes_of_the_sender_do_not_count_for_a_message_that_sqs_has_moved(name: str) -> None:
    moved = {"DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:123456789012:in"}
    letter = undelivered(EVENT, {name: SAID[name]}, **moved)
    assert (letter.outcome, letter.reason, letter.rule) == ("undelivered", "was received too often from in", None)
    assert (letter.unreadable is not None) == (name == "eventonce-outcome")  # which could be the letter of a letter


def test_such_a_message_is_read_with_its_own_id_where_the_event_has_none() -> None:
    (delivery,) = letter_deliveries(undelivered(b'{"n": 1}'))
    assert delivery.event is not None
    assert delivery.event.id == "m-1"


# --- choosing ---


def chosen(**conditions: Any) -> bool:
    letter = DeadLetter(id="1", reason="No route to host", rule="orders", key="00" * 16, time=to_datetime(NOW))
    return LetterFilter(**conditions).matches(letter)


def test_a_filter_meets_all_its_conditions() -> None:
    assert chosen()
    assert chosen(reason="no ROUTE", rule="orders", key="00" * 16, since=to_datetime(NOW))
    assert not chosen(reason="timeout")
    assert not chosen(rule="mails")
    assert not chosen(key="11" * 16)
    assert not chosen(since=to_datetime(NOW + 1))
    assert not LetterFilter(since=to_datetime(NOW)).matches(DeadLetter(id="1"))


def test_a_plan_holds_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.redrive.selection.MAX_LETTERS", 3)
    letters = [
        DeadLetter(id=str(n), reason="even" if n % 2 == 0 else "odd", unreadable="x" if n == 4 else None)
        for n in range(10)
    ]
    selection = plan(iter(letters), LetterFilter(reason="even"))
    assert (selection.total, selection.matching) == (10, 5)
    assert [letter.id for letter in selection.chosen] == ["0", "2", "4"]
    assert [letter.id for letter in selection.letters] == ["0", "2"]
    assert [letter.id for letter in plan(letters, LetterFilter(), 1).letters] == ["0"]


def test_reasons_that_differ_in_names_and_numbers_are_one() -> None:
    letters = [
        DeadLetter(id="1", reason="no customer 'a' after 3 tries", rule="orders"),
        DeadLetter(id="2", reason="timeout", rule="orders"),
        DeadLetter(id="3", reason="no customer 'b' after 12 tries", rule="orders"),
        DeadLetter(id="4", reason="timeout", rule="mails"),
        DeadLetter(id="5", reason="no customer 'a' after 3 tries", rule="orders", unreadable="gone"),
    ]
    letter_groups = groups(letters)
    assert [(group.size, group.rule, group.unreadable) for group in letter_groups] == [
        (2, "orders", None),
        (1, "orders", None),
        (1, "mails", None),
        (1, "orders", "gone"),
    ]
    assert letter_groups[0].reason == "no customer 'a' after 3 tries"


# --- a table ---


def test_letters_in_a_table(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dead.db'}"
    table = open_dead_letters(url)
    table.write([], NOW)
    assert not (tmp_path / "dead.db").exists()
    table.write([dead(), dead(b"\xff")], NOW)
    box = open_box(url)
    one, two = box.letters()
    assert (one.body, two.body, one.reason) == (EVENT, b"\xff", "no money")

    box.keep([after_failure(one, FAILED, NOW)])
    box.remove([two])
    box.remove([two])
    (left,) = open_box(url).letters()
    assert (left.id, left.attempts) == (one.id, 6)


def test_a_letter_that_is_gone_is_not_kept_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dead.db'}"
    open_dead_letters(url).write([dead()], NOW)
    box = open_box(url)
    (letter,) = box.letters()
    box.remove([letter])
    box.keep([after_failure(letter, FAILED, NOW)])
    assert list(box.letters()) == []


def test_a_table_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dead.db").write_text("this text was never a database")
    table = open_dead_letters(f"sqlite:///{tmp_path / 'dead.db'}")
    with pytest.raises(SinkError, match="cannot be used: file is not a database; fix this and run again"):
        table.write([dead()], NOW)


def test_the_table_is_beside_the_claims(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"junk\n")
    settings = load(store=f"sqlite:///{tmp_path / 'store.db'}", source=str(tmp_path / "in.jsonl"), dead_letter="store")
    pipeline = Pipeline(settings)
    pipeline.dead_letters.write([dead()], NOW)
    pipeline.close()
    Pipeline(settings).close()  # the store still takes the file for its own
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("SELECT count(*) FROM eventonce_dead_letters").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("store", ["memory:", "redis://localhost", "dynamodb://table"])
def test_a_store_without_such_a_table_is_refused_with_the_remedy(store: str) -> None:
    with pytest.raises(ConfigError, match=r"only SQLite and PostgreSQL have one; use a file or sqs://QUEUE"):
        dead_letter_url(load(store=store, dead_letter="store"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://host/file"])
def test_a_table_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="names no file"):
        open_dead_letters(url)


# --- a queue ---


def test_a_letter_that_no_message_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    queue = DeadQueue("sqs://dead")
    monkeypatch.setattr(queue, "_sink", type("Sink", (), {"limits": queue._sink.limits, "send": sent.append}))
    noise = bytes(number * number % 251 for number in range(256)) + bytes.fromhex("".join(_digits()))
    with pytest.raises(
        SinkError, match="bytes even when compressed, over the 1,047,552 of a message; keep dead letters"
    ):
        queue.write([dead(noise)], NOW)
    assert sent == []


def _digits() -> list[str]:
    from hashlib import sha256

    return [sha256(str(number).encode()).hexdigest() for number in range(40_000)]


def test_wrong_urls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^dead_letter: sqs://dead: unknown option 'colour'"):
        open_dead_letters("sqs://dead?colour=blue")
    with pytest.raises(ConfigError, match=r"^--from: sns:// is not supported; did you mean sqs://QUEUE"):
        open_box("sns://dead")
    with pytest.raises(ConfigError, match="stdout cannot be read back"):
        open_box("-")
    with pytest.raises(SourceError, match="there is no such file"):
        open_box(f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(SourceError, match="no such file, so nothing has failed yet"):
        open_box(str(tmp_path / "none.jsonl"))
