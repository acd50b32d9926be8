"""Advice: rules for recorded traffic, with the evidence for each and a confidence.

For each source and type, in this order:

1. `sample` keeps a bounded number of events, and `table` lays out their fields.
2. `copies` finds which events are one. They have one id, or they are equal but for what is made anew when an event is
   sent, and the rest of the traffic shows that this is not by chance. The fields that differ between copies are
   volatile.
3. Keys are tried, the best first: the id, an id in the data that tells all distinct events apart, the content without
   what is volatile, and the data with the time of the event.
4. **Each key is tested on the sample, as a real rule.** A key that drops an event which is not a copy, or that cannot
   be made, loses to any that does not. Among the others, the one that misses the fewest copies wins.
5. The window is three times the longest gap between copies, and no shorter than copies from such a source can be late.

To drop an event is worse than to run one twice. So if the traffic leaves a doubt, the key is the event's id.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from eventonce.clock import duration, format_duration
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.paths import ITEM
from eventonce.lint import horizon
from eventonce.rules import Rulebook
from eventonce.rules.rule import Rule
from eventonce.traffic.archive import time_ms
from eventonce.traffic.copies import Copies, SampleRow, find
from eventonce.traffic.gap_histogram import DAY, readable
from eventonce.traffic.sample import Sample, TypeSample
from eventonce.traffic.table import Column, Table

Confidence = Literal["high", "medium", "low"]

ENOUGH = 20  # events of a kind. Nothing is learnt from fewer.
_SOME, _MANY = 50, 100  # distinct events: fewer than 6 and 3 % of all clash if none of these did
_SOME_COPIES, _MANY_COPIES = 3, 10
_MAX_FIELDS = 3
_SAFETY = 3
_LONGEST = 365 * DAY  # a copy that comes after a year is sent on purpose


class Check(msgspec.Struct, frozen=True):
    """What a rule does to the sample."""

    dropped: int = 0
    wrong: int = 0  # dropped, and not shown to be copies
    missed: int = 0  # copies that it lets through
    rejected: int = 0  # events that it makes no key of

    @property
    def cost(self) -> tuple[int, int]:
        return self.wrong + self.rejected, self.missed


class Fields(NamedTuple):
    """Fields that identify an event: copies agree on them, and no two distinct events do."""

    columns: tuple[Column, ...]
    tied: bool  # each identifies an event by itself
    others: tuple[Column, ...] = ()  # which do so, too

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(column.path for column in self.columns)


class Study(NamedTuple):
    """The evidence about one kind."""

    kind: TypeSample
    table: Table
    copies: Copies
    fields: Fields | None
    ids: bool  # every event has one
    times: bool  # every event has one

    @property
    def too_little(self) -> bool:
        return len(self.table.rows) < ENOUGH

    @property
    def copy_count(self) -> int:
        """Return how many copies the sample has."""
        return self.copies.same_id + self.copies.new_id


class Lateness(NamedTuple):
    """The window, and the arithmetic behind it."""

    window: str
    reason: str


class Advice(NamedTuple):
    """A rule, and the reasons for it."""

    rule: Rule
    study: Study
    check: Check
    lateness: Lateness
    confidence: Confidence


def advise_on(sample: Sample, latest: str | None = None) -> list[Advice]:
    """Propose rules for a sample, its kinds in the order of their names. `latest` is how late a copy can be."""
    names: set[str] = set()
    kinds = [kind for _, kind in sorted(sample.kinds.items()) if any(kind)]
    return [_advise(study(kind), _name(kind, names), latest) for kind in kinds]


def study(kind: TypeSample) -> Study:
    """Return the evidence about one kind."""
    table = Table()
    rows: list[SampleRow] = []
    ids = times = True
    for event in kind:
        if table.full:
            break
        table.add(event)
        # An id in plain data may be that of what the event is about.
        doubtful_id = event.form == "plain" and isinstance(event.data, dict) and "id" in event.data
        rows.append(SampleRow("" if doubtful_id else event.id, time_ms(event)))
        ids, times = ids and bool(event.id), times and event.time is not None
    copies = find(table, rows)
    return Study(kind, table, copies, _fields(table, copies), ids, times)


def _advise(about: Study, name: str, latest: str | None) -> Advice:
    rule, check = _best(about, Rule(name=name, match=_match(about.kind)))
    lateness = _lateness(about, rule, None if latest is None else duration(latest, "horizon"))
    rule = msgspec.structs.replace(rule, window=lateness.window)
    return Advice(rule, about, check, lateness, _confidence(about, rule, check))


# --- choosing ---


def _fields(table: Table, copies: Copies) -> Fields | None:
    """Return the ids in the data that tell distinct events apart. Tokens are better than numbers that rise."""
    firsts = list(dict.fromkeys(copies.labels))
    series = copies.series

    def identifies(columns: Sequence[Column]) -> bool:
        values: dict[tuple[bytes, ...], int] = {}
        for row, label in zip(table.rows, copies.labels, strict=True):
            if values.setdefault(tuple(row[column.number] for column in columns), label) != label:
                return False
        return len(values) == len(firsts)

    minted = [each for each in table.columns if each.minted and each.present == len(table.rows)]
    single = [each for each in minted if each.number not in copies.volatile and identifies([each])]
    opaque = [each for each in single if each.opaque]
    best = sorted(opaque or single, key=lambda each: (len(each.steps), each.path))[:_MAX_FIELDS]
    if best:
        others = tuple(each for each in single if each not in best)
        return Fields(tuple(sorted(best, key=lambda each: each.path)), len(best) > 1, others[:_MAX_FIELDS])
    return Fields(series, tied=False) if series and identifies(series) else None


def _keys(about: Study) -> Iterator[tuple[str | tuple[str, ...], tuple[str, ...]]]:
    """Yield keys, each with what it ignores, the best first."""
    copies = about.copies
    if about.ids:
        yield "id", ()
    # Fields are trusted if copies under new ids keep them, and none of enough distinct events clashed.
    if about.fields and copies.new_id and copies.distinct >= _MANY:
        yield about.fields.paths, ()
    yield "content", () if about.too_little else ignorable(copies.volatile.values())
    if about.times:
        yield ("detail", "time"), ()


def ignorable(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the paths of those that a rule can ignore: fields of the data, and not all of it."""
    inside = (column for column in columns if column.steps[0] == "detail" and column.steps[1:] not in ((), (ITEM,)))
    return tuple(sorted(column.path for column in inside))


