"""Binders: the same arguments and the same refusals as Python itself."""

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eventonce import ConfigError
from eventonce.engine.calls.binder import make_binder, read_signature

_NAMES = ["a", "b", "c", "_default0", "_default", "self", "bind"]
_KINDS = [
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
    Parameter.KEYWORD_ONLY,
    Parameter.VAR_KEYWORD,
]


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    names = draw(st.lists(st.sampled_from(_NAMES), unique=True, max_size=6))
    kinds = sorted(draw(st.lists(st.sampled_from(_KINDS), min_size=len(names), max_size=len(names))))
    parameters: list[Parameter] = []
    for name, kind in zip(names, kinds, strict=True):
        starred = kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if starred and any(other.kind is kind for other in parameters):
            continue
        positional = kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        must_default = positional and any(other.default is not Parameter.empty for other in parameters)
        has_default = not starred and (must_default or draw(st.booleans()))
        parameters.append(Parameter(name, kind, default=[name] if has_default else Parameter.empty))
    return Signature(parameters)


@settings(max_examples=300)
@given(
    signatures(),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from([*_NAMES, "x"]), st.integers(), max_size=4),
)
def test_a_binder_binds_as_inspect_does(signature: Signature, args: list[int], kwargs: dict[str, int]) -> None:
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if Parameter.VAR_KEYWORD in kinds.values():  # Python puts such a name into it, and inspect of 3.11 refuses it
        assume(not any(kinds.get(name) is Parameter.POSITIONAL_ONLY for name in kwargs))
    binder = make_binder(signature, "f")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            binder(*args, **kwargs)
        return
    bound.apply_defaults()
    values = binder(*args, **kwargs)
    assert values == tuple(bound.arguments[name] for name in signature.parameters)
    for value, parameter in zip(values, signature.parameters.values(), strict=True):
        if value == parameter.default:
            assert value is parameter.default  # defaults are the objects themselves


def test_what_is_wrong_is_said_in_python_s_own_words() -> None:
    def charge(order: Any, *, currency: str = "EUR") -> None: ...

    binder = make_binder(inspect.signature(charge), "charge")
    with pytest.raises(TypeError, match=r"^charge\(\) missing 1 required positional argument: 'order'$"):
        binder()
    with pytest.raises(TypeError, match=r"^charge\(\) got an unexpected keyword argument 'curency'"):
        binder(1, curency="USD")


def test_a_wrapper_that_passes_everything_on_has_the_signature_of_what_it_wraps() -> None:
    from functools import wraps

    def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    def takes_less(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inner(order: Any) -> Any:
            return function("tool", order)

        return inner

    def charge(tool: Any, order: Any) -> None: ...

    assert list(read_signature(passes_on(charge), "charge").parameters) == ["tool", "order"]
    assert list(read_signature(takes_less(charge), "charge").parameters) == ["order"]


def test_a_function_without_a_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^dict has no signature that Python can read; write a def function"):
        read_signature(dict, "dict")
