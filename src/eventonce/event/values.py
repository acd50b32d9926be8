"""Values that JSON lacks: their one spelling in keys and in remembered results, and the way back to an annotated type.

docs/keys.md has the table of spellings. What a producer's own JSON says of such a value has the same spelling, so that
a copy that arrives as JSON has the same key: a UUID and its text, a set and a list in its order, an enum and its value.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, get_args, get_origin
from uuid import UUID

import msgspec

from eventonce.errors import ConfigError, EventRejected
from eventonce.event.event import Restore
from eventonce.event.keys import MAX_DEPTH, canonical

_MAX_DIGITS = 1000  # of a Decimal, written without an exponent
_LONGEST_PLACE = 200  # characters of a path in an error
_PLAIN = frozenset((str, int, bool, type(None)))  # a float may be infinite
_MICROSECOND = timedelta(microseconds=1)
_ABSENT: Any = object()


# --- spelling ---


def spell(value: Any, where: str = "", *, exact: bool = False) -> Any:
    """Return a value as JSON can say it, in lists and dicts of its own. Raise `EventRejected` if there is no spelling.

    `where` is the path of the value, for the error. `exact` is for remembered results: a Decimal has its own number of
    digits, and a time its own offset, so that both come back as they were.
    """
    if type(value) in _PLAIN:
        return value
    try:
        return _spell(value, MAX_DEPTH, _EXACT if exact else _CANONICAL)
    except _NoSpellingError as error:
        raise EventRejected(error.sentence(where)) from None
    except RecursionError:  # each level of a model takes several calls
        raise EventRejected(_too_deep().sentence(where)) from None


class _NoSpellingError(Exception):
    """A value without a spelling, with the way to it, the last step first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def sentence(self, where: str) -> str:
        place = (where + "".join(reversed(self.steps))).removeprefix(".")
        if len(place) > _LONGEST_PLACE:  # as of what is nested too deep
            place = where
        return f"{place} {self.reason}" if place else self.reason


_Scalars = Mapping[type, Callable[[Any], Any]]


def _spell(value: Any, depth: int, scalars: _Scalars) -> Any:
    kind = type(value)
    if kind is dict:
        return _dict(value, depth, scalars)
    if kind is list or kind is tuple:
        return _list(value, depth, scalars)
    if kind is float:
        return _float(value)
    if kind in _PLAIN:
        return value
    return scalars[kind](value) if kind in scalars else _other(value, kind, depth, scalars)


def _dict(value: dict[Any, Any], depth: int, scalars: _Scalars) -> dict[str, Any]:
    if depth < 1:
        raise _too_deep()
    own = value.copy()
    name = None
    try:
        for name, item in value.items():
            if type(name) is not str:
                break
            if type(item) not in _PLAIN:
                own[name] = _spell(item, depth - 1, scalars)
        else:
            return own
    except _NoSpellingError as error:
        error.steps.append(f".{name}")
        raise
    return _mapping(value.items(), depth, scalars)


def _list(value: Iterable[Any], depth: int, scalars: _Scalars) -> list[Any]:
    if depth < 1:
        raise _too_deep()
    own = list(value)
    index = 0
    try:
        for index, item in enumerate(own):
            if type(item) not in _PLAIN:
                own[index] = _spell(item, depth - 1, scalars)
    except _NoSpellingError as error:
        error.steps.append(f"[{index}]")
        raise
    return own


def _mapping(items: Iterable[tuple[Any, Any]], depth: int, scalars: _Scalars) -> dict[str, Any]:
    """Spell a mapping whose names may be anything with the spelling of a string or an integer."""
    if depth < 1:
        raise _too_deep()
    own: dict[str, Any] = {}
    for name, item in items:
        text = name if type(name) is str else _name(name)
        if text in own:
            raise _NoSpellingError(f"has two names that are spelt {text!r:.60}; give them different names")
        try:
            own[text] = item if type(item) in _PLAIN else _spell(item, depth - 1, scalars)
        except _NoSpellingError as error:
            error.steps.append(f".{text}")
            raise
    return own


def _name(name: Any) -> str:
    try:
        text = _spell(name, 1, _CANONICAL)
    except _NoSpellingError:
        text = None
    if type(text) is int:
        return str(text)
    if type(text) is not str:
        raise _NoSpellingError(f"has the name {name!r:.60}, and names in JSON are strings; use a string")
    return text


