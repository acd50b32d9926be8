"""Text for people: counts with their nouns, and text from outside made safe for logs and terminals.

An event, a file name or a server's answer may hold line breaks that forge a log line, sequences that a terminal obeys,
and marks that reorder the letters around them. `str.isprintable` is False for all of them.
"""

import json
from collections.abc import Sequence
from typing import Any

_MAX_LENGTH = 500
_SHORTEST_HIDDEN = 4  # characters of a value
_CERTAIN = 16  # characters at the beginning of a value that are as good as all of it, since messages are cut
_CUTS = ("", "'", '"', ".", "\\")  # what may follow a value that is cut
_hidden: dict[str, str] = {}  # values that came from outside a pipeline file, with what the file has in their place


def printable(text: str) -> str:
    """Return the text with an escape, such as `\\x1b`, for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def one_line(text: str) -> str:
    """Return the text on one line, without control characters and shortened if it is long."""
    line = " ".join(spaced(text[: 2 * _MAX_LENGTH]).split())
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."


def spaced(text: str) -> str:
    """Return the text with a space for each character that is not printable."""
    return "".join(character if character.isprintable() else " " for character in text)


def safe_json(encoded: str) -> str:
    """Return JSON of one line with an escape of JSON for each character that is not printable."""
    if encoded.isprintable():
        return encoded
    return "".join(character if character.isprintable() else _json_escape(character) for character in encoded)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def type_of(value: Any) -> str:
    """Return the type of a value for a message that says "is", such as `of type int`. None is itself."""
    return "None" if value is None else f"of type {type(value).__name__}"


def unknown(name: str, valid_names: Sequence[str]) -> str:
    """Return the error for an unknown setting, with the valid name that may have been meant."""
    from difflib import get_close_matches

    near = get_close_matches(name, valid_names, n=1)
    return f"unknown setting {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"use {', '.join(valid_names)}")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun for a message, such as `1 file` or `2,000 files`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


# --- values that no message shows ---


def hide_value(value: str, written: str) -> None:
    """Let no message show a value, which may be secret. `written` is what the pipeline file has in its place."""
    if len(value) >= _SHORTEST_HIDDEN:
        spellings = (value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
        _hidden.update(dict.fromkeys(spellings, written))


def without_hidden(text: str) -> str:
    """Return a message with what the pipeline file has in place of hidden values, also of those that are cut."""
    for value in sorted(_hidden, key=len, reverse=True):
        start = 0
        while (start := text.find(value[:_CERTAIN], start)) >= 0:
            end = start + _common_length(value, text[start : start + len(value)])
            is_value = end - start == len(value) or text[end : end + 1] in _CUTS
            text = text[:start] + _hidden[value] + text[end:] if is_value else text
            start += len(_hidden[value]) if is_value else 1
    return text


def _common_length(value: str, text: str) -> int:
    pairs = zip(value, text, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), len(text))
