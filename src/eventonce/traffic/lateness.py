"""How late a copy can come: what was seen, what is known of the source, and the window that follows."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from eventonce.clock import format_duration
from eventonce.event import Event
from eventonce.lint import horizon
from eventonce.rules.rule import Rule
from eventonce.traffic.gap_histogram import DAY, readable
from eventonce.traffic.sample import TypeSample

ENOUGH = 20  # events of a kind; below that nothing is learnt from them
_SAFETY = 3
_LONGEST = 365 * DAY  # whoever sends a copy after a year means something by it
_QUEUE = 14 * DAY, "an SQS queue or its dead-letter queue keeps a message for up to 14d"
_ANY = DAY, "webhooks and rules are commonly retried for a day"


class Lateness(NamedTuple):
    """The window, and the arithmetic behind it."""

    window: str
    why: str


def lateness(labels: Sequence[int], kind: TypeSample, rule: Rule, least: int | None = None) -> Lateness:
    """How late a copy of this kind can come; `least` is what the user knows of it."""
    longest = _longest(labels, kind) if len(labels) >= ENOUGH else 0
    floor, why = _known(kind, rule, least)
    seen = min(readable(_SAFETY * longest), _LONGEST) if longest else 0
    if not longest:
        told = "the times of copies do not show how late they came"
    else:
        safe = format_duration(_SAFETY * longest)
        told = f"the longest gap between copies is {format_duration(longest)}, times {_SAFETY} is {safe}"
    return Lateness(format_duration(max(seen, floor)), f"{told}; {why}, so no less than {format_duration(floor)}")


def _known(kind: TypeSample, rule: Rule, least: int | None) -> tuple[int, str]:
    if least is not None:
        return least, f"copies can be {format_duration(least)} late as you said"
    if kind.queued:
        return _QUEUE
    known = horizon(rule) if kind.source else None
    return _ANY if known is None else (known.millis, known.why)


def _longest(labels: Sequence[int], events: Iterable[Event]) -> int:
    """The longest time between two copies that follow each other, in milliseconds; 0 where it cannot be seen."""
    times: dict[int, list[float]] = {}
    for label, event in zip(labels, events, strict=False):
        if event.time is not None:
            times.setdefault(label, []).append(event.time.timestamp())
    ordered = (sorted(each) for each in times.values())
    gaps = (later - earlier for each in ordered for earlier, later in pairwise(each))
    return round(1000 * max(gaps, default=0.0))
