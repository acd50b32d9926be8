"""Advice, on made traffic of which the answer is known."""

import json
import random
import tomllib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from eventonce.clock import duration
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.rules import Rulebook, load_rules
from eventonce.rules.rule import Rule
from eventonce.traffic import sample, table
from eventonce.traffic.advise import Advice, advise_on, try_out
from eventonce.traffic.proposal import Totals, evidence, to_json, toml, warnings

Raw = dict[str, Any]
START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


class Traffic:
    """Made traffic: the events that were sent, and which of them are copies."""

    def __init__(self, source: str = "com.example.shop", kind: str = "Order Placed", seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.sent: list[tuple[float, Raw, bool]] = []
        self._source, self._kind = source, kind

    def send(self, at: float, detail: Any, **envelope: Any) -> Raw:
        """Send one event, so many seconds after the start."""
        event = {
            "version": "0",
            "id": self.uuid(),
            "detail-type": self._kind,
            "source": self._source,
            "account": "111122223333",
            "time": stamp(at),
            "region": "eu-west-1",
            "resources": [],
            "detail": detail,
            **envelope,
        }
        self.sent.append((at, event, False))
        return event

    def again(self, event: Raw, after: float, **changes: Any) -> None:
        """Send a copy, with its id and time but for the changes."""
        at = (datetime.fromisoformat(event["time"]) - START).total_seconds() + after
        self.sent.append((at, {**event, **changes}, True))

    def anew(self, event: Raw, after: float, **detail: Any) -> None:
        """Send a copy as a producer does that sends an event again under a new id."""
        at = (datetime.fromisoformat(event["time"]) - START).total_seconds() + after
        self.again(event, after, id=self.uuid(), time=stamp(at), detail={**event["detail"], **detail})

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    @property
    def arrived(self) -> list[tuple[Raw, bool]]:
        return [(event, copy) for _, event, copy in sorted(self.sent, key=lambda each: each[0])]


def stamp(at: float) -> str:
    return (START + timedelta(seconds=at)).isoformat(timespec="milliseconds")


def advise(events: Iterable[Event], horizon: str | None = None) -> list[Advice]:
    collected = sample.Sample()
    for event in events:
        collected.add(event)
    return advise_on(collected, horizon)


def advised(*traffics: Traffic) -> list[Advice]:
    return advise(read_event(event) for traffic in traffics for event, _ in traffic.arrived)


def only(*traffics: Traffic) -> Advice:
    (advice,) = advised(*traffics)
    return advice


def drops(rules: Sequence[Rule], events: Iterable[Raw]) -> list[bool]:
    """Return for each event whether the rules drop it."""
    rulebook = Rulebook("test", rules, Rule(name="none"))
    seen: set[bytes] = set()
    dropped = []
    for event in events:
        key = rulebook.key(read_event(event)).key
        dropped.append(key in seen)
        seen.add(key)
    return dropped


def check(tmp_path: Path, *traffics: Traffic) -> list[Advice]:
    """Assert that the proposal, written and loaded again, drops exactly the copies."""
    advices = advised(*traffics)
    text = toml(advices, Totals(sum(len(traffic.sent) for traffic in traffics)))
    file = tmp_path / "proposal.toml"
    file.write_text(text)
    rules = load_rules(file)
    assert len(rules) == len(advices)
    assert len(tomllib.loads(text)["rule"]) == len(advices)
    for traffic in traffics:
        assert drops(rules, [event for event, _ in traffic.arrived]) == [copy for _, copy in traffic.arrived]
    assert [advice.check.wrong for advice in advices] == [0] * len(advices)
    return advices


def orders(
    count: int = 150, more: Mapping[str, Callable[[], Any]] | None = None, *, every: int = 5
) -> tuple[Traffic, list[Raw]]:
    """Return orders a minute apart, and those of which to make copies."""
    traffic = Traffic()
    made = []
    for number in range(count):
        detail = {
            "orderId": f"o-{number:05}",
            "cents": traffic.rng.randrange(100, 900),
            "currency": "EUR",
            "customer": {"id": f"c-{traffic.rng.randrange(40)}"},
            **{name: make() for name, make in (more or {}).items()},
        }
        made.append(traffic.send(60 * number, detail))
    return traffic, made[::every]


# --- what identifies ---


def test_producer_retries_under_a_new_id_are_found_by_the_business_id(tmp_path: Path) -> None:
    traffic, again = orders()
    for event in again:
        traffic.anew(event, traffic.rng.uniform(0.5, 20))

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == ("detail.orderId",)
    assert advice.study.copies.new_id == len(again)
    assert advice.confidence == "medium"  # nothing but nearness tells these from orders sent twice on purpose
    assert any("ask the producer" in each for each in warnings(advice))
    assert any("fewer than 2.0%" in each for each in evidence(advice))


def test_redelivery_alone_needs_no_more_than_the_id(tmp_path: Path) -> None:
    traffic, again = orders()
    for event in again:
        traffic.again(event, 30)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert advice.confidence == "high"
    assert advice.study.copies.same_id == len(again)
    assert '# as good in the sample: key = ["detail.orderId"]' in toml([advice], Totals(1))


def test_retries_with_their_time_in_the_content_are_beyond_doubt(tmp_path: Path) -> None:
    traffic, _ = orders(0)
    for number in range(150):
        event = traffic.send(
            60 * number, {"orderId": f"o-{number}", "placedAt": stamp(60 * number - 0.25), "cents": number % 7}
        )
        if number % 5 == 0:
            traffic.anew(event, 7200)  # however late

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == ("detail.orderId",)
    assert advice.confidence == "high"
    assert advice.study.copies.certain


def test_a_constant_field_identifies_nothing(tmp_path: Path) -> None:
    traffic, again = orders(more={"tenantId": lambda: "t-1", "sourceKey": lambda: "shop"})
    for event in again:
        traffic.anew(event, 2)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == ("detail.orderId",)


def test_the_id_of_the_event_counts_more_than_that_of_a_thing(tmp_path: Path) -> None:
    traffic = Traffic(kind="Stock Moved")
    for number in range(150):
        event = traffic.send(60 * number, {"palletId": f"p-{number}", "eventId": traffic.uuid(), "weight": number % 9})
        if number % 6 == 0:
            traffic.anew(event, traffic.rng.uniform(300, 3600))

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == ("detail.eventId",)
    others = to_json([advice], Totals(1))["kinds"][0]["alternatives"]
    assert {"if": "as good in the sample", "key": ["detail.palletId"]} in others


def test_ids_that_do_equally_well_are_taken_together(tmp_path: Path) -> None:
    traffic = Traffic(kind="Something Happened")
    for number in range(150):
        event = traffic.send(60 * number, {"payerId": f"p-{number}", "cartId": f"c-{number}", "n": number % 3})
        if number % 5 == 0:
            traffic.anew(event, 3)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == ("detail.cartId", "detail.payerId")
    assert advice.confidence == "medium"
    assert "Each of these would do alone. Together they are safer." in evidence(advice)


def test_few_distinct_events_are_told_apart_by_all_they_say(tmp_path: Path) -> None:
    traffic, again = orders(40, every=4)
    for event in again:
        traffic.anew(event, 2)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "content"


# --- what differs between copies ---


@pytest.mark.parametrize("name", ["deliveryId", "receipt", "traceId", "x-request-id", "CorrelationId", "messageNonce"])
def test_what_is_unique_per_copy_is_neither_in_the_key_nor_in_the_content(tmp_path: Path, name: str) -> None:
    rng = random.Random(3)
    traffic, again = orders(60, {name: lambda: f"{rng.getrandbits(128):032x}"})
    for event in again:
        traffic.anew(event, 2, **{name: f"{rng.getrandbits(128):032x}"})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "content"
    assert advice.rule.ignore == (f'"{name}"' if "-" in name else name,)


@pytest.mark.parametrize("name", ["attempt", "version", "price", "sequence"])
def test_a_number_that_differs_may_say_something(tmp_path: Path, name: str) -> None:
    """An attempt and a version look alike, so they are left to the id, and the way to ignore one is offered."""
    traffic, again = orders(more={"meta": lambda: {name: 1, "shop": "a"}})
    for event in again:
        for number, after in ((2, 2), (3, 9)):
            changed = {**event["detail"], "meta": {name: number, "shop": "a"}}
            traffic.send((datetime.fromisoformat(event["time"]) - START).total_seconds() + after, changed)

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any(f"differ only in detail.meta.{name}" in each for each in warnings(advice))
    others = to_json([advice], Totals(1))["kinds"][0]["alternatives"]
    assert {"if": "if those are copies", "key": "content", "ignore": [f"meta.{name}"]} in others


def test_what_differs_under_one_id_belongs_to_the_delivery(tmp_path: Path) -> None:
    traffic, again = orders(more={"hash": str})
    for _, event, _ in traffic.sent:
        event["detail"]["hash"] = traffic.uuid()
    for event in again:
        traffic.again(event, 30, detail={**event["detail"], "hash": traffic.uuid()})

    (advice,) = check(tmp_path, traffic)

    assert [column.path for column in advice.study.copies.volatile.values()] == ["detail.hash"]


def test_an_unnamed_unique_value_is_excused_where_the_time_agrees(tmp_path: Path) -> None:
    traffic = Traffic(kind="Reading")
    for number in range(120):
        at = 60 * number
        event = traffic.send(at, {"meter": f"m{number % 4}", "takenAt": stamp(at - 0.125), "x": traffic.uuid()})
        if number % 5 == 0:
            traffic.anew(event, 40, x=traffic.uuid())

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.rule.ignore) == ("content", ("x",))


