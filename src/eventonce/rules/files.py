"""Rules as they are written in TOML."""

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, get_args

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules.rule import Rule


def read_rules(table: Mapping[str, Any], where: str) -> list[Rule]:
    """The `[[rule]]` tables; a window above them holds for those that name none, and so do the two others."""
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise ConfigError(f"{where}: rule: write each rule as [[rule]], with two brackets")
    defaults = {name: table[name] for name in ("window", "on_store_error", "remember") if name in table}
    return [_rule({**defaults, **rule}, f"{where}: rule {number}") for number, rule in enumerate(rules, 1)]


def _rule(table: Mapping[str, Any], where: str) -> Rule:
    check_names(table, Rule.__struct_fields__, where)
    try:
        return msgspec.convert(table, Rule)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explain(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


_TYPES = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "",
}
_MISMATCH = r"Expected `(.+?)`, got `(.+?)`(?: - at `\$\.(.+)`)?"


def explain(error: msgspec.ValidationError) -> str:
    """What is wrong with a value, and what it may be where there are only a few."""
    text = " ".join(str(error).split())
    if text == "Object missing required field `name`":
        return "a rule has no name; give each rule a name of its own"
    if mismatch := re.fullmatch(_MISMATCH, text):
        wanted = " or ".join(filter(None, (_TYPES.get(name, name) for name in mismatch[1].split(" | "))))
        return f"{mismatch[3] or 'it'}: must be {wanted}, not {_TYPES.get(mismatch[2], mismatch[2])}"
    field = text.rpartition("$.")[2].rstrip("`")
    choices = get_args(Rule.__annotations__.get(field))
    if "Invalid enum value" not in text or not choices:
        return text
    named = [each for choice in choices for each in (get_args(choice) or (choice,)) if isinstance(each, str)]
    return f"{field}: {text.split(chr(39))[1]!r} is not one of {', '.join(named)}"


def read_toml(file: str | PathLike[str]) -> dict[str, Any]:
    """A TOML file, or why it cannot be read."""
    import tomllib  # only where rules are in a file

    try:
        return tomllib.loads(toml_text(file))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deep") from None


def toml_text(file: str | PathLike[str]) -> str:
    """The text of a TOML file, without the BOM that some editors put before it."""
    try:
        with open(file, encoding="utf-8-sig") as opened:
            return opened.read()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8: {error.reason} at byte {error.start}") from None


def check_names(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse a name that is not known, and say which one is nearest."""
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: {unknown(name, known)}")


def unknown(name: str, known: Sequence[str]) -> str:
    """That a name is not known, and which one may have been meant."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"{name!r} is not known; " + (f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}")
