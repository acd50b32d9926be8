"""The sample events of our own in tests/data: each carrier, format and preset rule has one, and each is what it says.

tests/data/README.md says where a new one goes.
"""

import json
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from inspect import getmembers, isfunction
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest

from eventonce import Event, EventRejected, Once, Rule
from eventonce.aws_lambda import invocation
from eventonce.aws_lambda.invocation import Reply
from eventonce.event import formats
from eventonce.event.formats import carriers, read_event, read_events, unpack
from eventonce.event.keys import Key
from eventonce.rules import Rulebook
from eventonce.rules.pattern import Pattern
from eventonce.rules.preset import preset_names, rules_of
from eventonce.webhook import Webhook
from tests.unit.event.test_formats_written import by_both
from tests.unit.rules.test_pattern import BROAD
from tests.unit.rules.test_presets import again
from tests.unit.webhook.test_webhook_app import send_event

DATA = Path(__file__).parents[2] / "data"


def files(folder: str) -> dict[str, Path]:
    """Return the samples in a folder of tests/data by their names, such as "sqs/fifo"."""
    paths = sorted((DATA / folder).rglob("*.json"))
    return {str(file.relative_to(DATA / folder).with_suffix("")): file for file in paths}


def documents(folder: str) -> dict[str, Any]:
    return {name: json.loads(file.read_bytes()) for name, file in files(folder).items()}


CARRIERS, PRESETS = documents("carriers"), documents("presets")


class Sample(NamedTuple):
    """What a sample of a carrier is."""

    size: int  # how many events it holds
    form: str
    first: str | None  # the id of the first event, or None where it has that of its message or record
    source: str
    type: str
    reply: Reply | None  # None: it does not invoke a Lambda function
    failed: tuple[str, ...] = ()  # what the Lambda door names when the first event fails


LOAF = "ba4ed000-0000-4000-8000-000000000{:03d}"
MESSAGE = "3e55a9e0-0000-4000-8000-000000000{:03d}"
SHARD, NUMBER = "shardId-000000000007", "4966{:052d}"
BAKERY, BAKED = "com.example.bakery", "Loaf Baked"
OVENS, BAKED_THERE = "/bakery/ovens", "loaf.baked"


def loaf(number: int, reply: Reply | None, *failed: str, count: int = 1) -> Sample:
    return Sample(count, "eventbridge", LOAF.format(number), BAKERY, BAKED, reply, failed)


def cloud(number: int, reply: Reply | None, *failed: str, count: int = 1) -> Sample:
    return Sample(count, "cloudevents", f"oven-{number}", OVENS, BAKED_THERE, reply, failed)


def bare(reply: Reply | None, *failed: str, count: int = 1) -> Sample:
    return Sample(count, "plain", None, "", "", reply, failed)


def log_event(number: str, reply: Reply, *failed: str, count: int = 1) -> Sample:
    return Sample(count, "plain", number, "/bakery/ovens", "DATA_MESSAGE", reply, failed)