def _best(about: Study, blank: Rule) -> tuple[Rule, Check]:
    best: tuple[Rule, Check] | None = None
    for key, ignore in _keys(about):
        rule = msgspec.structs.replace(blank, key=key, ignore=ignore)
        check = try_out(rule, about.kind, about.copies.labels)
        if best is None or check.cost < best[1].cost:
            best = rule, check
        if check.cost == (0, 0):
            break
    assert best is not None  # there is always a key to try
    return best


def try_out(rule: Rule, events: Iterable[Event], labels: Sequence[int]) -> Check:
    """Return what the rule does to events. Those with equal labels are copies."""
    rulebook = Rulebook("advise", [rule], Rule(name="no rule matched"))
    first: dict[bytes, int] = {}
    passed: set[int] = set()
    dropped = wrong = missed = rejected = 0
    for event, label in zip(events, labels, strict=False):
        try:
            keyed = rulebook.key(event)
        except EventRejected:
            rejected += 1
            continue
        if keyed.rule.name != rule.name:
            rejected += 1
        elif keyed.key in first:
            dropped, wrong = dropped + 1, wrong + (first[keyed.key] != label)
        else:
            first[keyed.key] = label
            missed += label in passed
            passed.add(label)
    return Check(dropped, wrong, missed, rejected)


def _confidence(about: Study, rule: Rule, check: Check) -> Confidence:
    copies = about.copies
    thin = about.copy_count < _SOME_COPIES or (not copies.certain and copies.distinct < _SOME)
    if about.too_little or thin or check.cost != (0, 0):
        return "low"
    tied = about.fields is not None and about.fields.tied and not isinstance(rule.key, str)
    sure = copies.certain and not copies.doubtful and not copies.reused and not tied
    return "high" if sure and about.copy_count >= _MANY_COPIES and copies.distinct >= _MANY else "medium"


# --- the window ---


def _lateness(about: Study, rule: Rule, latest: int | None) -> Lateness:
    """Return how late a copy can come: as measured in the traffic, and at least by its source or by the user."""
    longest = 0 if about.too_little else _longest_gap(about)
    if latest is not None:
        floor, reason = latest, f"copies can be {format_duration(latest)} late by --horizon"
    elif about.kind.queued:
        floor, reason = 14 * DAY, "an SQS queue or its dead-letter queue keeps a message for up to 14d"
    elif about.kind.source and (usual := horizon(rule)) is not None:
        floor, reason = usual.millis, usual.reason
    else:
        floor, reason = DAY, "webhooks and rules are commonly retried for a day"
    window = min(readable(_SAFETY * longest), _LONGEST) if longest else 0
    measured = "the times of copies do not show how late they came"
    if longest:
        safe = format_duration(_SAFETY * longest)
        measured = f"the longest gap between copies is {format_duration(longest)}, times {_SAFETY} is {safe}"
    window = max(window, floor)
    return Lateness(format_duration(window), f"{measured}; {reason}, so no less than {format_duration(floor)}")


def _longest_gap(about: Study) -> int:
    """Return the longest time between two copies that follow each other in milliseconds, or 0 if there is none."""
    times: dict[int, list[int]] = {}
    for label, event in zip(about.copies.labels, about.kind, strict=False):
        time = time_ms(event)
        if time is not None:
            times.setdefault(label, []).append(time)
    return max((later - earlier for each in times.values() for earlier, later in pairwise(sorted(each))), default=0)


# --- naming ---


def _match(kind: TypeSample) -> dict[str, Any]:
    absent = [{"exists": False}]
    return {"source": [kind.source] if kind.source else absent, "detail-type": [kind.type] if kind.type else absent}


def _name(kind: TypeSample, names: set[str]) -> str:
    """Return a name for the rule that no other rule has."""
    plain = _slug(kind.type) or _slug(kind.source) or "events"
    candidates = [plain, f"{plain}-{_slug(kind.source)}"] + [f"{plain}-{number}" for number in range(2, len(names) + 3)]
    name = next(each for each in candidates if each not in names)
    names.add(name)
    return name


def _slug(text: str) -> str:
    dashed = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return "-".join(filter(None, dashed.split("-")))[:60].strip("-")
