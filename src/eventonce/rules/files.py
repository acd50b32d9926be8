"""TOML files with rules: reading them, and errors that name what is wrong."""

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, get_args

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules.rule import Rule
from eventonce.text import unknown


def read_rules(table: Mapping[str, Any], label: str) -> list[Rule]:
    """Return the `[[rule]]` tables. `window`, `on_store_error` and `remember` above them are their defaults."""
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise ConfigError(f"{label}: rule: write each rule as [[rule]], with two brackets")
    defaults = {name: table[name] for name in ("window", "on_store_error", "remember") if name in table}
    return [_rule({**defaults, **rule}, f"{label}: rule {number}") for number, rule in enumerate(rules, 1)]


def _rule(table: Mapping[str, Any], label: str) -> Rule:
    check_names(table, Rule.__struct_fields__, label)
    try:
        return msgspec.convert(table, Rule)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {explain(error)}") from None
    except ConfigError as error:
        file = label.rpartition(": ")[0]  # the error itself names the rule
        raise ConfigError(f"{file if str(error).startswith('rule ') else label}: {error}") from None


_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "",
}
_MISMATCH = r"Expected `(.+?)`, got `(.+?)`(?: - at `\$\.(.+)`)?"


def explain(error: msgspec.ValidationError) -> str:
    """Return what is wrong with a value, and its valid values if they are few."""
    text = " ".join(str(error).split())
    if mismatch := re.fullmatch(_MISMATCH, text):
        wanted = " or ".join(filter(None, (_TYPES.get(name, name) for name in mismatch[1].split(" | "))))
        return f"{mismatch[3] or 'it'}: must be {wanted}, not {_TYPES.get(mismatch[2], mismatch[2])}"
    field = text.rpartition("$.")[2].rstrip("`")
    choices = get_args(Rule.__annotations__.get(field))
    if "Invalid enum value" not in text or not choices:
        return text
    names = [name for choice in choices for name in (get_args(choice) or (choice,)) if isinstance(name, str)]
    return f"{field}: {text.split(chr(39))[1]!r} is not one of {', '.join(names)}"


def read_toml(file: str | PathLike[str]) -> dict[str, Any]:
    """Read a TOML file, or raise ConfigError with the reason."""
    import tomllib  # only if rules are in a file

    try:
        return tomllib.loads(toml_text(file))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deep") from None


def toml_text(file: str | PathLike[str]) -> str:
    """Return the text of a TOML file, without the BOM that some editors put before it."""
    try:
        with open(file, encoding="utf-8-sig") as opened:
            return opened.read()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; name a pipeline file (TOML)") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from None


def check_names(table: Mapping[str, Any], valid_names: Sequence[str], label: str) -> None:
    """Raise ConfigError for an unknown name, with the nearest valid one."""
    for name in table:
        if name not in valid_names:
            raise ConfigError(f"{label}: {unknown(name, valid_names)}")
