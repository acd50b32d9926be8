"""Whether everybody spells the numbers of an event alike, as noticed while they are read.

RFC 8785 writes 1.0 and 1e0 as 1, so a content key has to mind such numbers. To look for them afterwards would take as
long as reading the event once more.
"""

import math

from msgspec import structs

from eventonce.event import Event

_last_odd = object()  # another one after each number that is not plain; threads see each other's, which does no harm


def number(text: str) -> float:
    """Read a number that is written with a fraction or an exponent.

    Everybody spells it alike if it has a fraction, and is not so small or large as to have an exponent.
    """
    global _last_odd  # noqa: PLW0603  # a hook of the decoder has no other way to tell
    value = float(text)
    if not 1e-4 < abs(value) < 1e15 or value.is_integer():
        if math.isinf(value):
            raise ValueError("Number out of range")
        _last_odd = object()
    return value


def mark() -> object:
    """The moment before something is read."""
    return _last_odd


def known(event: Event, since: object) -> Event:
    """An event that nobody else has seen yet and all of which was read since then, with what is known of it."""
    if event.raw and _last_odd is since:
        structs.force_setattr(event, "plain_numbers", True)
    return event
