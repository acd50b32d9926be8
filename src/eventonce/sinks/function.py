"""A Python function as a sink."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventonce.errors import ConfigError


def load_function(url: str) -> Callable[..., Any]:
    """Import the function that `python:package.module:function` names, also from the current folder."""
    module_name, _, name = url.removeprefix("python:").partition(":")
    if not module_name or not name:
        raise ConfigError(f"sink: {url!r} names no function; write python:package.module:function")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"sink: {url}: {module_name!r} is a file; name its module, as python:{dotted}:{name}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        reason = f"{type(error).__name__}: {error}"
        missing = isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "\0")
        remedy = "; run where it is, or set PYTHONPATH to its folder" if missing else "; importing it must not fail"
        raise ConfigError(f"sink: {url}: module {module_name!r} cannot be imported: {reason}{remedy}") from error
    function = getattr(module, name, None)
    if not callable(function):
        from difflib import get_close_matches

        near = get_close_matches(name, [each for each in dir(module) if callable(getattr(module, each))], n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "check the name"
        raise ConfigError(f"sink: {url}: module {module_name!r} has no function {name!r}; {remedy}")
    loaded: Callable[..., Any] = function
    return loaded
