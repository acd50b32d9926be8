"""What the key of a call is made of: paths into its arguments, all of them, or what a function makes of them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from eventonce.engine.calls.binder import read_signature
from eventonce.engine.context import is_async
from eventonce.errors import ConfigError, EventRejected
from eventonce.event.keys import Part, canonical, is_empty, part
from eventonce.event.paths import Ignored, Wildcard, ignored_path, plain
from eventonce.event.values import spell

Values = tuple[Any, ...]  # of all parameters, in their order
_ABSENT = {Parameter.VAR_POSITIONAL: b"[]", Parameter.VAR_KEYWORD: b"{}"}  # `*args` and `**kwargs` of which none came


class KeyParts(NamedTuple):
    """What makes the parts of a key. `kind` says how, in the domain of the digest."""

    kind: str
    make: Callable[[Values], Iterable[Part]]


def key_parts(label: str, signature: Signature, receiver: str | None, key: Any, ignore: Sequence[str]) -> KeyParts:
    """Read the `key` and `ignore` of a decorated function. Raise `ConfigError` if they do not fit its parameters."""
    if key == "content":
        return KeyParts("call content", Content(label, signature, receiver, ignore))
    if ignore:
        raise ConfigError(f'{label}: ignore only means something with key="content"')
    if callable(key):
        return KeyParts("call function", _Made(label, signature, key))
    paths = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else []
    if not paths or not all(isinstance(path, str) for path in paths):
        raise ConfigError(
            f'{label}: key: {key!r} is neither a path such as "order.id", nor several, nor "content", nor a function'
        )
    by_paths = _Paths([ArgumentPath(label, signature, text, "key") for text in paths])
    return KeyParts(f"call paths {canonical(paths).decode()}", by_paths)


# --- paths ---


class ArgumentPath:
    """A path to a value inside the arguments, such as `order.id`."""

    def __init__(self, label: str, signature: Signature, text: str, setting: str) -> None:
        names = plain(text)
        if names is None:
            raise ConfigError(
                f"{label}: {setting}: {text!r} is not a path; write names with dots between, or a function as key"
            )
        self.text = text
        self._label = label
        self._purpose = f"which is its {setting}" if setting == "version" else f"which is in its {setting}"
        self._index = _index(label, signature, names[0], f"{setting}: {text!r}")
        self._steps = names[1:]
        default = signature.parameters[names[0]].default
        self._may_be_empty = not self._steps and _is_empty_default(default)

    def __call__(self, values: Values) -> Any:
        """Return the value as JSON can say it. Raise `EventRejected` if the path leads nowhere."""
        value = values[self._index]
        for step in self._steps:
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step, None)
        if callable(value):
            raise EventRejected(f"has a function as {self.text}, {self._purpose}; use a path to a value")
        spelt = spell(value, self.text)
        if is_empty(spelt) and not self._may_be_empty:  # as of orders that are not saved yet
            raise EventRejected(f"has no {self.text}, {self._purpose}")
        return spelt


def _is_empty_default(default: Any) -> bool:
    try:
        return is_empty(spell(default))
    except EventRejected:  # it has no spelling, as the mark of a parameter without a default
        return False


class _Paths:
    def __init__(self, paths: Sequence[ArgumentPath]) -> None:
        self._paths = paths

    def __call__(self, values: Values) -> Sequence[Part]:
        return [part(path(values)) for path in self._paths]


def _index(label: str, signature: Signature, name: str, setting: str) -> int:
    names = list(signature.parameters)
    if name not in names:
        known = ", ".join(names) or "none"
        raise ConfigError(f"{label}: {setting} begins with {name!r}, and its parameters are {known}")
    return names.index(name)


# --- content ---


class Content:
    """All arguments but `self` and `cls`, and but those that are spelt like their defaults.

    So a new optional parameter leaves the keys as they were. Defaults are compared by spelling, since `True == 1`.
    """

    def __init__(
        self, label: str, signature: Signature, receiver: str | None, ignore: Sequence[str], *, strict: bool = True
    ) -> None:
        is_list = isinstance(ignore, Iterable) and not isinstance(ignore, str)
        if not is_list or not all(isinstance(text, str) for text in ignore):
            raise ConfigError(f"{label}: ignore: {ignore!r} is not a list of paths")
        paths = [ignored_path(text, f"{label}: ignore") for text in ignore]
        for text, steps in zip(ignore, paths, strict=True):
            if not isinstance(steps[0], Wildcard):
                _index(label, signature, steps[0], f"ignore: {text!r}")
        left_out = {steps[0] for steps in paths if len(steps) == 1 and not isinstance(steps[0], Wildcard)} | {receiver}
        nested = [steps for steps in paths if steps[0] not in left_out or isinstance(steps[0], Wildcard)]
        self._ignored = Ignored(nested) if nested else None
        self._strict = strict  # else what has no spelling is left out
        self._parameters = [
            (index, parameter, canonical(name) + b":")
            for index, (name, parameter) in enumerate(signature.parameters.items())
            if name not in left_out
        ]
        self._parameters.sort(key=lambda each: each[1].name.encode("utf-16-be"))  # as RFC 8785 sorts names
        self._defaults: dict[str, bytes] = {}
        for _, parameter, _ in self._parameters:
            if parameter.kind in _ABSENT:  # also if all that came is ignored
                self._defaults[parameter.name] = _ABSENT[parameter.kind]
            elif parameter.default is not Parameter.empty:
                self._read_default(label, parameter)

    def __call__(self, values: Values) -> Sequence[Part]:
        return [(b"j", self.text(values))]

    def text(self, values: Values) -> bytes:
        """Return the canonical form of the arguments, as one object by name."""
        document: dict[str, Any] = {}
        prefixes: list[bytes] = []
        for index, parameter, prefix in self._parameters:
            value = values[index]
            if value is parameter.default or (parameter.kind in _ABSENT and not value):
                continue
            try:
                document[parameter.name] = spell(value, parameter.name)
            except EventRejected:
                if self._strict:
                    raise
                continue
            prefixes.append(prefix)
        if self._ignored is not None:
            document = self._ignored.strip(document)
            prefixes = [prefix for _, parameter, prefix in self._parameters if parameter.name in document]
        texts = zip(prefixes, document, map(canonical, document.values()), strict=True)
        return b"{%b}" % b",".join([b + text for b, name, text in texts if self._defaults.get(name) != text])

    def _read_default(self, label: str, parameter: Parameter) -> None:
        try:
            document = {parameter.name: spell(parameter.default, parameter.name)}
            stripped = document if self._ignored is None else self._ignored.strip(document)
            if stripped:
                self._defaults[parameter.name] = canonical(stripped[parameter.name])
        except EventRejected as error:
            if self._strict:
                raise ConfigError(
                    f"{label}: the default of {parameter.name} cannot be in a key: {error}; "
                    f'add "{parameter.name}" to ignore, or use a key of paths'
                ) from None


# --- a function as key ---


class _Made:
    """What a function makes of the arguments that it names."""

    def __init__(self, label: str, signature: Signature, function: Callable[..., object]) -> None:
        if is_async(function):
            raise ConfigError(f"{label}: key: the function is async def, and a key is made before anything is awaited")
        self._function = function
        names = list(signature.parameters)
        self._positional: list[int] = []
        self._named: dict[str, int] = {}
        for parameter in read_signature(function, f"{label}: key: the function").parameters.values():
            if parameter.kind is Parameter.VAR_KEYWORD:
                self._named |= {name: index for index, name in enumerate(names)}
            elif parameter.kind is Parameter.VAR_POSITIONAL:
                raise ConfigError(
                    f"{label}: key: the function takes *{parameter.name}, and it gets the arguments that it names; "
                    "name those that it needs"
                )
            elif parameter.name in names:
                self._take(parameter, names.index(parameter.name))
            elif parameter.default is Parameter.empty:
                raise ConfigError(
                    f"{label}: key: the function takes {parameter.name!r}, and the parameters of the call are "
                    f"{', '.join(names) or 'none'}; name those that it needs"
                )

    def _take(self, parameter: Parameter, index: int) -> None:
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            self._positional.append(index)
        else:
            self._named[parameter.name] = index

    def __call__(self, values: Values) -> Sequence[Part]:
        positional = [values[index] for index in self._positional]
        made = self._function(*positional, **{name: values[index] for name, index in self._named.items()})
        if inspect.isawaitable(made):
            raise EventRejected(f"has no key: its key function returned {made!r:.60}")
        spelt = spell(made, "the key")
        # Each item of a list is a part, and one that is missing would leave half a key.
        if is_empty(spelt) or (isinstance(spelt, list) and any(map(is_empty, spelt))):
            raise EventRejected(
                f"has no key: its key function returned {made!r:.60}; return a value that identifies the call, with "
                "no empty part"
            )
        return [part(spelt)]