def _other(value: Any, kind: type, depth: int, scalars: _Scalars) -> Any:
    if kind.__module__.partition(".")[0] in _REMEDIES:  # some of them are floats or datetimes with more digits
        raise _no_spelling(value)
    if depth < 0:  # of enums and models that hold one value
        raise _too_deep()
    for base, spell_as in _BASES:
        if isinstance(value, base):
            return spell_as(value, depth, scalars)
    base = next((base for base in scalars if isinstance(value, base)), None)
    if base is not None:
        return scalars[base](value)
    return value.as_posix() if _is_path(kind) else _model(value, kind, depth, scalars)


def _model(value: Any, kind: type, depth: int, scalars: _Scalars) -> Any:
    if getattr(kind, "__pydantic_root_model__", False):
        return _spell(value.root, depth - 1, scalars)
    fields = model_fields(kind)
    if fields is None:
        raise _no_spelling(value)
    pairs = [(wire, getattr(value, name, _ABSENT)) for name, wire in fields]
    pairs = [(wire, item) for wire, item in pairs if item is not _ABSENT and item is not msgspec.UNSET]
    config = getattr(kind, "__struct_config__", None)
    if config is not None and config.array_like:
        return _list(([] if config.tag is None else [config.tag]) + [item for _, item in pairs], depth, scalars)
    tag = [] if config is None or config.tag is None else [(config.tag_field, config.tag)]
    extra = getattr(value, "__pydantic_extra__", None) or {}
    return _mapping([*tag, *pairs, *extra.items()], depth, scalars)


def model_fields(kind: type) -> list[tuple[str, str]] | None:
    """Return the fields of a model class, each by its own name and its name in JSON. Return None for another class."""
    if issubclass(kind, msgspec.Struct):
        return list(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    if hasattr(kind, "__pydantic_validator__"):
        fields: dict[str, Any] = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "model_fields", {})
        return [(name, _alias(kind, name, field)) for name, field in fields.items() if not field.exclude]
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import fields as dataclass_fields

        return [(field.name, field.name) for field in dataclass_fields(kind)]  # type: ignore[arg-type]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [(attribute.name, attribute.name) for attribute in attributes]


def _alias(kind: Any, name: str, field: Any) -> str:
    """Return the name by which pydantic reads a field."""
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    alias = field.validation_alias
    choices = getattr(alias, "choices", [alias])  # of an AliasChoices
    first = next((choice for choice in choices if isinstance(choice, str)), name)
    return name if config.get("validate_by_alias") is False else first


def is_model(value: object) -> bool:
    """Return whether a value is an instance of a model class, whose fields are its spelling."""
    return not isinstance(value, type) and model_fields(type(value)) is not None


def _is_path(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] == "pathlib" and base.__name__ == "PurePath" for base in kind.__mro__)


# --- what has no spelling ---

_REMEDIES = {
    "numpy": "convert it with .item() or .tolist()",
    "pandas": "convert it with .to_pydatetime(), .item() or .to_dict()",
}


def _no_spelling(value: Any) -> _NoSpellingError:
    kind = type(value)
    remedy = _REMEDIES.get(kind.__module__.partition(".")[0])
    if remedy is None:
        remedy = "make a list of it" if isinstance(value, Iterable) else "use plain data, or a model of fields"
    return _NoSpellingError(f"is of type {kind.__name__}, which has no spelling in JSON; {remedy}")


def _too_deep() -> _NoSpellingError:
    return _NoSpellingError(f"is nested deeper than {MAX_DEPTH} levels, or holds itself; use flatter data")


# --- scalars ---


def _float(value: float) -> float:
    if value - value != 0:  # NaN or infinite
        raise _NoSpellingError(f"is the number {value!r}, which JSON has no form for; use None")
    return value


def _datetime(value: datetime) -> str:
    try:
        if value.utcoffset() is None:
            return datetime.isoformat(value.replace(tzinfo=None))
        return datetime.isoformat(value.astimezone(UTC).replace(tzinfo=None)) + "Z"
    except OverflowError:
        raise _NoSpellingError("is a time before the year 1 or after 9999 in UTC; use another") from None


def _datetime_exact(value: datetime) -> str:
    offset = value.utcoffset()
    if offset is None or not offset or offset % timedelta(minutes=1):
        return _datetime(value)
    return datetime.isoformat(value)


def _time(value: time) -> str:
    return time.isoformat(value).replace("+00:00", "Z")


def _timedelta(value: timedelta) -> str:
    microseconds = value // _MICROSECOND
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    digits = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{'-' if microseconds < 0 else ''}PT{seconds}{digits}S"


def _decimal(value: Decimal) -> str:
    """Return a Decimal without an exponent and without zeros at its end, so that equal ones are spelt alike."""
    _check_decimal(value)
    if not value:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimal_exact(value: Decimal) -> str:
    _check_decimal(value)
    return str(value)


