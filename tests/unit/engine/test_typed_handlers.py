"""Typed handlers: the annotation of the event decides what a handler gets."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from aws_lambda_powertools.utilities import data_classes as classes

from eventonce import ConfigError, Context, Event, EventRejected, Once
from eventonce.errors import EventInvalid
from eventonce.event import Delivery
from eventonce.event.formats import read_event
from eventonce.stores.memory import MemoryStore
from eventonce.testing import try_handler
from tests.unit.conftest import Bench

if TYPE_CHECKING:
    from eventonce import Event as OurEvent  # noqa: F401


@dataclass
class Data:
    id: str
    total: Decimal = Decimal(0)


class Message(msgspec.Struct):
    id: str
    total: Decimal = Decimal(0)


@attrs.define
class Attributes:
    id: str
    total: Decimal = Decimal(0)


class Model(pydantic.BaseModel):
    id: str
    total: Decimal = Decimal(0)


@pydantic.dataclasses.dataclass
class ModelData:
    id: str
    total: Decimal = Decimal(0)


class Shipped(msgspec.Struct, tag="shipped"):
    parcel: str


class Lost(msgspec.Struct, tag="lost"):
    reason: str


class Line(pydantic.BaseModel):
    count: int


class Cart(msgspec.Struct):
    lines: list[Line]


class Strict(pydantic.BaseModel, strict=True):
    at: datetime
    total: Decimal
    count: int


class Photo(pydantic.BaseModel):
    pixels: bytes


class Album(msgspec.Struct):
    first: Photo


MODELS: list[Any] = [Data, Message, Attributes, Model, ModelData]


def envelope(data: Any, name: str = "1") -> dict[str, Any]:
    return {"id": name, "source": "shop", "detail-type": "Order Placed", "detail": data}


def handler_of(annotation: Any, got: list[Any]) -> Any:
    def handle(event: Any) -> None:
        got.append(event)

    handle.__annotations__["event"] = annotation
    return handle


def outcome_of(annotation: Any, data: Any) -> tuple[list[Any], Any]:
    got: list[Any] = []
    return got, Once("memory:").__call__(handler_of(annotation, got)).outcome(envelope(data))


# --- what a handler gets ---


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_made_of_the_data(model: Any) -> None:
    got, _ = outcome_of(model, {"id": "o-1", "total": "10.50"})

    assert got == [model(id="o-1", total=Decimal("10.50"))]


@pytest.mark.parametrize("model", MODELS)
def test_an_event_of_a_model_has_its_envelope_and_the_model(model: Any) -> None:
    (event,), _ = outcome_of(Event[model], {"id": "o-1"})

    assert (type(event), event.id, event.source, event.type) == (Event, "1", "shop", "Order Placed")
    assert event.data == model(id="o-1")
    assert b'"id":"o-1"' in event.line()


@pytest.mark.parametrize("model", MODELS)
def test_an_instance_of_the_model_comes_back_as_one(model: Any) -> None:
    got: list[Any] = []
    once = Once("memory:", key=["id"])

    once(handler_of(model, got))(model(id="o-1", total=Decimal("1.5")))

    assert got == [model(id="o-1", total=Decimal("1.5"))]


@pytest.mark.parametrize(
    ("annotation", "data", "expected"),
    [
        (Shipped | Lost, {"type": "lost", "reason": "rain"}, Lost("rain")),
        (list[Model], [{"id": "a"}], [Model(id="a")]),
        (Model | Line, {"count": 3}, Line(count=3)),
        (Cart, {"lines": [{"count": 3}]}, Cart([Line(count=3)])),
        (dict[str, Any] | list[int], [1], [1]),
        (Annotated[int, msgspec.Meta(gt=3)], 5, 5),
        (Photo, {"pixels": "/w=="}, Photo(pixels=b"\xff")),
        ("Data", {"id": "o-1"}, Data("o-1")),
        (
            Strict,
            {"at": "2026-01-05T09:30:00Z", "total": "1.50", "count": 1},
            Strict(at=datetime(2026, 1, 5, 9, 30, tzinfo=UTC), total=Decimal("1.50"), count=1),
        ),
    ],
)
def test_any_type_of_data_can_be_taken(annotation: Any, data: Any, expected: Any) -> None:
    got, outcome = outcome_of(annotation, data)

    assert (got, outcome.error) == ([expected], None)


AS_READ = [
    Event, Event[Any], Event[dict[str, Any]], Event | None, dict, dict[str, Any], Mapping, Mapping[str, Any], Any,
    object, None, "Event", "Event[Any]", "OurEvent | None" if TYPE_CHECKING else "Mapping[str, Any]",
]  # fmt: skip


@pytest.mark.parametrize("annotation", AS_READ)
def test_these_annotations_take_the_event_as_it_was_read(annotation: Any) -> None:
    (event,), _ = outcome_of(annotation, {"id": "o-1"})

    assert type(event) is Event
    assert event.data == {"id": "o-1"}


def test_a_handler_may_take_its_context_too() -> None:
    got: list[Any] = []

    def second(order: Data, ctx: Context) -> None:
        got.append((order.id, ctx.attempt))

    def named(order: Data, *, ctx: Context) -> None:
        got.append((order.id, ctx.attempt))

    for handler in (second, named):
        Once("memory:").run([envelope({"id": "o-1"})], handler)

    assert got == [("o-1", 1), ("o-1", 1)]


def test_methods_partials_wrappers_and_objects_are_typed_too(bench: Bench) -> None:
    got: list[Any] = []

    class Shop:
        def placed(self, order: Data) -> None:
            got.append(order)

        def __call__(self, order: Data) -> None:
            got.append(order)

    @wraps(Shop.__call__)
    def wrapper(*args: Any) -> None:
        Shop().__call__(*args[-1:])

    for handler in (Shop().placed, Shop(), partial(Shop.placed, Shop())):
        Once("memory:").run([envelope({"id": "o-1"})], handler)

    class Decorated:
        @bench.once().__call__
        def placed(self, order: Data) -> None:
            got.append(order)

    Decorated().placed(envelope({"id": "o-1"}))
    assert got == [Data("o-1")] * 4


def test_async_batches_and_lambda_functions_are_typed_too() -> None:
    got: list[Any] = []

    async def handle(order: Model) -> None:
        got.append(order.id)

    events = [envelope({"id": "o-1"}), envelope({"id": 2}, "2"), envelope({"id": "o-3"}, "3")]
    outcomes = asyncio.run(Once("memory:").arun(events, handle))
    with Once("memory:") as once:
        function = once.aws_lambda(handle)
        function(envelope({"id": "o-4"}), None)
        with pytest.raises(EventRejected, match=r"data\.id does not fit Model"):
            function(envelope({"id": 2}, "5"), None)

    assert [outcome.kind.value for outcome in outcomes] == ["processed", "rejected", "processed"]
    assert got == ["o-1", "o-3", "o-4"]


def test_a_trial_runs_a_typed_handler() -> None:
    effects: set[str] = set()  # so that a repeated effect is one

    def handle(order: Data) -> None:
        effects.add(order.id)

    assert try_handler(handle, envelope({"id": "o-1"}), effects=lambda: effects, reset=effects.clear).good


def test_a_copy_gets_data_of_its_own() -> None:
    """What a handler writes into its model changes neither the event that hooks see nor another attempt."""
    seen: list[Any] = []
    once = Once("memory:")

    @once
    def handle(event: Event[dict[str, list[int]]]) -> None:
        event.data["x"].append(2)
        seen.append(event.data)
        if len(seen) == 1:
            raise ValueError

    for _ in range(2):
        handle.outcome(envelope({"x": [1]}))

    assert seen == [{"x": [1, 2]}, {"x": [1, 2]}]


# --- what does not fit ---


@pytest.mark.parametrize(
    ("annotation", "data", "reason"),
    [
        (Data, {"id": 5}, "data.id does not fit Data: Expected `str`, got `int`"),
        (Data, {}, "data.id does not fit Data: it is missing"),
        (Data, "x", "data does not fit Data: Expected `object`, got `str`"),
        (Data, None, "data does not fit Data: Expected `object`, got `null`"),
        (Event[Message], {"id": 5}, "data.id does not fit Message: Expected `str`, got `int`"),
        (Model, {"id": 5}, "data.id does not fit Model: Input should be a valid string"),
        (Model, {"total": "x"}, "data.id does not fit Model: Field required (and 1 more)"),
        (list[Line], [{"count": 1}, {"count": "x"}], "data[1].count does not fit list["),
        (Cart, {"lines": [{"count": "x"}]}, "data.lines[0].count does not fit Cart: Input should be a valid integer"),
        (Photo, {"pixels": "*"}, "data.pixels does not fit Photo: Invalid base64"),
        (Photo, "x", "data does not fit Photo"),
        (Album, {"first": {"pixels": "*"}}, "data.first.pixels does not fit Album: Invalid base64"),
        (Shipped | Lost, {"type": "eaten"}, "data.type does not fit"),
        (dict[str, int] | int, "x", "data does not fit"),
    ],
)
def test_what_does_not_fit_is_rejected_with_its_path(annotation: Any, data: Any, reason: str) -> None:
    got, outcome = outcome_of(annotation, data)

    assert (got, outcome.kind.value, outcome.action.value) == ([], "rejected", "dead-letter")
    assert str(outcome.error).startswith(reason)


def test_it_costs_no_attempt(bench: Bench) -> None:
    store = MemoryStore()
    once = Once(store, max_attempts=1)
    handle = once(handler_of(Data, []))
    outcomes = [handle.outcome(envelope({"id": 5})) for _ in range(3)]

    assert [(outcome.kind.value, outcome.attempt) for outcome in outcomes] == [("rejected", 0)] * 3
    assert outcomes[0].key is not None
    assert store.peek([outcomes[0].key]) == [None]
    with pytest.raises(EventInvalid):
        handle(envelope({"id": 5}))


def test_copies_of_done_events_stay_duplicates_if_the_schema_changes() -> None:
    store = MemoryStore()
    with Once(store) as before:
        before.run([envelope({"id": 5})], handler_of(None, []))
    with Once(store) as after:
        outcomes = after.run([envelope({"id": 5}), envelope({"id": 5}, "2")], handler_of(Data, []))

    assert [outcome.kind.value for outcome in outcomes] == ["duplicate", "rejected"]


def test_an_error_is_short_however_long_the_data_is() -> None:
    @dataclass
    class Named:
        items: dict[str, int]

    _, outcome = outcome_of(Named, {"items": {"x" * 100_000: "y" * 100_000}})
    _, other = outcome_of(list[dict[str, Line]], [{"x" * 100_000: {"count": "y" * 100_000}}])

    assert len(str(outcome.error)) < 700
    assert len(str(other.error)) < 700


def test_a_bug_in_a_validator_is_a_failure_and_counts() -> None:
    class Buggy(pydantic.BaseModel):
        id: str

        @pydantic.field_validator("id")
        @classmethod
        def check(cls, value: str) -> str:
            raise KeyError(value)

    _, outcome = outcome_of(Buggy, {"id": "o-1"})

    assert (outcome.kind.value, outcome.attempt, type(outcome.error)) == ("failed", 1, KeyError)


# --- what is refused at decoration ---


class Wrapped(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (bytes, "takes bytes, and handlers get an Event; annotate Event, of which event.raw"),
        (str, "takes str, and handlers get an Event"),
        (Delivery, "takes Delivery, and handlers get an Event"),
        (Once, "takes Once, which no event can become: Once is not a type of data; annotate a model"),
        (Event | Data, "which no event can become: .*unions"),
        (Data | Message, "which no event can become: .*unions"),
        (Event[Once], "which no event can become: Once is not a type of data"),
        (list[Once], "which no event can become: Once is not a type of data"),
        (list[Photo], "which no event can become: bytes of pydantic"),
        ("1 +", "which no event can become: it is not a type"),
    ],
)
def test_an_annotation_that_no_event_can_become_is_refused_at_decoration(annotation: Any, reason: str) -> None:
    once, handle = Once("memory:"), handler_of(annotation, [])

    with pytest.raises(ConfigError, match=reason):
        once(handle)
    with pytest.raises(ConfigError, match=reason):
        once.run([], handle)


def test_a_name_may_be_known_later() -> None:
    got: list[Any] = []
    handle = Once("memory:")(handler_of("LaterOrder", got))

    globals()["LaterOrder"] = Data
    try:
        handle(envelope({"id": "o-1"}))
    finally:
        del globals()["LaterOrder"]

    assert got == [Data("o-1")]


def test_a_name_that_is_never_known_is_named_before_any_event_runs() -> None:
    once, handle = Once("memory:"), handler_of("Nowhere", [])

    with pytest.raises(ConfigError, match="handle: name 'Nowhere' is not defined; import it at run time"):
        once.run([envelope({})], handle)
    with pytest.raises(ConfigError, match="name 'Nowhere' is not defined"):
        once.aws_lambda(handle)
    with pytest.raises(ConfigError, match="name 'Nowhere' is not defined"):
        once(handle)(envelope({}))


def test_pydantic_is_imported_only_for_its_own_models() -> None:
    code = (
        "import sys, dataclasses\n"
        "from eventonce import Once, Event\n"
        "@dataclasses.dataclass\n"
        "class Order:\n    id: str\n"
        "once = Once('memory:')\n"
        "@once\n"
        "def handle(event: Event[Order]): print(event.data.id)\n"
        "handle({'id': 'o-1'})\n"
        "print('pydantic' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.split() == ["o-1", "False"]


# --- data classes of Powertools, and what boto3 returns, as events ---


def test_data_classes_of_powertools_are_events() -> None:
    event = classes.EventBridgeEvent(envelope({"id": "o-1"}))
    record = classes.SQSEvent(
        {"Records": [{"messageId": "m-1", "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:q",
                      "body": msgspec.json.encode(envelope({"id": "o-1"})).decode()}]}
    ).records  # fmt: skip
    got: list[Any] = []
    once = Once("memory:")
    handle = once(handler_of(Data, got))

    outcomes = handle.map([event, *record])

    assert [outcome.kind.value for outcome in outcomes] == ["processed", "duplicate"]
    assert got == [Data("o-1")]


def test_a_data_class_of_powertools_reads_the_document_of_an_event() -> None:
    event = read_event(envelope({"id": "o-1"}))

    assert classes.EventBridgeEvent(event.document()).detail_type == "Order Placed"
    with pytest.raises(ConfigError, match="takes EventBridgeEvent, which no event can become"):
        Once("memory:").run([], handler_of(classes.EventBridgeEvent, []))


def test_a_message_as_boto3_returns_it_is_an_event() -> None:
    message = {"MessageId": "m-1", "Body": '{"id": "o-1"}', "Attributes": {"SentTimestamp": "1767605400000"}}
    got: list[Any] = []
    handle = Once("memory:").__call__(handler_of(Data, got))

    kinds = [handle.outcome({**message, "ReceiptHandle": name}).kind.value for name in ("r-1", "r-2")]

    assert kinds == ["processed", "duplicate"]
    assert got == [Data("o-1")]


def test_an_item_of_a_table_as_boto3_returns_it_is_an_event() -> None:
    got: list[Any] = []
    handle = Once("memory:", key=["id"])(handler_of(Data, got))

    handle({"id": "o-1", "total": Decimal("10.50"), "tags": {"b", "a"}, "at": datetime(2026, 1, 5, tzinfo=UTC)})

    assert got == [Data("o-1", Decimal("10.5"))]


# --- the table of values in docs/handlers.md ---


class Color(Enum):
    RED = "red"


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
PLAIN, LAX, STRICT = ["plain"], ["plain", "lax"], ["plain", "lax", "strict"]


@pytest.mark.parametrize(
    ("kind", "value", "expected", "by"),
    [
        (datetime, "2026-01-05T12:00:00Z", NOON, STRICT),
        (datetime, 1767614400, NOON, ["lax"]),
        (date, "2026-01-05", NOON.date(), STRICT),
        (time, "12:00:00", time(12), STRICT),
        (timedelta, "PT90S", timedelta(seconds=90), STRICT),
        (timedelta, 90, timedelta(seconds=90), ["lax"]),
        (Decimal, "1.50", Decimal("1.50"), STRICT),
        (Decimal, 1.5, Decimal("1.5"), STRICT),
        (UUID, str(UUID(int=7)), UUID(int=7), STRICT),
        (Color, "red", Color.RED, STRICT),
        (bytes, "/w==", b"\xff", ["plain", "lax", "strict"]),
        (int, "7", 7, ["lax"]),
        (int, 7.0, 7, ["lax"]),
    ],
)
def test_how_values_that_json_lacks_are_read(kind: Any, value: Any, expected: Any, by: list[str]) -> None:
    models = {
        "plain": msgspec.defstruct("Plain", [("field", kind)]),
        "lax": pydantic.create_model("Lax", field=(kind, ...)),
        "strict": pydantic.create_model("Strict", field=(kind, ...), __config__={"strict": True}),
    }
    got = {name: outcome_of(model, {"field": value}) for name, model in models.items()}

    assert [name for name, (models_got, _) in got.items() if models_got] == by
    assert all(model.field == expected for models_got, _ in got.values() for model in models_got)
