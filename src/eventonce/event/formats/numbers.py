"""A watch over the numbers that are read: whether all of an event's are plain.

RFC 8785 writes 1.0 and 1e0 as 1, so a content key has to find such numbers. To look for every spelling would take as
long as reading the event once more. Among plain numbers there are only a few to look for (see `keys.py`).
"""

from typing import TypeVar

from msgspec import structs

from eventonce.event import Event

LARGEST = 1e15  # numbers below it need no exponent unless they are tiny
Number = TypeVar("Number", int, float)
_last_unusual = object()  # replaced at each unusual number; threads see each other's, which does no harm


def report_unusual_number() -> None:
    """Report that the value being read has an integer beyond 64 bits or a number beyond 1e15, or may have one."""
    global _last_unusual  # noqa: PLW0603  # what reads a value returns the value alone
    _last_unusual = object()


def watch_number(number: Number) -> Number:
    """Return a number that was not read with the document around it. Report it if it is unusual."""
    if abs(number) >= LARGEST:
        report_unusual_number()
    return number


def number_watch() -> object:
    """Return what stays the same until an unusual number is read. Take it before the reading begins."""
    return _last_unusual


def flag_plain_numbers(event: Event, watch: object) -> Event:
    """Return the event, flagged if no unusual number was read since `watch` was taken.

    All of it must have been read since then, and nobody else may have seen it yet.
    """
    if event.raw and _last_unusual is watch:
        structs.force_setattr(event, "plain_numbers", True)
    return event