EXPECTED: dict[str, Sample] = {
    "activemq/events": loaf(131, Reply.RAISE, count=2),
    "activemq/text": bare(Reply.RAISE, count=2),
    "cloudtrail/log-file": Sample(
        2, "plain", "74a11000-0000-4000-8000-000000000115", "sqs.amazonaws.com", "PurgeQueue", None
    ),
    "dynamodb/changes": Sample(
        3, "plain", "f6410bd6f3785485e671f1a0e739d80d", "bakery-loaves", "INSERT", Reply.CHECKPOINT, ("700000072",)
    ),
    "eventbridge/cloudevent-in-detail": cloud(11, Reply.RAISE),
    "eventbridge/detail-as-text": loaf(5, Reply.RAISE),
    "eventbridge/empty-id": Sample(1, "eventbridge", "", BAKERY, BAKED, Reply.RAISE),
    "eventbridge/event": loaf(1, Reply.RAISE),
    "eventbridge/list": loaf(6, Reply.RAISE, count=2),
    "eventbridge/new-bus": loaf(8, Reply.RAISE),
    "eventbridge/new-bus-raw": Sample(1, "eventbridge", None, BAKERY, BAKED, Reply.RAISE),
    "eventbridge/new-bus-replay": Sample(1, "eventbridge", None, BAKERY, BAKED, Reply.RAISE),
    "eventbridge/put-events": Sample(2, "eventbridge", "", BAKERY, "Loaf Ordered", None),
    "eventbridge/replayed": loaf(2, Reply.RAISE),
    "eventbridge/type-in-a-list": loaf(4, Reply.RAISE),
    "firehose/events": loaf(81, Reply.RECORDS, "record-81", count=2),
    "http/cloudevent-in-headers": cloud(105, Reply.RESPONSE),
    "http/function-url": loaf(101, Reply.RESPONSE),
    "http/function-url-in-base64": loaf(102, Reply.RESPONSE),
    "http/load-balancer": cloud(104, Reply.RESPONSE),
    "http/rest-api": Sample(1, "plain", "loaf-103", "", "", Reply.RESPONSE),
    "http/sns": loaf(106, Reply.RESPONSE),
    "kafka/cloudevent-in-headers": cloud(97, Reply.OFFSETS, "bakery-0/97"),
    "kafka/msk": loaf(91, Reply.OFFSETS, "bakery-0/91", "bakery-0/92", count=3),
    "kafka/self-managed": loaf(94, Reply.OFFSETS, "bakery-0/94"),
    "kafka/tombstone": bare(Reply.OFFSETS, "bakery-0/98"),
    "kinesis/aggregate": bare(Reply.CHECKPOINT, NUMBER.format(65), count=2),
    "kinesis/events": loaf(61, Reply.CHECKPOINT, NUMBER.format(61), count=2),
    "kinesis/logs": log_event(f"{64:056d}", Reply.CHECKPOINT, NUMBER.format(64)),
    "kinesis/window": bare(Reply.CHECKPOINT, NUMBER.format(63)),
    "logs/several": log_event(f"3937{151:052d}", Reply.RAISE, count=2),
    "logs/subscription": log_event(f"{95:056d}", Reply.RAISE),
    "none/cloudevent": cloud(20, Reply.RAISE),
    "none/cloudevent-0.3": cloud(23, Reply.RAISE),
    "none/cloudevent-in-base64": cloud(22, Reply.RAISE),
    "none/cloudevent-least": cloud(21, Reply.RAISE),
    "none/cloudevents-batch": cloud(24, Reply.RAISE, count=2),
    "none/plain": Sample(1, "plain", "loaf-26", "bakery", BAKED_THERE, Reply.RAISE),
    "none/plain-without-names": Sample(1, "plain", "", "", "", Reply.RAISE),
    "pipes-activemq/events": loaf(134, Reply.RAISE, count=2),
    "pipes-dynamodb/changes": Sample(
        2,
        "plain",
        "f601bc504e3323b5e843d89ee1016e02",
        "bakery-loaves",
        "INSERT",
        Reply.MESSAGES,
        ("f601bc504e3323b5e843d89ee1016e02", "25c1715d424ebae8879c0d33994106c7"),
    ),
    "pipes-kafka/events": loaf(128, Reply.RAISE, count=2),
    "pipes-kinesis/events": loaf(123, Reply.MESSAGES, *(f"{SHARD}:{NUMBER.format(n)}" for n in (123, 124)), count=2),
    "pipes-sqs/events": loaf(121, Reply.MESSAGES, MESSAGE.format(121), count=2),
    "pipes-rabbitmq/events": loaf(144, Reply.RAISE, count=2),
    "rabbitmq/events": loaf(141, Reply.RAISE, count=2),
    "rabbitmq/plain": bare(Reply.RAISE, count=2),
    "s3/notification": Sample(2, "plain", "", "aws:s3", "ObjectCreated:Put", Reply.RAISE),
    "sns/events": loaf(51, Reply.RAISE),
    "sns/notification": loaf(53, None),
    "sns/text": bare(Reply.RAISE),
    "sqs/events": loaf(31, Reply.MESSAGES, MESSAGE.format(31), count=2),
    "sqs/fifo": loaf(33, Reply.MESSAGES, *(MESSAGE.format(number) for number in (33, 34, 35)), count=3),
    "sqs/received": loaf(41, None, count=2),
    "sqs/s3": Sample(1, "plain", None, "aws:s3", "ObjectCreated:Put", Reply.MESSAGES, (MESSAGE.format(40),)),
    "sqs/sns": loaf(38, Reply.MESSAGES, MESSAGE.format(38), count=2),
    "sqs/sns-text": bare(Reply.MESSAGES, MESSAGE.format(45)),
    "sqs/text": bare(Reply.MESSAGES, MESSAGE.format(36), count=2),
}
# What cannot be read, and what is said of it.
REFUSED = {
    "docdb/changes": (
        "is a batch of Amazon DocumentDB, which is not taken apart; pass its events one by one to once.run"
    ),
    "http/without-body": "in the HTTP request: has no body",
    "none/no-event": "is a number, not a JSON object",
    "sqs/pointer": (
        "in the SQS message: is a pointer to a payload in S3 by the extended client of SQS or SNS, not the event; read "
        "it with that client and pass the payload to once.run, or send payloads that fit into the message"
    ),
    "sqs/without-body": "in the SQS message: has no body",
}
RECOGNISE = f"{carriers.__name__}._is_"
INVOCATIONS = [name for name, sample in EXPECTED.items() if sample.reply is not None]