def _check_decimal(value: Decimal) -> None:
    if not value.is_finite():
        raise _NoSpellingError(f"is the Decimal {value}, which has no spelling; use None")
    _, digits, exponent = value.as_tuple()
    if len(digits) + abs(int(exponent)) > _MAX_DIGITS and value:
        raise _NoSpellingError(f"is a Decimal of more than {_MAX_DIGITS:,} digits; use a string")


def _base64(value: bytes | bytearray | memoryview) -> str:
    return b2a_base64(bytes(value), newline=False).decode()


# Of subclasses, the first base counts: a datetime is a date as well.
_CANONICAL: _Scalars = {
    datetime: _datetime,
    date: date.isoformat,
    time: _time,
    timedelta: _timedelta,
    Decimal: _decimal,
    UUID: str,
    bytes: _base64,
    bytearray: _base64,
    memoryview: _base64,
}
_EXACT: _Scalars = {**_CANONICAL, datetime: _datetime_exact, Decimal: _decimal_exact}
# What else has a spelling, by its class. An enum may be a string as well.
_BASES: tuple[tuple[Any, Callable[[Any, int, _Scalars], Any]], ...] = (
    (Enum, lambda value, depth, scalars: _spell(value.value, depth - 1, scalars)),
    (str, lambda value, _, __: str.__str__(value)),
    (int, lambda value, _, __: int.__int__(value)),
    (float, lambda value, _, __: _float(float.__float__(value))),
    (Mapping, lambda value, depth, scalars: _mapping(value.items(), depth, scalars)),
    ((list, tuple), _list),
    ((set, frozenset), lambda value, depth, scalars: sorted(_list(value, depth, scalars), key=canonical)),
)


# --- restoring ---

_PACKED = frozenset((str, int, float, bool, type(None), list, dict, tuple, bytes, datetime, Decimal, UUID))


def return_restorer(function: Any, where: str) -> Restore | None:
    """Return the restorer of what a function returns, by its annotation. Names are looked up where it was defined."""
    function = innermost(function)
    annotation = getattr(function, "__annotations__", {}).get("return")
    namespace = getattr(function, "__globals__", {})
    try:
        return restorer(annotation, where, namespace)
    except (NameError, AttributeError):  # a class that is defined later, or imported for type checkers alone
        return later(lambda: restorer(annotation, where, namespace), where)


def innermost(function: Any) -> Any:
    """Return the function itself, without partials, wrappers and the object whose `__call__` it is."""
    from inspect import isroutine, unwrap

    while hasattr(function, "func"):  # a partial
        function = function.func
    function = unwrap(function)
    return function if isroutine(function) else type(function).__call__


def restorer(annotation: Any, where: str, namespace: dict[str, Any] | None = None) -> Restore | None:
    """Return what makes a value of this type of its exact spelling, or None if plain data needs nothing of the kind.

    Raise `ConfigError` if values of this type cannot come back. `namespace` is where the names in strings are looked
    up. Raise `NameError` if one is missing there.
    """
    try:
        annotation = resolved(annotation, namespace or {})
    except SyntaxError:
        raise _cannot_come_back(annotation, where, "it is not a type") from None
    return None if _needs_nothing(annotation) else _restorer(annotation, where, {})


_Made = dict[Any, Restore]  # the restorers of pydantic models, of which one may hold itself


def _restorer(annotation: Any, where: str, made: _Made) -> Restore:
    try:
        return converter_to(annotation, made)
    except TypeError as error:
        raise _cannot_come_back(annotation, where, refusal(error)) from None


def converter_to(annotation: Any, made: _Made) -> Restore:
    """Return what makes a value of this type of its spelling. Raise `TypeError` if that cannot be."""
    converters = _converters(annotation, made)
    for kind, converter in converters.items():
        if converter is None:
            raise TypeError(f"{kind.__name__} is not a type of data")

    def convert(kind: Any, value: Any) -> Any:
        converter = converters[get_origin(kind) or kind]
        assert converter is not None
        return converter(value)

    return lambda value: msgspec.convert(value, annotation, str_keys=True, dec_hook=convert)


def refusal(error: TypeError) -> str:
    """Return why a type was refused, in one line."""
    return " ".join(str(error).split()).partition(" - type ")[0]  # which msgspec repeats


def later(make: Callable[[], Restore | None], where: str) -> Restore:
    """Return what `make` returns, made when it is first needed: only then are all names in an annotation known."""
    made: list[Restore | None] = []

    def restore(value: Any) -> Any:
        if not made:
            try:
                made.append(make())
            except (NameError, AttributeError) as error:
                raise ConfigError(f"{where}: {error}; import it at run time, not for type checkers alone") from None
        return value if made[0] is None else made[0](value)

    return restore