def test_a_stamp_that_differs_by_milliseconds(tmp_path: Path) -> None:
    traffic = Traffic(kind="interaction.routing.update")
    for number in range(150):
        at = 60 * number
        event = traffic.send(at, {"interaction-id": traffic.uuid(), "state": "queued", "timestamp": stamp(at)})
        if number % 5 == 0:
            traffic.anew(event, 0.2, timestamp=stamp(at + 0.007))

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == ('detail."interaction-id"',)
    assert "detail.timestamp" in {column.path for column in advice.study.copies.volatile.values()}


def test_a_stamp_in_epoch_milliseconds(tmp_path: Path) -> None:
    traffic = Traffic(kind="Moved")
    for number in range(60):
        at = 60 * number
        event = traffic.send(at, {"box": f"b{number}", "ts": int((START.timestamp() + at) * 1000)})
        if number % 5 == 0:
            traffic.anew(event, 0.2, ts=event["detail"]["ts"] + 12)

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.rule.ignore) == ("content", ("ts",))


def test_nested_fields_and_fields_in_lists(tmp_path: Path) -> None:
    traffic = Traffic(kind="Cart")

    def cart(number: int) -> Raw:
        items = [{"sku": f"s{number % 7}", "receiptId": traffic.uuid()} for _ in range(2)]
        return {"a": {"b": {"c": number}}, "items": items, "tags": ["x", "y"]}

    for number in range(60):
        event = traffic.send(60 * number, cart(number))
        if number % 4 == 0:
            traffic.anew(event, 3, items=cart(number)["items"])

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.rule.ignore) == ("content", ("items[*].receiptId",))


# --- whatever a field is called, and however it is spelled ---


def clock_time(at: float) -> str:
    """Return a time of day such as `09:00:00.1`."""
    return f"{8 + int(at // 3600) % 24:02}:{int(at // 60) % 60:02}:{int(at % 60):02}.{int(at * 10) % 10}"


SPELLINGS: dict[str, Callable[[float], Any]] = {
    "float epoch": lambda at: START.timestamp() + at,
    "epoch": lambda at: int(START.timestamp() + at),
    "milliseconds": lambda at: int((START.timestamp() + at) * 1000),
    "nanoseconds": lambda at: int((START.timestamp() + at) * 1000) * 1_000_000,
    "digits": lambda at: str(int((START.timestamp() + at) * 1000)),
    "ISO": stamp,
    "time of day": clock_time,
    "RFC 1123": lambda at: (START + timedelta(seconds=at)).strftime("%a, %d %b %Y %H:%M:%S GMT"),
    "12 hours": lambda at: (START + timedelta(seconds=at)).strftime("%m/%d/%Y, %I:%M:%S %p"),
}


def retries(name: str, spell: Callable[[float], Any], **envelope: Any) -> Traffic:
    """Return 3,000 orders, 199 of which their producer sends again under a new id. Only this field differs."""
    traffic, _ = orders(0)
    again = set(traffic.rng.sample(range(3000), 199))
    for number in range(3000):
        at = 3 * number + traffic.rng.uniform(0, 2)
        detail = {"orderId": f"o-{number:05}", "cents": traffic.rng.randrange(100, 9000), name: spell(at)}
        event = traffic.send(at, detail, **envelope)
        if number in again:
            after = traffic.rng.uniform(0.2, 30)
            traffic.anew(event, after, **{name: spell(at + after)})
            traffic.sent[-1] = (at + after, {**traffic.sent[-1][1], **envelope}, True)
    return traffic


