"""All rules of a pipeline: its own first, then those of the presets it uses."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from eventonce.errors import ConfigError
from eventonce.rules.rule import Rule


def load_rules(file: str | PathLike[str]) -> list[Rule]:
    """The rules of a pipeline file."""
    from eventonce.rules.files import read_toml  # only where rules are in a file, as presets are

    return read_all(read_toml(file), str(file))


def given_rules(rules: Rule | Sequence[Rule] | str | PathLike[str]) -> Sequence[Rule]:
    """The rules that someone gave in Python: as they are, or by the name of their file."""
    if isinstance(rules, (str, PathLike)):
        return load_rules(rules)
    found = [rules] if isinstance(rules, Rule) else rules
    if not isinstance(found, Sequence) or not all(isinstance(rule, Rule) for rule in found):
        raise ConfigError(f"rules: {rules!r:.60} is no rule; give Rule(...), a list of them, or a TOML file's name")
    return found


def read_all(table: Mapping[str, Any], where: str) -> list[Rule]:
    """The `[[rule]]` tables, and behind them the rules of the presets in `use`."""
    from eventonce.rules.files import read_rules
    from eventonce.rules.preset import rules_of

    used = table.get("use", [])
    if not isinstance(used, list) or not all(isinstance(name, str) for name in used):
        raise ConfigError(f'{where}: use: write the names of presets in a list, such as use = ["genesys"]')
    try:
        return read_rules(table, where) + rules_of(used)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from None
