"""`eventonce explain`: why was this event dropped."""

import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import click

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import Record
from eventonce.cli.key import told_of
from eventonce.cli.options import events_or_keys, keys_of, open_existing, pipeline_options, read_settings
from eventonce.cli.peek import shown
from eventonce.engine import Once
from eventonce.errors import ConfigError, EventRejected, describe
from eventonce.event import Delivery, Event
from eventonce.event.formats import read_event
from eventonce.event.keys import Key
from eventonce.event.reading import split_events
from eventonce.observe.text import one_line
from eventonce.rules import Rulebook
from eventonce.sources import FileSource
from eventonce.wire import rulebook

_LONGEST = 160  # characters of a part
_DROPPED_AGAIN = "a dead letter of it would be dropped as well; with --reprocess it runs once more"
_REDRIVE = {
    OutcomeKind.PROCESSED: "a dead letter of it runs",
    OutcomeKind.FAILED: "a dead letter of it gets one more attempt, whatever number was used up",
    OutcomeKind.BUSY: "a dead letter of it stays while another worker runs the event",
    OutcomeKind.EXPIRED: "a dead letter of it would be too old as well",
    OutcomeKind.REJECTED: "a dead letter of it would be rejected as well",
    OutcomeKind.DUPLICATE: _DROPPED_AGAIN,
    OutcomeKind.STALE: _DROPPED_AGAIN,
}
_FORGET = {
    "unknown": "nothing is remembered, so there is nothing to forget",
    "running": "takes the claim from the run under way, which cannot be recorded then; the next copy runs again",
    "abandoned": "forgets the run whose worker never came back; the next copy starts with attempt 1",
    "failed": "forgets the failed attempts; the next copy starts with attempt 1",
    "done": "the next copy runs again",
}
_NEXT = {
    "unknown": (OutcomeKind.PROCESSED, "nothing is remembered of it"),
    "running": (OutcomeKind.BUSY, "another worker is running it"),
    "abandoned": (OutcomeKind.PROCESSED, "the worker that ran it never came back"),
    "failed": (OutcomeKind.PROCESSED, "it has failed so far, and runs again until its attempts are used up"),
    "done": (OutcomeKind.DUPLICATE, "it was done before"),
}


@click.command()
@click.argument("keys", nargs=-1)
@click.option("--events", help="A file of events to explain, or - for stdin.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line each.")
@pipeline_options
def explain(keys: tuple[str, ...], events: str | None, config: str | None, *, as_json: bool, **given: Any) -> None:
    """Say why an event was dropped, or what would become of it: its rule, the parts of its key, what is remembered.

    Nothing is claimed or changed. Of a key alone only what is remembered can be told. Exit 1 when an event can never
    be processed.

    \b
      eventonce explain -c pipeline.toml < event.json
      eventonce explain --store sqlite:///billing.db 3f9c2b6c0d4f4b0f9d6a4c1f2e7a8b90
    """
    events = events_or_keys(keys, events)
    settings = read_settings(config, **given)
    good, same = True, _same(config, given["store"])
    with open_existing(settings) as once:
        for told in _all(once, rulebook(settings), keys, events, same):
            click.echo(json.dumps(told) if as_json else _text(told))
            good &= told["now"] != OutcomeKind.REJECTED
    sys.exit(0 if good else 1)


def _same(config: str | None, store: str | None) -> str:
    """The options that have another command look at the same store; no password is said again."""
    given = {"-c": config, "--store": store if store is not None and "@" not in store else None}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value is not None)


def _all(once: Once, book: Rulebook, keys: tuple[str, ...], events: str | None, same: str) -> Iterator[dict[str, Any]]:
    for batch in keys_of(once, keys, None):
        for key, record in zip(batch, once.peek(batch), strict=True):
            yield _of_key(key, record, same)
    if events is not None:
        for delivery in _read(events):
            yield {"place": delivery.location, **_of_event(once, book, _opened(delivery), same)}


def _read(events: str) -> Iterator[Delivery]:
    if "://" in events:
        raise ConfigError(f"--events: {events}: to look at events, give them in a file or on stdin")
    source = FileSource(events)
    try:
        while deliveries := source.receive(100):
            yield from (part for delivery in deliveries for part in split_events(delivery))
    finally:
        source.close()


def _opened(delivery: Delivery) -> Event | EventRejected:
    try:
        if delivery.unreadable is not None:
            raise EventRejected(delivery.unreadable)
        return read_event(delivery.event or delivery.body)
    except EventRejected as error:
        return error


