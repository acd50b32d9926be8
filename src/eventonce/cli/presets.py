"""`eventonce presets`: rules for well-known event sources, and the reason for each."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from eventonce.rules.preset import Preset, Reasoned, load_preset, preset_names
from eventonce.rules.rule import Rule

_WIDTH = 100


def _complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in preset_names() if name.startswith(incomplete)]


@click.command()
@click.argument("name", required=False, shell_complete=_complete_names)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line for each preset.")
def presets(name: str | None, *, as_json: bool) -> None:
    """List the presets, or show the rules of one with the reason for each.

    A pipeline uses a whole preset with use = ["genesys"]. The rules can also be pasted into a pipeline and changed.
    Unchanged, both give the same keys.

    \b
      eventonce presets
      eventonce presets genesys
      eventonce presets genesys >> pipeline.toml
    """
    chosen = [load_preset(each) for each in ([name] if name else preset_names())]
    for line in _lines(chosen) if as_json else _one(chosen[0]) if name else _table(chosen):
        click.echo(line)


def _lines(chosen: list[Preset]) -> Iterator[str]:
    for preset in chosen:
        rules = [{**_settings(each.rule), "why": each.why} for each in preset.rules]
        yield json.dumps({**msgspec.structs.asdict(preset), "rules": rules})


def _table(chosen: list[Preset]) -> Iterator[str]:
    width = max(len(preset.name) for preset in chosen)
    for preset in chosen:
        count = len(preset.rules)
        yield f"{preset.name:{width}}  {preset.window:>3}  {count} {'rule ' if count == 1 else 'rules'}  {preset.title}"


def _one(preset: Preset) -> Iterator[str]:
    yield f"# {preset.title}"
    yield "#"
    yield from _comment(preset.note)
    yield "#"
    yield from _comment(f"Window: {preset.window_why}")
    for reasoned in preset.rules:
        yield ""
        yield from _rule(reasoned)


def _rule(reasoned: Reasoned) -> Iterator[str]:
    yield from _comment(reasoned.why)
    yield "[[rule]]"
    for name, value in _settings(reasoned.rule).items():
        yield f"{name} = {_toml(value)}"


def _settings(rule: Rule) -> dict[str, Any]:
    """Return the settings of a rule that differ from the defaults. The key and the window are always included."""
    settings = msgspec.structs.asdict(rule)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Rule)}
    return {name: value for name, value in settings.items() if name in ("key", "window") or value != defaults[name]}


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ")


# --- the part of TOML that rules need ---


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_name(name)} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return _list([_toml(item) for item in value])
    if isinstance(value, str):
        return _text(value)
    return json.dumps(value)  # numbers, true and false are written alike


def _list(items: list[str]) -> str:
    line = f"[{', '.join(items)}]"
    # An inline table must be on one line, a list need not.
    if len(line) <= _WIDTH or any(item.startswith("{") for item in items):
        return line
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _text(value: str) -> str:
    literal = '"' in value and "'" not in value and value.isprintable()
    return f"'{value}'" if literal else json.dumps(value)
