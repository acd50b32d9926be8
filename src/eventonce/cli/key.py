"""`eventonce key`: which rule, which parts, which key."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from eventonce.cli.options import pipeline_options, read_settings
from eventonce.difference import differences
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.formats import MAX_BYTES, read_events
from eventonce.pipeline import rulebook
from eventonce.rules import Rulebook
from eventonce.sources import open_source


@click.command()
@click.argument("files", nargs=-1)
@click.option("--compare", is_flag=True, help="Say whether two events are the same: exit 0 if so, 1 if not.")
@pipeline_options
def key(files: tuple[str, ...], config: str | None, *, compare: bool, **given: Any) -> None:
    """Show the key of events, one JSON line each: the rule, the parts with their values, what was ignored, the key.

    FILES are files of events in any carrier's shape; stdin without any. With --compare, two files of one event each:
    the fields that make them different are listed.

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
    source, good = open_source(name), True
    try:
        while deliveries := source.receive(100):
            for delivery in deliveries:
                for event in read_events(delivery.body, MAX_BYTES):
                    told = told_of(book, event)
                    good &= "rejected" not in told
                    click.echo(json.dumps({"place": delivery.place, **told}))
    finally:
        source.close()
    return good


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
    return told if keyed.version is None else {**told, "version": keyed.version}


def _ignored(stripped: Any, event: Event) -> list[str]:
    return sorted(differences(event.data, stripped))


def _compare(book: Rulebook, left: Event, right: Event) -> int:
    told = [told_of(book, event) for event in (left, right)]
    rejected = [f"{name}: {each['rejected']}" for name, each in zip("ab", told, strict=True) if "rejected" in each]
    same = not rejected and told[0]["key"] == told[1]["key"]
    rules = [each["rule"] for each in told]
    answer: dict[str, Any] = {"same": same, "rules": rules, "keys": [each.get("key") for each in told]}
    if rejected:
        answer["rejected"] = rejected
    elif not same and rules[0] == rules[1]:
        answer["differs"] = sorted(differences(_flat(told[0]["parts"]), _flat(told[1]["parts"])))
    elif not same:
        answer["differs"] = [f"they fall under different rules: {rules[0]} and {rules[1]}"]
    click.echo(json.dumps(answer))
    return 0 if same else 1


def _flat(parts: dict[str, Any]) -> dict[str, Any]:
    """Parts named by the field they come from: a content's own fields without a name before them."""
    content = parts.get("content")
    if not isinstance(content, dict):
        return parts
    return {**content, **{name: value for name, value in parts.items() if name != "content"}}


def _one_event(name: str) -> Event:
    try:
        found = read_events(Path(name).read_bytes(), MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None
    if len(found) != 1:
        raise ConfigError(f"{name}: holds {len(found)} events; --compare takes files of one event each")
    if isinstance(found[0], EventRejected):
        raise ConfigError(f"{name}: {found[0]}")
    return found[0]