@pytest.mark.parametrize("name", ["sentAt", "zzz", "price"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_retries_are_found_however_the_field_that_differs_is_spelled(tmp_path: Path, spelling: str, name: str) -> None:
    (advice,) = check(tmp_path, retries(name, SPELLINGS[spelling]))

    assert (advice.rule.key, advice.confidence) == (("detail.orderId",), "medium")
    assert (advice.check.dropped, advice.check.missed) == (199, 0)


# --- what is not a copy ---


def test_legitimate_repeats_far_apart_stay_distinct(tmp_path: Path) -> None:
    traffic = Traffic(kind="Door Opened")
    for number in range(200):
        traffic.send(traffic.rng.uniform(0, 86_400 * 3), {"door": f"d-{number % 60}", "state": "open"})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert advice.confidence == "low"
    assert [each.answer for each in advice.study.copies.likenesses] == ["repeats"]
    assert any("happening again" in each for each in evidence(advice))


def test_heartbeats_stay_distinct_and_their_redeliveries_are_found(tmp_path: Path) -> None:
    traffic = Traffic(kind="Heartbeat")
    for number in range(300):
        event = traffic.send(30 * number, {"host": f"h-{number % 3}", "requestId": traffic.uuid()})
        if number % 20 == 0:
            traffic.again(event, 1)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert not advice.study.copies.volatile


def test_a_few_repeats_in_a_steady_beat(tmp_path: Path) -> None:
    traffic, _ = orders(200)
    for number in range(5):
        traffic.send(600 + 10 * number, {"ping": "still here"})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"


def test_repeats_that_could_be_copies_are_left_and_reported(tmp_path: Path) -> None:
    traffic = Traffic(kind="Password Reset Requested")
    for number in range(100):
        event = traffic.send(600 * number, {"user": f"u{number}"})
        if number % 10 == 0:
            traffic.send(600 * number + traffic.rng.uniform(1200, 2400), event["detail"])

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert any("may be copies under new ids" in each for each in warnings(advice))
    assert '# if those are copies: key = "content"' in toml([advice], Totals(1))


def test_when_a_door_was_fitted_does_not_tell_when_it_was_opened(tmp_path: Path) -> None:
    traffic = Traffic(kind="Door Opened")
    for number in range(200):
        door = number % 90
        detail = {"door": f"d-{door}", "fittedAt": stamp(-86_400 * (100 + door * 37 % 90))}
        traffic.send(traffic.rng.uniform(0, 86_400), detail)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"


def test_connects_completed_after_disconnected_stays_distinct(tmp_path: Path) -> None:
    traffic = Traffic("aws.connect", "Amazon Connect Contact Event")
    for number in range(120):
        at = 300 * number
        detail = {
            "contactId": traffic.uuid(),
            "channel": "VOICE",
            "instanceArn": "arn:aws:connect:eu-west-1:111122223333:instance/1",
            "initiationTimestamp": stamp(at - 100),
        }
        for step, (kind, after) in enumerate((("INITIATED", 0), ("DISCONNECTED", 90), ("COMPLETED", 90.1))):
            event = traffic.send(at + after, {**detail, "eventType": kind})
            if (number + step) % 6 == 0:
                traffic.anew(event, 1.5)

    (advice,) = check(tmp_path, traffic)

    assert not isinstance(advice.rule.key, str)
    assert {"detail.contactId", "detail.eventType"} <= set(advice.rule.key)


def test_a_conversation_is_too_coarse_for_genesys(tmp_path: Path) -> None:
    org = "aws.partner/genesys.com/cloud/2a5b/prod"
    traffic = Traffic(org, "v2.detail.events.conversation.{id}.acd.start")
    for number in range(100):
        conversation = traffic.uuid()
        for transfer in range(1 + number % 3):
            at = 400 * number + 40 * transfer
            body = {
                "conversationId": conversation,
                "participantId": traffic.uuid(),
                "eventTime": int((START.timestamp() + at) * 1000),
                "queueId": f"q-{transfer % 2}",
            }
            detail = {"topicName": f"v2.{conversation}", "version": "2", "eventBody": body}
            event = traffic.send(at + 1, {**detail, "metadata": {"CorrelationId": traffic.uuid()}})
            if traffic.rng.random() < 0.2:
                traffic.anew(event, 3 * 3600, metadata={"CorrelationId": traffic.uuid()})

    (advice,) = check(tmp_path, traffic)

    assert not isinstance(advice.rule.key, str)
    assert set(advice.rule.key) != {"detail.eventBody.conversationId"}
    assert "detail.metadata.CorrelationId" in {column.path for column in advice.study.copies.volatile.values()}
    assert duration(advice.rule.window) >= duration("5d")


def test_another_state_is_another_event_however_near(tmp_path: Path) -> None:
    traffic = Traffic(kind="Lamp")
    for number in range(100):
        lamp = f"l-{number}"
        traffic.send(60 * number, {"lampId": lamp, "state": "on"})
        traffic.send(60 * number + 0.1, {"lampId": lamp, "state": "off"})

    (advice,) = check(tmp_path, traffic)

    assert not advice.study.copies.volatile


def test_equal_readings_in_a_row_are_no_copies(tmp_path: Path) -> None:
    traffic = Traffic(kind="Reading")
    for number in range(400):
        at = 0.8 * number + traffic.rng.uniform(0, 0.3)
        traffic.send(at, {"degrees": 20 + number // 2 % 5, "at": stamp(at)})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert advice.study.copies.likenesses


def test_a_lamp_that_goes_on_and_off_and_on_again(tmp_path: Path) -> None:
    traffic = Traffic(kind="Lamp")
    for number in range(100):
        for step in range(4):
            at = 60 * number + 9 * step + traffic.rng.uniform(0, 5)
            traffic.send(at, {"lamp": f"l-{number}", "state": ("on", "off")[step % 2]})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert any("come in between" in each for each in evidence(advice))


def test_a_state_that_comes_again_while_others_do_not(tmp_path: Path) -> None:
    traffic = Traffic(kind="Job")
    for number in range(100):
        for step, state in enumerate(("queued", "queued", "done")):
            traffic.send(60 * number + 5 * step + traffic.rng.uniform(0, 3), {"job": f"j-{number}", "state": state})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert any("it depends on detail.state" in each for each in evidence(advice))


def test_one_repeat_among_copies_is_not_dropped_with_them() -> None:
    traffic, again = orders()
    for event in again:
        traffic.anew(event, 2)
    traffic.send(149 * 60, again[0]["detail"])

    advice = only(traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert advice.check.wrong == 0
    assert any("as far from their like as unrelated ones" in each for each in warnings(advice))
    assert '# if those are copies: key = "content"' in toml([advice], Totals(1))


def test_one_more_click_with_a_request_id_of_its_own(tmp_path: Path) -> None:
    traffic = Traffic(kind="Login")
    for number in range(200):
        event = traffic.send(300 * number, {"user": f"u{number}", "requestId": traffic.uuid()})
        if number % 8 == 0:
            traffic.send(300 * number + traffic.rng.uniform(100, 800), {**event["detail"], "requestId": traffic.uuid()})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert any("may be copies under new ids" in each for each in warnings(advice))


def test_the_subject_of_a_cloudevent_tells_events_apart() -> None:
    def event(number: int, own: str) -> Raw:
        return {
            "specversion": "1.0",
            "id": own,
            "source": "/files",
            "type": "created",
            "time": stamp(number),
            "subject": f"/f/{number}",
            "data": {"size": 1},
        }

    traffic = [event(number, f"e{number}") for number in range(60)]
    traffic += [event(number, f"e{number}") for number in range(0, 60, 5)]

    (advice,) = advise(map(read_event, traffic))

    assert advice.rule.key == "id"
    assert (advice.check.dropped, advice.check.wrong) == (12, 0)


# --- sent again late, without a time of its own in the data ---


def resend(traffic: Traffic, event: Raw, after: float, *anew: str, **changes: Any) -> None:
    """Return a copy under a new id, with these fields made anew: times and ids."""
    at = (datetime.fromisoformat(event["time"]) - START).total_seconds() + after
    made = {name: traffic.uuid() if name.lower().endswith("id") else stamp(at) for name in anew}
    traffic.anew(event, after, **made, **changes)


def stamped(traffic: Traffic, at: float) -> Raw:
    return {"sentAt": stamp(at), "traceId": traffic.uuid()}


def resent(
    kind: str,
    make: Callable[[Traffic, int], Raw],
    *,
    count: int = 300,
    step: float = 60,
    late: tuple[float, float] = (1, 600),
    anew: Sequence[str] = ("sentAt", "traceId"),
) -> Traffic:
    """Return events of which every sixth is sent again by its producer, some minutes later."""
    traffic = Traffic(kind=kind)
    for number in range(count):
        at = step * number
        fresh = {name: traffic.uuid() if name.lower().endswith("id") else stamp(at) for name in anew}
        event = traffic.send(at, {**make(traffic, number), **fresh})
        if number % 6 == 0:
            resend(traffic, event, traffic.rng.uniform(*late), *anew)
    return traffic


def an_order(traffic: Traffic, number: int) -> Raw:
    customer = {"id": f"c-{traffic.rng.randrange(80)}"}
    return {"orderId": f"o-{number:05}", "cents": traffic.rng.randrange(90_000), "customer": customer}


@pytest.mark.parametrize("step", [60, 5, 1])
@pytest.mark.parametrize("kind", ["Order Placed", "OrderCreated", "shop.order.created.v1"])
def test_orders_sent_again_minutes_later_are_found_by_their_id(tmp_path: Path, kind: str, step: int) -> None:
    (advice,) = check(tmp_path, resent(kind, an_order, count=600, step=step))

    assert (advice.rule.key, advice.confidence) == (("detail.orderId",), "medium")
    assert advice.study.copies.new_id == 100
    text = " ".join(evidence(advice))
    assert "differ only in detail.sentAt, detail.traceId, time, not under one id: taken for copies" in text
    assert "whenever detail.orderId recurred (100 times) they agreed on all else" in text
    assert any("would be dropped; ask the producer" in each for each in warnings(advice))


@pytest.mark.parametrize(("kind", "step"), [("Payment Received", 60), ("payment.succeeded", 2), ("Money Moved", 60)])
def test_payments_sent_again_are_found_by_their_id(tmp_path: Path, kind: str, step: int) -> None:
    def payment(traffic: Traffic, number: int) -> Raw:
        return {"paymentId": traffic.uuid(), "amount": traffic.rng.randrange(500), "method": "card"}

    (advice,) = check(tmp_path, resent(kind, payment, step=step))

    assert (advice.rule.key, advice.confidence) == (("detail.paymentId",), "medium")


def test_copies_late_in_a_short_recording_are_found_if_their_ids_rise(tmp_path: Path) -> None:
    (advice,) = check(tmp_path, resent("Money Moved", an_order, step=2))

    assert (advice.rule.key, advice.confidence) == (("detail.orderId",), "medium")


def test_a_token_alone_needs_a_sender_that_tries_again_soon() -> None:
    def payment(traffic: Traffic, number: int) -> Raw:
        return {"paymentId": traffic.uuid(), "amount": traffic.rng.randrange(500)}

    advice = only(resent("Money Moved", payment, late=(1, 3600)))

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any("may be copies under new ids" in each for each in warnings(advice))
    assert '# if those are copies: key = "content", ignore = ["sentAt", "traceId"]' in toml([advice], Totals(1))


def test_an_id_alone_is_that_of_what_the_event_is_about(tmp_path: Path) -> None:
    def invoice(traffic: Traffic, number: int) -> Raw:
        return {"object": {"id": f"in_{number}", "total": traffic.rng.randrange(9_000)}}

    (advice,) = check(tmp_path, resent("invoice.issued", invoice, late=(60, 9_000), anew=["deliveryId"]))

    assert advice.rule.key == ("detail.object.id",)


@pytest.mark.parametrize("anew", [["timestamp"], ["messageId", "sentAt"], ["eventId", "time"]])
def test_what_the_producer_makes_anew_with_each_try(tmp_path: Path, anew: Sequence[str]) -> None:
    (advice,) = check(tmp_path, resent("Order Placed", an_order, anew=anew))

    assert advice.rule.key == ("detail.orderId",)
    assert {f"detail.{name}" for name in anew} <= {column.path for column in advice.study.copies.volatile.values()}


@pytest.mark.parametrize("anew", [["placedAt"], ["shipmentId"], ["amountRef"]])
def test_what_is_made_anew_is_doubted_as_its_name_is_not_read(anew: Sequence[str]) -> None:
    advice = only(resent("Order Placed", an_order, anew=anew))

    assert (advice.rule.key, advice.confidence) == (("detail.orderId",), "medium")
    assert any("ask the producer" in each for each in warnings(advice))
    assert '# if those are not copies: key = "id"' in toml([advice], Totals(1))


def test_a_time_other_than_that_of_sending_makes_another_event(tmp_path: Path) -> None:
    def delivery(traffic: Traffic, number: int) -> Raw:
        return {**an_order(traffic, number), "due": stamp(60 * number + 86_400 * 3)}

    traffic = Traffic(kind="Delivery Planned")
    for number in range(300):
        at = 60 * number
        event = traffic.send(at, {**delivery(traffic, number), **stamped(traffic, at)})
        if number % 10 == 0:  # put off by some days, at once
            due = stamp(at + 86_400 * traffic.rng.randrange(4, 9))
            traffic.send(at + 40, {**event["detail"], "due": due, **stamped(traffic, at + 40)})

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any("differ only in detail.due" in each for each in warnings(advice))


def test_a_token_that_comes_again_itself_makes_another_event(tmp_path: Path) -> None:
    traffic = Traffic(kind="Shipped")
    for number in range(200):
        order, at = an_order(traffic, number), 60 * number
        for part in range(2 if number % 5 == 0 else 1):
            event = traffic.send(at + 30 * part, {**order, "shipment": traffic.uuid(), **stamped(traffic, at)})
            if number % 7 == 0:
                resend(traffic, event, traffic.rng.uniform(1, 300), "sentAt", "traceId")

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == (("detail.shipment",), "medium")


def test_events_without_times_by_an_id_that_comes_once() -> None:
    traffic = resent("Order Placed", an_order, anew=["traceId"])
    for _, event, _ in traffic.sent:
        del event["time"]

    advice = only(traffic)

    assert (advice.rule.key, advice.check.missed) == (("detail.orderId",), 0)


def test_changes_are_not_distinguished_by_the_id_of_what_is_changed(tmp_path: Path) -> None:
    traffic, at = Traffic(kind="Order Updated"), 0.0
    for number in range(300):
        order = {"orderId": traffic.uuid(), "customer": f"c-{number % 40}"}
        for _ in range(2 if number % 4 == 0 else 1):
            at += 60
            event = traffic.send(at, {**order, "cents": traffic.rng.randrange(90_000), **stamped(traffic, at)})
            if traffic.rng.random() < 0.2:
                resend(traffic, event, traffic.rng.uniform(1, 50), "sentAt", "traceId")

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.rule.ignore) == ("content", ("sentAt", "traceId"))


def test_a_key_by_an_id_warns_that_a_change_would_be_dropped() -> None:
    advice = only(resent("Order Updated", an_order))

    assert (advice.rule.key, advice.confidence) == (("detail.orderId",), "medium")
    assert any("such as a change, would be dropped" in each for each in warnings(advice))
    text = toml([advice], Totals(1))
    assert '# if other content makes another event: key = "content", ignore = ["sentAt", "traceId"]' in text


def test_changes_of_older_things_are_left_to_their_ids(tmp_path: Path) -> None:
    traffic = Traffic(kind="Order Updated")
    for number in range(300):
        at = 60 * number
        event = traffic.send(at, {"orderId": f"o-{traffic.rng.randrange(5000)}", **stamped(traffic, at)})
        if number % 6 == 0:
            traffic.send(at + 30, {**event["detail"], **stamped(traffic, at + 30)})

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")


def statuses(hours: float) -> Traffic:
    traffic = Traffic(kind="Order Status Changed")
    for number in range(150):
        order = an_order(traffic, number)
        for step, status in enumerate(("PLACED", "PAID", "SHIPPED")):
            at = 120 * number + 3600 * hours * step * traffic.rng.uniform(0.8, 1.2)
            event = traffic.send(at, {**order, "status": status, **stamped(traffic, at)})
            if traffic.rng.random() < 0.2:
                resend(traffic, event, traffic.rng.uniform(1, 600), "sentAt", "traceId")
    return traffic


def test_orders_whose_status_changes_are_distinguished_by_id_and_status(tmp_path: Path) -> None:
    (advice,) = check(tmp_path, statuses(hours=2))

    assert (advice.rule.key, advice.confidence) == (("detail.orderId", "detail.status"), "medium")
    assert any("several about one thing" in each for each in evidence(advice))


def test_a_status_that_returns_after_another_is_reported(tmp_path: Path) -> None:
    (advice,) = check(tmp_path, statuses(hours=0.2))

    assert advice.rule.key == ("detail.orderId", "detail.status")
    assert any("came after another one about the same thing" in each for each in warnings(advice))


def test_a_status_that_comes_back_is_not_a_copy(tmp_path: Path) -> None:
    traffic = Traffic(kind="Order Status Changed")
    for number in range(150):
        order, at = an_order(traffic, number), 120.0 * number
        for status in ("OPEN", "HELD", "OPEN", "PAID") if number % 4 == 0 else ("OPEN", "PAID"):
            traffic.send(at, {**order, "status": status, **stamped(traffic, at)})
            at += traffic.rng.uniform(60, 300)

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")


def test_an_id_with_one_event_that_says_something_else_is_not_trusted() -> None:
    traffic = resent("Order Placed", an_order)
    at, event, _ = traffic.sent[0]
    traffic.send(at + 200, {**event["detail"], "cents": -1, **stamped(traffic, at + 200)})

    advice = only(traffic)

    assert advice.check.wrong == 0
    assert not any(traffic.sent[-1][1] is each for each, drop in dropped(advice, traffic) if drop)


def dropped(advice: Advice, traffic: Traffic) -> list[tuple[Raw, bool]]:
    events = [event for event, _ in traffic.arrived]
    return list(zip(events, drops([advice.rule], events), strict=True))


# --- equal content that is not a copy ---


def again_and_again(kind: str, make: Callable[[random.Random, int], Raw], *, count: int = 300) -> Traffic:
    """Send events of things to which the same happens once or a few times within minutes, each time for real."""
    traffic = Traffic(kind=kind)
    for number in range(count):
        at, detail = traffic.rng.uniform(0, 86_400), make(traffic.rng, number)
        for _ in range(traffic.rng.choice([1, 1, 1, 2, 3])):
            traffic.send(at, {**detail, **stamped(traffic, at)})
            at += traffic.rng.uniform(5, 400)
    return traffic


@pytest.mark.parametrize(
    ("kind", "thing"),
    [
        ("Product Viewed", "productId"),
        ("Catalogue", "productId"),
        ("Order Viewed", "orderId"),
        ("Payment Failed", "paymentId"),
        ("payment.attempt", "paymentId"),
        ("Customer Order Created", "customerId"),
        ("Session Login", "userId"),
        ("Button Clicked", "buttonId"),
        ("Jammed", "boltId"),
        ("Room Booked", "roomNumber"),
    ],
)
def test_what_happens_to_a_thing_again_stays_distinct(tmp_path: Path, kind: str, thing: str) -> None:
    def make(rng: random.Random, number: int) -> Raw:
        return {thing: f"t-{number * 7919 % 1000}", "price": number * 31 % 997, "label": f"l-{number % 50}"}

    (advice,) = check(tmp_path, again_and_again(kind, make))

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any("may be copies under new ids" in each for each in warnings(advice))


def test_the_id_of_a_click_is_one_clicks_own(tmp_path: Path) -> None:
    def click(traffic: Traffic, number: int) -> Raw:
        return {"clickId": traffic.uuid(), "userId": f"u-{traffic.rng.randrange(40)}", "button": "buy"}

    (advice,) = check(tmp_path, resent("Click", click))

    assert advice.rule.key == ("detail.clickId",)


def test_one_coupon_may_be_issued_to_many(tmp_path: Path) -> None:
    traffic = Traffic(kind="Coupon Issued")
    for number in range(600):
        coupon = traffic.rng.randrange(2000)
        traffic.send(15 * number, {"couponId": f"k-{coupon}", "value": coupon % 90, **stamped(traffic, 15 * number)})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"


@pytest.mark.parametrize("kind", ["Temperature Reading", "Temperature"])
def test_sensors_that_send_the_same_again(tmp_path: Path, kind: str) -> None:
    traffic = Traffic(kind=kind)
    for number in range(600):
        at = 10 * number + traffic.rng.uniform(0, 3)
        reading = {"sensorId": f"s-{traffic.rng.randrange(30)}", "celsius": 20 + traffic.rng.randrange(3)}
        traffic.send(at, {**reading, **stamped(traffic, at)})

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")


def test_a_counter_that_stands_still(tmp_path: Path) -> None:
    traffic = Traffic(kind="Counter")
    for number in range(400):
        traffic.send(15 * number, {"meter": "m1", "total": number * 3 // 4, **stamped(traffic, 15 * number)})

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert any("they follow each other as any two events do" in each for each in evidence(advice))


def test_a_batch_that_a_machine_is_still_at(tmp_path: Path) -> None:
    traffic = Traffic(kind="Machine State")
    for machine in range(12):
        at = traffic.rng.uniform(0, 60)
        for batch in range(40):
            detail = {"batchNo": f"b-{batch:03}-{machine}", "machine": f"m{machine}", "speed": traffic.rng.random()}
            for _ in range(traffic.rng.choice([1, 1, 2, 3])):
                traffic.send(at, {**detail, **stamped(traffic, at)})
                at += traffic.rng.uniform(50, 70)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"


def test_things_that_report_at_one_distance(tmp_path: Path) -> None:
    traffic = Traffic(kind="Report")
    for number in range(300):
        at = 100.0 * number
        for _ in range(1 + (number % 3 == 0)):
            traffic.send(at, {"boxRef": f"b-{number}", "load": number * 31 % 97, **stamped(traffic, at)})
            at += 300 + traffic.rng.uniform(0, 2)

    (advice,) = check(tmp_path, traffic)

    assert advice.rule.key == "id"
    assert any("they all come at the same distance" in each for each in evidence(advice))


def test_too_few_orders_sent_again_are_left_to_their_ids() -> None:
    advice = only(resent("Order Placed", an_order, count=14))

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any("too little traffic" in each for each in warnings(advice))


NAMES = (
    *("orderId", "paymentId", "id", "ref", "eventId", "userId", "messageId", "traceId", "hash"),
    *("status", "amount", "attempt", "sentAt", "timestamp"),
)
KINDS = ("Order Placed", "Payment Received", "order", "Reading", "Moved", "Status Changed", "User Created", "", "Click")


def anything(seed: int) -> Traffic:
    """Return random traffic: fields that repeat or not, and copies of which some differ in content."""
    rng = random.Random(seed)
    traffic = Traffic(kind=rng.choice(KINDS), seed=seed)
    fields, many = rng.sample(NAMES, rng.randrange(1, 7)), rng.choice([5, 40, 10_000])

    def value(name: str, at: float) -> Any:
        if name in {"sentAt", "timestamp"}:
            return stamp(at)
        return traffic.uuid() if name in {"ref", "messageId", "hash", "traceId"} else rng.randrange(many)

    for number in range(rng.choice([10, 30, 120])):
        at = 30.0 * number
        event = traffic.send(at, {name: value(name, at) for name in fields})
        if rng.random() < 0.2:
            after = rng.uniform(0, rng.choice([2, 600]))
            changes = {name: value(name, at + after) for name in fields if rng.random() < 0.4}
            own = {} if rng.random() < 0.3 else {"id": traffic.uuid(), "time": stamp(at + after)}
            traffic.again(event, after, **own, detail={**event["detail"], **changes})
    return traffic


@pytest.mark.parametrize("seed", range(80))
def test_no_key_drops_what_differs_without_saying_so(seed: int) -> None:
    traffic = anything(seed)
    advice = only(traffic)
    volatile = {column.path for column in advice.study.copies.volatile.values()}
    rulebook = Rulebook("test", [advice.rule], Rule(name="none"))
    first: dict[bytes, Raw] = {}
    differing = 0
    for event, _ in traffic.arrived:
        earlier = first.setdefault(rulebook.key(read_event(event)).key, event)["detail"]
        differing += any(
            earlier[name] != event["detail"][name] and f"detail.{name}" not in volatile for name in earlier
        )

    assert differing <= advice.check.wrong
    assert not advice.check.wrong or any("DROPS" in each for each in warnings(advice))


# --- what only looks like copies, and what only looks distinct ---


def in_series(kind: str, own: Callable[[Traffic, int, int], Raw], *, every: int = 6, step: float = 60) -> Traffic:
    """Return distinct events. Every sixth thing soon has a second one, which differs in `own` and was sent later."""
    traffic = Traffic(kind=kind)
    for number in range(600):
        thing = {
            "thing": traffic.uuid(),
            "owner": f"w-{traffic.rng.randrange(30)}",
            "size": traffic.rng.randrange(50),
        }
        for turn in range(2 if number % every == 0 else 1):
            at = step * number + 5 * turn + traffic.rng.uniform(0, 3)
            traffic.send(at, {**thing, **own(traffic, number, turn), **stamped(traffic, at)})
    return traffic


@pytest.mark.parametrize(
    "own",
    [
        lambda traffic, number, turn: {"count": turn},
        lambda traffic, number, turn: {"version": number + turn},
        lambda traffic, number, turn: {"price": traffic.rng.randrange(100, 9000)},
        lambda traffic, number, turn: {"price": traffic.rng.random()},
        lambda traffic, number, turn: {"sequence": 2 * number + turn},
        lambda traffic, number, turn: {"sequence": f"{2 * number + turn:09}"},
        lambda traffic, number, turn: {"sequence": f"evt-{2 * number + turn:09}"},
        lambda traffic, number, turn: {"sequence": 1_700_000_000 + 2 * number + turn},
        lambda traffic, number, turn: {"state": ("created", "updated")[turn]},
        lambda traffic, number, turn: {"tags": ["a", "b"][: turn + 1]},
        lambda traffic, number, turn: {"lines": [{"sku": "a", "count": turn}]},
        lambda traffic, number, turn: {"deep": {"er": [{"price": turn}]}},
        lambda traffic, number, turn: {"cancelled": True} if turn else {},
        lambda traffic, number, turn: {"comment": f"a note of someone, {traffic.rng.random()}, in plain words"},
        lambda traffic, number, turn: {"file": f"scan-{traffic.rng.randrange(10**9)}.pdf"},
        lambda traffic, number, turn: {"due": stamp(86_400 * (number % 97 + 40 * turn))},
    ],
)
def test_what_says_something_else_is_another_event(tmp_path: Path, own: Callable[[Traffic, int, int], Raw]) -> None:
    (advice,) = check(tmp_path, in_series("Anything", own))

    assert (advice.rule.key, advice.confidence) == ("id", "low")


def test_two_types_in_one_kind_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    traffic = Traffic(kind="Anything")
    for number in range(300):
        order = {"order": traffic.uuid(), "customer": f"c-{traffic.rng.randrange(50)}"}
        steps: list[Raw] = [{"type": "created", "total": number * 7 % 100}, {"type": "paid", "by": "card"}]
        for turn, more in enumerate(steps):
            at = 30 * number + 10 * turn
            event = traffic.send(at, {**order, **more, "sentAt": clock_time(at)})
            if traffic.rng.random() < 0.15:
                after = traffic.rng.uniform(1, 8)
                traffic.anew(event, after, sentAt=clock_time(at + after))

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.rule.ignore) == ("content", ("sentAt",))


def test_a_number_of_an_event_that_is_sent_again_with_it(tmp_path: Path) -> None:
    traffic = Traffic(kind="Measured")
    for number in range(300):
        at = 5 * number
        event = traffic.send(at, {"sequence": number, "device": f"d-{number % 7}", "value": traffic.rng.random()})
        if number % 9 == 0:
            traffic.anew(event, traffic.rng.uniform(0.1, 9))

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == (("detail.sequence",), "medium")


@pytest.mark.parametrize("jitter", [0, 0.4, 4])
def test_a_steady_heartbeat_of_few_things_or_of_many(tmp_path: Path, jitter: float) -> None:
    hosts, pods = Traffic(kind="Host"), Traffic(kind="Pod")
    for number in range(400):
        at = 15 * number + hosts.rng.uniform(0, jitter)
        hosts.send(at, {"host": f"h-{number % 3}", "status": "ok", "at": START.timestamp() + at})
        pod = {"pod": pods.uuid(), "node": f"n-{number % 30}", "ip": f"10.0.0.{number % 97}"}
        for turn in range(1 if number % 5 else 2):
            at = 90 * number + 30 * turn + pods.rng.uniform(0, jitter)
            pods.send(at, {**pod, "at": clock_time(at)})

    for advice in check(tmp_path, hosts, pods):
        assert (advice.rule.key, advice.confidence) == ("id", "low")


def test_when_a_thing_was_made_does_not_tell_when_it_was_looked_at(tmp_path: Path) -> None:
    traffic = Traffic(kind="Order Viewed")
    for number in range(300):
        at, made = 60.0 * number, stamp(60 * number - traffic.rng.uniform(1, 30))
        order = {"orderId": f"o-{number}", "price": traffic.rng.randrange(900), "made": made}
        for _ in range(traffic.rng.choice([1, 1, 2])):
            traffic.send(at, {**order, **stamped(traffic, at)})
            at += traffic.rng.uniform(5, 400)

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")


@pytest.mark.parametrize("time", [None, "2026-03-02T08:00:00Z"])
def test_retries_of_events_whose_envelope_does_not_show_the_time(time: str | None) -> None:
    traffic = retries("sentAt", clock_time)
    for _, event, _ in traffic.sent:
        event["time"] = time

    advice = only(traffic)

    assert advice.rule.key == ("detail.orderId",)
    assert (advice.check.dropped, advice.check.missed) == (199, 0)


def test_a_recording_out_of_order_is_never_called_sure() -> None:
    traffic = retries("sentAt", SPELLINGS["float epoch"])
    events = [event for event, _ in traffic.arrived]
    traffic.rng.shuffle(events)

    (advice,) = advise(map(read_event, events))

    assert advice.check.wrong == 0
    assert advice.check.dropped == 199 or advice.confidence == "low"


@pytest.mark.parametrize("count", [1, 2, 5, 12, 19, 40])
def test_nothing_is_called_sure_on_a_tiny_sample(count: int) -> None:
    traffic = Traffic()
    for number in range(count):
        event = traffic.send(60 * number, {"orderId": f"o-{number}", "sentAt": START.timestamp() + 60 * number})
        if number % 9 == 0:
            traffic.anew(event, 2, sentAt=START.timestamp() + 60 * number + 2)

    advice = only(traffic)

    assert advice.confidence == "low"
    assert advice.check.wrong == 0


def test_the_names_of_fields_and_events_change_nothing() -> None:
    plain = resent("Order Placed", an_order)
    renamed = Traffic(kind="Product Viewed")
    names = {"orderId": "price", "cents": "version", "customer": "status", "sentAt": "productId", "traceId": "counter"}
    for at, event, copy in plain.sent:
        detail = {names[name]: value for name, value in event["detail"].items()}
        renamed.sent.append((at, {**event, "detail-type": "Product Viewed", "detail": detail}, copy))

    assert (only(plain).rule.key, only(renamed).rule.key) == (("detail.orderId",), ("detail.price",))
    assert only(plain).check == only(renamed).check


# --- ids that are not there, or prove nothing ---


def test_events_without_ids(tmp_path: Path) -> None:
    rng = random.Random(5)
    made = [{"sensor": f"s{n % 5}", "value": rng.random(), "at": stamp(60 * n)} for n in range(80)]
    sent = [(each, False) for each in made]
    for number in range(0, 80, 8):
        sent.insert(2 * number + 1 if number < 40 else len(sent), (made[number], True))

    (advice,) = advise(read_event(each) for each, _ in sent)
    file = tmp_path / "proposal.toml"
    file.write_text(toml([advice], Totals(len(sent))))

    assert advice.rule.key == "content"
    seen: list[Raw] = []
    expected = []
    for each, _ in sent:
        expected.append(each in seen)
        seen.append(each)
    assert drops(load_rules(file), [each for each, _ in sent]) == expected


def test_equal_events_without_ids_and_times_are_reported() -> None:
    rng = random.Random(5)
    (advice,) = advise(read_event({"door": f"d{rng.randrange(20)}"}) for _ in range(200))

    assert advice.rule.key == "content"
    assert advice.confidence == "low"
    assert advice.check.wrong == 180
    assert any("DROPS 180 events of the sample that are not shown to be copies" in each for each in warnings(advice))


def test_empty_ids_with_a_time_are_told_apart_by_content_and_time() -> None:
    rng = random.Random(5)
    traffic = Traffic(kind="Door")
    for number in range(200):
        traffic.send(rng.uniform(0, 86_400), {"door": number % 40}, id="")

    advice = only(traffic)

    assert advice.rule.key == ("detail", "time")
    assert advice.check == type(advice.check)()


def test_an_id_that_is_used_twice_proves_nothing() -> None:
    traffic = Traffic()
    for number in range(60):
        traffic.send(60 * number, {"orderId": f"o-{number}", "status": "new"}, id=f"{number // 2}")

    advice = only(traffic)

    assert advice.study.copies.reused == 30
    assert advice.rule.key == "content"
    assert advice.check.wrong == 0
    assert any("carry the id of another one" in each for each in warnings(advice))


def test_a_plain_id_of_a_thing_is_not_taken_for_the_events_own() -> None:
    events = [{"id": f"{n % 20}", "type": "moved", "place": f"p{n}", "time": stamp(60 * n)} for n in range(100)]

    (advice,) = advise(map(read_event, events))

    assert advice.rule.key == "content"
    assert advice.check.wrong == 0


def test_plain_events_with_ids_of_their_own() -> None:
    events = [{"id": f"e{n}", "type": "moved", "place": f"p{n % 3}"} for n in range(100)]

    (advice,) = advise(map(read_event, events + events[::4]))

    assert advice.rule.key == "id"
    assert (advice.check.dropped, advice.check.wrong) == (25, 0)


def test_replays_say_nothing_about_copies() -> None:
    traffic, again = orders()
    for event in again:
        traffic.again(event, 90_000, **{"replay-name": "r1"})

    advice = only(traffic)

    assert advice.study.kind.replayed == len(again)
    assert advice.study.copies.same_id == 0


# --- too little, too much ---


def test_too_little_traffic_is_said(tmp_path: Path) -> None:
    traffic, again = orders(15)
    for event in again:
        traffic.again(event, 2)

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any("too little traffic" in each for each in warnings(advice))
    assert "CAUTION: too little traffic" in toml([advice], Totals(18))


def test_no_copies_at_all_is_said(tmp_path: Path) -> None:
    traffic, _ = orders()

    (advice,) = check(tmp_path, traffic)

    assert (advice.rule.key, advice.confidence) == ("id", "low")
    assert any("no copies were seen" in each for each in warnings(advice))


def test_no_events_at_all() -> None:
    assert advise([]) == []
    assert tomllib.loads(toml([], Totals(0))) == {}


def test_mixed_sources_have_a_rule_each(tmp_path: Path) -> None:
    shop, again = orders()
    for event in again:
        shop.anew(event, 3)
    doors = Traffic("com.example.house", "Order Placed", seed=2)
    for number in range(100):
        doors.send(traffic_time(number), {"door": f"d{number % 9}"})
    little = Traffic("com.example.rare", "Rare", seed=3)
    little.send(5, {"a": 1})

    advices = check(tmp_path, shop, doors, little)

    assert [advice.rule.name for advice in advices] == ["order-placed", "rare", "order-placed-com-example-shop"]
    assert [advice.rule.key for advice in advices] == ["id", "id", ("detail.orderId",)]


def traffic_time(number: int) -> float:
    return 977.0 * number * number % 86_400


def test_a_wide_event_is_compared_as_a_whole_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_COLUMNS", 50)
    traffic, again = orders(60)
    for _, event, _ in traffic.sent:
        event["detail"] |= {f"z{number}": number * 7 for number in range(300)}
    for event in again:
        traffic.anew(event, 2)

    advice = only(traffic)

    assert advice.check.wrong == advice.check.missed == 0
    assert len(advice.study.table.columns) == 51
    assert any("fields" in each for each in warnings(advice))


def test_hostile_fields_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_CELLS", 600)
    rng = random.Random(1)
    events = [
        {"id": str(number), **{f"{rng.random()}\x1b[31m\n": 1 for _ in range(200)}, "n" * 5_000: number}
        for number in range(100)
    ]

    (advice,) = advise(map(read_event, events))
    text = toml([advice], Totals(100))

    assert len(advice.study.table.columns) <= table.MAX_COLUMNS + 1
    assert len(advice.study.table.rows) < 100
    assert any("were looked at" in each for each in warnings(advice))
    assert "\x1b" not in text
    assert tomllib.loads(text)["rule"][0]["key"] == "id"


def test_deep_events() -> None:
    def deep(number: int) -> Raw:
        value: Any = {"orderId": number}
        for _ in range(95):
            value = {"a": [value]}
        return {"id": str(number), "data": value}

    (advice,) = advise(read_event(deep(number)) for number in range(40))

    assert advice.rule.key == "id"
    assert len(advice.study.table.columns) == 2


def test_a_long_recording_is_sampled_with_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MAX_EVENTS", 100)
    traffic, again = orders(400)
    for event in again:
        traffic.again(event, 86_400)

    advice = only(traffic)

    assert len(advice.study.table.rows) == 120
    assert (advice.study.copies.same_id, advice.check.wrong) == (20, 0)
    assert any("only 120 of 480 events were looked at" in each for each in warnings(advice))


def test_kinds_and_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MAX_KINDS", 3)
    monkeypatch.setattr(sample, "MAX_BYTES", 10_000)
    collected = sample.Sample()
    for number in range(100):
        collected.add(read_event({"id": str(number), "source": f"s{number % 5}", "text": "x" * 100}))
    collected.add(read_event({"id": "1", "source": "s" * 10_000}))

    assert len(collected.kinds) == 3
    assert collected.unsampled == 41
    assert sum(len(list(kind)) for kind in collected.kinds.values()) < 60


def test_an_event_without_a_canonical_form_is_refused() -> None:
    collected = sample.Sample()

    with pytest.raises(EventRejected):
        collected.add(read_event({"id": "1", "n": float("nan")}))
    assert collected.kinds == {}


@pytest.mark.parametrize("data", ["text", 7, None, [], {}, [{"a": 1}], [1, 2]])
def test_any_data_will_do(data: Any) -> None:
    traffic = Traffic()
    for number in range(30):
        traffic.send(60 * number, data)

    assert only(traffic).rule.key == "id"


# --- the window ---


def test_the_window_is_three_times_the_longest_gap_in_readable_form() -> None:
    traffic = Traffic()
    for number in range(120):
        event = traffic.send(60 * number, {"orderId": f"o-{number}", "placedAt": stamp(60 * number)})
        if number % 10 == 0:
            traffic.anew(event, 86_400 * 2.1)

    advice = only(traffic)

    assert advice.rule.window == "7d"
    assert "the longest gap between copies is 2d2h24m, times 3 is 6d7h12m" in advice.lateness.reason


def test_the_window_is_no_shorter_than_eventbridge_can_be_late() -> None:
    traffic, again = orders()
    for event in again:
        traffic.anew(event, 2)

    assert duration(only(traffic).rule.window) == duration("24h")


def test_the_window_is_no_shorter_than_a_queue_keeps_a_message() -> None:
    collected = sample.Sample()
    collected.add(read_event({"id": "1"}), queued=True)
    (kind,) = collected.kinds.values()
    assert kind.queued


def test_the_user_may_know_how_late_a_copy_can_be() -> None:
    traffic, _ = orders(30)
    (advice,) = advise((read_event(event) for event, _ in traffic.arrived), "30d")

    assert advice.rule.window == "30d"


def test_nothing_is_learnt_from_a_gap_of_years() -> None:
    traffic, again = orders()
    traffic.again(again[0], 0, time="2019-01-01T00:00:00Z")

    assert only(traffic).rule.window == "365d"


# --- the proposal ---


def test_a_rule_that_drops_distinct_events_is_found_out() -> None:
    events = [read_event({"id": str(number), "customer": number % 10}) for number in range(50)]

    tried = try_out(Rule(name="coarse", key=["detail.customer"]), events, range(50))

    assert (tried.dropped, tried.wrong) == (40, 40)


def test_names_that_need_care_in_toml(tmp_path: Path) -> None:
    odd = 'Größe "x"\\ \x7f \U0001f600 \u2028 #{[é'
    traffic = Traffic(f"s {odd}", f"t {odd}")
    for number in range(150):
        event = traffic.send(60 * number, {f'{odd} Id "': f"o-{number}", "\U0001f600 [*].*": 1})
        if number % 5 == 0:
            traffic.anew(event, 2)

    (advice,) = check(tmp_path, traffic)

    assert not isinstance(advice.rule.key, str)


def test_the_json_says_the_same() -> None:
    traffic, again = orders()
    for event in again:
        traffic.anew(event, 2)
    advices = advised(traffic)

    document = json.loads(json.dumps(to_json(advices, Totals(180, 2))))

    assert (document["events"], document["rejected"]) == (180, 2)
    (kind,) = document["kinds"]
    assert kind["rule"]["key"] == ["detail.orderId"]
    assert kind["copies"] == {"same_id": 0, "new_id": 30}
    assert kind["check"] == {"dropped": 30, "wrong": 0, "missed": 0, "rejected": 0}
    assert kind["confidence"] == "medium"
