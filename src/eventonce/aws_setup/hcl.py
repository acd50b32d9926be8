"""HCL, as far as our Terraform needs it, laid out as `terraform fmt` would."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_WIDE = 100
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Reference(str):
    """An expression, written as it is."""

    __slots__ = ()


class Block(dict[str, Any]):
    """A block inside another."""


class _Encoded(dict[str, Any]):
    """An object that Terraform is to turn into JSON."""


def encoded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document that stands in an attribute as JSON text."""
    return _Encoded(document)


def block(*labels: str, body: Mapping[str, Any]) -> str:
    """A block of the file, with a newline at its end."""
    kind, *names = labels
    head = " ".join([kind, *(json.dumps(name) for name in names)])
    return "\n".join([f"{head} {{", *_lines(body), "}", ""])


def _lines(body: Mapping[str, Any]) -> Iterator[str]:
    """Attributes, with the = of neighbours that take one line each below one another; and then blocks."""
    waiting: list[tuple[str, str]] = []
    for name, value in body.items():
        if isinstance(value, Block) or _blocks(value):
            yield from _aligned(waiting)
            waiting = []
            for each in value if isinstance(value, list) else [value]:
                yield from ("", f"  {name} {{", *_indented(_lines(each)), "  }")
            continue
        first, *rest = _value(value)
        key = name if _NAME.fullmatch(name) else json.dumps(name)
        if not rest:
            waiting.append((key, first))
            continue
        yield from _aligned(waiting)
        waiting = []
        yield f"  {key} = {first}"
        yield from _indented(rest)
    yield from _aligned(waiting)


def _blocks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Block) for each in value)


def _aligned(attributes: list[tuple[str, str]]) -> Iterator[str]:
    wide = max((len(name) for name, _ in attributes), default=0)
    for name, value in attributes:
        yield f"  {name:{wide}} = {value}"


def _indented(lines: Any) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def _value(value: Any) -> list[str]:
    """A value, in one line or several."""
    if isinstance(value, Mapping):
        opening, closing = ("jsonencode({", "})") if isinstance(value, _Encoded) else ("{", "}")
        return [opening, *_lines(value), closing]
    if isinstance(value, list):
        return _list([_value(each) for each in value])
    if isinstance(value, Reference):
        return [str(value)]
    text = json.dumps(value)
    return [text.replace("${", "$${").replace("%{", "%%{") if isinstance(value, str) else text]


def _list(items: list[list[str]]) -> list[str]:
    line = "[" + ", ".join(" ".join(item) for item in items) + "]"
    if all(len(item) == 1 for item in items) and len(line) <= _WIDE:
        return [line]
    inner = [line for item in items for line in _indented([*item[:-1], f"{item[-1]},"])]
    return ["[", *inner, "]"]
