"""Presets: rules for well-known sources, stored as data with the reason for each choice."""

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
    """The rules for one source, the facts behind them, and how late its copies can come."""

    name: str
    title: str
    note: str
    window: str
    window_why: str
    rules: tuple[Reasoned, ...]


_TEXTS = ("name", "title", "note", "window", "window_why")


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read one preset."""
    names = preset_names()
    if name not in names:
        from difflib import get_close_matches

        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names)}"
        raise ConfigError(f"unknown preset {name!r}; {hint}")
    return _preset(read_toml(_FOLDER / f"{name}.toml"), f"preset {name}")


def rules_of(names: Iterable[str]) -> list[Rule]:
    """Return the rules of these presets, in this order. A preset that is named twice counts once."""
    return [reasoned.rule for name in dict.fromkeys(names) for reasoned in load_preset(name).rules]


def _preset(table: Mapping[str, Any], label: str) -> Preset:
    check_names(table, (*_TEXTS, "rule"), label)
    tables = [dict(rule) for rule in table["rule"]]
    reasons = [rule.pop("why") for rule in tables]
    # The preset's name goes first, so that two presets may both have a rule "events".
    prefixed = [{**rule, "name": f"{table['name']} {rule['name']}"} for rule in tables]
    rules = read_rules({"window": table["window"], "rule": prefixed}, label)
    texts = {field: table[field] for field in _TEXTS}
    return Preset(rules=tuple(map(Reasoned, rules, reasons)), **texts)
