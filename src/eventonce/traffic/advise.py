"""Advice: rules for recorded traffic, with the evidence for each and how sure it is.

For each source and type, in this order:

1. `sample` keeps a bounded number of events, `fields` lays them out as a table.
2. `copies` finds which events are one, from the same id over equal content to what differs in little or shares an id
   that all else depends on, and so which fields differ between copies. What might be the same thing happening again
   is not called a copy.
3. Keys are tried, the best first: the id, if copies never come under another one; the fields that identify an event
   (`identity`); the content without what differs between copies; content and time; and the id all the same.
4. **Each key is put to the test on the sample, as a real rule.** A key that drops an event which is no copy, or cannot
   be made, loses to any that does not; then the one that misses the fewest copies wins. What is still wrong with the
   winner is said.
5. The window is three times the longest gap seen between copies, and no shorter than a copy can be late by what is
   known of the source.

To drop an event is worse than to run one twice. So wherever the traffic leaves a doubt, the rule is the event's id.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from eventonce.clock import duration
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.paths import ITEM
from eventonce.rules import Rulebook
from eventonce.rules.rule import Rule
from eventonce.traffic import names
from eventonce.traffic.copies import Copies, Record, find
from eventonce.traffic.fields import Column, Table
from eventonce.traffic.identity import Fields, choose
from eventonce.traffic.judge import Moment
from eventonce.traffic.lateness import ENOUGH, Lateness, lateness
from eventonce.traffic.sample import Sample, TypeSample

Confidence = Literal["high", "medium", "low"]

_MANY = 100  # distinct events: fewer than 3 % of all clash where none of these did
_SOME_COPIES, _MANY_COPIES = 3, 10


class Choice(NamedTuple):
    """A way to key."""

    key: str | tuple[str, ...]
    ignore: tuple[str, ...] = ()


class Check(msgspec.Struct, frozen=True):
    """What a rule does to the sample."""

    dropped: int = 0
    wrong: int = 0  # dropped, and no copies by all that was found
    missed: int = 0  # copies that it lets through
    rejected: int = 0  # events that it makes no key of

    @property
    def cost(self) -> tuple[int, int]:
        return self.wrong + self.rejected, self.missed


class Study(NamedTuple):
    """All that was found out about one kind."""

    kind: TypeSample
    table: Table
    copies: Copies
    fields: Fields | None
    ids: bool  # every event has one
    times: bool  # likewise

    @property
    def little(self) -> bool:
        return len(self.table.rows) < ENOUGH


class Advice(NamedTuple):
    """A rule, and why."""

    rule: Rule
    study: Study
    check: Check
    late: Lateness
    confidence: Confidence


def advise(events: Iterable[Event], horizon: str | None = None) -> list[Advice]:
    """Rules for these events."""
    sample = Sample()
    for event in events:
        sample.add(event)
    return advise_on(sample, horizon)


def advise_on(sample: Sample, horizon: str | None = None) -> list[Advice]:
    """Rules for the events of a sample, the kinds in the order of their names."""
    taken: set[str] = set()
    return [_advise(study(kind), _name(kind, taken), horizon) for _, kind in sorted(sample.kinds.items()) if any(kind)]


def study(kind: TypeSample) -> Study:
    """Look into one kind."""
    table = Table()
    records: list[Record] = []
    ids = times = True
    for event in kind:
        if table.full:
            break
        table.add(event)
        records.append(Record(_vouched(event), _moment(event, len(records))))
        ids, times = ids and bool(event.id), times and event.time is not None
    table.settle()
    copies = find(table, records, kind.type)
    return Study(kind, table, copies, choose(table, copies, f"{kind.source} {kind.type}"), ids, times)


def _vouched(event: Event) -> str:
    """The id, if an envelope or a carrier gave it; one in the data may be that of what the event is about."""
    own = event.form == "plain" and isinstance(event.data, dict) and "id" in event.data
    return "" if own else event.id


def _moment(event: Event, position: int) -> Moment:
    return Moment(None if event.time is None else round(event.time.timestamp() * 1000), position)


def _advise(found: Study, name: str, horizon: str | None) -> Advice:
    rule, check = _best(found, Rule(name=name, match=_match(found.kind)))
    late = lateness(found.copies.labels, found.kind, rule, None if horizon is None else duration(horizon, "horizon"))
    return Advice(
        msgspec.structs.replace(rule, window=late.window), found, check, late, _confidence(found, rule, check)
    )


# --- choosing ---


def _choices(found: Study) -> Iterator[Choice]:
    """Ways to key, the best first."""
    if found.ids:
        yield Choice("id")
    # Fields are trusted where copies under new ids have shown that they hold, on enough events that none clashed.
    enough = found.copies.new_id and not found.little and found.fields
    if found.fields and enough and (found.fields.sure or (found.copies.distinct >= _MANY and not _may_change(found))):
        yield Choice(tuple(found.fields.paths))
    yield Choice("content", () if found.little else ignorable(found.copies.volatile.values()))
    if found.times:
        yield Choice(("detail", "time"))


def _may_change(found: Study) -> bool:
    """Whether the next change of a thing would be dropped, though none was in the sample."""
    return names.of_change(found.kind.type) and found.fields is not None and not found.fields.series


def ignorable(columns: Iterable[Column]) -> tuple[str, ...]:
    """These fields as a rule's `ignore` names them; a list that is the whole data has no name there."""
    inside = (column for column in columns if column.of_data and len(column.steps) > 1 and column.steps[1] != ITEM)
    return tuple(sorted(column.path.removeprefix("detail.") for column in inside))


