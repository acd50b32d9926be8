"""Values that JSON lacks: one spelling each, and the way back to an annotated type."""

import json
import threading
import typing
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import dataclasses as pydantic_dataclasses

from eventonce.errors import ConfigError, EventRejected
from eventonce.event.keys import canonical
from eventonce.event.values import is_model, restorer, return_restorer, spell

BERLIN = ZoneInfo("Europe/Berlin")
HALF = timezone(timedelta(hours=5, minutes=30))
NAIVE = datetime(2026, 1, 5, 9, 30)  # noqa: DTZ001
SOME_ID = UUID("12345678-1234-5678-1234-567812345678")
T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Bits(Flag):
    A = 1
    B = 2


class Mixed(Enum):
    A = (1, "a")
    B = None


@dataclass
class Line:
    sku: str
    price: Decimal
    at: datetime | None = None


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    tags: frozenset[str] = frozenset()
    made: str = field(init=False, default="here")


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Node:
    value: int
    next: Optional["Node"] = None


class Struct(msgspec.Struct, rename="camel"):
    order_id: bytes
    day: date | msgspec.UnsetType = msgspec.UNSET


class Tagged(msgspec.Struct, tag="tagged", tag_field="kind"):
    n: int


class Other(msgspec.Struct, tag="other", tag_field="kind"):
    n: int


class Row(msgspec.Struct, array_like=True, tag=True):
    a: int
    b: Decimal


@attrs.define
class Attrs:
    x: int
    _y: Decimal = Decimal(0)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_by_name=True, extra="allow")
    order_id: int = pydantic.Field(alias="orderId")
    raw: bytes = b""
    at: datetime | None = None
    parts: dict[str, list[bytes]] = {}
    path: Path | None = None


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    tags: set[str] = set()
    colour: Colour = Colour.RED


class Root(pydantic.RootModel[list[int]]):
    pass


class Inner(pydantic.RootModel[Optional["Inner"]]):
    pass


class Nested(pydantic.BaseModel):
    model: Model
    either: Strict | None = None
    small: list[Annotated[int, pydantic.Field(lt=9)]] = []
    next: Optional["Nested"] = None


@pydantic_dataclasses.dataclass
class Both:
    day: date
    amount: Decimal


class Pair(NamedTuple):
    day: date
    raw: bytes


class Typed(TypedDict):
    day: date
    id: NotRequired[UUID]


SPELLINGS: list[tuple[Any, Any]] = [
    (None, None), (True, True), (7, 7), (1.5, 1.5), ("é", "é"), ([1, "a"], [1, "a"]), ((1, (2,)), [1, [2]]),
    (datetime(2026, 1, 5, 9, 30, tzinfo=UTC), "2026-01-05T09:30:00Z"),
    (datetime(2026, 1, 5, 9, 30, 0, 5, tzinfo=UTC), "2026-01-05T09:30:00.000005Z"),
    (datetime(2026, 1, 5, 10, 30, tzinfo=BERLIN), "2026-01-05T09:30:00Z"),
    (datetime(2026, 1, 5, 15, 0, 0, 500000, HALF), "2026-01-05T09:30:00.500000Z"),
    (NAIVE, "2026-01-05T09:30:00"),
    (NAIVE.replace(year=1), "0001-01-05T09:30:00"),
    (date(2026, 1, 5), "2026-01-05"), (time(9, 30), "09:30:00"), (time(9, 30, 0, 1), "09:30:00.000001"),
    (time(9, 30, tzinfo=UTC), "09:30:00Z"), (time(9, 30, tzinfo=HALF), "09:30:00+05:30"),
    (timedelta(), "PT0S"), (timedelta(days=1, seconds=1.5), "PT86401.5S"), (timedelta(microseconds=-1), "-PT0.000001S"),
    (Decimal("1.0"), "1"), (Decimal("1.00"), "1"), (Decimal("-0"), "0"), (Decimal("1E+3"), "1000"),
    (Decimal("0.10"), "0.1"), (Decimal(100), "100"), (Decimal("1E-7"), "0.0000001"), (Decimal("0E+5000"), "0"),
    (Decimal("12345678901234567890123456789012345.10"), "12345678901234567890123456789012345.1"),
    (SOME_ID, "12345678-1234-5678-1234-567812345678"),
    (Colour.RED, "red"), (Level.LOW, 1), (Word.YES, "yes"), (Bits.A | Bits.B, 3), (Mixed.A, [1, "a"]), (Mixed.B, None),
    (b"\x00\xff", "AP8="), (bytearray(b"ab"), "YWI="), (memoryview(b"abcd")[::2], "YWM="), (b"", ""),
    ({3, 1, 2}, [1, 2, 3]), (frozenset({"b", "a"}), ["a", "b"]), ({10, 9, "9"}, ["9", 10, 9]), (set(), []),
    (PurePosixPath("a/b"), "a/b"), (PureWindowsPath("a\\b"), "a/b"), (Path("x"), "x"),
    ({1: "a", SOME_ID: 2}, {"1": "a", "12345678-1234-5678-1234-567812345678": 2}), ({Colour.RED: 1}, {"red": 1}),
    (OrderedDict(a=(1,)), {"a": [1]}), (MappingProxyType({"a": b"a"}), {"a": "YQ=="}),
    (
        Order(SOME_ID, [Line("a", Decimal("1.50"))], frozenset("x")),
        {"id": str(SOME_ID), "lines": [{"sku": "a", "price": "1.5", "at": None}], "tags": ["x"], "made": "here"},
    ),
    (Struct(b"a"), {"orderId": "YQ=="}), (Struct(b"a", date(2026, 1, 5)), {"orderId": "YQ==", "day": "2026-01-05"}),
    (Tagged(1), {"kind": "tagged", "n": 1}), (Row(1, Decimal("2.0")), ["Row", 1, "2"]), (Attrs(1), {"x": 1, "_y": "0"}),
    (
        Model.model_validate({"orderId": 1, "raw": b"a", "more": date(2026, 1, 5)}),
        {"orderId": 1, "raw": "YQ==", "at": None, "parts": {}, "path": None, "more": "2026-01-05"},
    ),
    (Root([1]), [1]), (Both(date(2026, 1, 5), Decimal(1)), {"day": "2026-01-05", "amount": "1"}),
    (Pair(date(2026, 1, 5), b"a"), ["2026-01-05", "YQ=="]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "spelt"), SPELLINGS, ids=[type(value).__name__ for value, _ in SPELLINGS])