# --- nothing is left out ---


def test_every_sample_of_a_carrier_has_its_expectation() -> None:
    assert sorted(CARRIERS) == sorted([*EXPECTED, *REFUSED])


def test_every_rule_of_every_preset_has_a_sample() -> None:
    assert {rule_name(name) for name in PRESETS} == {rule.name for rule in rules_of(preset_names())} | {"id"}


def test_every_format_has_a_sample() -> None:
    assert {sample.form for sample in EXPECTED.values()} == set(get_args(get_type_hints(Event)["form"]))


def test_every_reader_of_a_carrier_has_a_sample() -> None:
    readers = {name: each for name, each in functions(carriers) if "Carried" in str(get_type_hints(each)["return"])}
    assert len(readers) >= 15
    ran, _ = run_by_samples()
    assert [name for name, reader in readers.items() if reader.__code__ not in ran] == []


def test_every_shape_that_is_recognised_has_a_sample() -> None:
    modules = [import_module(f"{formats.__name__}.{each.name}") for each in pkgutil.iter_modules(formats.__path__)]
    by_name = [(f"{module.__name__}.{name}", each) for module in modules for name, each in functions(module)]
    tests = {name: each for name, each in by_name if name.startswith(RECOGNISE) or ".recognises" in name}
    assert len(tests) >= 10
    _, returned_true = run_by_samples()
    assert [name for name, test in tests.items() if test.__code__ not in returned_true] == []


def test_every_source_of_records_has_a_sample() -> None:
    assert set(carriers._READERS) <= {carriers._source(each) for each in objects(list(CARRIERS.values()))}


def test_every_carrier_that_the_lambda_door_knows_has_a_sample() -> None:
    assert {*invocation._OF_RECORDS, *invocation._REPORTING_PIPES} <= {name.partition("/")[0] for name in EXPECTED}
    assert {EXPECTED[name].reply for name in INVOCATIONS} == set(Reply)


def functions(module: Any) -> list[tuple[str, Callable[..., Any]]]:
    return [(name, each) for name, each in getmembers(module, isfunction) if each.__module__ == module.__name__]


def run_by_samples() -> tuple[set[CodeType], set[CodeType]]:
    """The code that runs while all samples are read, and that of it which answers with True."""
    ran, said_yes = set(), set()

    def note(frame: FrameType, what: str, value: Any) -> None:
        if what == "return":
            ran.add(frame.f_code)
            if value is True:
                said_yes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for document in (*CARRIERS.values(), *PRESETS.values()):
            read_events(json.dumps(document))
    finally:
        sys.setprofile(before)
    return ran, said_yes


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(each)


# --- carriers: what is read ---


