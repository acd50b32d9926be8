"""Binders: functions with the parameters of another function, which return its arguments as a tuple.

A binder is compiled once, so that Python itself binds the arguments, with its own words for what is wrong with them.
`inspect.Signature.bind` takes twenty times as long.
"""

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from eventonce.errors import ConfigError

Binder = Callable[..., tuple[Any, ...]]

_STARS: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_ANYTHING = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}


def read_signature(function: Callable[..., Any], label: str) -> Signature:
    """Return the parameters that a function really takes. Raise `ConfigError` if they cannot be read.

    A wrapper's own parameters count, unless it passes everything on.
    """
    try:
        own = inspect.signature(function, follow_wrapped=False)
        passes_on = {parameter.kind for parameter in own.parameters.values()} == _ANYTHING
        return inspect.signature(function) if passes_on else own
    except (TypeError, ValueError):
        raise ConfigError(
            f"{label} has no signature that Python can read; write a def function that calls it, and decorate that"
        ) from None


def make_binder(signature: Signature, name: str) -> Binder:
    """Return the binder of a signature. It raises the `TypeError` that a call of a function of this name would."""
    parameters = list(signature.parameters.values())
    prefix = "_default"
    while any(parameter.name.startswith(prefix) for parameter in parameters):
        prefix = f"_{prefix}"
    defaults = {
        f"{prefix}{index}": parameter.default
        for index, parameter in enumerate(parameters)
        if parameter.default is not Parameter.empty
    }
    texts = [_text(parameter, f"{prefix}{index}") for index, parameter in enumerate(parameters)]
    kinds = [parameter.kind for parameter in parameters]
    if Parameter.VAR_POSITIONAL not in kinds and Parameter.KEYWORD_ONLY in kinds:
        texts.insert(kinds.index(Parameter.KEYWORD_ONLY), "*")
    if Parameter.POSITIONAL_ONLY in kinds:
        texts.insert(kinds.count(Parameter.POSITIONAL_ONLY), "/")
    names = "".join(f"{parameter.name}, " for parameter in parameters)
    source = f"def bind({', '.join(texts)}): return ({names})"
    exec(compile(source, "<eventonce binder>", "exec"), defaults)  # noqa: S102  # of identifiers only
    bind: Any = defaults["bind"]
    bind.__qualname__ = name
    binder: Binder = bind
    return binder


def _text(parameter: Parameter, default: str) -> str:
    text = f"{_STARS.get(parameter.kind, '')}{parameter.name}"
    return text if parameter.default is Parameter.empty else f"{text}={default}"
