"""An audit: what a pipeline would have done with recorded traffic, what it misses, and what it drops wrongly."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from eventonce.clock import format_duration
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.difference import differences
from eventonce.rules import CompiledRule, Rulebook
from eventonce.traffic import report
from eventonce.traffic.archive import Archive, RecordedEvent
from eventonce.traffic.count import AuditCount, DecisionColumns, Pair, TypeCounts
from eventonce.traffic.facts import Facts, read_facts
from eventonce.traffic.gap_histogram import EDGES, Gaps, readable
from eventonce.traffic.ledger import AuditLedger, FingerprintSet

_MAX_EXAMPLES, _MAX_FIELDS = 3, 20  # in the report
_SHARES = (990, 999, 1000)  # thousandths
_PIPE = (
    "Which fields of suspicious drops differ is unknown: a pipe cannot be read twice. "
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


def audit(
    archive: Archive,
    rulebook: Rulebook,
    step: Callable[[int], object] = lambda events: None,
    processes: int | None = None,
) -> report.AuditReport:
    """Audit an archive in memory. Call `step` with the number of events each time that some were counted.

    The memory grows with distinct keys, ids and contents, not with events.
    """
    count, ledger, ids, contents = AuditCount(), AuditLedger(rulebook.all), FingerprintSet(), FingerprintSet()
    for facts in read_facts(archive, rulebook, processes):
        types = _count_rules(count, facts)
        same_id = [seen if own_id else None for seen, own_id in zip(ids.add_all(facts.ids), facts.ids, strict=True)]
        same_content = contents.add_all(facts.contents)
        decisions = ledger.decide(facts.entries())
        columns = DecisionColumns(facts.types, decisions, same_id, same_content, facts.replayed, facts.positions)
        count.add(types, columns)
        step(len(facts))
    return conclude(archive, rulebook, count)


def _count_rules(count: AuditCount, facts: Facts) -> list[TypeCounts]:
    """Count the rules and what was rejected. Return the counts of each type by its number in the facts."""
    types = [count.named(name) for name in facts.names]
    for number, reason, file, line in facts.rejected:
        (count.no_events if number is None else types[number].rejected).add(reason, f"{file}:{line}")
    for (number, rule), events in Counter(zip(facts.types, facts.rules, strict=True)).items():
        types[number].add_rule(rule, events)
    return types


def conclude(archive: Archive, rulebook: Rulebook, count: AuditCount) -> report.AuditReport:
    """Return the report of a count. Read the suspicious drops again to compare them."""
    inputs = report.Inputs(len(archive.files), archive.documents, unreadable_files(archive))
    pairs = count.pairs_to_compare()
    compared = dict(_compare(archive, rulebook, pairs.values())) if archive.repeatable else None
    types = [
        _type_report(name, counts, rulebook, [compared[pair] for pair in pairs[name] if compared and pair in compared])
        for name, counts in count.types.items()
    ]
    types.sort(key=lambda each: (-each.counts.events, each.source, each.type))
    gaps = Gaps()
    for counts in count.types.values():
        gaps.merge(counts.gaps)
    totals = _totals([each.counts for each in types], count.no_events.events)
    return report.AuditReport(
        inputs=inputs,
        totals=totals,
        between=_between(gaps),
        no_events=count.no_events.ranked(),
        groups=types,
        notes=_notes(
            gaps,
            uncompared=totals.suspicious > 0 and compared is None,
            old_keys=any(
                rulebook.all[rule].rule.replaces is not None for counts in count.types.values() for rule in counts.rules
            ),
        ),
    )


def unreadable_files(archive: Archive) -> list[report.Unreadable]:
    """Return the files that were not read, or not to their end."""
    return [report.Unreadable(path, reason) for path, reason in archive.unreadable.items()]


# --- the second reading ---


def _compare(
    archive: Archive, rulebook: Rulebook, pairs: Iterable[Iterable[Pair]]
) -> Iterator[tuple[Pair, report.Example]]:
    pair_of = {pair.copy: pair for some in pairs for pair in some}
    firsts = {pair.first for pair in pair_of.values()}
    seen: dict[int, RecordedEvent] = {}
    for recorded in archive.reread(firsts | pair_of.keys()):
        pair = pair_of.get(recorded.position)
        first = seen.get(pair.first) if pair else None
        if pair and first:
            yield pair, report.Example(first.location, recorded.location, _fields(rulebook, first, recorded))
        if recorded.position in firsts:
            seen[recorded.position] = recorded


def _fields(rulebook: Rulebook, first: RecordedEvent, copy: RecordedEvent) -> list[str]:
    return sorted(differences(_content(rulebook, first), _content(rulebook, copy)))


def _content(rulebook: Rulebook, recorded: RecordedEvent) -> dict[str, Any]:
    event = recorded.event
    if isinstance(event, EventRejected):  # the file has changed since
        return {}
    return {"source": event.source, "detail-type": event.type, "detail": _data(rulebook.find(event), event)}


def _data(rule: CompiledRule, event: Event) -> Any:
    try:
        return decode(rule.content(event))
    except EventRejected:
        return event.data


# --- the report ---


def _type_report(
    name: tuple[str, str], counts: TypeCounts, rulebook: Rulebook, examples: list[report.Example]
) -> report.TypeReport:
    rules = sorted(counts.rules.items(), key=lambda entry: -entry[1])
    return report.TypeReport(
        source=name[0],
        type=name[1],
        counts=counts.counts(),
        rules=[_applied(rulebook.all[number], events) for number, events in rules],
        between=_between(counts.gaps),
        suspicious=_suspicious(counts.suspicious, examples),
        rejected=counts.rejected.ranked(),
    )


def _applied(rule: CompiledRule, events: int) -> report.Applied:
    return report.Applied(rule.name, format_duration(rule.window), events)


def _suspicious(events: int, examples: list[report.Example]) -> report.Suspicious:
    fields = Counter(path for example in examples for path in example.fields).most_common(_MAX_FIELDS)
    cut = [msgspec.structs.replace(each, fields=each.fields[:_MAX_FIELDS]) for each in examples[:_MAX_EXAMPLES]]
    return report.Suspicious(events, len(examples), [report.Field(*field) for field in fields], cut)


def _between(gaps: Gaps) -> report.Between:
    windows = [(share / 10, gaps.within(share)) for share in _SHARES]
    ends = [(format_duration(edge), edge) for edge in EDGES]
    return report.Between(
        known=gaps.known,
        unknown=gaps.unknown,
        same_time=gaps.same_time,
        longest_ms=gaps.longest,
        windows=[
            report.Window(percent, gap, format_duration(readable(gap))) for percent, gap in windows if gap is not None
        ],
        histogram=[report.Bar(*end, copies) for end, copies in zip([*ends, (None, None)], gaps.bars, strict=True)],
    )


def _totals(counts: list[report.Counts], no_events: int) -> report.Counts:
    sums = {name: sum(getattr(each, name) for each in counts) for name in report.Counts.__struct_fields__}
    sums["events"] += no_events
    sums["rejected"] += no_events
    return report.Counts(**sums)


def _notes(gaps: Gaps, *, uncompared: bool, old_keys: bool) -> list[str]:
    notes = {_PIPE: uncompared, _OLD_KEYS: old_keys, _NO_TIMES: gaps.unknown > 0, _SAME_TIMES: gaps.same_time > 0}
    return [note for note, applies in notes.items() if applies]
