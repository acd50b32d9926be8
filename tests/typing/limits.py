"""What the checkers see less exactly than it is. docs/functions.md has the way round.

Marks are as in `wrong.py`, with - where a checker reports nothing. If one learns more, the marks and the docs change.
"""

import functools
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from eventonce import Event, Once

T = TypeVar("T")
once = Once("memory:", remember="result")


@dataclass
class Order:
    id: str


# --- what is right, and reported ---


class Mailer:
    @once(key="count")
    @staticmethod
    def total(count: int) -> int:
        return count


@overload
def either(value: int) -> int: ...
@overload
def either(value: str) -> str: ...
def either(value: int | str) -> int | str:
    return value


@once(key=lambda order: order.id)  # E: - reportUnknownLambdaType
def by_lambda(order: Order) -> str:
    return order.id


@once(key="order.id")
def remembered_by_default(order: Order) -> str:
    return order.id


Mailer().total(1)  # E: call-arg -
once(key="value")(either)("a")  # E: arg-type reportArgumentType
remembered_by_default(Order("a")).upper()  # E: union-attr reportOptionalMemberAccess


# --- what is wrong, and not reported ---


@once(key="value", name="anything")
def anything(value: Any, times: int = 1) -> int:
    return times


@once(key="value", name="some_object")
def some_object(value: object, times: int = 1) -> int:
    return times


@once(key="value", name="generic")
def generic(value: T, times: int = 1) -> T:
    return value


@once(key="order.id", name="returns_any")
def returns_any(order: Order) -> Any:
    return order.id


anything(1, "2")
some_object(1, "2")
generic(1, "2")
returns_any("x")  # E: - reportArgumentType


# --- what is wrong, and not reported: `once` refuses it in a sentence ---


@once(key="ordre.id")
def misspelt(order: Order) -> str:
    return order.id


@once
def lambda_handler(event: Event, context: int) -> None: ...


@once
class Handler:
    def __init__(self, event: Event) -> None: ...


@once
def on_event(event: Event) -> None: ...


@once(key="order")
def not_async(order: str) -> Awaitable[str]:
    raise NotImplementedError


on_event()
on_event(one={}, two={})
partial = once(key="order")(functools.partial(misspelt.plain, order=Order("a")))
