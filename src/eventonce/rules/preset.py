"""Presets: rules for well-known sources, kept as data with the reason for each choice."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules.files import check_names, read_rules, read_toml
from eventonce.rules.rule import Rule

_FOLDER = Path(__file__).with_name("presets")


class Reasoned(msgspec.Struct, frozen=True):
    """A rule and the reason for it."""

    rule: Rule
    why: str


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for one source, where the facts behind them come from, and how late its copies can be."""

    name: str
    title: str
    note: str
    window: str
    window_why: str
    rules: tuple[Reasoned, ...]


_SAID = ("name", "title", "note", "window", "window_why")


def preset_names() -> list[str]:
    """The presets there are."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read one preset."""
    names = preset_names()
    if name not in names:
        from difflib import get_close_matches

        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise ConfigError(f"{name!r} is not a preset; {hint}")
    return _preset(read_toml(_FOLDER / f"{name}.toml"), f"preset {name}")


def rules_of(names: Iterable[str]) -> list[Rule]:
    """The rules of these presets, in the order given; a preset that is named twice counts once."""
    return [each.rule for name in dict.fromkeys(names) for each in load_preset(name).rules]


def _preset(table: Mapping[str, Any], where: str) -> Preset:
    check_names(table, (*_SAID, "rule"), where)
    tables = [dict(rule) for rule in table["rule"]]
    whys = [rule.pop("why") for rule in tables]
    # The preset's name goes first, so that two presets may both have a rule "events".
    named = [{**rule, "name": f"{table['name']} {rule['name']}"} for rule in tables]
    rules = read_rules({"window": table["window"], "rule": named}, where)
    said = {field: table[field] for field in _SAID}
    return Preset(rules=tuple(map(Reasoned, rules, whys)), **said)