def _of_key(key: Key, record: Record | None, same: str) -> dict[str, Any]:
    remembered = shown(key, record)
    now, because = _NEXT[remembered["state"]]
    told = {"key": key.hex(), "remembered": remembered, "now": now, "because": because}
    return {**told, **_remedies(key, record, now, same)}


def _of_event(once: Once, book: Rulebook, event: Event | EventRejected, same: str) -> dict[str, Any]:
    told = told_of(book, event)
    rejected = told.pop("rejected", None)
    if isinstance(event, EventRejected):
        return {"now": OutcomeKind.REJECTED, "because": rejected}
    told["why"] = _why(book, event)
    if rejected is not None:
        return {**told, "now": OutcomeKind.REJECTED, "because": rejected}
    key, record = _remembered(once, book, event)
    outcome = once.preview(event)
    told |= {"remembered": shown(key, record), "now": outcome.kind, "because": _because(outcome, record)}
    if outcome.first is not None and outcome.first.differs is not None:
        told["differs"] = outcome.first.differs
    return {**told, **_remedies(key, record, outcome.kind, same)}


def _why(book: Rulebook, event: Event) -> str:
    rule = book.find(event)
    if rule is book.all[-1]:
        return "no rule matches, so it is known by its own id"
    match = "it takes every event" if rule.rule.match is None else f"its match is {json.dumps(rule.rule.match)}"
    return f"the first that matches, number {rule.number + 1} of {len(book.all) - 1}; {match}"


def _remembered(once: Once, book: Rulebook, event: Event) -> tuple[Key, Record | None]:
    """The key that something is remembered under: the event's own, or the one under the rule that its rule replaces."""
    keyed = book.key(event)
    records = zip(keyed.keys, once.peek(keyed.keys), strict=True)
    known = [(key, record) for key, record in records if record is not None]
    return known[0] if known else (keyed.key, None)


def _because(outcome: Outcome, record: Record | None) -> str:
    if outcome.kind is OutcomeKind.DUPLICATE and outcome.first is not None:
        told = f"it was done at {outcome.first.at.isoformat(timespec='seconds')}, and the window is not over"
        return f"{told}; but this copy says something else" if outcome.first.differs else told
    if outcome.kind is not OutcomeKind.PROCESSED:
        return describe(outcome.error)
    if record is None:
        return "nothing is remembered of it"
    if record.done_at and not record.tries:
        return f"its version is higher than {record.version}, which was done"
    return f"it is not done yet; this would be attempt {outcome.attempt}"


def _remedies(key: Key, record: Record | None, now: OutcomeKind, same: str) -> dict[str, str]:
    forget, state = f"eventonce forget{same} {key.hex()}: ", shown(key, record)["state"]
    return {
        "forget": f"{'' if record is None else forget}{_FORGET[state]}",
        "redrive": f"eventonce redrive{same} --with-key {key.hex()}: {_REDRIVE[now]}",
    }


# --- for people ---


def _text(told: dict[str, Any]) -> str:
    lines = [one_line(" ".join(str(told[name]) for name in ("place", "id", "source", "type") if told.get(name)))]
    lines += [f"  {name:<11} {value}" for name, value in _rows(told)]
    return "\n".join(line for line in lines if line) + "\n"


def _rows(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "rule" in told:
        yield "rule", f"{told['rule']}: {told['why']}"
    yield from (("part", f"{name} = {_short(value)}") for name, value in told.get("parts", {}).items())
    if told.get("ignored"):
        yield "ignored", ", ".join(map(one_line, told["ignored"]))
    yield from ((name, str(told[name])) for name in ("version", "key") if name in told)
    if "remembered" in told:
        yield from _memory(told["remembered"])
    yield "now", f"{told['now']}: {one_line(told['because'])}"
    yield from ((name, told[name]) for name in ("forget", "redrive") if name in told)


def _memory(remembered: dict[str, Any]) -> Iterator[tuple[str, str]]:
    facts = [f"{name.replace('_', ' ')} {value}" for name, value in remembered.items() if name not in _APART]
    yield "remembered", ", ".join([remembered["state"], *map(one_line, facts)])
    note = remembered.get("note") or {}
    known = [f"{name} {one_line(str(note[name]))}" for name in ("id", "time", "fingerprint") if name in note]
    if known:
        yield "first copy", ", ".join(known)


_APART = ("key", "state", "note")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
