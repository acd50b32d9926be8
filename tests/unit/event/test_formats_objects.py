"""Events given as Python objects: each has the key of its own JSON."""

import json
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent, SQSEvent
from aws_lambda_powertools.utilities.parser.models import EventBridgeModel

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event, read_events
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule

AT = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
FIELDS: dict[str, Any] = {
    "id": UUID(int=7), "type": "Order", "total": Decimal("1.50"), "at": AT, "raw": b"\xff", "tags": {"b", "a"}
}  # fmt: skip
PLAIN = {
    "id": str(UUID(int=7)), "type": "Order", "total": "1.5", "at": "2026-01-05T09:30:00Z", "raw": "/w==",
    "tags": ["a", "b"],
}  # fmt: skip


@dataclass
class Data:
    id: UUID
    type: str
    total: Decimal
    at: datetime
    raw: bytes
    tags: set[str]


class Struct(msgspec.Struct):
    id: UUID
    type: str
    total: Decimal
    at: datetime
    raw: bytes
    tags: set[str]


@attrs.define
class Attrs:
    id: UUID
    type: str
    total: Decimal
    at: datetime
    raw: bytes
    tags: set[str]


class Model(pydantic.BaseModel):
    id: UUID
    type: str
    total: Decimal
    at: datetime
    raw: bytes
    tags: set[str]


BRIDGE = {
    "version": "0", "id": "7", "detail-type": "Order", "source": "shop", "account": "111122223333",
    "time": "2026-01-05T09:30:00Z", "region": "eu-west-1", "resources": [], "detail": {"orderId": "o-1"},
}  # fmt: skip
RULES = [Rule(name="r"), Rule(name="r", key="content"), Rule(name="r", key=["id"])]


def keys(event: object, rules: list[Rule] = RULES) -> list[str]:
    read = read_event(event)
    return [Rulebook("c", [rule], identity("5d", "retry")).key(read).key.hex() for rule in rules]


@pytest.mark.parametrize("kind", [dict, Data, Struct, Attrs, Model], ids=lambda kind: kind.__name__)
def test_a_model_is_an_event_with_the_keys_of_its_json(kind: Any) -> None:
    event = kind(**FIELDS)
    assert read_event(event).data == PLAIN
    assert keys(event) == keys(json.dumps(PLAIN))
    assert keys(read_event(event).line()) == keys(event)  # as from a dead letter


def test_values_anywhere_in_an_event_are_spelt() -> None:
    made = Event(id="7", source="shop", type="Order", data=Data(**FIELDS), attributes={"at": AT})
    assert (made_read := read_event(made)).data == PLAIN
    assert made_read.attributes == {"at": "2026-01-05T09:30:00Z"}
    mapping = MappingProxyType({**BRIDGE, "time": AT, "detail": {"of": Struct(**FIELDS)}})
    assert read_event(mapping).data == {"of": PLAIN}
    assert keys(mapping) == keys(json.dumps({**BRIDGE, "detail": {"of": PLAIN}}))


def test_an_object_and_its_json_have_one_key_by_any_path() -> None:
    rules = [
        Rule(name="r", key=["detail.total", "detail.at", "detail.raw", "detail.tags", "floor_time(detail.at, '1h')"])
    ]
    assert keys(FIELDS, rules) == keys(json.dumps(PLAIN), rules)


def test_data_classes_and_models_of_powertools_are_events() -> None:
    expected = keys(json.dumps(BRIDGE))
    assert keys(EventBridgeEvent(BRIDGE)) == expected
    assert keys(EventBridgeModel.model_validate(BRIDGE)) == expected
    message = {"messageId": "m", "eventSource": "aws:sqs", "eventSourceARN": "arn:q", "body": json.dumps(BRIDGE)}
    batch = SQSEvent({"Records": [message]})
    assert keys(batch) == expected
    assert [keys(record) for record in batch.records] == [expected]


def test_what_boto3_returns_is_an_event() -> None:
    received = {"MessageId": "m", "ReceiptHandle": "h", "Body": json.dumps(BRIDGE)}
    assert keys({"Messages": [received], "ResponseMetadata": {"at": AT}}) == keys(json.dumps(BRIDGE))
    image = {"id": {"S": "o-1"}, "raw": {"B": b"\xff"}, "n": {"N": "1.5"}}
    change = {"eventID": "e", "eventName": "INSERT", "eventSource": "aws:dynamodb"}
    of_boto3 = {**change, "dynamodb": {"ApproximateCreationDateTime": AT, "NewImage": image}}
    in_lambda = {"ApproximateCreationDateTime": AT.timestamp(), "NewImage": {**image, "raw": {"B": "/w=="}}}
    assert read_event(of_boto3).data == read_event({**change, "dynamodb": in_lambda}).data
    assert read_event(of_boto3).time == AT
    item = {"id": "o-1", "total": Decimal("10.50"), "raw": b64encode(b"\xff")}
    assert read_event(item).data["total"] == "10.5"


def test_one_bad_record_of_a_batch_is_refused_alone() -> None:
    good, bad = read_events([BRIDGE, {**BRIDGE, "detail": {"lock": object()}}])
    assert isinstance(good, Event)
    assert (
        str(bad) == "detail.lock is of type object, which has no spelling in JSON; use plain data, or a model of fields"
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (Data, "is of type type, not an event; pass bytes, text, a mapping, a model or an Event"),
        (Data(**{**FIELDS, "total": 1j}), "total is of type complex, which has no spelling in JSON"),
        (pydantic.RootModel[int](7), "is a number, not a JSON object"),
        (Event(data={"a": [object()]}), "data.a[0] is of type object"),
        (Event(data={}, attributes={"a": float("nan")}), "attributes.a is the number nan"),
    ],
)
def test_other_objects_are_refused_with_their_place(body: object, reason: str) -> None:
    with pytest.raises(EventRejected) as error:
        read_event(body)
    assert str(error.value).startswith(reason)
