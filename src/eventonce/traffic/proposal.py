"""A proposal: advice as a rule file with its reasons in comments, or as JSON."""

import json
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

import msgspec

from eventonce.traffic.advise import Advice, ignorable
from eventonce.traffic.reasons import count, evidence, warnings

_WIDTH = 110


class Totals(msgspec.Struct, frozen=True):
    """What was read in all."""

    events: int
    rejected: int = 0
    unsampled: int = 0  # of kinds beyond the limit


def toml(advices: Sequence[Advice], totals: Totals) -> str:
    """The rule file."""
    lines = [*_comment(_head(advices, totals))]
    for advice in advices:
        lines += ["", *_rule(advice)]
    return "\n".join(lines) + "\n"


def as_json(advices: Sequence[Advice], totals: Totals) -> dict[str, Any]:
    """The same for programs."""
    return {**msgspec.to_builtins(totals), "kinds": [_told(advice) for advice in advices]}


# --- TOML ---


def _head(advices: Sequence[Advice], totals: Totals) -> Iterator[str]:
    yield (
        f"Proposed by eventonce advise from {count(totals.events, 'event')} of {count(len(advices), 'kind')}. "
        "Read the reasons, then keep what you agree with."
    )
    if totals.rejected:
        yield f"{count(totals.rejected, 'event')} could not be read and played no part."
    if any(not advice.study.kind.queued for advice in advices):
        yield "Behind an SQS queue, whose dead letters may come back after two weeks, ask again with --horizon 14d."
    if totals.unsampled:
        yield f"{count(totals.unsampled, 'event')} of further kinds were not looked at: there are too many kinds."


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
    yield from map(_other, _alternatives(advice))


def _other(other: dict[str, Any]) -> str:
    keyed = ", ".join(f"{name} = {_value(value)}" for name, value in other.items() if name != "if")
    return f"# {other['if']}: {keyed}"


def _comment(sentences: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for sentence in sentences:
        first, *more = wrap(_harmless(sentence), _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
        yield f"# {first}"
        yield from (f"#   {line}" for line in more)


def _harmless(text: str) -> str:
    """Without characters that a comment may not have, or that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(item)}" for name, item in value.items()) + " }"
    return "[" + ", ".join(map(_value, value)) + "]"


def _text(text: str) -> str:
    # JSON's escapes are TOML's, too, but for surrogate pairs; what cannot be printed is escaped by hand.
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in escaped)


# --- JSON ---


def _told(advice: Advice) -> dict[str, Any]:
    copies = advice.study.copies
    rule = advice.rule
    return {
        "source": advice.study.kind.source,
        "type": advice.study.kind.type,
        "rule": {
            "name": rule.name,
            "match": rule.match,
            "key": rule.key,
            **({"ignore": rule.ignore} if rule.ignore else {}),
            "window": rule.window,
        },
        "confidence": advice.confidence,
        "enough": not advice.study.little,
        "events": advice.study.kind.events,
        "sampled": len(advice.study.table.rows),
        "distinct": copies.distinct,
        "copies": {"same_id": copies.same_id, "new_id": copies.new_id},
        "volatile": sorted(column.path for column in copies.volatile.values()),
        "alternatives": _alternatives(advice),
        "check": msgspec.to_builtins(advice.check),
        "evidence": evidence(advice),
        "warnings": warnings(advice),
    }


def _alternatives(advice: Advice) -> list[dict[str, Any]]:
    """Other keys, for those who know more than the traffic tells."""
    fields, copies = advice.study.fields, advice.study.copies
    if advice.study.little:
        return []
    others: list[dict[str, Any]] = []
    if fields is not None and copies.same_id + copies.new_id:
        sets = [fields.paths, *([column.path for column in each] for each in fields.others)]
        others = [{"if": "as good in the sample", "key": paths} for paths in sets if tuple(paths) != advice.rule.key]
    if copies.doubtful or copies.apart:
        ignore = ignorable(copies.differing.values())
        others.append({"if": "if those are copies", "key": "content", **({"ignore": ignore} if ignore else {})})
    if copies.new_id and not copies.anchored and advice.study.ids:
        others.append({"if": "if those are no copies", "key": "id"})
    return others
