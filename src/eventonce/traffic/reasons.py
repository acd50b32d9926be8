"""The reasons for a piece of advice, in sentences."""

from collections.abc import Iterable, Iterator

from eventonce.traffic.advise import Advice
from eventonce.traffic.fields import MOST_COLUMNS
from eventonce.traffic.judge import Verdict
from eventonce.traffic.lateness import ENOUGH

_MOST_SHOWN = 12


def evidence(advice: Advice) -> list[str]:
    """What the rule rests on, a sentence each."""
    return [*_seen(advice), *_key(advice), _checked(advice), f"Window: {advice.late.why}."]


def warnings(advice: Advice) -> list[str]:
    """What to know before using it, a sentence each."""
    return [*_little(advice), *_doubts(advice), *_wrongs(advice), *_limits(advice)]


# --- evidence ---


def _seen(advice: Advice) -> Iterator[str]:
    copies, kind = advice.study.copies, advice.study.kind
    rows = len(advice.study.table.rows)
    yield (
        f"{count(rows, 'event')}, {copies.distinct:,} distinct: {count(copies.same_id, 'copy', 'copies')} with the "
        f"same id, {copies.new_id:,} under an id of their own or without one."
    )
    if kind.replayed:
        yield f"{count(kind.replayed, 'replayed event')} left out: they were sent again on purpose."
    for verdict, events, how in (
        (copies.exact, copies.equals, "say exactly the same"),
        (copies.near, copies.nears, f"differ only in {_paths(c.path for c in copies.differing.values())}"),
    ):
        if verdict is not None:
            yield f"{count(events, 'event')} that {how}, not under one id: {_TAKEN[verdict.answer]}, as {verdict.why}."
    if copies.volatile:
        yield f"Copies differ in {_paths(c.path for c in copies.volatile.values())}."


_TAKEN = {
    "copies": "taken for copies",
    "repeats": "taken for the same thing happening again, so not for copies",
    "unclear": "not taken for copies",
}


def _key(advice: Advice) -> Iterator[str]:
    fields, copies = advice.study.fields, advice.study.copies
    if isinstance(advice.rule.key, str) or fields is None or advice.rule.key != tuple(fields.paths):
        return
    yield (
        f"Copies agree on {_paths(fields.paths)} and no two of {copies.distinct:,} distinct events do, "
        f"so fewer than {3 / copies.distinct:.1%} of all will (95 %)."
    )
    if fields.tied:
        yield "Each of these would do alone; together they are safer."
    elif fields.series:
        yield "No single id tells these events apart: there are several about one thing."


def _checked(advice: Advice) -> str:
    check = advice.check
    told = f"Tried on the sample: drops {count(check.dropped, 'event')}"
    sure = "a copy" if advice.study.copies.anchored else "taken for a copy"
    told += f", each {sure}" if check.dropped and not check.wrong else ""
    return f"{told}; misses {count(check.missed, 'known copy', 'known copies')}."


# --- warnings ---


def _little(advice: Advice) -> Iterator[str]:
    found = advice.study
    seen = found.copies.same_id + found.copies.new_id
    if found.little:
        yield f"too little traffic to learn from: {len(found.table.rows)} of at least {ENOUGH} events."
    elif found.copies.doubtful and not seen:
        yield "no event is shown to be a copy, so there is nothing to learn from what copies share."
    elif not seen:
        yield "no copies were seen, so there is nothing to learn from what copies share. Record for longer."
    else:
        return
    if advice.rule.key != "id":
        why = "the ids do not tell these events apart" if found.ids else "not every event has an id"
        yield f"{why}, so this goes by content: equal events count as one, whether copies or not."
    elif not advice.check.wrong:
        yield "the id is the safe choice: it drops no distinct event, but misses what is sent again under a new id."


def _doubts(advice: Advice) -> Iterator[str]:
    copies = advice.study.copies
    for verdict, events in ((copies.exact, copies.equals), (copies.near, copies.nears)):
        if verdict is None or (advice.study.little and verdict.answer == "copies"):
            continue
        yield from _doubt(verdict, events)
    if copies.between:
        yield (
            f"{count(copies.between, 'event')} taken for copies came after another one about the same thing: "
            "late copies, or it came to the same again."
        )
    if copies.apart:
        yield f"{count(copies.apart, 'event')} came as far from their like as unrelated ones do: taken for repeats."
    if copies.reused:
        yield f"{count(copies.reused, 'event')} carry the id of another one and say something else."


def _doubt(verdict: Verdict, events: int) -> Iterator[str]:
    if verdict.answer == "unclear":
        yield f"{count(events, 'event')} may be copies under new ids: ask the producer before you choose another key."
    elif verdict.answer == "copies" and verdict.own:
        yield (
            "what really happens again with the same id and says the same would be dropped; "
            "ask the producer whether that can be."
        )
    elif verdict.answer == "copies" and not verdict.anchored:
        yield (
            "nothing in these events tells a copy from the same thing happening again within moments; "
            "ask the producer whether that can be."
        )


def _wrongs(advice: Advice) -> Iterator[str]:
    check = advice.check
    if check.wrong:
        yield (
            f"it DROPS {count(check.wrong, 'event')} of the sample that are not shown to be copies; "
            "no better key was found."
        )
    if check.rejected:
        yield f"it makes no key of {count(check.rejected, 'event')} of the sample, which would be rejected."
    if check.missed:
        yield f"{count(check.missed, 'copy', 'copies')} of the sample would run again."


def _limits(advice: Advice) -> Iterator[str]:
    found = advice.study
    rows = len(found.table.rows)
    if rows < found.kind.events - found.kind.replayed:
        yield f"only {rows:,} of {found.kind.events:,} events were looked at: the first ones and their copies."
    if found.table.cut:
        yield f"there are more than {MOST_COLUMNS} fields, or very long names; the rest was compared as a whole."


# --- words ---


def _paths(paths: Iterable[str]) -> str:
    shown = sorted(paths)
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(shown[:_MOST_SHOWN]) + more


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
