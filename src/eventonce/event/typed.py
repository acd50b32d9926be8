"""Typed handlers: the annotation of the event's parameter decides what a handler gets.

A model, or any other type of data, is made of the event's data. `Event[Order]` is the event with an `Order` as its
data. `Event` alone, a mapping, `Any` or no annotation is the event as it was read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, get_args, get_origin

import msgspec

from eventonce.errors import ConfigError, EventInvalid
from eventonce.event.event import Delivery, Event, Restore
from eventonce.event.values import converter_to, holds_bytes, innermost, later, refusal, resolved

Validate = Callable[[Event], Any]  # makes the argument of a handler of an event, or raises EventInvalid

_AS_READ = (Event, dict, Mapping, MutableMapping)
_OTHER_FORMS = (str, bytes, bytearray, Delivery)
_LONGEST_PATH, _LONGEST_REASON = 200, 300  # characters in an error
_MISSING = re.compile("Object missing required field `(.*)`")  # which msgspec does not count as part of the path
_KNOWN = {"Event": Event, "Mapping": Mapping, "Any": Any}  # often imported for type checkers alone


def event_validator(function: Any, annotation: Any, where: str, *, names_later: bool) -> Validate | None:
    """Return what makes the argument that a handler takes of an event, or None if it takes the event as it was read.

    Raise `ConfigError` if that cannot be. Names in the annotation are looked up where the function was defined. With
    `names_later`, those that are missing there are looked up again at its first event.
    """
    names = getattr(innermost(function), "__globals__", {})
    try:
        return _validator(annotation, where, _KNOWN | names)
    except (NameError, AttributeError) as error:  # a class that is defined later, or imported for type checkers alone
        if names_later:
            return later(lambda: _validator(annotation, where, _KNOWN | names), where)
        raise ConfigError(f"{where}: {error}; import it at run time, not for type checkers alone") from None


def _validator(annotation: Any, where: str, namespace: dict[str, Any]) -> Validate | None:
    try:
        annotation = resolved(annotation, namespace)
    except SyntaxError:
        raise _refused(annotation, where, "it is not a type") from None
    if _is_as_read(annotation):
        return None
    if get_origin(annotation) is Event:
        (kind,) = get_args(annotation)
        make = _maker(kind, annotation, where)
        return lambda event: msgspec.structs.replace(event, data=make(event.data))
    if annotation in _OTHER_FORMS:
        raise ConfigError(
            f"{where} takes {annotation.__name__}, and handlers get an Event; annotate Event, of which event.raw is "
            "the bytes that arrived, and event.line() one line of JSON in any case"
        )
    make = _maker(annotation, annotation, where)
    return lambda event: make(event.data)


def _is_as_read(annotation: Any) -> bool:
    """Return whether a handler with this annotation gets the event as it was read."""
    from types import NoneType, UnionType
    from typing import Annotated, TypeVar, Union

    if isinstance(annotation, TypeVar) or any(annotation is each for each in (Any, object, NoneType, *_AS_READ)):
        return True
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_as_read(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return all(map(_is_as_read, get_args(annotation)))
    return origin in _AS_READ and (origin is not Event or _is_as_read(get_args(annotation)[0]))


def _maker(kind: Any, annotation: Any, where: str) -> Restore:
    """Return what makes a value of a type of an event's data. Raise `ConfigError` if that cannot be."""
    try:
        convert = _converter(kind)
    except TypeError as error:
        raise _refused(annotation, where, refusal(error)) from None
    name = _shown(kind)

    def make(data: Any) -> Any:
        try:
            return convert(data)
        except (msgspec.ValidationError, ValueError) as error:
            steps, reason = _problem(error)
            path = ("data" + "".join(steps))[:_LONGEST_PATH]
            raise EventInvalid(f"{path} does not fit {name:.100}: {reason[:_LONGEST_REASON]}") from error

    return make


def _converter(kind: Any) -> Restore:
    """Return a converter to a type: pydantic's own if its classes are in it, else msgspec's."""
    if not _is_pydantic(kind):
        return converter_to(kind, {})
    if hasattr(kind, "model_validate_json") and holds_bytes(kind):  # pydantic would not read them as base64
        return converter_to(kind, {})
    if holds_bytes(kind):
        raise TypeError("bytes of pydantic are read only in a model; use a BaseModel")
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    try:
        adapter: Any = TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise TypeError(str(error).partition("\n")[0]) from None
    return lambda data: adapter.validate_json(msgspec.json.encode(data))


def _is_pydantic(kind: Any) -> bool:
    """Return whether a class of pydantic is in a type."""
    return hasattr(kind, "__pydantic_validator__") or any(map(_is_pydantic, get_args(kind)))


def _refused(annotation: Any, where: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{where} takes {_shown(annotation):.200}, which no event can become: {reason}; annotate a model (pydantic 2, "
        "msgspec, attrs, dataclass), Event[Model] or Event"
    )


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


# --- what is wrong with the data, and where ---


def _problem(error: Exception) -> tuple[list[str], str]:
    """Return the way to the first value that does not fit, and why it does not."""
    if hasattr(error, "errors") and hasattr(error, "error_count"):  # of pydantic
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        more = error.error_count() - 1
        return list(_steps(first["loc"])), f"{first['msg']}{f' (and {more:,} more)' if more else ''}"
    text, cause = str(error), error.__cause__
    if isinstance(cause, ValueError) and text.startswith(str(cause)):  # of a model in another
        inner, message = _problem(cause)
        return [text.removeprefix(str(cause)).partition("$")[2].rstrip("`"), *inner], message
    message, _, path = text.partition(" - at `$")
    steps = [path.rstrip("`")]
    if missing := _MISSING.fullmatch(message):
        return [*steps, f".{missing[1]}"], "it is missing"
    return steps, message


def _steps(location: Iterable[Any]) -> Iterator[str]:
    for step in location:
        yield f"[{step}]" if isinstance(step, int) else f".{step}"
