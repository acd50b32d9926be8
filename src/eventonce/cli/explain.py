"""`eventonce explain`: the reason that an event was dropped, or its outcome if it came now."""

import json
import shlex
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import click

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import Record
from eventonce.cli.key import describe_event
from eventonce.cli.options import (
    complete_files,
    events_or_keys,
    keys_of,
    open_existing,
    pipeline_options,
    read_file,
    read_settings,
    takes_pipeline,
)
from eventonce.cli.peek import describe_record
from eventonce.engine import Once
from eventonce.errors import EventRejected, describe
from eventonce.event import Delivery, Event
from eventonce.event.formats import read_event
from eventonce.event.keys import Key
from eventonce.event.reading import split_events
from eventonce.rules import Rulebook
from eventonce.settings import rulebook
from eventonce.text import one_line

_MAX_PART = 160  # characters
_DROPPED_AGAIN = "a dead letter of it would be dropped as well, but --reprocess runs it once more"
_REDRIVE = {
    OutcomeKind.PROCESSED: "a dead letter of it runs",
    OutcomeKind.FAILED: "a dead letter of it gets one more attempt, however many were used up",
    OutcomeKind.BUSY: "a dead letter of it stays while another worker runs the event",
    OutcomeKind.EXPIRED: "a dead letter of it would be too old as well",
    OutcomeKind.REJECTED: "a dead letter of it would be rejected as well",
    OutcomeKind.DUPLICATE: _DROPPED_AGAIN,
    OutcomeKind.STALE: _DROPPED_AGAIN,
}
_FORGET = {
    "unknown": "it has no record, so there is nothing to forget",
    "running": "takes the claim from the run in progress, which then cannot be recorded, and the next copy runs again",
    "abandoned": "forgets the run whose worker stopped, and the next copy starts with attempt 1",
    "failed": "forgets the failed attempts, and the next copy starts with attempt 1",
    "done": "the next copy runs again",
}
_NEXT = {
    "unknown": (OutcomeKind.PROCESSED, "it has no record"),
    "running": (OutcomeKind.BUSY, "another worker is running it"),
    "abandoned": (OutcomeKind.PROCESSED, "the worker that ran it has stopped"),
    "failed": (OutcomeKind.PROCESSED, "it has failed so far, and runs again until its attempts are used up"),
    "done": (OutcomeKind.DUPLICATE, "it was done before"),
}


@click.command()
@takes_pipeline("keys")
@click.argument("keys", nargs=-1)
@click.option("--events", shell_complete=complete_files, help="A file of events to explain, or - for stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line each.")
@pipeline_options
def explain(keys: tuple[str, ...], events: str | None, pipeline: str | None, *, as_json: bool, **options: Any) -> None:
    """Explain why an event was dropped, or what its outcome would be: its rule, the parts of its key, its record.

    Nothing is claimed or changed. For a bare key only its record is shown. Exit 1 if an event can never be processed.

    \b
      eventonce explain pipeline.toml < event.json
      eventonce explain --store sqlite:///x.db 3f9c2b6c0d4f4b0f9d6a4c1f2e7a8b90
    """
    events = events_or_keys(keys, events)
    settings = read_settings(pipeline, **options)
    acceptable, options_text = True, _store_options(pipeline, options["store"])
    with open_existing(settings) as once:
        for fields in _explanations(once, rulebook(settings), keys, events, options_text):
            click.echo(json.dumps(fields) if as_json else _text(fields))
            acceptable &= fields["now"] != OutcomeKind.REJECTED
    sys.exit(0 if acceptable else 1)


def _store_options(pipeline: str | None, store: str | None) -> str:
    """Return the options that make another command use the same store, without a password."""
    named = {"-p": pipeline, "--store": store if store is not None and "@" not in store else None}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in named.items() if value is not None)


def _explanations(
    once: Once, rulebook: Rulebook, keys: tuple[str, ...], events: str | None, options: str
) -> Iterator[dict[str, Any]]:
    for batch in keys_of(once, keys, None):
        for key, record in zip(batch, once.peek(batch), strict=True):
            yield _explain_key(key, record, options)
    if events is not None:
        for delivery in chain.from_iterable(read_file(events)):
            for part in split_events(delivery):
                yield {"place": part.location, **_explain_event(once, rulebook, _decode(part), options)}


def _decode(delivery: Delivery) -> Event | EventRejected:
    try:
        if delivery.unreadable is not None:
            raise EventRejected(delivery.unreadable)
        return read_event(delivery.event or delivery.body)
    except EventRejected as error:
        return error


def _explain_key(key: Key, record: Record | None, options: str) -> dict[str, Any]:
    remembered = describe_record(key, record)
    now, because = _NEXT[remembered["state"]]
    fields = {"key": key.hex(), "remembered": remembered, "now": now, "because": because}
    return {**fields, **_remedies([(key, record)], now, options)}


