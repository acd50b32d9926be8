"""Remembered results come back as the handler's annotation says, or not at all."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from eventonce import ConfigError, Event, Once, OutcomeKind, ResultUnavailable, Rule
from eventonce.claims import memo
from eventonce.stores.dynamodb import layout

EVENT = {"id": "1", "detail-type": "Order", "source": "shop", "detail": {}}


class Colour(Enum):
    RED = "red"


class Receipt(pydantic.BaseModel):
    id: UUID
    amount: Decimal
    at: datetime
    raw: bytes = b""
    _secret: int = pydantic.PrivateAttr(default=0)


class Line(msgspec.Struct):
    sku: str
    day: date | None = None


@dataclass
class Page:
    lines: list[Line]
    colours: set[Colour]


RECEIPT = Receipt(
    id=UUID(int=7), amount=Decimal("10.00"), at=datetime(2026, 1, 5, 10, tzinfo=ZoneInfo("Europe/Berlin")), raw=b"\xff"
)


def once(**options: Any) -> Once:
    return Once("memory:", **{"remember": "result", **options})


def test_a_model_is_a_model_again() -> None:
    @once()
    def charge(event: Event) -> Receipt:
        return RECEIPT

    assert charge(EVENT) is RECEIPT
    again: Any = charge(EVENT)
    assert again == RECEIPT
    assert type(again) is Receipt
    assert str(again.amount) == "10.00"
    assert again.at.isoformat() == "2026-01-05T10:00:00+01:00"


def test_a_model_is_a_model_again_in_a_batch_and_in_async_def() -> None:
    def page(event: Event) -> list[Page] | None:
        return [Page([Line("a", date(2026, 1, 5))], {Colour.RED})]

    async def later(event: Event) -> "list[Page] | None":
        return page(event)

    for outcomes in (once().run([EVENT] * 2, page), asyncio.run(once().arun([EVENT] * 2, later))):
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE]
        assert outcomes[0].result == outcomes[1].result == [Page([Line("a", date(2026, 1, 5))], {Colour.RED})]


def test_a_result_of_a_rule_in_a_list_comes_back_too() -> None:
    bench = Once("memory:", rules=[Rule(name="orders", key="content", remember="result")])

    @bench
    def charge(event: Event) -> Receipt | None:
        return RECEIPT

    assert charge(EVENT) == charge(EVENT) == RECEIPT


@pytest.mark.parametrize("result", [{"a": (1, Decimal("1.50"))}, [b"a"], datetime(2026, 1, 5, tzinfo=UTC), None, 1.0])
def test_plain_results_come_back_as_they_were_whatever_the_annotation(result: Any) -> None:
    def unannotated(event: Event):  # type: ignore[no-untyped-def]
        return result

    def anything(event: Event) -> Any:
        return result

    def model(event: Event) -> Line:
        return result  # type: ignore[no-any-return]

    for handler in (unannotated, anything, model):
        first, second = once().run([EVENT] * 2, handler)
        assert repr(second.result) == repr(first.result) == repr(result)


def test_what_cannot_come_back_is_refused_at_decoration() -> None:
    class Session:
        pass

    def connect(event: Event) -> list[Session]:
        return []

    with pytest.raises(ConfigError) as error:
        once()(connect)
    assert "the handler test_what_cannot_come_back_is_refused_at_decoration.<locals>.connect" in str(error.value)
    assert "Session is not a type of data; annotate a model or plain data, or use remember" in str(error.value)
    for remember in ("seen", "note"):
        once(remember=remember)(connect)


def unavailable(handler: Any) -> str:
    first, second = once().run([EVENT] * 2, handler)
    assert (first.kind, first.error) == (OutcomeKind.PROCESSED, None)
    assert isinstance(second.error, ResultUnavailable)
    return str(second.error)


@dataclass
class Noted:
    name: str
    token: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        self.token += "!"


class Lines(list[Line]): ...


def test_names_that_are_numbers_come_back() -> None:
    def counts(event: Event) -> dict[int, int]:
        return {1: 2}

    assert [outcome.result for outcome in once().run([EVENT] * 2, counts)] == [{1: 2}] * 2


def test_a_result_that_would_come_back_as_another_value_is_not_remembered() -> None:
    class More(Line):
        more: int = 0

    def derived(event: Event) -> Line:
        return More("a", None, 1)

    def private(event: Event) -> Receipt:
        receipt = RECEIPT.model_copy()
        receipt._secret = 1
        return receipt

    def uncompared(event: Event) -> Noted:
        return Noted("a")

    def lined(event: Event) -> list[Line]:
        return Lines([Line("a", None)])

    for handler in (derived, private, uncompared, lined):
        assert "would come back as another value; annotate what the handler returns" in unavailable(handler)


def test_a_model_without_an_annotation_is_not_remembered() -> None:
    def inside(event: Event) -> dict[str, Any]:
        return {"path": Path("a")}

    assert "the result holds a PosixPath, which cannot be remembered exactly" in unavailable(inside)
    assert "the result holds a Line, which cannot be remembered exactly; annotate what" in unavailable(
        lambda event: Line("a")
    )


def test_a_value_without_a_spelling_in_a_model_is_not_remembered() -> None:
    def nan(event: Event) -> Page:
        return Page([Line(float("nan"))], set())  # type: ignore[arg-type]

    assert "the result.lines[0].sku is the number nan" in unavailable(nan)


def test_an_annotation_that_changes_makes_no_other_value() -> None:
    bench = once()

    def before(event: Event) -> Line:
        return Line("a")

    def after(event: Event) -> Receipt:
        return RECEIPT

    def plain(event: Event) -> Any:
        return None

    bench.run([EVENT], before)
    (changed,) = bench.run([EVENT], after)
    assert "processed before, but its result is of another type" in str(changed.error)
    assert bench.run([EVENT], plain)[0].result == {"sku": "a", "day": None}


def test_a_record_of_powertools_is_a_model_again() -> None:
    remembered = layout._memo_of_data('{"sku": "a", "day": "2026-01-05"}')
    restore = lambda value: msgspec.convert(value, Line)  # noqa: E731
    assert memo.read("result", remembered, 1, 1, b"", restore)[1] == Line("a", date(2026, 1, 5))
    assert memo.read("result", remembered, 1, 1, b"")[1] == {"sku": "a", "day": "2026-01-05"}
    written, _ = memo.write("result", Event(data={}), b"", Line("a"), 1000, None, restore)
    assert written is not None
    assert layout._data_of_memo(written) == '{"sku": "a", "day": null}'