@pytest.mark.parametrize("name", EXPECTED)
def test_events_are_what_they_are(name: str) -> None:
    sample, results = EXPECTED[name], events(CARRIERS[name])
    assert {carried.carrier for carried in unpack(CARRIERS[name])} == {name.partition("/")[0]}
    assert len(results) == sample.size
    assert {event.form for event in results} == {sample.form}
    assert (results[0].source, results[0].type) == (sample.source, sample.type)
    if sample.first is None:
        assert all(event.id for event in results)
    else:
        assert results[0].id == sample.first
    if any(event.id for event in results):
        assert len({event.id for event in results}) == sample.size


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(name: str) -> None:
    results = read_events(files("carriers")[name].read_bytes())
    assert [str(each) for each in results if isinstance(each, EventRejected)] == [REFUSED[name]]


@pytest.mark.parametrize("name", CARRIERS)
def test_bytes_text_and_objects_give_the_same(name: str) -> None:
    raw = files("carriers")[name].read_bytes()
    for body in (b"\xef\xbb\xbf" + raw, raw.decode(), CARRIERS[name]):
        assert list(map(comparable, read_events(body))) == list(map(comparable, read_events(raw)))


def comparable(read: Event | EventRejected) -> Any:
    return (read.document(), read.form, read.replay) if isinstance(read, Event) else str(read)


def test_what_is_inside() -> None:
    inside = {name: events(CARRIERS[name])[-1].data for name in EXPECTED}
    assert inside["dynamodb/changes"] == {
        "eventName": "REMOVE",
        "keys": {"Loaf": "loaf-24", "Oven": 7},
        "old": {
            "Loaf": "loaf-24",
            "Oven": 7,
            "Grams": 740.5,
            "Tags": {"$set": ["dark", "rye"]},
            "Sold": False,
            "Note": None,
            "Slices": [1, {"Thick": 1.5}],
        },
    }
    assert inside["activemq/text"] == ""
    assert inside["eventbridge/cloudevent-in-detail"] == {"loaf": "oven-11"}
    assert inside["eventbridge/detail-as-text"] == {"loaf": 5}
    assert inside["eventbridge/new-bus-replay"] == {"loaf": 10}
    assert inside["eventbridge/put-events"] == {"order": 2}
    assert inside["firehose/events"] == {"loaf": 82, "kind": "rye", "grams": 750.5}
    assert inside["http/cloudevent-in-headers"] == {"loaf": 105}
    assert inside["http/rest-api"] == {"id": "loaf-103", "grams": 750}
    assert inside["kafka/cloudevent-in-headers"] == {"loaf": 97}
    assert inside["kafka/tombstone"] is None
    assert inside["kafka/msk"] == {"loaf": 93, "kind": "rye", "grams": 750.5}
    assert inside["kinesis/aggregate"] == {"loaf": 66}
    assert inside["kinesis/logs"] == "oven 64 is hot"
    assert inside["logs/several"] == {"loaf": 152, "oven": "hot"}
    assert inside["logs/subscription"] == "oven 95 is hot"
    assert inside["none/cloudevent-in-base64"] == {"loaf": "oven-22"}
    assert inside["none/cloudevent-0.3"] == {"loaf": "oven-23"}
    assert inside["none/cloudevent-least"] is None
    assert inside["rabbitmq/plain"] == {"roll": 143}
    assert inside["sns/text"] == "Fresh bread at five."
    assert inside["sqs/sns"] == {"loaf": 39, "kind": "rye", "grams": 750.5}
    assert inside["sqs/sns-text"] == "Sold out."
    assert events(CARRIERS["sqs/text"])[0].data == "The oven is hot."


def test_replays_are_marked() -> None:
    replays = {name: events(CARRIERS[name])[0].replay for name in EXPECTED}
    assert {name: replay for name, replay in replays.items() if replay} == {
        "eventbridge/replayed": "last-monday",
        "eventbridge/new-bus-replay": "REPLAY",
    }


def test_samples_of_carriers_have_distinct_contents() -> None:
    rules = Rulebook("test", [Rule(name="content", key="content")], Rule(name="id"))
    keys = [rules.key(event).key for name in EXPECTED for event in events(CARRIERS[name])]
    assert len(set(keys)) == len(keys)


