"""Publishing: identities, stamps, and which errors are retried. The carrier answers by script."""

import json
import math
import subprocess
import sys
from collections import UserDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import Stubber

from eventonce import Once, Rule
from eventonce.dead_letters.letter import letter_deliveries, read_letter
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.event.stamp import identity_of
from eventonce.outbox import Message, Publisher, PublishKind, PublishResult
from eventonce.outbox.plain import PlainPublisher
from eventonce.outbox.publisher import MAX_ATTEMPTS
from eventonce.ports import BatchEntry, BatchRefused, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.testing.clock import ManualClock

NEW_BUS = "arn:aws:events:eu-west-1:123456789012:event-busv2/orders/abcdefghijklmnopqrstuvwxy"
QUEUE_URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders.fifo"
BUS = "events://default?region=us-east-1"
FIFO = "sqs://orders.fifo?region=us-east-1&group=detail.customer"


class Scripted:
    """A publisher whose carrier answers by script."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.clock = ManualClock()
        self.publisher = Publisher(url, **{"clock": self.clock, **settings})
        self.client: Any = self.publisher._carrier.client()  # type: ignore[attr-defined]
        self.stub = Stubber(self.client)
        self.stub.activate()
        self.calls: list[dict[str, Any]] = []
        self.client.meta.events.register("provide-client-params.*.*", self._see)
        if url.startswith("sqs:"):
            self.stub.add_response("get_queue_url", {"QueueUrl": QUEUE_URL})

    def _see(self, params: dict[str, Any], **_: Any) -> None:
        if "Entries" in params:
            self.calls.append(params)

    def says(self, *codes: str | None) -> None:
        """PutEvents answers: taken, or refused with a code."""
        entries = [
            {"EventId": f"id-{number}"} if code is None else {"ErrorCode": code, "ErrorMessage": "said"}
            for number, code in enumerate(codes)
        ]
        self.stub.add_response("put_events", {"FailedEntryCount": len(codes) - codes.count(None), "Entries": entries})

    def sqs_response(self, *numbers: int, failed: dict[int, str] | None = None) -> None:
        """Make SendMessageBatch accept some entries and refuse others."""
        good = [{"Id": str(number), "MessageId": f"m-{number}", "MD5OfMessageBody": "x"} for number in numbers]
        bad = [
            {"Id": str(number), "Code": code, "Message": "said", "SenderFault": False}
            for number, code in (failed or {}).items()
        ]
        self.stub.add_response("send_message_batch", {"Successful": good, "Failed": bad})

    def send(self, *events: Any) -> list[PublishResult]:
        results = self.publisher.send(events)
        self.stub.assert_no_pending_responses()
        return results

    def details(self, call: int = -1) -> list[dict[str, Any]]:
        return [json.loads(entry["Detail"]) for entry in self.calls[call]["Entries"]]

    def stamps(self) -> list[list[tuple[str, int]]]:
        """Identity and attempt of each entry of each call."""
        return [
            [(each["_eventonce"]["id"], each["_eventonce"]["attempt"]) for each in self.details(number)]
            for number in range(len(self.calls))
        ]


@pytest.fixture
def scripted() -> Iterator[Any]:
    made: list[Scripted] = []

    def make(url: str = BUS, **settings: Any) -> Scripted:
        made.append(Scripted(url, **settings))
        return made[-1]

    yield make
    for each in made:
        each.publisher.close()


def order(number: Any = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": f"e-{number}",
        "source": "com.example.shop",
        "detail-type": "Order Placed",
        "detail": {"order": number, **more},
    }


def kinds(results: list[PublishResult]) -> list[str]:
    return [each.kind.value for each in results]


# --- what is sent ---


def test_each_event_is_sent_with_its_stamp_and_answered_in_order(scripted: Any) -> None:
    bus = scripted()
    bus.says(None, None)
    results = bus.send(order(1), order(2))

    assert results == [
        PublishResult(kind=PublishKind.PUBLISHED, identity="e-1", id="id-0", attempts=1),
        PublishResult(kind=PublishKind.PUBLISHED, identity="e-2", id="id-1", attempts=1),
    ]
    assert [each.ok for each in results] == [True, True]
    (entry, _) = bus.calls[0]["Entries"]
    assert entry == {
        "EventBusName": "default",
        "Source": "com.example.shop",
        "DetailType": "Order Placed",
        "Detail": '{"order":1,"_eventonce":{"id":"e-1","attempt":1}}',
    }


def test_events_come_in_many_shapes(scripted: Any) -> None:
    bus = scripted()
    bus.says(*[None] * 6)
    results = bus.send(
        Event(id="1", source="s", type="t", data={"a": 1}),
        {"id": "2", "source": "s", "type": "t", "a": 1},
        {"Source": "s", "DetailType": "t", "Detail": '{"id": 3}'},
        b'{"id": "4", "source": "s", "detail-type": "t", "detail": {}}',
        '{"id": "5", "source": "s", "type": "t"}',
        Event(id="6", source="s", type="t", data=[1, 2]),
    )

    assert kinds(results) == ["published"] * 6
    assert [results[number].identity for number in (0, 1, 3, 4, 5)] == ["1", "2", "4", "5", "6"]
    assert len(results[2].identity) == 32  # no id, so the digest of its content
    assert [entry["Source"] + entry["DetailType"] for entry in bus.calls[0]["Entries"]] == ["st"] * 6
    stamp = {"_eventonce": {"id": "6", "attempt": 1}}
    assert bus.details()[5] == {"data": [1, 2], **stamp}
    assert bus.details()[1]["a"] == 1


def test_what_python_has_beyond_json_is_sent_and_keyed_as_it_arrives(scripted: Any) -> None:
    bus = scripted()
    bus.says(None, None)
    data = {"at": datetime(2026, 1, 31, tzinfo=UTC), "sum": Decimal("1.50"), "lines": (1, 2)}
    one, other = bus.send(
        Event(source="s", type="t", data=data),
        {"source": "s", "detail-type": "t", "detail": {"lines": [1, 2], "sum": "1.5", "at": "2026-01-31T00:00:00Z"}},
    )

    assert one.identity == other.identity
    assert bus.details()[0]["at"] == "2026-01-31T00:00:00Z"


def test_a_call_holds_ten_entries_and_a_megabyte(scripted: Any) -> None:
    bus = scripted()
    for count in (10, 2, 2):
        bus.says(*[None] * count)
    large = "x" * 499_800  # with the rest of the entry and its stamp, two of them are just below 1,000,000 bytes
    results = bus.send(*map(order, range(10)), *(order(number, text=large) for number in range(10, 14)))

    assert kinds(results) == ["published"] * 14
    assert [len(call["Entries"]) for call in bus.calls] == [10, 2, 2]


def test_the_size_counts_the_stamp(scripted: Any) -> None:
    fits = 1_048_576 - len("com.example.shopOrder Placed") - len('{"order":1,"text":""}')
    stamp = len(',"_eventonce":{"id":"e-1","attempt":1}')
    bus = scripted()
    bus.says(None)
    just, over = bus.send(order(1, text="x" * (fits - stamp)), order(1, text="x" * (fits - stamp + 1)))

    assert just.kind is PublishKind.PUBLISHED
    assert over.kind is PublishKind.REFUSED
    assert over.attempts == 0
    assert str(over.error) == "has 1,048,577 bytes, over the 1,048,576 of events://default"


# --- identity ---


def test_an_identity_is_given_or_made_by_a_rule_or_the_events_own(scripted: Any) -> None:
    rule = Rule(name="orders", match={"detail-type": ["Order Placed"]}, key=["detail.order"])
    bus = scripted(rules=rule)
    bus.says(*[None] * 4)
    chosen, by_rule, other_id, own_id = bus.send(
        Message(order(1), identity="mine"), order(2), {**order(2), "id": "other"}, {**order(3), "detail-type": "Else"}
    )

    assert chosen.identity == "mine"
    assert by_rule.identity == other_id.identity != order(2)["id"]
    assert len(by_rule.identity) == 32
    assert own_id.identity == "e-3"


def test_identities_are_the_same_in_every_process() -> None:
    """Consumers remember identities, so they may never change. These are of the first release."""
    code = (
        "from eventonce import Rule; from eventonce.outbox.identity import Identities; "
        "from eventonce.event.formats import read_event; event = read_event({'source': 's', 'detail-type': 't', "
        "'detail': {'order': 1, 'n': 2}}); print(Identities([]).of(event), "
        "Identities([Rule(name='r', key=['detail.order'], version='detail.n')]).of(event))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "9b87d89ccfb335ac3f66a1c6e4e622a8 95c7fbccae932f063dbba96a8a36d76b-2\n"


def test_each_version_has_an_identity_of_its_own(scripted: Any) -> None:
    bus = scripted(rules=Rule(name="rides", key=["detail.ride"], version="detail.n"))
    bus.says(None, None)
    first, second = bus.send(order(ride="r", n=1), order(ride="r", n=2))

    assert first.identity.endswith("-1")
    assert second.identity == first.identity.removesuffix("1") + "2"


def test_an_event_whose_rule_finds_no_key_is_refused(scripted: Any) -> None:
    bus = scripted(rules=Rule(name="orders", key=["detail.customer"]))
    (result,) = bus.send(order(1))

    assert result.kind is PublishKind.REFUSED
    assert str(result.error) == "has no detail.customer, which is in the key of rule 'orders'"


@pytest.mark.parametrize("rules", [None, Rule(name="r", match={"source": ["nobody"]}, key="content")])
def test_the_stamp_of_another_publisher_is_not_taken_over(scripted: Any, rules: Rule | None) -> None:
    bus = scripted(rules=rules)
    bus.says(None, None)
    copied = {"_eventonce": {"id": "theirs", "attempt": 9}}
    own, content = bus.send(order(1, **copied), {**order(2, **copied), "id": ""})

    assert own.identity == "e-1"
    assert content.identity not in ("theirs", "")
    assert [stamp[1] for stamp in bus.stamps()[0]] == [1, 1]


def test_nor_by_a_rule_of_the_id(scripted: Any) -> None:
    bus = scripted(rules=Rule(name="r", key="id"))
    bus.says(None, None)
    copied = {"_eventonce": {"id": "theirs", "attempt": 9}}
    one, other = bus.send(order(1, **copied), order(2, **copied))

    assert one.identity != other.identity


@pytest.mark.parametrize("identity", ["", "x" * 257, 7, ["a"]])
def test_an_invalid_identity_is_refused(scripted: Any, identity: Any) -> None:
    (result,) = scripted().send(Message(order(1), identity=identity))

    assert result.kind is PublishKind.REFUSED
    assert "use a string of 1 to 256 characters" in str(result.error)


def test_a_long_id_is_shortened(scripted: Any) -> None:
    bus = scripted()
    bus.says(None)
    (result,) = bus.send({**order(1), "id": "x" * 5000})

    assert len(result.identity) == 64


# --- what is tried again ---


def test_the_third_of_ten_fails_and_is_sent_again_alone(scripted: Any) -> None:
    bus = scripted()
    bus.says(*[None] * 2, "InternalFailure", *[None] * 7)
    bus.says(None)
    results = bus.send(*map(order, range(10)))

    assert kinds(results) == ["published"] * 10
    assert [each.attempts for each in results] == [1, 1, 2, *[1] * 7]
    assert results[2].id == "id-0"
    assert bus.stamps()[1] == [("e-2", 2)]


@pytest.mark.parametrize(
    "code",
    [
        "AccessDeniedException", "InvalidAccountIdException", "InvalidArgument", "MalformedDetail", "RedactionFailure",
        "NotAuthorizedForSourceException", "NotAuthorizedForDetailTypeException",
    ],
)  # fmt: skip
def test_what_may_not_be_retried_is_refused_and_kept_with_its_code(scripted: Any, tmp_path: Path, code: str) -> None:
    dead = tmp_path / "dead.jsonl"
    bus = scripted(dead_letter=str(dead))
    bus.says(None, code, None)
    results = bus.send(*map(order, range(3)))

    assert kinds(results) == ["published", "refused", "published"]
    assert (results[1].code, results[1].attempts, results[1].ok) == (code, 1, False)
    assert isinstance(results[1].error, EventRejected)
    (letter,) = map(json.loads, dead.read_text().splitlines())
    assert (letter["code"], letter["identity"], letter["attempts"]) == (code, "e-1", 1)
    assert letter["sink"] == "events://default"
    assert code in letter["reason"]
    body = json.loads(letter["body"])
    assert body == {**order(1), "detail": {"order": 1, "_eventonce": {"id": "e-1", "attempt": 1}}}


@pytest.mark.parametrize("code", ["ThrottlingException", "InternalFailure", "InternalException", "Unheard Of"])
def test_what_may_be_retried_is_retried_and_then_failed(scripted: Any, tmp_path: Path, code: str) -> None:
    bus = scripted(max_attempts=3, dead_letter=str(tmp_path / "dead.jsonl"))
    for _ in range(3):
        bus.says(code)
    (result,) = bus.send(order(1))

    assert (result.kind, result.code, result.attempts, result.id) == (PublishKind.FAILED, code, 3, None)
    assert bus.stamps() == [[("e-1", 1)], [("e-1", 2)], [("e-1", 3)]]
    assert not (tmp_path / "dead.jsonl").exists()  # it may be sent again


def test_the_count_goes_on_where_an_earlier_call_left_off(scripted: Any) -> None:
    bus = scripted()
    bus.says("InternalFailure")
    bus.says(None)
    (result,) = bus.send(Message(order(1), attempts=4))

    assert result.attempts == 6
    assert bus.stamps() == [[("e-1", 5)], [("e-1", 6)]]


@pytest.mark.parametrize("whole", [True, False], ids=["whole call", "each entry"])
def test_throttling_for_a_minute_is_survived(scripted: Any, whole: bool) -> None:
    bus = scripted()
    started = bus.clock.utc()
    pauses: list[int] = []

    def answer(**_: Any) -> None:  # by the clock, not by count: whatever the jitter is
        if bus.clock.utc() - started >= 60_000:
            bus.says(None, None)
        elif whole:
            bus.stub.add_client_error("put_events", "ThrottlingException", "slow down", http_status_code=400)
        else:
            bus.says("ThrottlingException", "ThrottlingException")
        pauses.append(bus.clock.utc())

    bus.client.meta.events.register_first("provide-client-params.events.PutEvents", answer)
    results = bus.send(order(1), order(2))

    assert kinds(results) == ["published"] * 2
    assert results[0].attempts == len(bus.calls) <= MAX_ATTEMPTS
    waits = [later - sooner for sooner, later in pairwise(pauses)]
    assert max(waits) <= 20_000
    assert waits[0] <= 250


def test_a_bus_that_throttles_every_entry_is_not_asked_for_the_others(scripted: Any) -> None:
    bus = scripted(max_attempts=3)
    for _ in range(3):
        bus.says(*["ThrottlingException"] * 10)
    results = bus.send(*map(order, range(25)))

    assert [(each.kind, each.attempts) for each in results] == [(PublishKind.FAILED, 3)] * 10 + [
        (PublishKind.FAILED, 0)
    ] * 15
    assert {each.code for each in results} == {"ThrottlingException"}


def test_some_that_are_throttled_do_not_hold_up_the_others(scripted: Any) -> None:
    bus = scripted(max_attempts=2)
    bus.says(*["ThrottlingException"] * 9, None)
    bus.says(*[None] * 5)
    bus.says(*["ThrottlingException"] * 3, *[None] * 6)
    results = bus.send(*map(order, range(15)))

    assert kinds(results) == ["failed"] * 3 + ["published"] * 12
    assert [each.attempts for each in results] == [2] * 9 + [1] * 6


def test_a_carrier_that_never_answers_is_given_up(scripted: Any) -> None:
    bus = scripted(max_attempts=4)
    bus.client.meta.events.register_first("provide-client-params.events.PutEvents", _timing_out)
    results = bus.send(*map(order, range(25)))

    assert {(each.kind, each.code) for each in results} == {(PublishKind.FAILED, "ReadTimeoutError")}
    assert [each.attempts for each in results] == [4] * 10 + [0] * 15  # the rest is not tried ten by ten
    assert all(isinstance(each.error, SinkDown) for each in results)


def _timing_out(**_: Any) -> None:
    raise ReadTimeoutError(endpoint_url="http://x")


def test_every_try_is_stamped_so_botocore_makes_each_call_once(scripted: Any) -> None:
    assert scripted().client.meta.config.retries["total_max_attempts"] == 1


def test_nothing_can_be_sent_until_someone_acts(scripted: Any, tmp_path: Path) -> None:
    """No event is to blame, so there are no dead letters, and each may be sent again."""
    bus = scripted(dead_letter=str(tmp_path / "dead.jsonl"))
    bus.says(*[None] * 10)
    bus.stub.add_client_error("put_events", "AccessDeniedException", "no", http_status_code=400)
    results = bus.send(*map(order, range(30)))

    assert kinds(results) == ["published"] * 10 + ["failed"] * 20
    assert {each.code for each in results[10:]} == {"AccessDeniedException"}
    assert "fix this" in str(results[29].error)
    assert not (tmp_path / "dead.jsonl").exists()


def test_a_bus_that_is_missing(scripted: Any) -> None:
    bus = scripted("events://orders?region=us-east-1")
    bus.stub.add_client_error("describe_event_bus", "ResourceNotFoundException", "no such bus")
    (result,) = bus.send(order(1))

    assert (result.kind, result.code, result.attempts) == (PublishKind.FAILED, "ResourceNotFoundException", 0)


def test_a_bus_that_cannot_be_looked_up_now_is_waited_for(scripted: Any) -> None:
    bus = scripted("events://orders?region=us-east-1")
    bus.stub.add_client_error("describe_event_bus", "ThrottlingException", "slow down")
    bus.stub.add_response("describe_event_bus", {"Name": "orders"})
    bus.says(None)

    assert kinds(bus.send(order(1))) == ["published"]


def test_more_answers_than_entries_do_no_harm(scripted: Any) -> None:
    bus = scripted()
    bus.says(None, None, None)

    assert kinds(bus.send(order(1))) == ["published"]


# --- order ---


def messages(queue: Scripted, call: int) -> list[Any]:
    return [json.loads(entry["MessageBody"])["detail"]["order"] for entry in queue.calls[call]["Entries"]]


def test_a_fifo_queue_gets_the_group_and_an_id_that_is_the_same_at_every_attempt(scripted: Any) -> None:
    queue = scripted(FIFO)
    queue.sqs_response(failed={0: "InternalError"})
    queue.sqs_response(0)
    (result,) = queue.send(order(1, customer="c-1"))

    assert (result.kind, result.id, result.attempts) == (PublishKind.PUBLISHED, "m-0", 2)
    first, second = (call["Entries"][0] for call in queue.calls)
    assert first["MessageGroupId"] == "c-1"
    assert first["MessageDeduplicationId"] == second["MessageDeduplicationId"]
    assert json.loads(second["MessageBody"])["detail"]["_eventonce"] == {"id": "e-1", "attempt": 2}


def test_one_identity_of_two_types_is_not_one_deduplication_id(scripted: Any) -> None:
    queue = scripted("sqs://orders.fifo?region=us-east-1&group=detail.order")
    queue.sqs_response(0, 1)
    paid = {**order(2), "detail-type": "Order Paid"}
    queue.send(Message(order(1), identity="o-1"), Message(paid, identity="o-1"))

    assert len({entry["MessageDeduplicationId"] for entry in queue.calls[0]["Entries"]}) == 2


def test_nothing_overtakes_a_failed_one_of_its_group(scripted: Any) -> None:
    queue = scripted(FIFO, max_attempts=2)
    queue.sqs_response(1, failed={0: "InternalError"})
    queue.sqs_response(0)
    queue.sqs_response(failed={0: "InternalError"})
    results = queue.send(*(order(number, customer="ab"[number % 2]) for number in range(4)))

    assert kinds(results) == ["failed", "published", "failed", "published"]
    assert [messages(queue, call) for call in range(3)] == [[0, 1], [3], [0]]
    assert (results[2].attempts, str(results[2].error)) == (
        0,
        "was not sent: an earlier event in its group failed",
    )


def test_one_that_gets_through_late_is_followed_by_its_group(scripted: Any) -> None:
    queue = scripted(FIFO)
    queue.sqs_response(failed={0: "InternalError"})
    queue.sqs_response(0)
    queue.sqs_response(0)
    results = queue.send(order(0, customer="a"), order(1, customer="a"))

    assert kinds(results) == ["published"] * 2
    assert [messages(queue, call) for call in range(3)] == [[0], [0], [1]]


def test_a_refused_one_lets_its_group_go_on(scripted: Any, tmp_path: Path) -> None:
    queue = scripted(FIFO, dead_letter=str(tmp_path / "dead.jsonl"))
    queue.sqs_response(failed={0: "InvalidMessageContents"})
    queue.sqs_response(0)

    assert kinds(queue.send(order(0, customer="a"), order(1, customer="a"))) == ["refused", "published"]


def test_a_group_may_be_given_also_where_the_carrier_has_none(scripted: Any) -> None:
    bus = scripted(max_attempts=1)
    bus.says("InternalFailure", None)
    results = bus.send(Message(order(0), group="a"), Message(order(1), group="a"), Message(order(2), group="b"))

    assert kinds(results) == ["failed", "failed", "published"]
    assert [results[1].attempts, results[2].attempts] == [0, 1]
    queue = scripted("sqs://orders.fifo?region=us-east-1")
    queue.sqs_response(0, 1)
    queue.send(Message(order(0), group="a"), Message(order(1), group="b c"))
    groups = [entry["MessageGroupId"] for entry in queue.calls[0]["Entries"]]
    assert groups[0] == "a"
    assert len(groups[1]) == 64  # AWS takes no spaces


# --- dead letters ---


def test_a_dead_letter_that_cannot_be_kept_leaves_its_event_with_the_caller(scripted: Any, tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    queue = scripted(FIFO, dead_letter=str(dead))
    dead.mkdir()
    queue.sqs_response(failed={0: "InvalidMessageContents"})
    refused, behind = queue.send(order(0, customer="a"), order(1, customer="a"))

    assert (refused.kind, behind.kind) == (PublishKind.FAILED, PublishKind.FAILED)
    assert isinstance(refused.error, SinkError)
    assert "InvalidMessageContents" in str(refused.error)
    assert "its dead letter could not be kept" in str(refused.error)
    assert "an earlier event in its group failed" in str(behind.error)


def test_a_dead_letter_brings_its_event_back_under_its_identity(scripted: Any, tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    bus = scripted(dead_letter=str(dead))
    bus.says("MalformedDetail")
    bus.send(Message(order(1), identity="mine"))
    (delivery,) = letter_deliveries(read_letter(dead.read_bytes().strip()))

    assert identity_of(read_event(delivery.body)) == "mine"


def test_that_holds_for_what_is_refused_before_it_is_sent(scripted: Any, tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    bus = scripted(dead_letter=str(dead))
    dead.mkdir()
    bus.says(None)
    results = bus.send(Message(b"garbage", group="a"), Message(order(1), group="a"), Message(order(2), group="b"))

    assert kinds(results) == ["failed", "failed", "published"]


# --- the new bus ---


def test_a_new_bus_gets_a_hundred_at_a_time_and_reports_duplicates(scripted: Any) -> None:
    bus = scripted(f"events://{NEW_BUS}?group=detail.order")
    answer = [{"EventId": "n-1", "SuccessCode": "PUBLISHED"}, {"EventId": "n-2", "SuccessCode": "DEDUPLICATED"}]
    bus.stub.add_response("put_events", {"FailedEntryCount": 0, "Entries": answer * 50})
    bus.stub.add_response("put_events", {"FailedEntryCount": 0, "Entries": answer})
    results = bus.send(*map(order, range(102)))

    assert kinds(results) == ["published", "deduplicated"] * 51
    assert [each.id for each in results[:2]] == ["n-1", "n-2"]
    assert all(each.ok for each in results)
    system = bus.calls[0]["Entries"][7]["SystemMetadata"]
    assert system["EventGroupId"] == "7"
    assert len(system["DeduplicationId"]) == 32


def test_one_that_a_new_bus_denies_is_found_and_refused(scripted: Any) -> None:
    bus = scripted(f"events://{NEW_BUS}")
    for denied in (True, False, True, False):  # all three together, then each alone
        if denied:
            bus.stub.add_client_error("put_events", "AccessDeniedException", "no", http_status_code=403)
        else:
            bus.stub.add_response("put_events", {"Entries": [{"EventId": "n", "SuccessCode": "PUBLISHED"}]})
    results = bus.send(*map(order, range(3)))

    assert kinds(results) == ["published", "refused", "published"]
    assert results[1].code == "AccessDeniedException"
    assert bus.stamps()[1:] == [[("e-0", 2)], [("e-1", 2)], [("e-2", 2)]]


def test_a_new_bus_that_denies_everything_blames_no_event(scripted: Any) -> None:
    bus = scripted(f"events://{NEW_BUS}")
    for _ in range(3):
        bus.stub.add_client_error("put_events", "AccessDeniedException", "no", http_status_code=403)

    assert kinds(bus.send(*map(order, range(2)))) == ["failed"] * 2


# --- garbage ---


class Odd:
    """Has no JSON form."""


class Spiteful(UserDict[str, Any]):
    """Cannot even be looked at."""

    def __iter__(self) -> Iterator[str]:
        raise ZeroDivisionError("not today")


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"garbage", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "is a list"),
        (7, "is of type int, not an event"),
        (None, "is None, not an event"),
        (Odd(), "is of type Odd, not an event"),
        (Spiteful(), "could not be read: not today"),
        ({}, "has no source of its own"),
        ({"source": "s"}, "has no type"),
        ({"source": "aws.s3", "type": "t"}, "has no source of its own"),
        ({"source": "s", "type": "t" * 129}, "has a detail-type of 129 characters"),
        ({"source": "s", "type": "t", "what": Odd()}, "what is of type Odd, which has no spelling in JSON"),
        ({"source": "s", "type": "t", 7: {}, "x": {(1, 2): 3}}, "x has the name (1, 2), and names in JSON are strings"),
        ({"source": "s", "type": "t", "n": math.nan}, "n is the number nan, which JSON has no form for"),
        (Event(source="s", type="t", data={"a": [None, {"b": math.inf}]}), "data.a[1].b is the number inf"),
        (Event(source="s", type="t", data={"a": "\ud800"}), "cannot be written as JSON"),
        (Event(source="s", type="t", data=deep(5000)), "data is nested deeper than 200 levels"),
        (Event(source=7, type="t", data={}), "has a source that is not a string"),  # type: ignore[arg-type]
        ({"Records": [{"eventSource": "aws:sqs", "body": "{}", "messageId": "m"}] * 2}, "carries 2 events, not one"),
    ],
)
def test_garbage_is_refused_and_kept_and_the_rest_goes_on(
    scripted: Any, tmp_path: Path, item: Any, reason: str
) -> None:
    dead = tmp_path / "dead.jsonl"
    bus = scripted(dead_letter=str(dead))
    bus.says(None, None)
    results = bus.send(order(1), item, order(2))

    assert kinds(results) == ["published", "refused", "published"]
    assert reason in str(results[1].error)
    assert results[1].attempts == 0
    (letter,) = map(json.loads, dead.read_text().splitlines())
    assert reason in letter["reason"]
    assert letter.get("body") or letter["body_base64"]


def test_nothing_to_send(scripted: Any) -> None:
    assert scripted().send() == []


@pytest.mark.parametrize("events", [order(1), b"{}", "{}", Event(data={}), Message({})])
def test_one_event_without_a_list_is_refused(events: Any) -> None:
    with Publisher(BUS) as publisher, pytest.raises(ConfigError, match="put the one event into a list"):
        publisher.send(events)


# --- a carrier of one's own ---


class Board:
    """A carrier written from the page of contracts alone. It has room for two entries and is busy at first."""

    label = "board"
    limits = CallLimits(entries=2, together=10_000, alone=10_000)

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []
        self.closed = False

    def ready(self) -> None:
        """There is nothing to find out."""

    def entry(self, item: Sendable) -> BatchEntry:
        line = item.next_event().line()
        return BatchEntry({"line": json.loads(line), "key": item.key}, len(line), item.group)

    def put(self, entries: Sequence[BatchEntry]) -> list[EntryAccepted | EntryRefusal]:
        self.calls.append([entry.body for entry in entries])
        if len(self.calls) == 1:
            raise BatchRefused(EntryRefusal("busy", "come back later"))
        return [
            EntryRefusal("ugly", "no") if entry.body["line"]["detail"]["order"] == 2 else EntryAccepted("pin")
            for entry in entries
        ]

    def judge(self, refusal: EntryRefusal) -> EventRejected | SinkError:
        return SinkDown(refusal.message) if refusal.code == "busy" else self.rejected(refusal)

    def rejected(self, refusal: EntryRefusal) -> EventRejected:
        return EventRejected(refusal.message)

    def close(self) -> None:
        self.closed = True


def test_a_carrier_of_one_s_own() -> None:
    board = Board()
    with Publisher(board, clock=ManualClock()) as publisher:
        results = publisher.send([Message(order(1), group="a"), Message(order(3), group="a"), Message(order(2))])

    assert kinds(results) == ["published", "published", "refused"]
    assert [each.id for each in results] == ["pin", "pin", None]
    assert all(len({entry["key"] for entry in call}) == len(call) for call in board.calls)
    assert board.closed


class Shelf:
    """A sink that keeps the orders it gets, except for some."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        self.sent: list[list[int]] = []
        self._errors = errors

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> list[Exception | None]:
        orders = [event.data["order"] for event in events]
        self.sent.append(orders)
        return [self._errors.get(number) for number in orders]

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("error", "expected", "sent"),
    [
        (None, ["published"] * 4, [[1, 9], [2], [3]]),
        (EventRejected("torn"), ["published", "refused", "published", "published"], [[1, 9], [2], [3]]),
        (SinkError("full"), ["published", "failed", "failed", "published"], [[1, 9], [2]]),
        (OSError("odd"), ["published", "failed", "failed", "published"], [[1, 9], [2]]),
    ],
)
def test_any_sink_keeps_the_order_of_a_group(error: Exception | None, expected: list[str], sent: list[Any]) -> None:
    shelf = Shelf({} if error is None else {2: error})
    outgoing = [Message(read_event(json.dumps(order(number))), f"e-{number}", "a") for number in (1, 2, 3)]
    results = PlainPublisher(shelf).send([*outgoing, Message(read_event(json.dumps(order(9))), "e-9")])

    assert kinds(results) == expected
    assert shelf.sent == sent
    if error is not None:
        assert str(results[1].error) == str(error)


