"""One root for all paths: the event, in whichever envelope it comes."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from eventonce import ConfigError, EventRejected, Once, Rule
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.rules import Rulebook, identity
from eventonce.rules.ignored import WATCHED, IgnoredFields
from eventonce.traffic import content

DATA = {"orderId": "o-1", "sentAt": 1, "time": 2, "lines": [{"sku": "a", "at": 3}]}


def eventbridge(data: Any) -> dict[str, Any]:
    return {"id": "1", "source": "shop", "detail-type": "Order", "time": "2026-01-05T09:00:00Z", "detail": data}


def cloudevent(data: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "shop", "type": "Order", "tenant": "t-1", "data": data}


def plain(data: Any) -> dict[str, Any]:
    return {"id": "1", "source": "shop", "type": "Order", **data}


FORMS = {"eventbridge": eventbridge, "cloudevents": cloudevent, "plain": plain}


def stripped(body: Any, *paths: str) -> Any:
    return IgnoredFields(paths).strip(read_event(json.dumps(body)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "paths",
    [
        ("detail.sentAt", "detail.lines[*].at"),
        ("data.sentAt", "data.lines[*].at"),
        ("sentAt", "lines[*].at"),
        ("detail.**.at", "data.*.sentAt", "**.sentAt"),
    ],
)
def test_a_path_leaves_out_the_same_field_in_each_envelope(form: str, paths: tuple[str, ...]) -> None:
    body = FORMS[form](DATA)
    rest = read_event(json.dumps(FORMS[form]({"orderId": "o-1", "time": 2, "lines": [{"sku": "a"}]}))).data
    assert stripped(body, *paths) == rest


@pytest.mark.parametrize("envelope", [eventbridge, cloudevent])
@pytest.mark.parametrize("path", ["time", "id", "version.x", "subject", "headers.x"])
def test_a_field_of_the_envelope_is_not_one_of_the_data(envelope: Any, path: str) -> None:
    data = {"time": 1, "id": 2, "version": {"x": 3}, "subject": 4, "headers": {"x": 5}}
    assert stripped(envelope(data), path) == data


def test_plain_objects_have_their_own_fields() -> None:
    body = {"id": "1", "time": 2, "x": 1, "data": {"x": 2}, "detail": {"x": 3}}
    assert stripped(body, "time", "id") == {"x": 1, "data": {"x": 2}, "detail": {"x": 3}}
    assert stripped(body, "data.x") == {**body, "data": {}}
    assert stripped(body, "detail.x") == {name: value for name, value in body.items() if name != "x"}
    assert stripped(body, "detail.detail.x") == {**body, "detail": {}}
    assert stripped({"x": 1, "y": 2}, "data.x") == {"y": 2}


def test_a_record_whose_carrier_gave_it_an_id_is_a_plain_object_too() -> None:
    record = {"eventSource": "aws:s3", "eventName": "Put", "eventVersion": "2", "eventID": "7", "time": 1, "s3": {}}
    assert "time" not in stripped(record, "time")


def test_an_event_made_in_python_has_an_envelope() -> None:
    event = Event(data={"time": 1, "data": {"x": 1}, "x": 2}, type="t")
    assert IgnoredFields(["time", "data.x"]).strip(event) == {"time": 1, "data": {"x": 1}}


@pytest.mark.parametrize("body", [[1], "text", None, 7])
def test_data_that_is_not_an_object_has_no_fields(body: Any) -> None:
    assert stripped(eventbridge([body]), "detail.x", "time", "x") == [body]
    assert stripped(cloudevent(body), "detail.x", "data.y", "time") == body


@pytest.mark.parametrize("path", ["detail", "data"])
def test_all_of_the_data_cannot_be_ignored(path: str) -> None:
    with pytest.raises(ConfigError, match=f"ignore: '{path}' is all of the data; name the fields in it"):
        Rule(key="content", ignore=[path])


@pytest.mark.parametrize("path", ["source", "type", '"detail-type"'])
def test_source_and_type_are_always_content(path: str) -> None:
    with pytest.raises(ConfigError, match=r"is always part of a content key; use a key of paths, or write detail\."):
        Rule(key="content", ignore=[path])


@pytest.mark.parametrize("form", FORMS)
def test_audits_ignore_what_keys_ignore(form: str) -> None:
    compiled = Rulebook("c", [Rule(key="content", ignore=["data.sentAt"])], identity("14d", "retry")).all[0]
    one, other, third = (
        read_event(json.dumps(FORMS[form](DATA | change))) for change in ({}, {"sentAt": 9}, {"orderId": "o-2"})
    )
    fingerprints = [content.of_content(compiled, event, bytearray()) for event in (one, other, third)]
    assert (compiled.key(one).key == compiled.key(other).key) is (fingerprints[0] == fingerprints[1]) is True
    assert (compiled.key(one).key == compiled.key(third).key) is (fingerprints[0] == fingerprints[2]) is False


# --- keys, versions and matches ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "paths", [["type", "detail.orderId"], ['"detail-type"', "data.orderId"], ["type || 'x'", "data.[orderId][0]"]]
)
def test_a_key_reads_the_same_field_in_each_envelope(form: str, paths: Sequence[str]) -> None:
    rules = Rulebook("c", [Rule(key=paths)], identity("14d", "retry"))
    assert list(rules.all[0].parts(read_event(FORMS[form](DATA))).values()) == ["Order", "o-1"]


@pytest.mark.parametrize("form", FORMS)
def test_a_version_and_a_time_are_read_by_either_name(form: str) -> None:
    rule = Rule(key=["floor_time(data.time, '1m')"], version="data.sentAt")
    assert Rulebook("c", [rule], identity("14d", "retry")).key(read_event(FORMS[form](DATA))).version == 1


def test_a_plain_object_that_has_such_fields_keeps_them() -> None:
    rules = Rulebook("c", [Rule(key=["type", "data.x", "data.y || 'none'"])], identity("14d", "retry"))
    assert list(rules.all[0].parts(read_event({"type": 7, "data": {"x": 1}, "x": 2, "y": 3})).values()) == [
        7,
        1,
        "none",
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "match",
    [
        {"type": ["Order"]},
        {"data": {"orderId": ["o-1"]}},
        {"source": ["shop"], "$or": [{"type": ["Order"]}, {"detail": {"x": [1]}}]},
    ],
)
def test_a_match_reads_either_name(form: str, match: Any) -> None:
    rules = Rulebook("c", [Rule(name="r", match=match)], identity("14d", "retry"))
    assert rules.find(read_event(FORMS[form](DATA))).name == "r"
    assert rules.find(read_event({**FORMS[form]({"orderId": "o-2"}), "detail-type": "t", "type": "t"})).name == "id"


def test_a_missing_part_that_the_data_has_names_the_path_to_write() -> None:
    once = Once("memory:", key=["orderId"])
    with pytest.raises(EventRejected, match=r"in the key of rule 'paths'; its data has one, so write detail\.orderId"):
        once.key(eventbridge(DATA))
    with pytest.raises(EventRejected, match=r"in the key of rule 'paths'$"):
        once.key(eventbridge({}))


# --- paths that are never there ---


def warnings_of(caplog: pytest.LogCaptureFixture, rule: Rule, bodies: Sequence[Any]) -> list[str]:
    with caplog.at_level(logging.WARNING, "eventonce"), Once("memory:", rules=rule) as once:
        once.run(bodies, lambda event: None)
    return [record.getMessage() for record in caplog.records]


def test_an_ignored_path_that_leaves_nothing_out_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule(name="orders", key="content", ignore=["detail.sentAt", "detail.sendAt", "time", "detail.rare"])
    bodies = [eventbridge({"n": number, "sentAt": number}) for number in range(3 * WATCHED)]
    bodies[WATCHED - 1]["detail"]["rare"] = 1
    assert warnings_of(caplog, rule, bodies[: WATCHED - 1]) == []
    assert warnings_of(caplog, rule, bodies) == [
        "rule orders: ignore: detail.sendAt leaves nothing out of its first 100 events; check the path",
        "rule orders: ignore: time leaves nothing out of its first 100 events; check the path",
    ]


def test_few_events_are_enough_when_they_are_all(caplog: pytest.LogCaptureFixture) -> None:
    rules = [
        Rule(name="orders", match={"source": ["shop"]}, key="content", ignore=["detail.sentAt", "detail.sendAt"]),
        Rule(name="others", match={"source": ["other"]}, key="content", ignore=["detail.x"]),
        Rule(name="all", key="content"),
    ]
    warning = "rule orders: ignore: detail.sendAt leaves nothing out of its {}; check the path"
    for events, text in ((1, "1 event"), (3, "3 events"), (WATCHED, f"first {WATCHED} events")):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "eventonce"), Once("memory:", rules=rules) as once:
            once.run([eventbridge({"n": n, "sentAt": n}) for n in range(events)], lambda event: None)
            once.report_unused()
            once.report_unused()
        assert [record.getMessage() for record in caplog.records] == [warning.format(text)]


def test_a_rule_is_watched_in_its_own_events_and_costs_nothing_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule(key=["detail.n"], otherwise="content", match={"source": ["shop"]}, ignore=["detail.x"])
    others = [{**eventbridge({"n": number}), "source": "other"} for number in range(WATCHED)]
    assert warnings_of(caplog, rule, [*others, eventbridge({"n": 1})]) == []
    compiled = Rulebook("c", [rule], identity("14d", "retry")).all[0]
    key = compiled._key
    compiled.watch_ignored(lambda text: None)
    for _ in range(WATCHED):
        assert compiled._key != key
        compiled.key(read_event(eventbridge({"n": 1})))
    assert compiled._key == key


# --- one rule for all events ---


def test_a_consumer_with_one_rule_needs_no_rule_object() -> None:
    body, same = eventbridge(DATA), eventbridge({**DATA, "sentAt": 9})
    with Once("memory:", key="content", ignore=["detail.sentAt"], window="1h") as once:
        assert [outcome.kind.value for outcome in once.run([body, same], lambda event: None)] == [
            "processed",
            "duplicate",
        ]
        assert [(rule.name, rule.window) for rule in once.rules] == [("content", "1h")]
    with Once("memory:", key=["detail.orderId"], version="detail.sentAt") as once:
        assert [outcome.kind.value for outcome in once.run([same, body], lambda event: None)] == ["processed", "stale"]


def test_a_key_by_id_is_that_of_an_event_without_a_rule() -> None:
    body = eventbridge(DATA)
    assert Once("memory:", key="id").key(body) == Once("memory:").key(body) == Once("memory:", rules=Rule()).key(body)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "content", "rules": Rule()}, "key: the rules= of this Once define the keys; put it into a Rule there"),
        ({"ignore": ["a"], "rules": [Rule()]}, "ignore: the rules= of this Once"),
        ({"version": "a", "rules": "pipeline.toml"}, "version: the rules= of this Once"),
        ({"key": 5}, "key: 5 is not a list of paths"),
        ({"key": []}, "name at least one path"),
        ({"key": "orderId"}, "unknown key 'orderId'"),
        ({"ignore": ["a"]}, 'ignore only means something with key = "content"'),
        ({"key": "content", "ignore": "sentAt"}, "ignore: 'sentAt' is not a list of paths"),
        ({"version": 5}, "version: 5 is not a path"),
    ],
)
def test_a_wrong_rule_of_once_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Once("memory:", **arguments)
    assert message in str(caught.value)


def test_an_event_without_an_id_says_where_to_name_what_identifies_it() -> None:
    def reason(once: Once) -> str:
        with pytest.raises(EventRejected) as caught:
            once(lambda event: None)({"orderId": "o-1"})
        return str(caught.value)

    assert reason(Once("memory:")) == (
        'has no id; name what identifies it, such as key = ["detail.orderId"] or key = "content", in a [[rule]] '
        "of the pipeline or as a setting of Once"
    )
    elsewhere = Rule(name="r", match={"source": ["shop"]}, key="content")
    assert reason(Once("memory:", rules=elsewhere)) == (
        'has no id; no rule matches it, so add one with a key, such as key = "content"'
    )
    assert reason(Once("memory:", rules=Rule(name="r"))) == (
        'has no id; give its rule another key, such as key = "content"'
    )
