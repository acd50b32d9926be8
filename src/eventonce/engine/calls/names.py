"""Names of functions: what the keys of their calls are scoped by. Two functions of one name would share their keys."""

import gc
import inspect
import sys
from typing import Any
from weakref import ref

_MAINS = ("__main__", "__mp_main__")  # a script, and the same in a child process that multiprocessing has spawned
_LOCAL = ("<locals>", "<lambda>")
RECEIVERS = ("self", "cls")


def module_name(module: str | None) -> str | None:
    """Return the name by which other processes import a module. Return None if it has none, as a script."""
    if module not in _MAINS:
        return module
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)  # set by python -m
    name: str = "" if spec is None else spec.name
    return None if name in ("", *_MAINS) else name


def is_name(value: object) -> bool:
    """Return whether a value can scope keys: a string that is not empty and has a form in UTF-8."""
    return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value


def full_name(thing: Any) -> str:
    """Return the module and qualified name of a function or class, as far as it has them."""
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None) or repr(thing)
    return f"{module_name(module) or module}.{name}"


def is_lasting(thing: Any) -> bool:
    """Return whether the full name of a function or class means the same in other processes and at other times."""
    name = getattr(thing, "__qualname__", "<lambda>")
    return module_name(getattr(thing, "__module__", None)) is not None and not any(local in name for local in _LOCAL)


def leads_to(cls: type) -> bool:
    """Return whether the full name of a class leads to it, and not to nothing or to another one."""
    value: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is cls


def class_name(function: Any) -> str | None:
    """Return the full name of the class that a function is defined in, or None."""
    parent = full_name(function).rpartition(".")[0]
    name = getattr(function, "__qualname__", "").rpartition(".")[0]
    return None if not name or name.endswith("<locals>") else parent


def receiver(function: Any, signature: inspect.Signature) -> str | None:
    """Return the name of the parameter that takes the instance or class of a method, or None."""
    first = next(iter(signature.parameters), None)
    return first if first in RECEIVERS else None


class Named:
    """A function that has a name, as far as it shows whether another function may take the name over.

    A module that is reloaded, or a cell that runs again, defines the same function anew. Two functions of one name that
    both stay would take each other's calls for done: those that `singledispatch` registers as `_`, what one factory
    returns, and what one decorator makes with `functools.wraps`.
    """

    def __init__(self, function: Any) -> None:
        inner = inspect.unwrap(function)
        self.label = full_name(function)
        self._function = _weak(function)
        self._inner = _weak(inner)
        self._code = getattr(inner, "__code__", None)
        self._spec = getattr(inner, "__globals__", {}).get("__spec__")  # each run of a module has its own

    def is_replaced_by(self, other: "Named") -> bool:
        """Return whether the other is the same function, or the same one defined anew."""
        ours, theirs = self._code, other._code
        if self.label != other.label or ours is None or theirs is None:
            return self.label == other.label
        if ours is theirs:
            return self._is_run_again(other) or self._function() is other._function() or self._is_gone()
        if ours.co_filename != theirs.co_filename:
            return False
        if self._spec is None and other._spec is None:  # a script or a cell
            return bool(ours.co_firstlineno == theirs.co_firstlineno)
        return self._spec is not other._spec

    def _is_run_again(self, other: "Named") -> bool:
        """Return whether one definition at the top of a module has run twice, and nothing in it differs."""
        ours, theirs = self._inner(), other._inner()
        if ours is None or ours is theirs or any(local in ours.__qualname__ for local in _LOCAL):
            return False
        return _bound_values(ours) == _bound_values(theirs)

    def _is_gone(self) -> bool:
        gc.collect()
        return self._function() is None


def _bound_values(function: Any) -> tuple[Any, ...]:
    """Return the identities of what a function has beside its code."""
    named = function.__kwdefaults__ or {}
    return id(function.__closure__), id(function.__defaults__), *((name, id(value)) for name, value in named.items())


def _weak(function: Any) -> Any:
    try:
        return ref(function)
    except TypeError:  # of a built-in type
        return lambda: None
