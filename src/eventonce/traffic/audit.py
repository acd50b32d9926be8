"""An audit: what a pipeline would have done with recorded traffic, what it misses, and what it drops wrongly."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

import msgspec

from eventonce.clock import format_duration
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.difference import differences
from eventonce.rules import CompiledRule, Rulebook
from eventonce.traffic import report
from eventonce.traffic.facts import Facts
from eventonce.traffic.gap_histogram import EDGES, Gaps, readable
from eventonce.traffic.ledger import NEW, AuditDecision, AuditLedger, Decision, Known
from eventonce.traffic.processes import all_facts
from eventonce.traffic.recorded import RecordedEvent, Traffic

OTHERS = "(others)"
_MOST_GROUPS = 1000  # sources and types told apart; the rest is one group
_MOST_REASONS = 50  # for each group
_MOST_PAIRS, _MOST_PAIRS_IN_ALL = 50, 1000  # suspicious drops that are compared
_MOST_EXAMPLES, _MOST_FIELDS = 3, 20  # that are shown
_SHARES = (990, 999, 1000)  # thousandths
_NUMBER = re.compile(r"\d[\d,]*")
_PIPE = (
    "Which fields of suspicious drops differ is not known: a pipe cannot be read twice. "
    "Give the traffic as files to see them."
)
_NO_TIMES = "Some copies have no time, so how long after the first they came is unknown; they are not in the histogram."
_SAME_TIMES = (
    "Some copies carry the id and the very time of their first: they were delivered again as they were. "
    "How much later that was is not in the traffic; they are not in the histogram."
)


_OLD_KEYS = (
    "Some rules have replaces: while they do, a run also drops what shares an old key with what it has done. "
    "The audit looks at the new keys alone."
)


class Pair(NamedTuple):
    """The positions of a suspicious drop and of the event it is taken for."""

    first: int
    copy: int


def alike(reason: str) -> str:
    """The kind of a reason."""
    return _NUMBER.sub("0", reason)


class Reasons:
    """Why events were rejected. Reasons that differ in numbers only count as one."""

    def __init__(self) -> None:
        self.events = 0
        self._found: dict[str, list[Any]] = {}  # the reason as first told, its place, how many

    def add(self, reason: str, place: str, events: int = 1) -> None:
        """One more, or several of one kind."""
        self.events += events
        kind = alike(reason)
        if kind not in self._found and len(self._found) >= _MOST_REASONS:
            kind = reason = OTHERS
        self._found.setdefault(kind, [reason, place, 0])[2] += events

    def top(self) -> list[report.Reason]:
        """The most frequent ones first."""
        ranked = sorted(self._found.values(), key=lambda found: -found[2])
        return [report.Reason(reason, count, place) for reason, place, count in ranked]


@dataclass(slots=True)
class TypeCounts:
    """What has been counted of one source and type."""

    verdicts: list[int] = field(default_factory=lambda: [0] * (len(Decision) + 1))
    missed: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # found by id, by content
    rules: Counter[CompiledRule] = field(default_factory=Counter)
    gaps: Gaps = field(default_factory=Gaps)
    rejected: Reasons = field(default_factory=Reasons)
    pairs: list[Pair] = field(default_factory=list)
    suspicious: int = 0
    replayed: int = 0

    def counts(self) -> report.Counts:
        """The numbers alone."""
        verdicts = self.verdicts
        return report.Counts(
            events=sum(verdicts) + self.rejected.events,
            distinct=verdicts[Decision.NEW] + verdicts[Decision.NEWER],
            duplicates=verdicts[Decision.DUPLICATE],
            stale=verdicts[Decision.STALE],
            late=verdicts[Decision.LATE],
            only_id=self.missed[True, False],
            only_content=self.missed[False, True],
            id_and_content=self.missed[True, True],
            suspicious=self.suspicious,
            rejected=self.rejected.events,
            replayed=self.replayed,
        )


class DecisionColumns(NamedTuple):
    """Events in columns: what became of each, whether its id and content were seen, if it is replayed, its place."""

    groups: Sequence[int]  # by their numbers
    taken: Sequence[AuditDecision]
    same_id: Sequence[bool]
    same_content: Sequence[bool]
    replayed: Sequence[int]
    positions: Sequence[int]


class Audit:
    """Takes events as they come. What it keeps grows with distinct keys, ids and contents, not with events."""

    def __init__(self, book: Rulebook) -> None:
        self.no_events = Reasons()
        self.groups: dict[tuple[str, str], TypeCounts] = {}
        self._book = book
        self._keys, self._ids, self._contents = AuditLedger(book.all), Known(), Known()
        self._pairs = 0

    def add(self, facts: Facts) -> None:
        """The next events of the traffic, and what is none."""
        groups = [self._group(name) for name in facts.names]
        for number, reason, file, line in facts.rejected:
            (self.no_events if number is None else groups[number].rejected).add(reason, f"{file}:{line}")
        for (number, rule), count in Counter(zip(facts.groups, facts.rules, strict=True)).items():
            groups[number].rules[self._book.all[rule]] += count
        same_id, same_content = self._ids.all_seen(facts.ids), self._contents.all_seen(facts.contents)
        taken = self._keys.take(facts.entries())
        self.enter(groups, DecisionColumns(facts.groups, taken, same_id, same_content, facts.replayed, facts.positions))

    def rules_with_old_keys(self) -> Iterator[CompiledRule]:
        """The rules that replace others and took events."""
        return (rule for group in self.groups.values() for rule in group.rules if rule.rule.replaces is not None)

    def enter(self, groups: Sequence[TypeCounts] | Mapping[int, TypeCounts], judged: DecisionColumns) -> None:
        """Count events: most of them are new, and those that are alike are counted together."""
        new = [each is NEW for each in judged.taken]
        alike = zip(judged.groups, new, judged.same_id, judged.same_content, judged.replayed, strict=True)
        for (number, is_new, same_id, same_content, replayed), events in Counter(alike).items():
            groups[number].replayed += events * replayed
            if is_new:
                self.count_new(groups[number], events, same_id=same_id, same_content=same_content, replayed=replayed)
        for number, each, same_id, _, _, position in compress(zip(*judged, strict=True), map(not_, new)):
            self.count_known(groups[number], each, same_id=same_id)
            if each.differs_from is not None:
                self._suspect(groups[number], Pair(each.differs_from, position))

    def count_new(self, group: TypeCounts, events: int, *, same_id: bool, same_content: bool, replayed: int) -> None:
        """Count events that are the first of their key."""
        group.verdicts[Decision.NEW] += events
        if (same_id or same_content) and not replayed:  # a replay was sent again on purpose
            group.missed[same_id, same_content] += events

    def count_known(self, group: TypeCounts, taken: AuditDecision, events: int = 1, *, same_id: bool) -> None:
        """Count events whose key was there before."""
        group.verdicts[taken.verdict] += events
        if taken.verdict is not Decision.NEWER:
            _measure(group.gaps, taken, events, same_id=same_id)

    def _suspect(self, group: TypeCounts, pair: Pair) -> None:
        group.suspicious += 1
        if len(group.pairs) < _MOST_PAIRS and self._pairs < _MOST_PAIRS_IN_ALL:
            group.pairs.append(pair)
            self._pairs += 1

    def _group(self, name: tuple[str, str]) -> TypeCounts:
        group = self.groups.get(name)
        if group is None:
            name = name if len(self.groups) < _MOST_GROUPS else (OTHERS, OTHERS)
            group = self.groups.setdefault(name, TypeCounts())
        return group


def _measure(gaps: Gaps, taken: AuditDecision, events: int, *, same_id: bool) -> None:
    if taken.gap is None:
        gaps.unknown += events
    elif taken.gap == 0 and same_id and taken.differs_from is None:
        gaps.same_time += events
    else:
        gaps.add(taken.gap, events)


# --- the two readings ---


def audit(
    traffic: Traffic, book: Rulebook, step: Callable[[int], object] = lambda events: None, processes: int | None = None
) -> report.AuditReport:
    """Read the traffic, and the suspicious drops in it a second time. `step` is told how many more events are done."""
    counted = Audit(book)
    for facts in all_facts(traffic, book, processes):
        counted.add(facts)
        step(len(facts))
    return conclude(traffic, book, counted)


def conclude(traffic: Traffic, book: Rulebook, counted: Audit) -> report.AuditReport:
    """The report of what was counted, with the suspicious drops read again."""
    inputs = report.Inputs(traffic.files, traffic.documents, _unreadable(traffic))
    compared = dict(_compare(traffic, book, counted.groups.values())) if traffic.lasting else None
    return _report(counted, inputs, compared)


def _compare(traffic: Traffic, book: Rulebook, groups: Iterable[TypeCounts]) -> Iterator[tuple[Pair, report.Example]]:
    first_of = {pair.copy: pair for group in groups for pair in group.pairs}
    firsts = {pair.first for pair in first_of.values()}
    met: dict[int, RecordedEvent] = {}
    for seen in traffic.again(firsts | first_of.keys()):
        pair = first_of.get(seen.position)
        first = met.get(pair.first) if pair else None
        if pair and first:
            yield pair, report.Example(first.place, seen.place, _fields(book, first, seen))
        if seen.position in firsts:
            met[seen.position] = seen


def _fields(book: Rulebook, first: RecordedEvent, copy: RecordedEvent) -> list[str]:
    return sorted(differences(_said(book, first), _said(book, copy)))


def _said(book: Rulebook, seen: RecordedEvent) -> dict[str, Any]:
    event = seen.event
    if isinstance(event, EventRejected):  # the file has changed since
        return {}
    return {"source": event.source, "detail-type": event.type, "detail": _data(book.find(event), event)}


def _data(rule: CompiledRule, event: Event) -> Any:
    try:
        return decode(rule.content(event))
    except EventRejected:
        return event.data


# --- the report ---


def _report(counted: Audit, inputs: report.Inputs, compared: dict[Pair, report.Example] | None) -> report.AuditReport:
    groups = [_group(name, group, compared or {}) for name, group in counted.groups.items()]
    groups.sort(key=lambda group: (-group.counts.events, group.source, group.type))
    gaps = Gaps()
    for each in counted.groups.values():
        gaps.merge(each.gaps)
    totals = _total([group.counts for group in groups], counted.no_events.events)
    return report.AuditReport(
        inputs=inputs,
        totals=totals,
        between=_between(gaps),
        no_events=counted.no_events.top(),
        groups=groups,
        notes=_notes(
            gaps, uncompared=totals.suspicious > 0 and compared is None, old_keys=any(counted.rules_with_old_keys())
        ),
    )


def _group(name: tuple[str, str], group: TypeCounts, compared: dict[Pair, report.Example]) -> report.TypeReport:
    return report.TypeReport(
        source=name[0],
        type=name[1],
        counts=group.counts(),
        rules=[
            report.Applied(rule.name, format_duration(rule.window), count) for rule, count in group.rules.most_common()
        ],
        between=_between(group.gaps),
        suspicious=_suspicious(group, compared),
        rejected=group.rejected.top(),
    )


def _suspicious(group: TypeCounts, compared: dict[Pair, report.Example]) -> report.Suspicious:
    examples = [compared[pair] for pair in group.pairs if pair in compared]
    fields = Counter(path for example in examples for path in example.fields).most_common(_MOST_FIELDS)
    shown = [msgspec.structs.replace(each, fields=each.fields[:_MOST_FIELDS]) for each in examples[:_MOST_EXAMPLES]]
    return report.Suspicious(group.suspicious, len(examples), [report.Field(*each) for each in fields], shown)


def _between(gaps: Gaps) -> report.Between:
    within = [(share / 10, gaps.within(share)) for share in _SHARES]
    ends = [(format_duration(edge), edge) for edge in EDGES]
    return report.Between(
        known=gaps.known,
        unknown=gaps.unknown,
        same_time=gaps.same_time,
        longest_ms=gaps.longest,
        windows=[report.Window(share, gap, format_duration(readable(gap))) for share, gap in within if gap is not None],
        histogram=[report.Bar(*end, count) for end, count in zip([*ends, (None, None)], gaps.bars, strict=True)],
    )


def _total(counts: list[report.Counts], no_events: int) -> report.Counts:
    names = report.Counts.__struct_fields__
    sums = {name: sum(getattr(each, name) for each in counts) for name in names}
    sums["events"] += no_events
    sums["rejected"] += no_events
    return report.Counts(**sums)


def _notes(gaps: Gaps, *, uncompared: bool, old_keys: bool) -> list[str]:
    told = [
        (uncompared, _PIPE),
        (old_keys, _OLD_KEYS),
        (gaps.unknown > 0, _NO_TIMES),
        (gaps.same_time > 0, _SAME_TIMES),
    ]
    return [note for holds, note in told if holds]


def _unreadable(traffic: Traffic) -> list[report.Unreadable]:
    return [report.Unreadable(path, reason) for path, reason in traffic.unreadable.items()]
