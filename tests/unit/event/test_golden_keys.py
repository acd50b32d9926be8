"""Keys that stores out there hold: a change of any of them makes every remembered event new."""

import hashlib
import json
import random
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.event.keys import Digester, canonical, part
from eventonce.rules import Rulebook, identity
from eventonce.rules.pattern import Pattern
from eventonce.rules.rule import Rule

RULES = {
    "id": Rule(name="r"),
    "content": Rule(name="r", key="content"),
    "ignore": Rule(name="r", key="content", ignore=["at", "meta.id"]),
    "wild": Rule(name="r", key="content", ignore=["**.at", "items[*].sku", "*.id"]),
    "fields": Rule(name="r", key=["source", 'detail."a-b" || `0`', "detail.meta.id"], otherwise="content"),
    "time": Rule(name="r", key=["detail.at", "floor_time(time, '1h')"], otherwise="id"),
}
EVENT = (
    '{"id": "7", "source": "shop", "detail-type": "Order", "time": "2026-01-05T09:30:00Z", "replay-name": "again",'
    ' "detail": {"at": 5, "meta": {"id": "m", "x": 1.50}, "a-b": [1e2, -0.0, 1E400], "items": [{"sku": 1, "n": "é"}]}}'
).replace("1E400", "123456789012345678901234")
FORMS = {
    "eventbridge": EVENT,
    "plain": '{"id": 7, "type": "t", "n": 1.0, "\\ud83d\\ude00": "\\u0007/", "\ufb33": [true, null, ""], "at": 1}',
    "cloudevents": '{"specversion": "1.0", "id": "7", "source": "s", "type": "t", "data": {"at": 1, "traceparent": 2}}',
}
PINNED = {
    ("eventbridge", "id"): "ff19140a1f1133887e12717be472a2e2",
    ("eventbridge", "content"): "477d5034466cf1fe920fcf182aa34585",
    ("eventbridge", "ignore"): "3d865960be4d3663f0e7763608cdac11",
    ("eventbridge", "wild"): "8a90a26e3042545b86f1f7489fc30d2c",
    ("eventbridge", "fields"): "b69e4ee11abd5e32ca55118663117fc3",
    ("eventbridge", "time"): "aad1fc53c69062e889e7818f1847b321",
    ("plain", "id"): "7cdf664f3b517e0359eca0fc39e1dcb3",
    ("plain", "content"): "dd3a2280fdd13fffffcd03cc160c073e",
    ("plain", "ignore"): "2d5e31bbd58a419d211c17d75f987786",
    ("plain", "wild"): "2d5e31bbd58a419d211c17d75f987786",
    ("plain", "fields"): "d4acd56e67d3d6e04f3bfa654d81b09c",
    ("plain", "time"): "381a7cd1c104cd41bf2af51003ce1d1b",
    ("cloudevents", "id"): "c5ea86f08f6000b6d25b361826e3da70",
    ("cloudevents", "content"): "1924f64135b1b724c8773c62dd077aac",
    ("cloudevents", "ignore"): "ce11314784df0dc95fc39b46f3ff7f0f",
    ("cloudevents", "wild"): "ce11314784df0dc95fc39b46f3ff7f0f",
    ("cloudevents", "fields"): "23654ee2862a877b7c00e139ba609d8d",
    ("cloudevents", "time"): "975290747317e5b730a01e137778ace8",
    ("odd", "content"): "ab46fd1b9578ddb5",
    ("odd", "ignore"): "00f4ead30fd914de",
    ("odd", "wild"): "237be2ec9a66c3a5",
}


def key(rule: str, text: str, *, parsed: bool = False) -> str:
    book = Rulebook("billing", [RULES[rule]], identity("14d", "retry"))
    return book.key(read_event(json.loads(text) if parsed else text.encode())).key.hex()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_keys_stay_what_they_are(form: str, rule: str) -> None:
    assert key(rule, FORMS[form]) == PINNED[form, rule]
    assert key(rule, FORMS[form], parsed=True) == PINNED[form, rule]


def document(dice: random.Random, depth: int = 0) -> Any:  # noqa: PLR0911  # one for each kind
    """Something that JSON can say, odd numbers and names included."""
    kind = dice.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return dice.choice([None, True, False, "", "at", "\u2028", "\U0001f600", "\ue000", 'q"\\\n\x01/'])
    if kind == 1:
        return dice.randrange(-(10 ** dice.randrange(1, 25)), 10 ** dice.randrange(1, 25))
    if kind == 2:
        return dice.choice([0.0, -0.0, 1.0, 1.5, 1e21, 1e-7, 5e-324, 123456.789, 2.0**53, 1.7976931348623157e308])
    if kind == 3:
        return dice.uniform(-1, 1) * 10.0 ** dice.randrange(-30, 30)
    if kind in (4, 5):
        return "".join(dice.choice("abc é\u20ac\U0001f600\ufb33-") for _ in range(dice.randrange(9)))
    if kind == 6:
        return [document(dice, depth + 1) for _ in range(dice.randrange(4))]
    names = ["at", "meta", "id", "a-b", "items", "sku", "é", "\ufb33", "\U0001f600", "traceparent"]
    return {name: document(dice, depth + 1) for name in dice.sample(names, dice.randrange(5))}


