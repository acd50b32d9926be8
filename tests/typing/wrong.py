"""Wrong uses of what is decorated. Both checkers must report the marked lines, and no other.

A mark is the code of mypy's error and the rule of pyright's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from eventonce import Context, Event, Once, Outcome

once = Once("memory:")


@dataclass
class Order:
    id: str


@once(key="order.id", remember="result")
def charge(order: Order, retries: int = 3) -> str:
    return order.id


@once(key="order.id")
def maybe(order: Order) -> str:
    return order.id


@once(key="order.id", remember="result")
async def later(order: Order) -> str:
    return order.id


@once(key="order.id")
async def maybe_later(order: Order) -> str:
    return order.id


class Mailer:
    @once(key="customer", remember="result")
    def send(self, customer: int) -> str:
        return str(customer)

    @once(key="day")
    @classmethod
    def report(cls, day: str) -> str:
        return day

    @once(key="count")
    @staticmethod
    def total(count: int) -> int:
        return count

    @once
    def on_event(self, event: Event) -> str:
        return event.id


@once
def on_event(event: Event) -> str:
    return event.id


@once
async def on_event_later(event: Event) -> str:
    return event.id


order = Order("a")
mailer = Mailer()


def the_arguments_of_a_call() -> None:
    charge()  # E: call-arg reportCallIssue
    charge("x")  # E: arg-type reportArgumentType
    charge(order, retry=3)  # E: call-arg reportCallIssue
    charge(order, retries="3")  # E: arg-type reportArgumentType
    charge.outcome("x")  # E: arg-type reportArgumentType
    charge.bind("x")  # E: arg-type reportArgumentType
    charge.key()  # E: call-arg reportCallIssue
    charge.forget(order, 1, 2)  # E: call-arg reportCallIssue
    charge.plain("x")  # E: arg-type reportArgumentType
    charge.map([order])  # E: list-item reportArgumentType
    charge.map(charge.bind(order))  # E: arg-type reportArgumentType
    charge.delay(order)  # E: attr-defined reportAttributeAccessIssue


def the_result_of_a_call() -> None:
    charge(order).bit_length()  # E: attr-defined reportAttributeAccessIssue
    maybe(order).upper()  # E: union-attr reportOptionalMemberAccess
    maybe.outcome(order).upper()  # E: attr-defined reportAttributeAccessIssue
    charge.outcome(order).result.upper()  # E: union-attr reportOptionalMemberAccess


returns: Callable[[Order], str] = maybe  # E: assignment reportAssignmentType
takes: Callable[[int], str] = charge  # E: assignment reportAssignmentType
outcome: Outcome[int | None] = charge.outcome(order)  # E: assignment reportAssignmentType


async def what_is_awaited() -> None:
    await charge(order)  # E: misc reportGeneralTypeIssues
    await later("x")  # E: arg-type reportArgumentType
    (await maybe_later(order)).upper()  # E: union-attr reportOptionalMemberAccess
    later(order).upper()  # E: attr-defined reportAttributeAccessIssue
    later.outcome(order).add_done_callback(print)  # E: attr-defined reportAttributeAccessIssue
    await later.key(order)  # E: misc reportGeneralTypeIssues
    await asyncio.gather(charge(order))  # E: call-overload reportCallIssue
    (await on_event_later({})).upper()  # E: union-attr reportOptionalMemberAccess
    on_event_later({}).upper()  # E: attr-defined reportAttributeAccessIssue


def methods() -> None:
    mailer.send("x")  # E: arg-type reportArgumentType
    mailer.send(1, 2)  # E: call-arg reportCallIssue
    mailer.send.outcome("x")  # E: arg-type reportArgumentType
    mailer.send.bind()  # E: call-arg reportCallIssue
    Mailer.send(1)  # E: arg-type reportCallIssue
    Mailer.report(1)  # E: arg-type reportArgumentType
    Mailer.report.outcome(1)  # E: arg-type reportArgumentType
    Mailer.total("x")  # E: arg-type reportArgumentType
    mailer.on_event(5)  # E: call-overload reportArgumentType
    mailer.on_event.map(Event(id="1", data=None))  # E: arg-type reportArgumentType


def handlers_of_events() -> None:
    on_event(5)  # E: call-overload reportArgumentType
    on_event({}, {})  # E: call-overload reportCallIssue
    on_event({}).upper()  # E: union-attr reportOptionalMemberAccess
    on_event.outcome()  # E: call-arg reportCallIssue
    on_event.key(5)  # E: arg-type reportArgumentType
    on_event.map({"id": "1"}.keys)  # E: arg-type reportArgumentType
    on_event.bind({})  # E: attr-defined reportAttributeAccessIssue


def many_events() -> None:
    once.run(5, on_event.plain)  # E: arg-type reportArgumentType
    once.run([{}], 5)  # E: arg-type reportArgumentType
    once.forget("key")  # E: arg-type reportArgumentType


@once(key="order.id", remember="results")  # E: call-overload reportCallIssue
def unknown_remember(order: Order) -> None: ...


@once(key="order.id", remembr="result")  # E: call-overload reportCallIssue
def unknown_option(order: Order) -> None: ...


@once(window="1d")  # E: call-overload reportCallIssue
def no_key(order: Order) -> None: ...


@once(key=5)  # E: call-overload reportArgumentType
def no_path(order: Order) -> None: ...


@once(key="order.id", lease=60)  # E: call-overload reportArgumentType
def no_unit(order: Order) -> None: ...


@once(key="order.id", max_attempts="5")  # E: call-overload reportArgumentType
def no_number(order: Order) -> None: ...


@once  # E: arg-type reportCallIssue
def no_event() -> None: ...


@once  # E: arg-type reportCallIssue
def four_parameters(a: int, b: int, c: int, d: int) -> None: ...


@once  # E: arg-type reportCallIssue
def no_ctx(event: Event, *, context: Context) -> None: ...


Once("memory:", key=5)  # E: arg-type reportArgumentType
Once("memory:", remember="results")  # E: arg-type reportArgumentType
once(5)  # E: call-overload reportCallIssue
