"""The rules of a pipeline: its own first, then those of the presets that it uses."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from eventonce.errors import ConfigError
from eventonce.rules.rule import Rule
from eventonce.text import without_hidden


def load_rules(file: str | PathLike[str]) -> list[Rule]:
    """Return the rules of a pipeline file."""
    from eventonce.rules.files import read_toml  # only if rules are in a file, as presets are
    from eventonce.rules.references import References

    references = References(read_toml(file))
    references.check(str(file))
    try:
        return read_all(references.table, str(file))
    except ConfigError as error:
        raise ConfigError(without_hidden(str(error))) from None


def resolve_rules(rules: Rule | Sequence[Rule] | str | PathLike[str]) -> Sequence[Rule]:
    """Return the rules of a `rules` parameter, which may name a file."""
    if isinstance(rules, (str, PathLike)):
        return load_rules(rules)
    several = [rules] if isinstance(rules, Rule) else rules
    if not isinstance(several, Sequence) or not all(isinstance(rule, Rule) for rule in several):
        raise ConfigError(f"rules: {rules!r:.60} is not a rule; use a Rule, a list of rules or the path of a TOML file")
    return several


def read_all(table: Mapping[str, Any], label: str) -> list[Rule]:
    """Return the rules of the `[[rule]]` tables, and after them those of the presets in `use`."""
    from eventonce.rules.files import read_rules
    from eventonce.rules.preset import rules_of

    presets = table.get("use", [])
    if not isinstance(presets, list) or not all(isinstance(name, str) for name in presets):
        raise ConfigError(f'{label}: use: write the names of presets in a list, such as use = ["genesys"]')
    try:
        return read_rules(table, label) + rules_of(presets)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(label) else f"{label}: {text}") from None
