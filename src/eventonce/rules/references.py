"""Values of a pipeline file that come from outside it.

`${NAME}` is an environment variable, `${NAME:-default}` one that may be missing, and `${file:PATH}` the text of a file,
such as a mounted secret. A value that begins with `file:` is the text of a file as a whole. `$${` is a plain `${`.

They are replaced after the file was parsed, so that no variable can add a setting. What decides which events are the
same stays as it is written, so that it can be reviewed.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from eventonce.errors import ConfigError
from eventonce.text import hide_value

Position = tuple[str | int, ...]  # of a value: names of settings, and numbers in lists

REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FILE = "file:"
_MAX_FILE = 64 * 1024  # bytes
LITERAL = frozenset({"name", "key", "otherwise", "ignore", "digest", "match", "version", "replaces", "pattern", "test"})
_PLACES = frozenset({"source", "sink", "dead_letter"})  # in which `file:` names a file of events


class Missing(NamedTuple):
    """A value that is not there."""

    position: Position
    reason: str

    def __str__(self) -> str:
        text = ""
        for part in self.position:
            text += f" {part}" if isinstance(part, int) else f": {part}" if text else part
        return f"{text}: {self.reason}"


class References:
    """The references in a pipeline file, and the table without them."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.missing: list[Missing] = []  # whose settings the table lacks
        self.table: dict[str, Any] = self._expand_table(table, ())

    def check(self, label: str) -> None:
        """Raise `ConfigError` if values are missing."""
        if self.missing:
            raise ConfigError(f"{label}: " + "; ".join(map(str, self.missing)))

    def _expand_table(self, table: Mapping[str, Any], position: Position) -> dict[str, Any]:
        expanded = {
            name: value if name in LITERAL else self._expand(value, (*position, name)) for name, value in table.items()
        }
        return {name: value for name, value in expanded.items() if not isinstance(value, Missing)}

    def _expand(self, value: Any, position: Position) -> Any:
        if isinstance(value, Mapping):
            return self._expand_table(value, position)
        if isinstance(value, list):
            items = [self._expand(item, (*position, number)) for number, item in enumerate(value, 1)]
            return [item for item in items if not isinstance(item, Missing)]
        if not isinstance(value, str):
            return value
        try:
            if value.startswith(_FILE) and position[-1] not in _PLACES:
                return self._note(_text_of(value.removeprefix(_FILE)), value)
            return REFERENCE.sub(self._replacement, value) if "${" in value else value
        except _Unavailable as unavailable:
            missing = Missing(position, str(unavailable))
            self.missing.append(missing)
            return missing

    def _replacement(self, match: re.Match[str]) -> str:
        reference, inside = match[0], match[1]
        if reference == "$${":
            return "${"
        if inside is not None and inside.startswith(_FILE):
            return self._note(_text_of(inside.removeprefix(_FILE)), reference)
        variable = _VARIABLE.fullmatch(inside or "")
        if variable is None:
            raise _Unavailable(f"{reference} names no variable; write ${{NAME}}, or $${{ for a plain ${{")
        value = os.environ.get(variable[1]) or variable[2]
        if value is None:
            name = variable[1]
            raise _Unavailable(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        return self._note(value, reference)

    def _note(self, value: str, written: str) -> str:
        hide_value(value, written)
        return value


class _Unavailable(Exception):
    """A value is not there, for this reason."""


def _text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_FILE + 1).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _Unavailable(f"the file {path!r} cannot be read: {reason}") from None
    if not text.strip() or len(text) > _MAX_FILE:
        raise _Unavailable(
            f"the file {path!r} is empty or larger than {_MAX_FILE // 1024} KiB; write the value into it"
        )
    return text.strip()