# --- opening ---


@pytest.mark.parametrize(
    ("url", "settings", "reason"),
    [
        ("https://api.example.com", {}, "publisher: https:// is not supported; use events://BUS"),
        ("orders.jsonl", {}, "publisher: 'orders.jsonl' is not supported; use events://BUS"),
        ("events://", {}, "names nothing"),
        ("sqs://orders?group=a", {}, "which end in .fifo"),
        (BUS, {"max_attempts": 0}, "max_attempts: 0 is not a whole number from 1 on"),
        (BUS, {"max_attempts": "3"}, "max_attempts: '3' is not a whole number from 1 on"),
        (BUS, {"rules": 7}, "rules: 7 is not a rule"),
        (BUS, {"dead_letter": "kafka://x"}, "kafka:// is not supported"),
    ],
)
def test_wrong_settings_are_refused_at_once(url: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Publisher(url, **settings)
    assert reason in str(caught.value)


def test_the_room_needs_no_driver_before_it_is_used() -> None:
    code = "import sys, eventonce.outbox; print([n for n in ('boto3', 'botocore', 'cloudevents') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_front_door_does_not_import_it() -> None:
    code = "import sys, eventonce; print([n for n in sys.modules if n.startswith('eventonce.outbox')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- on the other side ---


def arrived(bus: Scripted, call: int, number: int, identity: str) -> dict[str, Any]:
    """An entry as EventBridge delivers it: under an id of its own."""
    entry = bus.calls[call]["Entries"][number]
    return {
        "id": identity,
        "source": entry["Source"],
        "detail-type": entry["DetailType"],
        "detail": json.loads(entry["Detail"]),
    }


def test_a_retry_of_the_producer_is_a_copy_to_consumers_by_default(scripted: Any) -> None:
    bus = scripted()
    bus.says("InternalFailure", None)
    bus.says(None)
    bus.send(order(1), order(2))
    ran: list[tuple[str, int]] = []

    def handle(event: Event) -> None:
        ran.append((event.id, event.data["_eventonce"]["attempt"]))

    copies = [arrived(bus, 0, 0, "aws-1"), arrived(bus, 1, 0, "aws-2"), arrived(bus, 0, 1, "aws-3")]
    outcomes = Once("memory:").run(copies, handle)
    assert [outcome.kind.value for outcome in outcomes] == ["processed", "duplicate", "processed"]
    assert ran == [("aws-1", 1), ("aws-3", 1)]


@pytest.mark.parametrize("rule", [Rule(name="r", key="content"), Rule(name="r", key="id")])
def test_and_to_rules_of_content_and_id(scripted: Any, rule: Rule) -> None:
    bus = scripted()
    bus.says("InternalFailure")
    bus.says(None)
    bus.send(order(1))
    copies = [arrived(bus, 0, 0, "aws-1"), arrived(bus, 1, 0, "aws-2")]

    kinds = [outcome.kind.value for outcome in Once("memory:", rules=rule).run(copies, lambda event: None)]
    assert kinds == ["processed", "duplicate"]


@pytest.mark.parametrize("stamp", [None, 7, "e-1", [], {}, {"id": 7}, {"id": ""}, {"id": "x" * 257}, {"id": {"a": 1}}])
def test_an_invalid_stamp_is_ignored(stamp: Any) -> None:
    def copy(number: int) -> dict[str, Any]:
        return {**order(1, _eventonce=stamp), "id": f"aws-{number}"}

    kinds = [outcome.kind.value for outcome in Once("memory:").run([copy(1), copy(2)], lambda event: None)]
    assert kinds == ["processed", "processed"]


def test_one_identity_of_two_sources_or_types_is_two_events() -> None:
    stamp = {"_eventonce": {"id": "1", "attempt": 1}}
    events = [{**order(1, **stamp), "id": f"aws-{number}"} for number in range(3)]
    events[1]["source"] = "other"
    events[2]["detail-type"] = "Other"

    assert {outcome.kind.value for outcome in Once("memory:").run(events, lambda event: None)} == {"processed"}
