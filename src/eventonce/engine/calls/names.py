"""Names of functions: what the keys of their calls are scoped by. Two functions of one name would share their keys."""

import inspect
import sys
from typing import Any

_MAINS = ("__main__", "__mp_main__")  # a script, and the same in a child process that multiprocessing has spawned
_LOCAL = ("<locals>", "<lambda>")
RECEIVERS = ("self", "cls")


def module_name(module: str | None) -> str | None:
    """Return the name by which other processes import a module. Return None if it has none, as a script."""
    if module not in _MAINS:
        return module
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)  # set by python -m
    name: str = "" if spec is None else spec.name.removesuffix(".__main__")
    return None if name in ("", *_MAINS) else name


def full_name(thing: Any) -> str:
    """Return the module and qualified name of a function or class, as far as it has them."""
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None) or repr(thing)
    return f"{module_name(module) or module}.{name}"


def is_lasting(thing: Any) -> bool:
    """Return whether the full name of a function or class means the same in other processes and at other times."""
    name = getattr(thing, "__qualname__", "<lambda>")
    return module_name(getattr(thing, "__module__", None)) is not None and not any(local in name for local in _LOCAL)


def class_name(function: Any) -> str | None:
    """Return the full name of the class that a function is defined in, or None."""
    parent = full_name(function).rpartition(".")[0]
    name = getattr(function, "__qualname__", "").rpartition(".")[0]
    return None if not name or name.endswith("<locals>") else parent


def receiver(function: Any, signature: inspect.Signature) -> str | None:
    """Return the name of the parameter that takes the instance or class of a method, or None."""
    first = next(iter(signature.parameters), None)
    return first if first in RECEIVERS else None