def test_both_ways_to_read_an_event_of_eventbridge_agree() -> None:
    written = [each for each in objects([*CARRIERS.values(), *PRESETS.values()]) if "detail" in each]
    bodies = [json.dumps(each).encode() for each in written]
    assert len(bodies) >= 50
    for body in bodies:
        one, other = by_both(body)
        assert one == other


def events(document: Any) -> list[Event]:
    results = read_events(json.dumps(document))
    assert [each for each in results if not isinstance(each, Event)] == []
    return [each for each in results if isinstance(each, Event)]


# --- carriers: what the Lambda door answers ---


class Function:
    """A Lambda function whose handler fails for events with some data."""

    def __init__(self, *fails: Any) -> None:
        self.ran: list[Any] = []
        self._fails = fails
        self._once = Once("memory:", rules=Rule(name="content", key="content"))
        self._handler = self._once.aws_lambda(self._handle, report_kafka_failures=True)

    def __call__(self, document: Any) -> Any:
        return self._handler(document, None)

    def close(self) -> None:
        self._once.close()

    def _handle(self, event: Event) -> None:
        if event.data in self._fails:
            raise ValueError("the oven is cold")
        self.ran.append(event.data)


@pytest.fixture
def function() -> Iterator[Callable[..., Function]]:
    made: list[Function] = []

    def make(*fails: Any) -> Function:
        made.append(Function(*fails))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("name", INVOCATIONS)
def test_an_invocation_runs_each_event_once_and_is_answered(name: str, function: Callable[..., Function]) -> None:
    running, document = function(), CARRIERS[name]
    answers = [running(document), running(document)]
    assert [summary(answer, EXPECTED[name].reply) for answer in answers] == [[], []]
    # Firehose sends a record again where it has lost what the function handed on, so that is handed on again.
    times = 2 if EXPECTED[name].reply is Reply.RECORDS else 1
    assert running.ran == [event.data for event in events(document)] * times


@pytest.mark.parametrize("name", INVOCATIONS)
def test_a_failure_is_answered_in_the_words_of_the_carrier(name: str, function: Callable[..., Function]) -> None:
    sample, document = EXPECTED[name], CARRIERS[name]
    running = function(events(document)[0].data)
    if sample.reply is Reply.RAISE:
        with pytest.raises(ValueError, match="the oven is cold"):
            running(document)
    else:
        assert summary(running(document), sample.reply) == list(sample.failed or ["500"])


def test_a_copy_in_another_record_of_firehose_is_dropped(function: Callable[..., Function]) -> None:
    running, document = function(), CARRIERS["firehose/events"]
    running(document)
    copies = [{**record, "recordId": f"another-{record['recordId']}"} for record in document["records"]]
    assert [each["result"] for each in running({**document, "records": copies})["records"]] == ["Dropped", "Dropped"]
    assert len(running.ran) == 2


def test_a_window_keeps_its_state(function: Callable[..., Function]) -> None:
    assert function()(CARRIERS["kinesis/window"]) == {"batchItemFailures": [], "state": {"loaves": 12}}


def test_a_message_that_cannot_be_read_comes_back_and_the_others_are_done(function: Callable[..., Function]) -> None:
    running = function()
    assert summary(running(CARRIERS["sqs/without-body"]), Reply.MESSAGES) == [MESSAGE.format(44)]
    assert len(running.ran) == 1
    assert summary(running(CARRIERS["http/without-body"]), Reply.RESPONSE) == ["400"]
    with pytest.raises(EventRejected, match="a list of 1 item, the first of them a number"):
        running(CARRIERS["none/no-event"])


def summary(answer: Any, reply: Reply | None) -> list[str]:
    """Return the failures in an answer: the names of messages, or the status of a response that is not 200."""
    if reply is Reply.RESPONSE:
        return [] if answer["statusCode"] == 200 else [str(answer["statusCode"])]
    if reply is Reply.RECORDS:
        assert {each["result"] for each in answer["records"]} <= {"Ok", "Dropped", "ProcessingFailed"}
        return [each["recordId"] for each in answer["records"] if each["result"] == "ProcessingFailed"]
    if reply is Reply.RAISE:
        assert answer is None
        return []
    failed = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    return [f"{each['partition']}/{each['offset']}" for each in failed] if reply is Reply.OFFSETS else failed


