"""Proposals: advice as a rule file with the reasons in comments, or as JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any

import msgspec

from eventonce.text import counted, spaced
from eventonce.traffic.advise import ENOUGH, Advice, ignorable
from eventonce.traffic.copies import Likeness
from eventonce.traffic.table import MAX_COLUMNS, Column

_WIDTH = 110
_MAX_PATHS = 12
_TAKEN_FOR = {
    "copies": "taken for copies",
    "repeats": "taken for the same thing happening again, so not for copies",
    "unclear": "not taken for copies",
}


class Totals(msgspec.Struct, frozen=True):
    """The numbers of all events that were read."""

    events: int
    rejected: int = 0
    unsampled: int = 0  # of kinds beyond the limit


def toml(advices: Sequence[Advice], totals: Totals) -> str:
    """Return the proposal as a rule file."""
    lines = [*_comment(_head(advices, totals))]
    for advice in advices:
        lines += ["", *_rule(advice)]
    return "\n".join(lines) + "\n"


def to_json(advices: Sequence[Advice], totals: Totals) -> dict[str, Any]:
    """Return the proposal as a JSON document."""
    return {**msgspec.to_builtins(totals), "kinds": [_fields(advice) for advice in advices]}


# --- reasons ---


def evidence(advice: Advice) -> list[str]:
    """Return the evidence for a rule, a sentence each."""
    return [*_seen(advice), *_key(advice), _checked(advice), f"Window: {advice.lateness.reason}."]


def warnings(advice: Advice) -> list[str]:
    """Return what to know before using a rule, a sentence each."""
    return [*_little(advice), *_doubts(advice), *_failures(advice), *_limits(advice)]


def _seen(advice: Advice) -> Iterator[str]:
    copies, kind = advice.study.copies, advice.study.kind
    yield (
        f"{counted(len(advice.study.table.rows), 'event')}, {copies.distinct:,} distinct: "
        f"{counted(copies.same_id, 'copy', 'copies')} with the same id, {copies.new_id:,} under an id of their own or "
        "without one."
    )
    if kind.replayed:
        yield f"{counted(kind.replayed, 'replayed event')} left out: they were sent again on purpose."
    for likeness in copies.likenesses:
        yield f"{_alike(likeness)}: {_TAKEN_FOR[likeness.answer]}, as {likeness.reason}."
    if copies.volatile:
        yield f"Copies differ in {_paths(copies.volatile.values())}."


def _alike(likeness: Likeness) -> str:
    how = f"differ only in {_paths(likeness.differing)}" if likeness.differing else "say exactly the same"
    return f"{counted(likeness.events, 'event')} that {how}, not under one id"


def _key(advice: Advice) -> Iterator[str]:
    fields, distinct = advice.study.fields, advice.study.copies.distinct
    if fields is None or advice.rule.key != fields.paths:
        return
    yield (
        f"Copies agree on {_paths(fields.columns)} and no two of {distinct:,} distinct events do, "
        f"so fewer than {3 / distinct:.1%} of all will (95 %)."
    )
    if fields.tied:
        yield "Each of these would do alone. Together they are safer."
    elif len(fields.columns) > 1:
        yield "No single id tells these events apart: there are several about one thing."


def _checked(advice: Advice) -> str:
    check = advice.check
    sure = "a copy" if advice.study.copies.certain else "taken for a copy"
    each = f", each {sure}" if check.dropped and not check.wrong else ""
    missed = counted(check.missed, "known copy", "known copies")
    new = advice.study.copies.new_id if advice.rule.key != "id" else 0
    by_id = f" The id alone would miss {counted(new, 'copy', 'copies')}." if new else ""
    return f"Tried on the sample: drops {counted(check.dropped, 'event')}{each}; misses {missed}.{by_id}"


def _little(advice: Advice) -> Iterator[str]:
    about = advice.study
    if about.too_little:
        yield f"too little traffic to learn from: {len(about.table.rows)} of at least {ENOUGH} events."
    elif about.copy_count:
        return
    elif about.copies.doubtful:
        yield "no event is shown to be a copy, so there is nothing to learn from what copies share."
    else:
        yield "no copies were seen, so there is nothing to learn from what copies share. Record for longer."
    if advice.rule.key != "id":
        reason = "the ids do not tell these events apart" if about.ids else "not every event has an id"
        yield f"{reason}, so this goes by content: equal events count as one, whether copies or not."
    elif not advice.check.wrong:
        yield "the id is the safe choice: it drops no distinct event, but misses what is sent again under a new id."


def _doubts(advice: Advice) -> Iterator[str]:
    about, copies = advice.study, advice.study.copies
    for likeness in copies.doubtful:
        yield f"{_alike(likeness)}. They may be copies under new ids: ask the producer before you choose another key."
    if not copies.certain and not about.too_little:
        yield (
            "no field proves that the copies under new ids are copies: what really happens again soon and says the "
            "same would be dropped; ask the producer whether that can be."
        )
    if about.fields is not None and advice.rule.key == about.fields.paths:
        yield (
            f"only {_paths(about.fields.columns)} counts, so an event that agrees there and says something else, such "
            "as a change, would be dropped; none came in the sample."
        )
    if copies.between:
        yield (
            f"{counted(copies.between, 'event')} taken for copies came after another one about the same thing: "
            "late copies, or it came to the same again."
        )
    if copies.apart:
        yield f"{counted(copies.apart, 'event')} came as far from their like as unrelated ones do: taken for repeats."
    if copies.reused:
        yield f"{counted(copies.reused, 'event')} carry the id of another one and say something else."


def _failures(advice: Advice) -> Iterator[str]:
    check = advice.check
    if check.wrong:
        yield (
            f"it DROPS {counted(check.wrong, 'event')} of the sample that are not shown to be copies; "
            "no better key was found."
        )
    if check.rejected:
        yield f"it makes no key of {counted(check.rejected, 'event')} of the sample, which would be rejected."
    if check.missed:
        yield f"{counted(check.missed, 'copy', 'copies')} of the sample would run again."


def _limits(advice: Advice) -> Iterator[str]:
    kind, table = advice.study.kind, advice.study.table
    if len(table.rows) < kind.events - kind.replayed:
        yield f"only {len(table.rows):,} of {kind.events:,} events were looked at: the first ones and their copies."
    if table.cut:
        yield f"there are more than {MAX_COLUMNS} fields, or very long names; the rest was compared as a whole."


def _paths(columns: Iterable[Column]) -> str:
    paths = sorted(column.path for column in columns)
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    return ", ".join(paths[:_MAX_PATHS]) + more


# --- TOML ---


def _head(advices: Sequence[Advice], totals: Totals) -> Iterator[str]:
    yield (
        f"Proposed by eventonce advise from {counted(totals.events, 'event')} of {counted(len(advices), 'kind')}. "
        "Read the reasons, then keep what you agree with."
    )
    if totals.rejected:
        yield f"{counted(totals.rejected, 'event')} could not be read and played no part."
    if any(not advice.study.kind.queued for advice in advices):
        yield "Behind an SQS queue, whose dead letters may come back after two weeks, ask again with --horizon 14d."
    if totals.unsampled:
        yield f"{counted(totals.unsampled, 'event')} of further kinds were not looked at: there are too many kinds."


def _rule(advice: Advice) -> Iterator[str]:
    rule = advice.rule
    yield from _comment([f"How sure: {advice.confidence}.", *evidence(advice)])
    yield from _comment([f"CAUTION: {warning}" for warning in warnings(advice)])
    yield "[[rule]]"
    yield f"name   = {_text(rule.name)}"
    yield f"match  = {_value(rule.match)}"
    yield f"key    = {_value(rule.key)}"
    if rule.ignore:
        yield f"ignore = {_value(rule.ignore)}"
    yield f"window = {_value(rule.window)}"
    yield from map(_alternative, _alternatives(advice))


def _alternative(alternative: dict[str, Any]) -> str:
    settings = ", ".join(f"{name} = {_value(value)}" for name, value in alternative.items() if name != "if")
    return f"# {alternative['if']}: {settings}"


def _comment(sentences: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for sentence in sentences:
        first, *more = wrap(spaced(sentence), _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
        yield f"# {first}"
        yield from (f"#   {line}" for line in more)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(item)}" for name, item in value.items()) + " }"
    return "[" + ", ".join(map(_value, value)) + "]"


def _text(text: str) -> str:
    # JSON's escapes are TOML's, too, but for surrogate pairs. Other characters that cannot be printed are escaped here.
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in escaped)


# --- JSON ---


def _fields(advice: Advice) -> dict[str, Any]:
    about, copies, rule = advice.study, advice.study.copies, advice.rule
    return {
        "source": about.kind.source,
        "type": about.kind.type,
        "rule": {
            "name": rule.name,
            "match": rule.match,
            "key": rule.key,
            **({"ignore": rule.ignore} if rule.ignore else {}),
            "window": rule.window,
        },
        "confidence": advice.confidence,
        "enough": not about.too_little,
        "events": about.kind.events,
        "sampled": len(about.table.rows),
        "distinct": copies.distinct,
        "copies": {"same_id": copies.same_id, "new_id": copies.new_id},
        "volatile": sorted(column.path for column in copies.volatile.values()),
        "alternatives": _alternatives(advice),
        "check": msgspec.to_builtins(advice.check),
        "evidence": evidence(advice),
        "warnings": warnings(advice),
    }


def _alternatives(advice: Advice) -> list[dict[str, Any]]:
    """Return other keys, for those who know more than the traffic shows."""
    about, copies, rule = advice.study, advice.study.copies, advice.rule
    alternatives: list[dict[str, Any]] = []
    if about.too_little:
        return alternatives
    if about.fields is not None and about.copy_count:
        keys = [about.fields.paths, *((column.path,) for column in about.fields.others)]
        alternatives = [{"if": "as good in the sample", "key": list(paths)} for paths in keys if paths != rule.key]
        if rule.key == about.fields.paths:
            alternatives.append({"if": "if other content makes another event", **_content(copies.volatile.values())})
    if copies.doubtful or copies.apart:
        differing = [column for likeness in copies.likenesses for column in likeness.differing]
        alternatives.append({"if": "if those are copies", **_content([*copies.volatile.values(), *differing])})
    if copies.new_id and not copies.certain and about.ids:
        alternatives.append({"if": "if those are not copies", "key": "id"})
    return alternatives


def _content(volatile: Iterable[Column]) -> dict[str, Any]:
    ignore = ignorable({column.number: column for column in volatile}.values())
    return {"key": "content", **({"ignore": list(ignore)} if ignore else {})}
