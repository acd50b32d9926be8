"""Events that say the same: copies of one, or the same thing happening again?

Equal content is no proof. An order that is placed twice in a second was sent twice; a door that opens twice a day was
opened twice. What tells them apart, in this order:

1. **An anchor.** Where the content itself tells when the event happened, or has an id for the event, distinct events
   differ there; those that agree are copies however often and however late they come.
2. **Many, or a beat.** Without an anchor: more than a handful of equals, or equals in a steady beat, are repeats.
   Senders try again a few times, and wait longer each time.
3. **A dependence** (`dependence`): an id which the names and the rest of the traffic show to be one event's own. Those
   that agree on it are copies though they come late, but not days late, nor out of all proportion to the others.
4. **A series.** Signs that events come again because what they are about does (`series`) make it unclear.
5. **Chance.** Two unrelated events out of a recording of length S lie within g of each other with a probability of
   about p = 2g / S. Where all p together make less than one in ten thousand, nearness is no chance, and if the gaps
   are also as short as retries are (15 minutes, or one where the events are not quite equal), we call them copies.
   Where half of them are as far apart as chance would have them, or a tenth is farther than any redelivery, they are
   repeats. The rest is unclear, and so are equal events without times: their places in a file say too little.

Nearness cannot tell a retry from a person who clicks twice. So without an anchor the answer is never called certain,
and "unclear" counts as "not copies": to miss a copy is a lesser evil than to drop an event.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from eventonce.clock import format_duration
from eventonce.traffic.gap_histogram import DAY, MINUTE

Answer = Literal["copies", "repeats", "unclear"]

MANY = 4  # events that say the same, on average
_STEADY = 0.2  # the deviation of gaps as a share of their mean
_BEATS = 4
_CHANCE = -4.0  # the logarithm of one in ten thousand
_LIKELY = 0.25
_OUT_OF_PROPORTION = 10


class Question(NamedTuple):
    """Groups of events that say the same, and what they are taken from."""

    groups: Sequence[Sequence["Moment"]]
    span: Sequence["Moment"]  # all events
    anchor: str | None  # a field that proves the groups to be copies
    within: int  # how soon a sender tries again
    objection: str | None = None  # what speaks against copies
    own: str | None = None  # what tells that they share an id of their own
    sure: bool = False  # that this will do unless something speaks against it


class Verdict(NamedTuple):
    """What equal events are, and why we think so."""

    answer: Answer
    why: str
    anchored: bool = False
    own: bool = False  # it rests on an id of their own


class Moment(NamedTuple):
    """When an event happened, where it says so, and its place in the recording."""

    time: int | None
    position: int


def judge(asked: Question) -> Verdict:
    """Say what groups of equal events are."""
    if asked.anchor is not None:
        return Verdict("copies", f"they agree on {asked.anchor}, which tells distinct events apart", anchored=True)
    size = sum(map(len, asked.groups)) / len(asked.groups)
    if size > MANY:
        return Verdict("repeats", f"{size:,.0f} events on average say the same")
    clock = _clock(asked.span)
    gaps = [_gaps(group, clock) for group in asked.groups]
    beat = next((each for each in gaps if _is_beat(each)), None)
    if beat is not None:
        return Verdict("repeats", f"they come in a steady beat{_told(beat, clock)}")
    return _by_chance(asked, sorted(gap for each in gaps for gap in each), clock)


def _by_chance(asked: Question, gaps: list[int], clock: Callable[[Moment], int]) -> Verdict:
    length = _length(asked, clock)
    chances = [min(1.0, max(2 * gap / length, 1 / len(asked.span))) for gap in gaps]
    told = _told(gaps, clock) + ("" if asked.own is None else f"; {asked.own}")
    late = clock is _time and _latest(gaps) > DAY
    if asked.sure and asked.objection is None and not late:
        return Verdict("copies", f"they share an id of their own{told}", own=True)
    if statistics.median(chances) > _LIKELY or late:
        answer: Answer = "repeats" if asked.own is None else "unclear"
        return Verdict(answer, f"they are as far apart as unrelated events are{told}")
    if clock is not _time:
        return Verdict("unclear", "without times it cannot be told")
    doubt = asked.objection or _doubt(asked, gaps, chances)
    if doubt is not None:
        return Verdict("unclear", f"{doubt}{told}")
    why = f"they are far nearer to each other than chance would have them{told}"
    return Verdict("copies", why, own=asked.own is not None)


def _doubt(asked: Question, gaps: list[int], chances: list[float]) -> str | None:
    if _is_beat(gaps) and _latest(gaps) > MINUTE:
        return "they all come at the same distance"
    if sum(map(math.log10, chances)) > _CHANCE or _latest(gaps) > asked.within:
        return "they are too few or too far apart to tell"
    return None


def runs(asked: Question) -> list[list[list[int]]]:
    """The places in each group, split where the next is too far to be a copy; with an anchor nothing is."""
    clock = _clock(asked.span)
    reach = _reach(asked, clock)
    return [_split(group, clock, reach) for group in asked.groups]


def _reach(asked: Question, clock: Callable[[Moment], int]) -> float:
    """How far from its like a copy may be."""
    if asked.anchor is not None:
        return math.inf
    unrelated = _LIKELY * _length(asked, clock) / 2
    if not asked.sure:
        return unrelated
    gaps = sorted(gap for group in asked.groups for gap in _gaps(group, clock))
    return max(unrelated, _OUT_OF_PROPORTION * _latest(gaps))


def _split(group: Sequence[Moment], clock: Callable[[Moment], int], reach: float) -> list[list[int]]:
    ordered = sorted(range(len(group)), key=lambda place: clock(group[place]))
    split = [ordered[:1]]
    for earlier, later in pairwise(ordered):
        far = clock(group[later]) - clock(group[earlier]) > reach
        split += [[later]] if far else []
        split[-1] += [] if far else [later]
    return split


def _length(asked: Question, clock: Callable[[Moment], int]) -> int:
    return max(map(clock, asked.span)) - min(map(clock, asked.span)) or 1


def _latest(gaps: Sequence[int]) -> int:
    """The gap that nine of ten do not exceed."""
    return gaps[int(0.9 * (len(gaps) - 1))]


def _clock(span: Sequence[Moment]) -> Callable[[Moment], int]:
    times = {moment.time for moment in span}
    return _place if None in times or len(times) < 2 else _time


def _time(moment: Moment) -> int:
    return moment.time or 0


def _place(moment: Moment) -> int:
    return moment.position


def _gaps(group: Sequence[Moment], clock: Callable[[Moment], int]) -> list[int]:
    at = sorted(map(clock, group))
    return [later - earlier for earlier, later in pairwise(at)]


def _is_beat(gaps: Sequence[int]) -> bool:
    return len(gaps) >= _BEATS and statistics.pstdev(gaps) < _STEADY * statistics.fmean(gaps)


def _told(gaps: Sequence[int], clock: Callable[[Moment], int]) -> str:
    if clock is not _time:
        return ""
    least, most = format_duration(min(gaps)), format_duration(max(gaps))
    return f" ({least})" if least == most else f" ({least} to {most})"