def _explain_event(once: Once, rulebook: Rulebook, event: Event | EventRejected, options: str) -> dict[str, Any]:
    fields = describe_event(rulebook, event)
    rejected = fields.pop("rejected", None)
    if isinstance(event, EventRejected):
        return {"now": OutcomeKind.REJECTED, "because": rejected}
    fields["why"] = _why(rulebook, event)
    if rejected is not None:
        return {**fields, "now": OutcomeKind.REJECTED, "because": rejected}
    records = _remembered(once, event)
    key, record = records[0]
    outcome = once.preview(event)
    fields |= {"remembered": describe_record(key, record), "now": outcome.kind, "because": _because(outcome, record)}
    if outcome.first is not None and outcome.first.differs is not None:
        fields["differs"] = outcome.first.differs
    return {**fields, **_remedies(records, outcome.kind, options)}


def _why(rulebook: Rulebook, event: Event) -> str:
    rule = rulebook.find(event)
    if rule is rulebook.all[-1]:
        return "no rule matches, so its own id is the key"
    match = "it takes every event" if rule.rule.match is None else f"its match is {json.dumps(rule.rule.match)}"
    return f"the first that matches, number {rule.number + 1} of {len(rulebook.all) - 1}; {match}"


def _remembered(once: Once, event: Event) -> list[tuple[Key, Record | None]]:
    """Return the keys of an event that have a record: its own, and the one under the rule that its rule replaces."""
    keys = once.keys(event)
    records = list(zip(keys, once.peek(keys), strict=True))
    return [(key, record) for key, record in records if record is not None] or records[:1]


def _because(outcome: Outcome, record: Record | None) -> str:
    if outcome.kind is OutcomeKind.DUPLICATE and outcome.first is not None:
        reason = f"it was done at {outcome.first.at.isoformat(timespec='seconds')}, and the window has not expired"
        return f"{reason}, but the content of this copy differs" if outcome.first.differs else reason
    if outcome.kind is not OutcomeKind.PROCESSED:
        return describe(outcome.error)
    if record is None:
        return "it has no record"
    if record.done_at and not record.tries:
        return f"its version is higher than {record.version}, which was done"
    return f"it is not done yet, and this would be attempt {outcome.attempt}"


def _remedies(records: list[tuple[Key, Record | None]], now: OutcomeKind, options: str) -> dict[str, str]:
    (key, record), keys = records[0], " ".join(key.hex() for key, _ in records)
    forget, state = f"eventonce forget{options} {keys}: ", describe_record(key, record)["state"]
    return {
        "forget": f"{'' if record is None else forget}{_FORGET[state]}",
        "redrive": f"eventonce redrive{options} --with-key {key.hex()}: {_REDRIVE[now]}",
    }


# --- for people ---


def _text(fields: dict[str, Any]) -> str:
    lines = [one_line(" ".join(str(fields[name]) for name in ("place", "id", "source", "type") if fields.get(name)))]
    lines += [f"  {name:<11} {value}" for name, value in _rows(fields)]
    return "\n".join(line for line in lines if line) + "\n"


def _rows(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "rule" in fields:
        yield "rule", f"{fields['rule']}: {fields['why']}"
    yield from (("part", f"{name} = {_short(value)}") for name, value in fields.get("parts", {}).items())
    if fields.get("ignored"):
        yield "ignored", ", ".join(map(one_line, fields["ignored"]))
    yield from ((name, str(fields[name])) for name in ("version", "key") if name in fields)
    if "old_key" in fields:
        yield "old key", f"{fields['old_key']} of the rule that this one replaces"
    if "remembered" in fields:
        yield from _memory(fields["remembered"], by_old=fields["remembered"]["key"] == fields.get("old_key"))
    yield "now", f"{fields['now']}: {one_line(fields['because'])}"
    yield from ((name, fields[name]) for name in ("forget", "redrive") if name in fields)


def _memory(remembered: dict[str, Any], *, by_old: bool) -> Iterator[tuple[str, str]]:
    details = ["under the old key"] if by_old else []
    details += [f"{name.replace('_', ' ')} {value}" for name, value in remembered.items() if name not in _SEPARATE]
    yield "remembered", ", ".join([remembered["state"], *map(one_line, details)])
    note = remembered.get("note") or {}
    first_copy = [f"{name} {one_line(str(note[name]))}" for name in ("id", "time", "fingerprint") if name in note]
    if first_copy:
        yield "first copy", ", ".join(first_copy)


_SEPARATE = ("key", "state", "note")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_PART else text[:_MAX_PART] + "..."