@pytest.mark.parametrize("rule", ["content", "ignore", "wild"])
def test_the_keys_of_many_odd_events_stay_what_they_are(rule: str) -> None:
    dice, all_of_them = random.Random(8785), hashlib.sha256()  # the same each time
    for number in range(2000):
        body = {"id": str(number), "source": "s", "detail-type": "t", "detail": document(dice)}
        all_of_them.update(key(rule, json.dumps(body, ensure_ascii=number % 2 == 0)).encode())
    assert all_of_them.hexdigest()[:16] == PINNED["odd", rule]


NUMBERS = [
    "1.5",
    "1.0",
    "-0.0",
    "1e2",
    "1E-9",
    "0.00001",
    "123456789012345.5",
    "1e16",
    "0.1",
    "3",
    "1e21",
    "1" + "0" * 22,
]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_noticed_of_numbers_while_reading_changes_no_key(number: str) -> None:
    envelope = (
        '{"id": "1", "source": "s", "detail-type": "t", "specversion": "1.0", "type": "t", "detail": %s, "data": %s}'
    )
    data = f'{{"n": {number}}}'
    change = {"eventSource": "aws:dynamodb", "eventName": "INSERT", "dynamodb": {"NewImage": {"n": {"N": number}}}}
    packed = '"data_base64": "' + b64encode(data.encode()).decode() + '", "datacontenttype": "application/json"'
    bodies = {
        "itself": data,
        "detail": envelope % (data, "0"),
        "detail as text": envelope % (json.dumps(data), "0"),
        "data": envelope.replace("detail-type", "x") % ("0", data),
        "packed data": '{"specversion": "1.0", "id": "1", "source": "s", "type": "t", ' + packed + "}",
        "in a message": json.dumps({"Type": "Notification", "TopicArn": "a", "Message": envelope % (data, "0")}),
        "a change": json.dumps(change),
        "another part": envelope.replace("}", ', "other": 1.0}') % (data, "0"),
    }
    rule = Rulebook("c", [Rule(name="r", key="content")], identity("14d", "retry")).all[0]
    for name, body in bodies.items():
        event = read_event(body)
        assert rule.content(event) == canonical(event.data), name


def test_events_with_ordinary_numbers_are_noticed() -> None:
    assert read_event('{"id": "1", "n": [1.5, -7, "1.0", 1.0, 9223372036854775807, [1e-7]]}').plain_numbers


@pytest.mark.parametrize(
    "odd", ["9223372036854775808", "-1" + "0" * 22, "1e15", "-1e300", "[[[1]]]", '{"a":' * 9 + "1" + "}" * 9]
)
def test_what_is_not_ordinary_is_read_all_the_same(odd: str) -> None:
    event = read_event(f'{{"id": "1", "n": {odd}}}')
    assert event.data == {"id": "1", "n": json.loads(odd)}
    assert not event.plain_numbers


_TEXTS = st.sampled_from(["1.0,", "2.0", "e-1", "1e-7", "[1.0]", "\ue000", "\U0001f600", "\ud7ff"]) | st.text()
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(_TEXTS, below, max_size=4),
    max_leaves=30,
)


@given(_VALUES)
def test_whatever_is_read_has_its_canonical_content(value: object) -> None:
    event = read_event(json.dumps({"id": "1", "detail-type": "t", "source": "s", "detail": {"value": value}}))
    rule = Rulebook("c", [Rule(name="r", key="content")], identity("14d", "retry")).all[0]
    assert rule.content(event) == canonical(event.data)


@pytest.mark.parametrize("source", ["a", "b", ""])
@pytest.mark.parametrize("kind", ["t", "u", ""])
@pytest.mark.parametrize(
    "match", [{"source": ["a"]}, {"source": ["a", ""], "detail-type": ["t"]}, {"detail-type": ["", "u"]}]
)
def test_a_rule_by_source_and_type_alone_matches_as_its_pattern_does(match: Any, source: str, kind: str) -> None:
    book = Rulebook("c", [Rule(name="r", match=match)], identity("14d", "retry"))
    event = Event(id="1", source=source, type=kind, data={})
    assert (book.find(event).name == "r") == Pattern(match).matches(event.document())


@pytest.mark.parametrize("length", [1, 1000, 5000])
def test_a_key_by_content_is_that_of_its_parts_however_long_its_source_is(length: int) -> None:
    digest, source, content = Digester("c", "r", "content"), "s" * length, b'{"a":1}'
    for _ in range(2):
        for replay in ("", "again"):
            key = digest.content(source, "t", content, replay)
            assert key == digest([part(source), part("t"), (b"j", content)], replay)
