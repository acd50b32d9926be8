"""`eventonce key`: which rule, which parts, which key."""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from eventonce.cli.options import pipeline_options, read_settings
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.event.difference import differences
from eventonce.event.formats import MAX_BYTES, read_events
from eventonce.rules import CompiledRule, Rulebook
from eventonce.sources import FileSource
from eventonce.wire import rulebook


@click.command()
@click.argument("files", nargs=-1)
@click.option("--compare", is_flag=True, help="Say whether two events are the same: exit 0 if so, 1 if not.")
@pipeline_options
def key(files: tuple[str, ...], config: str | None, *, compare: bool, **given: Any) -> None:
    """Show the key of events, one JSON line each: the rule, the parts with their values, what was ignored, the key.

    FILES are files of events in any carrier's shape, - or none is stdin. With --compare, two files of one event each:
    the fields that make them different are listed. Two versions of one thing are different events.

    \b
      eventonce key -c pipeline.toml < event.json
      eventonce key -c pipeline.toml --compare a.json b.json
    """
    book = rulebook(read_settings(config, **given))
    if compare:
        if len(files) != 2:
            raise click.UsageError("--compare takes two files, of one event each")
        sys.exit(_compare(book, *map(_one_event, files)))
    good = True
    for name in files or ("-",):
        good &= _show(book, name)
    sys.exit(0 if good else 1)


def _show(book: Rulebook, name: str) -> bool:
    good = True
    for place, event in _events(name):
        told = told_of(book, event)
        good &= "rejected" not in told
        click.echo(json.dumps({"place": place, **told}))
    return good


def _events(name: str) -> Iterator[tuple[str, Event | EventRejected]]:
    """The events of a file, each with its place."""
    if "://" in name:
        raise ConfigError(f"{name}: to look at events, give them in a file or on stdin")
    source = FileSource(name)
    try:
        while deliveries := source.receive(100):
            for each in deliveries:
                trouble = None if each.unreadable is None else [EventRejected(each.unreadable)]
                yield from ((each.location, event) for event in trouble or read_events(each.body, MAX_BYTES))
    finally:
        source.close()


def told_of(book: Rulebook, event: Event | EventRejected) -> dict[str, Any]:
    """The rule, the parts and the key of an event, or why it has none."""
    if isinstance(event, EventRejected):
        return {"rejected": str(event)}
    rule = book.find(event)
    told: dict[str, Any] = {"rule": rule.name, "source": event.source, "type": event.type, "id": event.id}
    try:
        keyed = rule.key(event)
    except EventRejected as error:
        return {**told, "rejected": str(error)}
    told |= {"key": keyed.key.hex(), "parts": rule.parts(event), "ignored": _ignored(rule.stripped(event), event)}
    more = {"old_key": keyed.old_key and keyed.old_key.hex(), "version": keyed.version, "replay": _replay(rule, event)}
    return told | {name: value for name, value in more.items() if value is not None}


def _replay(rule: CompiledRule, event: Event) -> str | None:
    """The replay that an event may run once more in, if its rule says so."""
    return event.replay if rule.rule.replay == "reprocess" else None


def _ignored(stripped: Any, event: Event) -> list[str]:
    return sorted(differences(event.data, stripped))


def _compare(book: Rulebook, left: Event, right: Event) -> int:
    one, other = told_of(book, left), told_of(book, right)
    answer: dict[str, Any] = {"rules": [one["rule"], other["rule"]], "keys": [one.get("key"), other.get("key")]}
    if rejected := [f"{name}: {each['rejected']}" for name, each in (("a", one), ("b", other)) if "rejected" in each]:
        return _answer({"same": False, **answer, "rejected": rejected})
    shared = _keys(one) & _keys(other)
    same = bool(shared) and one.get("version") == other.get("version")
    if not same or one["key"] != other["key"]:
        answer["differs"] = _differs(one, other)
    if same and one["key"] != other["key"]:
        answer["because"] = f"they share the old key {min(shared)}, which counts while the rule has replaces"
    return _answer({"same": same, **answer})


def _answer(answer: dict[str, Any]) -> int:
    click.echo(json.dumps(answer))
    return 0 if answer["same"] else 1


def _keys(told: dict[str, Any]) -> set[str]:
    return {told[name] for name in ("key", "old_key") if name in told}


def _differs(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    if left["rule"] != right["rule"]:
        return [f"they fall under different rules: {left['rule']} and {right['rule']}"]
    found = [path for name in left["parts"] | right["parts"] for path in _of_part(name, left, right)]
    return sorted(found + [name for name in ("replay", "version") if left.get(name) != right.get(name)])


def _of_part(name: str, left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    """Where two events differ in a part of their keys; a content's own fields without a name before them."""
    if name not in left["parts"] or name not in right["parts"]:
        return iter((name,))
    one, other = left["parts"][name], right["parts"][name]
    return differences(one, other, "" if name == "content" and isinstance(one, dict) else name)


def _one_event(name: str) -> Event:
    found = list(itertools.islice(_events(name), 2))
    if len(found) != 1:
        held = "more than one event" if found else "no event"
        raise ConfigError(f"{name}: holds {held}; --compare takes files of one event each")
    place, event = found[0]
    if isinstance(event, EventRejected):
        raise ConfigError(f"{place}: {event}")
    return event