def resolved(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Return a type with the names in its strings looked up in `namespace`."""
    from types import SimpleNamespace
    from typing import get_type_hints

    holder: Any = SimpleNamespace(__annotations__={"return": annotation})
    return get_type_hints(holder, globalns=namespace, include_extras=True)["return"]


def _needs_nothing(annotation: Any) -> bool:
    """Return whether all values of a type are remembered as they are, so that a union of them may be any."""
    from types import UnionType
    from typing import Annotated, Literal, Never, NoReturn, TypeVar, Union

    if isinstance(annotation, TypeVar) or any(annotation is each for each in (Any, None, object, Never, NoReturn, ...)):
        return True
    origin = get_origin(annotation)
    if origin is Literal:
        return all(type(value) in _PACKED for value in get_args(annotation))
    if origin is Annotated:
        return _needs_nothing(get_args(annotation)[0])
    if origin is dict and get_args(annotation)[:1] not in ((), (str,)):  # names need a way back from strings
        return False
    if origin in (Union, UnionType, list, dict, tuple):
        return all(map(_needs_nothing, get_args(annotation)))
    return isinstance(annotation, type) and annotation in _PACKED


def _cannot_come_back(annotation: Any, where: str, reason: str) -> ConfigError:
    shown = annotation.__qualname__ if type(annotation) is type else str(annotation)
    return ConfigError(
        f"{where}: a remembered {shown:.200} cannot come back as one: {reason}; "
        'annotate a model or plain data, or use remember = "note"'
    )


def _converters(annotation: Any, made: _Made) -> dict[type, Restore | None]:
    """Return a converter for each class in a type that msgspec does not know. Raise `TypeError` if it refuses one."""
    from msgspec import inspect

    msgspec.json.Decoder(annotation)  # finds unions whose members JSON cannot distinguish
    customs = {node.cls for node in _nodes(inspect.type_info(annotation)) if isinstance(node, inspect.CustomType)}
    return {kind: _converter(kind, made) for kind in customs}


def _nodes(root: Any) -> Iterator[Any]:
    """Yield all types in the description of a type, which may hold itself."""
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        if isinstance(node, (tuple, list)):
            stack += node
        elif isinstance(node, msgspec.Struct) and id(node) not in seen:
            seen.add(id(node))
            yield node
            stack += [getattr(node, name) for name in node.__struct_fields__]


def _converter(kind: type, made: _Made) -> Restore | None:
    """Return a converter for a class that msgspec does not know, or None if there is none."""
    from inspect import isabstract

    if hasattr(kind, "__pydantic_validator__"):
        if kind not in made:
            made[kind] = lambda value: made[kind](value)  # noqa: PLW0108  # for the model inside itself
            made[kind] = _pydantic(kind, made)
        return made[kind]
    if _is_path(kind):
        return kind
    # Whatever has the methods of an abstract class may be plain data.
    return (lambda value: value) if kind is object or isabstract(kind) or hasattr(kind, "_is_protocol") else None


def _pydantic(model: Any, made: _Made) -> Restore:
    if not holds_bytes(model):
        return lambda value: model.model_validate_json(msgspec.json.encode(value))
    parts: dict[str, Restore] = {}  # pydantic reads the text of bytes as UTF-8, so fields are made before it sees them
    for name, wire in model_fields(model) or ():
        annotation = model.model_fields[name].annotation
        try:
            parts[wire] = _restorer(annotation, f"{model.__name__}.{name}", made)
        except ConfigError:  # pydantic knows more types
            if holds_bytes(annotation):
                raise

    def validate(value: Any) -> Any:
        if isinstance(value, dict):
            value = {name: _part(parts[name], name, item) if name in parts else item for name, item in value.items()}
        return model.model_validate(value)

    return validate


def _part(restore: Restore, name: str, item: Any) -> Any:
    try:
        return restore(item)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        raise ValueError(f"{reason} - at `$.{name}{path or '`'}") from None


def holds_bytes(annotation: Any, around: tuple[Any, ...] = ()) -> bool:
    """Return whether bytes are among the fields of a model, or in a type. `around` are the models that it is in."""
    if annotation is bytes or annotation is bytearray:
        return True
    is_around = any(annotation is each for each in around)
    fields = {} if is_around else getattr(annotation, "__pydantic_fields__", {})
    inner = [field.annotation for field in fields.values()]
    return any(holds_bytes(each, (*around, annotation)) for each in (*get_args(annotation), *inner))