def test_a_value_has_one_spelling(value: Any, spelt: Any) -> None:
    assert spell(value) == spelt
    assert json.loads(canonical(spell(value))) == spelt
    assert spell({"in": [value]}) == {"in": [spelt]}


def test_what_is_spelt_shares_nothing_with_the_value() -> None:
    value = {"a": [{"b": 1}], "c": (1,)}
    spelt = spell(value)
    assert spelt == {"a": [{"b": 1}], "c": [1]}
    spelt["a"][0]["b"] = 2
    assert value["a"] == [{"b": 1}]


class FloatOfNumpy(float):
    __module__ = "numpy"


class TimestampOfPandas(datetime):
    __module__ = "pandas._libs.tslibs.timestamps"


class NoOffset(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def _around() -> dict[str, Any]:
    around: dict[str, Any] = {}
    around["self"] = [around]
    return around


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED: list[tuple[Any, str]] = [
    (threading.Lock(), "order.x[1] is of type lock, which has no spelling in JSON; use plain data, or a model"),
    (object(), "order.x[1] is of type object, which"),
    (deque([1]), "order.x[1] is of type deque, which has no spelling in JSON; make a list of it"),
    ((n for n in "a"), "order.x[1] is of type generator, which has no spelling in JSON; make a list of it"),
    (1j, "order.x[1] is of type complex"),
    (Order, "order.x[1] is of type type"),
    (Model, "order.x[1] is of type ModelMetaclass"),
    (FloatOfNumpy(1.5), "is of type FloatOfNumpy, which has no spelling in JSON; convert it with .item() or .tolist()"),
    (TimestampOfPandas(2026, 1, 5), "convert it with .to_pydatetime(), .item() or .to_dict()"),
    (float("nan"), "order.x[1] is the number nan, which JSON has no form for"),
    (float("-inf"), "the number -inf"),
    (Decimal("NaN"), "is the Decimal NaN, which has no spelling"),
    (Decimal("sNaN"), "is the Decimal sNaN"),
    (Decimal("1E+1000"), "is a Decimal of more than 1,000 digits; use a string"),
    (Decimal("1E-999999"), "more than 1,000 digits"),
    (datetime(1, 1, 1, tzinfo=HALF), "is a time before the year 1 or after 9999 in UTC"),
    ({None: 1}, "order.x[1] has the name None, and names in JSON are strings; use a string"),
    ({True: 1}, "has the name True"),
    ({1.5: 1}, "has the name 1.5"),
    ({("a", 1): 1}, "has the name ('a', 1)"),
    ({1: "a", "1": "b"}, "order.x[1] has two names that are spelt '1'; give them different names"),
    ({1: "a", "b": [{"c": object()}]}, "order.x[1].b[0].c is of type object"),
    ([{"a": {object()}}], "order.x[1][0].a[0] is of type object"),
    (Line("a", object()), "order.x[1].price is of type object"),  # type: ignore[arg-type]
    (_around(), "is nested deeper than 200 levels, or holds itself"),
    (_deep(199), "is nested deeper than 200 levels, or holds itself"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED, ids=[reason[:50] for _, reason in REFUSED])
def test_what_has_no_spelling_is_refused_with_its_path_and_a_remedy(value: Any, reason: str) -> None:
    with pytest.raises(EventRejected) as error:
        spell({"x": [0, value]}, "order")
    assert reason in str(error.value)
    assert len(str(error.value)) < 400


def test_depth_is_bounded_as_in_documents() -> None:
    assert spell(_deep(200)) == _deep(200)
    with pytest.raises(EventRejected, match="deeper"):
        spell(_deep(201))


def test_models_in_models_are_refused_in_a_sentence_too() -> None:
    node, root = Node(0), Inner(None)
    for value in range(300):
        node, root = Node(value, node), Inner.model_construct(root=root)
    for deep in (node, root):
        with pytest.raises(EventRejected, match="is nested deeper than 200 levels, or holds itself"):
            spell(deep, "order")


def test_a_time_zone_without_an_offset_is_none() -> None:
    assert spell(datetime(2026, 1, 5, tzinfo=NoOffset())) == "2026-01-05T00:00:00"


def test_an_exact_spelling_has_digits_and_offset_as_they_were() -> None:
    berlin = datetime(2026, 1, 5, 10, 30, tzinfo=BERLIN)
    assert spell([Decimal("1.00"), berlin, berlin.astimezone(UTC)], exact=True) == [
        "1.00", "2026-01-05T10:30:00+01:00", "2026-01-05T09:30:00Z"
    ]  # fmt: skip
    assert spell(datetime(1850, 1, 1, tzinfo=BERLIN), exact=True) == "1849-12-31T23:06:32Z"


def test_the_names_of_pydantic_fields_are_those_it_reads() -> None:
    class Names(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(validate_by_alias=True)
        a: int = pydantic.Field(1, validation_alias="A", serialization_alias="other")
        b: int = pydantic.Field(1, validation_alias=pydantic.AliasChoices(pydantic.AliasPath("x", 0), "B"))
        c: int = pydantic.Field(1, exclude=True)
        d: int = pydantic.Field(1, validation_alias=pydantic.AliasPath("x", 0))

    class ByName(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(validate_by_alias=False, validate_by_name=True)
        a: int = pydantic.Field(1, alias="A")

    assert spell(Names.model_validate({})) == {"A": 1, "B": 1, "d": 1}
    assert spell(ByName.model_validate({})) == {"a": 1}


def test_what_is_a_model() -> None:
    assert all(map(is_model, [Line("a", Decimal(1)), Struct(b""), Attrs(1), Model(orderId=1), Root([])]))
    assert not any(map(is_model, [Line, Model, 1, "a", {}, Pair(date(1, 1, 1), b""), object()]))


# --- properties ---

zones = st.sampled_from([UTC, BERLIN, HALF])
fine = st.datetimes(NAIVE.replace(year=1900), NAIVE.replace(year=2200))
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.decimals(-1000, 1000, allow_nan=False)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53), 2**53),
    str: st.text(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    datetime: fine | st.builds(lambda at, zone: at.replace(tzinfo=zone), fine, zones),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    Decimal: decimals,
    UUID: st.uuids(),
    bytes: st.binary(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    PurePosixPath: st.sampled_from(["a", "a/b", "/x"]).map(PurePosixPath),
    Line: st.builds(Line, st.text(), decimals, st.none() | fine),
    Struct: st.builds(Struct, st.binary(), st.dates()),
    Tagged: st.builds(Tagged, st.integers(0, 9)),
    Row: st.builds(Row, st.integers(0, 9), decimals),
    Attrs: st.builds(Attrs, st.integers(0, 9), decimals),
    Model: st.builds(
        Model, orderId=st.integers(0, 9), raw=st.binary(), at=fine, parts=st.just({"a": [b"\xff"]}), path=st.none()
    ),
    Strict: st.builds(Strict, at=fine, tags=st.sets(st.text()), colour=st.sampled_from(Colour)),
    Both: st.builds(Both, st.dates(), decimals),
    Pair: st.builds(Pair, st.dates(), st.binary()),
    Typed: st.fixed_dictionaries({"day": st.dates()}, optional={"id": st.uuids()}),
}
NAMES = (int, str, date, UUID, Colour, Decimal, bytes)
HASHABLE = (int, str, date, datetime, UUID, Colour, Decimal, bytes)


@st.composite
def annotated(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """Return a type and a value of it."""
    annotation: Any
    inner: Any
    name: Any
    kind = draw(st.sampled_from(["plain"] * 3 + ["list", "dict", "tuple", "optional", "set"] * (depth > 0)))
    if kind == "plain":
        annotation = draw(st.sampled_from(list(SCALARS)))
        return annotation, draw(SCALARS[annotation])
    if kind == "set":
        annotation = draw(st.sampled_from(HASHABLE))
        return frozenset[annotation], draw(st.frozensets(SCALARS[annotation], max_size=3))
    inner, value = draw(annotated(depth - 1))
    if kind == "list":
        return list[inner], draw(st.sampled_from([[], [value], [value, value]]))
    if kind == "tuple":
        return tuple[inner, ...], (value,)
    if kind == "optional":
        return inner | None, draw(st.sampled_from([None, value]))
    name = draw(st.sampled_from(NAMES))
    return dict[name, inner], {draw(SCALARS[name]): value}


@given(annotated())
def test_what_is_spelt_comes_back_as_annotated(case: tuple[Any, Any]) -> None:
    annotation, value = case
    restore = restorer(annotation, "charge")
    for exact in (False, True):
        spelt = spell(value, exact=exact)
        back = spelt if restore is None else restore(json.loads(json.dumps(spelt)))
        assert restore is None or back == value
        assert restore is None or type(back) is type(value)


values = st.recursive(
    st.none() | st.integers() | st.text() | decimals | fine | st.dates() | st.uuids() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _reversed(value[name]) for name in reversed(value)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_neither_order_nor_a_round_trip_changes_the_canonical_form(value: Any) -> None:
    form = canonical(spell(value))
    assert canonical(spell(_reversed(value))) == form
    assert canonical(spell(json.loads(form))) == form
    assert canonical(spell(spell(value))) == form


@given(decimals, st.integers(0, 5))
def test_equal_decimals_are_spelt_alike(value: Decimal, zeros: int) -> None:
    longer = Decimal(f"{value:f}" + ("" if "." in f"{value:f}" else ".") + "0" * zeros)
    assert longer == value
    assert spell(longer) == spell(value)
    assert Decimal(spell(value)) == value


@given(fine, zones, zones)
def test_equal_times_are_spelt_alike(at: datetime, zone: tzinfo, other: tzinfo) -> None:
    aware = at.replace(tzinfo=zone)
    assert spell(aware) == spell(aware.astimezone(other))
    assert datetime.fromisoformat(spell(aware)) == aware.astimezone(UTC)


@given(st.frozensets(st.text() | st.integers() | st.dates(), max_size=6))
def test_equal_sets_are_spelt_alike(value: frozenset[Any]) -> None:
    other: set[Any] = set()
    for item in reversed(list(value)):
        other.add(item)
    assert spell(other) == spell(value)


@given(
    st.lists(st.one_of(decimals, fine, st.dates(), st.uuids(), st.binary(), st.timedeltas()), min_size=2, max_size=2)
)
def test_different_values_of_one_type_are_spelt_differently(pair: list[Any]) -> None:
    one, other = pair
    if type(one) is type(other):
        assert (spell(one) == spell(other)) == (one == other)


# --- restoring ---


def test_a_model_is_a_model_again() -> None:
    page: Page[Order] = Page([Order(SOME_ID, [Line("a", Decimal("1.00"), datetime(2026, 1, 5, tzinfo=UTC))])])
    restore = restorer(Page[Order], "charge")
    assert restore is not None
    assert restore(spell(page)) == page
    assert isinstance(restore(spell(page)).items[0].lines[0].price, Decimal)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Node, Node(1, Node(2))),
        (Tagged | Other | None, Other(1)),
        (Annotated[date, "a note"], date(2026, 1, 5)),
        (Sequence[Line], [Line("a", Decimal(1))]),
        (Mapping[UUID, Line], {SOME_ID: Line("a", Decimal(1))}),
        (dict[str, Any], {"a": [1]}),
        (dict[int, int], {1: 2}),
        (dict[int, dict[UUID, str]], {1: {SOME_ID: "a"}}),
        (dict[Any, int], {"a": 1}),
        (list[Nested], [Nested(model=Model(orderId=1, raw=b"\xff", parts={"a": [b"\xfe"]}), either=None)]),
        (
            Nested | None,
            Nested(model=Model(orderId=1), either=Strict(at=NAIVE), next=Nested(model=Model(orderId=2, raw=b"\xff"))),
        ),
        (Root, Root([1, 2])),
        (Literal["a", "b"], "a"),
        (Path, Path("a/b")),
        (Line | None, None),
    ],
    ids=str,
)
def test_these_come_back(annotation: Any, value: Any) -> None:
    restore = restorer(annotation, "charge") or (lambda value: value)
    assert restore(json.loads(json.dumps(spell(value)))) == value


@pytest.mark.parametrize(
    "annotation",
    [Any, None, object, int, str, dict, list, dict[str, Any], list[int] | None, str | Decimal, tuple[int, bytes], T,
     datetime, Literal[1, "a"], Annotated[int, 1]],
    ids=str,
)  # fmt: skip
def test_plain_data_needs_no_restoring(annotation: Any) -> None:
    assert restorer(annotation, "charge") is None
    assert restorer("Dict", "charge", vars(typing)) is None


class Session:
    pass


@dataclass
class Late:
    at: InitVar[int]


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Session, "charge: a remembered Session cannot come back as one: Session is not a type of data; annotate a"),
        (list[Session], "a remembered list[" + Session.__module__),
        (Line | Order, "Type unions may not contain more than one dataclass or attrs type"),
        (str | date, "more than one str-like type"),
        (Mixed, "Enums must contain either all str or all int values"),
        (Late, "dataclasses with `InitVar` fields are not supported"),
        (complex, "complex is not a type of data"),
        (threading.Thread, "Thread is not a type of data"),
        (Model | int, "Type unions containing a custom type"),
        ("not a type!", "it is not a type"),
        (5, "cannot come back as one"),
    ],
    ids=str,
)
def test_what_cannot_come_back_is_refused_with_a_remedy(annotation: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        restorer(annotation, "charge")
    assert reason in str(error.value)
    assert 'or use remember = "note"' in str(error.value)


def test_an_abstract_type_may_be_plain_data() -> None:
    restore = restorer(Iterable[str], "charge")
    assert restore is not None
    assert restore(["a"]) == ["a"]


def test_names_in_annotations_are_looked_up_where_the_function_was_defined() -> None:
    def nested(event: "Unknown") -> "list[Line] | None":  # type: ignore[name-defined]  # noqa: F821
        return None

    async def coroutine(event: Any) -> list["Line"]:
        return []

    class Handler:
        def __call__(self, event: Any) -> "Line":
            return Line("a", Decimal(1))

        def method(self, event: Any) -> "Line":
            return Line("a", Decimal(1))

    line = Line("a", Decimal("1.5"))
    functions: list[Any] = [nested, coroutine, partial(coroutine)]
    for function in functions:
        restore = return_restorer(function, "charge")
        assert restore is not None
        assert restore([spell(line)]) == [line]
    functions = [Handler(), Handler().method, partial(Handler())]
    for function in functions:
        restore = return_restorer(function, "charge")
        assert restore is not None
        assert restore(spell(line)) == line
    assert return_restorer(lambda event: 1, "charge") is None
    assert return_restorer(print, "charge") is None


def test_a_class_that_is_defined_later_is_looked_up_when_needed() -> None:
    namespace: dict[str, Any] = {"msgspec": msgspec}
    exec('def charge(event) -> "Receipt": ...\ndef lost(event) -> "Lost": ...', namespace)
    restore = return_restorer(namespace["charge"], "charge")
    lost = return_restorer(namespace["lost"], "lost")
    exec("class Receipt(msgspec.Struct):\n    id: int", namespace)
    assert restore is not None
    assert restore({"id": 1}) == namespace["Receipt"](1)
    assert restore({"id": 2}) == namespace["Receipt"](2)
    assert lost is not None
    with pytest.raises(ConfigError, match="lost: name 'Lost' is not defined; import it at run time"):
        lost({})


def test_base64_is_the_standard_one() -> None:
    data = bytes(range(256))
    assert spell(data) == b64encode(data).decode()
