"""Whether the numbers of an event are ordinary, as noticed while they are read.

RFC 8785 writes 1.0 and 1e0 as 1, so a content key has to mind such numbers. To look for all that there can be would
take as long as reading the event once more; among ordinary ones there are only few to look for (see `key.py`).
"""

from typing import TypeVar

from msgspec import structs

from eventonce.event import Event

LARGEST = 1e15  # numbers below it need no exponent unless they are tiny
Number = TypeVar("Number", int, float)
_last_odd = object()  # another one after each odd number or value; threads see each other's, which does no harm


def odd() -> None:
    """What is being read has integers beyond 64 bits or numbers beyond 1e15, or may have."""
    global _last_odd  # noqa: PLW0603  # what reads a value hands on the value alone
    _last_odd = object()


def noticed(number: Number) -> Number:
    """A number that was not read with the document it is in."""
    if abs(number) >= LARGEST:
        odd()
    return number


def mark() -> object:
    """The moment before something is read."""
    return _last_odd


def known(event: Event, since: object) -> Event:
    """An event that nobody else has seen yet and all of which was read since then, with what is known of it."""
    if event.raw and _last_odd is since:
        structs.force_setattr(event, "plain_numbers", True)
    return event