# --- presets ---

BOOK = Rulebook("test", rules_of(preset_names()), Rule(name="id"))
BACKWARDS = Rulebook("test", rules_of(preset_names()[::-1]), Rule(name="id"))
BY_ID = {rule.name for rule in rules_of(preset_names()) if rule.key == "id"} | {"id"}


def rule_name(sample: str) -> str:
    """Return the rule of a sample: "genesys other topics" of "genesys/other-topics.more". Those in none/ have "id"."""
    preset, _, name = sample.partition("/")
    return "id" if preset == "none" else f"{preset} {name.partition('.')[0].replace('-', ' ')}"


def event_of(document: dict[str, Any]) -> Event:
    """Return the event of a document. A request, which has nothing but headers and a body, goes to the webhook."""
    if document.keys() != {"headers", "body"}:
        return read_event(document)
    seen: list[Event] = []
    with Once("memory:", rules=Rule(name="content", key="content")) as once, closing(Webhook(once, seen.append)) as app:
        headers = {name.replace("-", "_"): value for name, value in document["headers"].items()}
        assert send_event(app, document["body"], **headers).status == 200
    return seen[0]


def key(document: dict[str, Any]) -> Key:
    return BOOK.key(event_of(document)).key


def sent_again(document: dict[str, Any]) -> dict[str, Any]:
    """The document as its producer sends it once more: in an envelope with another id, where it has one."""
    if "Records" not in document:
        return again(document)
    other = {"messageId": "another", "receiptHandle": "another"}
    return {"Records": [{**record, **other} for record in document["Records"]]}


@pytest.mark.parametrize("name", PRESETS)
def test_a_sample_falls_under_its_rule_whichever_presets_are_beside_it(name: str) -> None:
    event = event_of(PRESETS[name])
    assert BOOK.find(event).name == BACKWARDS.find(event).name == rule_name(name)


@pytest.mark.parametrize("name", [name for name in PRESETS if rule_name(name) not in BY_ID])
def test_a_sample_that_is_sent_again_is_a_copy(name: str) -> None:
    assert key(sent_again(PRESETS[name])) == key(PRESETS[name])


@pytest.mark.parametrize("name", [name for name in PRESETS if rule_name(name) in BY_ID])
def test_a_sample_that_goes_by_its_id_is_another_event_under_another_id(name: str) -> None:
    redelivered = {**PRESETS[name], "time": "2026-02-04T00:00:00Z"}
    assert key(PRESETS[name]) == key(redelivered) != key(sent_again(PRESETS[name]))


def test_samples_of_presets_are_distinct_though_some_share_an_id_or_a_sequencer() -> None:
    assert PRESETS["genesys/conversations.acd-start"]["id"] == PRESETS["genesys/conversations.acd-end"]["id"]
    keys = [key(document) for document in PRESETS.values()]
    assert len(set(keys)) == len(keys)


# --- patterns ---


def test_patterns_made_from_samples_match_those_of_their_source_only() -> None:
    sampled = [each for each in objects([*CARRIERS.values(), *PRESETS.values()]) if "detail-type" in each]
    sources = {each["source"] for each in sampled}
    assert len(sources) >= 15
    for event in sampled:
        assert {each for each in sources if Pattern({"source": [each]}).matches(event)} == {event["source"]}
        for pattern in BROAD:
            pattern.matches(event)


def test_the_pattern_of_an_alarm_matches_its_alarm_only() -> None:
    metric = {"metrics": {"metricStat": {"metric": {"namespace": ["Bakery/Ovens"], "name": ["Temperature"]}}}}
    detail = {"state": {"value": ["ALARM"]}, "configuration": metric}
    pattern = Pattern({"source": ["aws.cloudwatch"], "detail-type": [{"suffix": "State Change"}], "detail": detail})
    alarm = PRESETS["none/alarm"]
    assert pattern.matches(alarm)
    assert not pattern.matches({**alarm, "detail": {**alarm["detail"], "state": {"value": "OK"}}})
    assert not pattern.matches({**alarm, "detail": {**alarm["detail"], "configuration": {"metrics": []}}})
