"""`eventonce key`: the rule, the parts and the key of an event."""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from eventonce.cli.options import (
    complete_files,
    pipeline_options,
    read_file,
    read_settings,
    takes_pipeline,
    traffic_paths,
)
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.event.difference import differences
from eventonce.event.formats import MAX_BYTES, read_events
from eventonce.rules import CompiledRule, Rulebook
from eventonce.settings import rulebook


@click.command()
@takes_pipeline("files")
@click.argument("files", nargs=-1, shell_complete=complete_files)
@click.option("--compare", is_flag=True, help="Compare two events: exit 0 if they are the same, 1 if not.")
@pipeline_options
def key(files: tuple[str, ...], pipeline: str | None, *, compare: bool, **options: Any) -> None:
    """Show the key of events, one JSON line each: the rule, the parts with their values, the ignored fields, the key.

    FILES are files of events in any carrier's shape. Without files or with -, events are read from stdin. With
    --compare, name two files of one event each: the fields that make them different are listed. Two versions of one
    thing are different events.

    \b
      eventonce key pipeline.toml < event.json
      eventonce key pipeline.toml --compare a.json b.json
    """
    rules = rulebook(read_settings(pipeline, **options))
    if compare:
        if len(files) != 2:
            raise click.UsageError("--compare takes two files, of one event each")
        sys.exit(_compare(rules, *map(_one_event, files)))
    all_keyed = True
    for name in traffic_paths(files):
        all_keyed &= _show(rules, name)
    sys.exit(0 if all_keyed else 1)


def _show(rulebook: Rulebook, name: str) -> bool:
    """Print the key of each event in a file. Return whether all of them have one."""
    all_keyed = True
    for position, event in _events(name):
        fields = describe_event(rulebook, event)
        all_keyed &= "rejected" not in fields
        click.echo(json.dumps({"place": position, **fields}))
    return all_keyed


def _events(name: str) -> Iterator[tuple[str, Event | EventRejected]]:
    """Yield the events of a file, each with its position."""
    for deliveries in read_file(name):
        for delivery in deliveries:
            rejected = None if delivery.unreadable is None else [EventRejected(delivery.unreadable)]
            yield from ((delivery.location, event) for event in rejected or read_events(delivery.body, MAX_BYTES))


def describe_event(rulebook: Rulebook, event: Event | EventRejected) -> dict[str, Any]:
    """Return the rule, the parts and the key of an event, or the reason that it has none."""
    if isinstance(event, EventRejected):
        return {"rejected": str(event)}
    rule = rulebook.find(event)
    fields: dict[str, Any] = {"rule": rule.name, "source": event.source, "type": event.type, "id": event.id}
    try:
        keyed = rule.key(event)
    except EventRejected as error:
        return {**fields, "rejected": str(error)}
    fields |= {"key": keyed.key.hex(), "parts": rule.parts(event), "ignored": _ignored(rule.stripped(event), event)}
    optional = {
        "old_key": keyed.old_key and keyed.old_key.hex(),
        "version": keyed.version,
        "replay": _replay(rule, event),
    }
    return fields | {name: value for name, value in optional.items() if value is not None}


def _replay(rule: CompiledRule, event: Event) -> str | None:
    """Return the replay in which an event may run once more, if its rule allows that."""
    return event.replay if rule.rule.replay == "reprocess" else None


def _ignored(stripped: Any, event: Event) -> list[str]:
    return sorted(differences(event.data, stripped, "detail"))


def _compare(rulebook: Rulebook, left: Event, right: Event) -> int:
    one, other = describe_event(rulebook, left), describe_event(rulebook, right)
    result: dict[str, Any] = {"rules": [one["rule"], other["rule"]], "keys": [one.get("key"), other.get("key")]}
    if rejected := [f"{name}: {each['rejected']}" for name, each in (("a", one), ("b", other)) if "rejected" in each]:
        return _print_result({"same": False, **result, "rejected": rejected})
    shared = _keys(one) & _keys(other)
    same = bool(shared) and one.get("version") == other.get("version")
    if not same or one["key"] != other["key"]:
        result["differs"] = _differs(one, other)
    if same and one["key"] != other["key"]:
        result["because"] = f"they share the old key {min(shared)}, which counts while the rule has replaces"
    return _print_result({"same": same, **result})


def _print_result(result: dict[str, Any]) -> int:
    """Print the result of a comparison, and return its exit code."""
    click.echo(json.dumps(result))
    return 0 if result["same"] else 1


def _keys(fields: dict[str, Any]) -> set[str]:
    return {fields[name] for name in ("key", "old_key") if name in fields}


def _differs(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    if left["rule"] != right["rule"]:
        return [f"they fall under different rules: {left['rule']} and {right['rule']}"]
    paths = [path for name in left["parts"] | right["parts"] for path in _of_part(name, left, right)]
    return sorted(paths + [name for name in ("replay", "version") if left.get(name) != right.get(name)])


def _of_part(name: str, left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    """Yield the paths at which two events differ in a part. Paths in the content start at the event, as all do."""
    if name not in left["parts"] or name not in right["parts"]:
        return iter((name,))
    one, other = left["parts"][name], right["parts"][name]
    return differences(one, other, "detail" if name == "content" else name)


def _one_event(name: str) -> Event:
    events = list(itertools.islice(_events(name), 2))
    if len(events) != 1:
        raise ConfigError(f"{name}: holds more than one event; --compare takes files of one event each")
    position, event = events[0]
    if isinstance(event, EventRejected):
        raise ConfigError(f"{position}: {event}")
    return event