def _best(found: Study, blank: Rule) -> tuple[Rule, Check]:
    best: tuple[Rule, Check] | None = None
    for choice in _choices(found):
        rule = msgspec.structs.replace(blank, key=choice.key, ignore=choice.ignore)
        check = put_to_test(rule, found.kind, found.copies.labels)
        if best is None or check.cost < best[1].cost:
            best = rule, check
        if check.cost == (0, 0):
            break
    assert best is not None  # there is always a choice
    return best


def put_to_test(rule: Rule, events: Iterable[Event], labels: Sequence[int]) -> Check:
    """What the rule does to events of which equal labels are copies."""
    book = Rulebook("advise", [rule], Rule(name="no rule matched"))
    first: dict[bytes, int] = {}
    passed: set[int] = set()
    dropped = wrong = missed = rejected = 0
    for event, label in zip(events, labels, strict=False):
        try:
            keyed = book.key(event)
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


def _confidence(found: Study, rule: Rule, check: Check) -> Confidence:
    copies = found.copies
    seen = copies.same_id + copies.new_id
    if found.little or not seen or check.cost != (0, 0) or seen < _SOME_COPIES:
        return "low"
    tied = found.fields is not None and found.fields.tied and not isinstance(rule.key, str)
    sure = copies.anchored and not copies.doubtful and not copies.reused and not tied
    return "high" if sure and seen >= _MANY_COPIES and copies.distinct >= _MANY else "medium"


# --- naming ---


def _match(kind: TypeSample) -> dict[str, Any]:
    absent = [{"exists": False}]
    return {"source": [kind.source] if kind.source else absent, "detail-type": [kind.type] if kind.type else absent}


def _name(kind: TypeSample, taken: set[str]) -> str:
    """A name for the rule that no other has."""
    own = _slug(kind.type) or _slug(kind.source) or "events"
    tries = [own, f"{own}-{_slug(kind.source)}"] + [f"{own}-{number}" for number in range(2, len(taken) + 3)]
    name = next(each for each in tries if each not in taken)
    taken.add(name)
    return name


def _slug(text: str) -> str:
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return "-".join(filter(None, kept.split("-")))[:60].strip("-")
