"""Right uses of what is decorated. Both checkers must accept each line and see these types, and it runs as a script."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, assert_type

import attrs
import msgspec
from fastapi import APIRouter
from pydantic import BaseModel

from eventonce import Context, Event, Once, Outcome, Rule, current
from eventonce.event.keys import Key

T = TypeVar("T")


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    order: str


class Parcel(BaseModel):
    id: int


class Letter(msgspec.Struct):
    id: int


@attrs.define
class Card:
    id: int


def new_once() -> Once:
    """Return a front door of its own: one has one handler of events."""
    return Once("memory:", key="id")


once = new_once()


# --- functions ---


@once(key="order.id", remember="result", name="charge")
def charge(order: Order, retries: int = 3) -> Receipt:
    return Receipt(order.id)


@once(key="order.id", name="maybe")
def maybe(order: Order, retries: int = 3) -> Receipt:
    return Receipt(order.id)


@once(key="content", remember="note", ignore=["more"], name="many")
def many(first: int, /, *rest: int, flag: bool = False, **more: str) -> int:
    return first + sum(rest)


def by_id(order: Order) -> str:
    return order.id


@once(key=by_id, remember="seen", window="1d", lease=timedelta(minutes=1), max_attempts=3, name="noted")
def noted(order: Order) -> None:
    assert_type(current(), Context)


@once(key=["name", "number"], version="number", replaces={"name": "older"}, name="versions")
def versions(name: str, number: int) -> list[str]:
    return [name] * number


@once(key=["parcel.id", "letter.id", "card.id"], remember="result", name="models")
def models(parcel: Parcel, letter: Letter, card: Card) -> Parcel:
    return parcel


assert_type(charge(Order("a")), Receipt)
assert_type(charge(Order("a"), retries=4), Receipt)
assert_type(maybe(Order("a"), 4), Receipt | None)
assert_type(many(1, 2, 3, flag=True, colour="red"), int | None)
assert_type(versions(number=2, name="a"), list[str] | None)
assert_type(models(Parcel(id=1), Letter(2), Card(3)), Parcel)
assert_type(models(parcel=Parcel(id=1), letter=Letter(2), card=Card(3)).id, int)
assert_type(charge.outcome(Order("b"), 2), Outcome[Receipt | None])
assert_type(maybe.outcome(Order("b")).result, Receipt | None)
assert_type(charge.map(charge.bind(Order(name)) for name in "abc"), list[Outcome[Receipt | None]])
assert_type(charge.key(Order("a")), Key)
assert_type(charge.forget(Order("a")), bool)
assert_type(charge.plain(Order("a")), Receipt)
assert_type(maybe.plain(Order("a"), retries=1), Receipt)
noted(Order("a"))
returns: Callable[[Order], Receipt] = charge
may_return: Callable[[Order], Receipt | None] = maybe


@once(key="order.id", remember="result", name="later")
async def later(order: Order, *, retries: int = 3) -> Receipt:
    return Receipt(order.id)


@once(key="order.id", name="maybe_later")
async def maybe_later(order: Order) -> Receipt:
    return Receipt(order.id)


async def awaited() -> None:
    assert_type(await later(Order("a"), retries=1), Receipt)
    assert_type(await maybe_later(Order("a")), Receipt | None)
    assert_type(await later.outcome(Order("b")), Outcome[Receipt | None])
    assert_type(await later.map([later.bind(Order("a")), later.bind(Order("c"))]), list[Outcome[Receipt | None]])
    assert_type(later.key(Order("a")), Key)
    assert_type(await later.forget(Order("a")), bool)
    assert_type(await later.plain(Order("a")), Receipt)
    assert_type(await asyncio.gather(later(Order("d")), maybe_later(Order("d"))), tuple[Receipt, Receipt | None])
    assert_type(await asyncio.create_task(later(Order("e"))), Receipt)
    awaits: Callable[[Order], Awaitable[Receipt]] = later
    coroutine: Coroutine[Any, Any, Receipt | None] = maybe_later(Order("f"))
    assert_type(await awaits(Order("a")), Receipt)
    assert_type(await coroutine, Receipt | None)


asyncio.run(awaited())


# --- what says little of its types: no error is made up of it ---


@once(key="value", name="anything")
def anything(value: Any, times: int = 1) -> int:
    return times


@once(key="value", name="some_object")
def some_object(value: object) -> int:
    return 1


@once(key="value", name="anything_later")
async def anything_later(value: Any) -> int:
    return 1


@once(key="order.id", remember="result", name="returns_any")
def returns_any(order: Order) -> Any:
    return order.id


@once(key="value", remember="result", name="same")
def same(value: T) -> T:
    return value


@new_once()
def event_to_any(event: Event) -> Any:
    return event.data


anything(value=1, times=2)
some_object(value=1)
asyncio.run(anything_later(value=1))
returns_any(Order("a"))
returns_any(order=Order("b")).upper()
same(1)
same(value="a").upper()
event_to_any({"id": "1"})


# --- methods ---


class Mailer:
    def __init__(self, account: str) -> None:
        self.account = account

    @once(key=["self.account", "customer"], remember="result")
    def send(self, customer: int, template: str = "short") -> str:
        return template

    @once(key="customer")
    async def send_later(self, customer: int) -> str:
        return self.account

    @once(key="day", remember="result")
    @classmethod
    def report(cls, day: str) -> str:
        return day

    @once(key="day")
    @classmethod
    def report_any(cls, day: str) -> Any:
        return day

    @once(key="day")
    @classmethod
    async def report_later(cls, day: str) -> str:
        return day

    @once(key="count", remember="result")
    @staticmethod
    def total(count: int) -> int:
        return count

    @staticmethod
    @once(key="count")
    async def total_later(count: int) -> int:
        return count


class Printer(Mailer):
    pass


mailer = Mailer("news")
assert_type(mailer.send(1), str)
assert_type(mailer.send(1, template="long"), str)
assert_type(Mailer.send(mailer, 1), str)
assert_type(Printer("news").send(1), str)
assert_type(mailer.send.outcome(1), Outcome[str | None])
assert_type(mailer.send.map(mailer.send.bind(customer) for customer in (1, 2)), list[Outcome[str | None]])
assert_type(mailer.send.key(1), Key)
assert_type(mailer.send.forget(1), bool)
assert_type(mailer.send.plain(1), str)
assert_type(Mailer.report("Monday"), str)
assert_type(mailer.report("Monday"), str)
assert_type(Printer.report("Monday"), str)
assert_type(Mailer.report.outcome("Monday"), Outcome[str | None])
assert_type(Mailer.report.map([Mailer.report.bind("Monday")]), list[Outcome[str | None]])
assert_type(Mailer.report.key("Monday"), Key)
assert_type(Mailer.report.plain("Monday"), str)
Mailer.report_any("Monday")
assert_type(Mailer.total(1), int)
assert_type(Mailer.total.outcome(1), Outcome[int | None])
assert_type(Mailer.total.plain(1), int)
sends: Callable[[int], str] = mailer.send


async def awaited_methods() -> None:
    assert_type(await mailer.send_later(1), str | None)
    assert_type(await mailer.send_later.outcome(1), Outcome[str | None])
    assert_type(await mailer.send_later.plain(1), str)
    assert_type(await Mailer.report_later("Monday"), str | None)
    assert_type(await Mailer.report_later.outcome("Monday"), Outcome[str | None])
    assert_type(await Mailer.total_later(1), int | None)


asyncio.run(awaited_methods())


# --- handlers of events ---


@new_once()
def on_event(event: Event) -> Receipt:
    return Receipt(event.id)


@new_once()
def with_context(event: Event, ctx: Context) -> int:
    return ctx.attempt


@new_once()
def named_context(event: Event, *, ctx: Context) -> int:
    return ctx.attempt


@new_once()
async def on_event_later(event: Event) -> Receipt:
    return Receipt(event.id)


@new_once()
async def with_context_later(event: Event, ctx: Context) -> int:
    return ctx.attempt


@new_once()
async def named_context_later(event: Event, *, ctx: Context) -> int:
    return ctx.attempt


class Consumer:
    @new_once()
    def on_event(self, event: Event) -> Receipt:
        return Receipt(event.id)

    @new_once()
    def with_context(self, event: Event, ctx: Context) -> int:
        return ctx.attempt

    @new_once()
    async def on_event_later(self, event: Event) -> Receipt:
        return Receipt(event.id)


def place(number: int) -> dict[str, Any]:
    return {"id": str(number)}


consumer = Consumer()
assert_type(on_event(place(1)), Receipt | None)
assert_type(on_event('{"id": "1"}'), Receipt | None)
assert_type(on_event(b'{"id": "1"}'), Receipt | None)
assert_type(on_event(Event(id="1", data={"id": "1"})), Receipt | None)
assert_type(on_event(record=place(2)), Receipt | None)
assert_type(with_context(place(1)), int | None)
assert_type(named_context(place(1)), int | None)
assert_type(on_event.outcome(place(1)), Outcome[Receipt | None])
assert_type(on_event.map([place(1), b'{"id": "3"}']), list[Outcome[Receipt | None]])
assert_type(on_event.key(place(1)), Key)
assert_type(on_event.forget(place(1)), bool)
assert_type(on_event.plain(Event(id="1", data=None)), Receipt)
assert_type(consumer.on_event(place(1)), Receipt | None)
assert_type(consumer.on_event.outcome(place(2)), Outcome[Receipt | None])
assert_type(consumer.on_event.plain(Event(id="1", data=None)), Receipt)
assert_type(consumer.with_context(place(1)), int | None)


async def awaited_events() -> None:
    assert_type(await on_event_later(place(1)), Receipt | None)
    assert_type(await on_event_later(record=place(1)), Receipt | None)
    assert_type(await with_context_later(place(1)), int | None)
    assert_type(await named_context_later(place(1)), int | None)
    assert_type(await on_event_later.outcome(place(1)), Outcome[Receipt | None])
    assert_type(await on_event_later.map([place(1)]), list[Outcome[Receipt | None]])
    assert_type(on_event_later.key(place(1)), Key)
    assert_type(await on_event_later.forget(place(1)), bool)
    assert_type(await on_event_later.plain(Event(id="1", data=None)), Receipt)
    assert_type(await consumer.on_event_later(place(1)), Receipt | None)
    assert_type(await once.arun([place(9)], on_event_later.plain), list[Outcome])


asyncio.run(awaited_events())


# --- the front door itself ---


with Once("memory:", consumer="types", rules=Rule(name="all", key=["id"]), lease=timedelta(seconds=30)) as door:
    assert_type(door, Once)
    assert_type(door.run([place(1), b'{"id": "2"}'], on_event.plain), list[Outcome])
    assert_type(door.run([place(1)], on_event.plain)[0].key, Key | None)
    assert_type(door.key(place(1)), Key)
    assert_type(door.forget([door.key(place(1))]), list[bool])


# --- frameworks ---

router = APIRouter()


@router.post("/orders")
@once(key="order", remember="result", name="routes.post_order")
async def post_order(order: str) -> dict[str, str]:
    return {"order": order}


@router.get("/orders")
@once(key="order", remember="result", name="routes.get_order")
def get_order(order: str) -> dict[str, str]:
    return {"order": order}


assert_type(get_order("a"), dict[str, str])
assert_type(asyncio.run(post_order("a")), dict[str, str])
