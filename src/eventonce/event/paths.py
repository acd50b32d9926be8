"""Paths: how a rule names values inside an event, and what it leaves out.

Every path starts at the event: `source`, `detail-type`, `id`, `time`, `detail.orderId`. A plain object without an
envelope has its own fields there. `type` and `data` are other names for `detail-type` and `detail`, unless the event
has a field of that name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from eventonce.clock import duration
from eventonce.errors import ConfigError

Getter = Callable[[Any], Any]

ALIASES: Final = {"data": "detail", "type": "detail-type"}
# The fields of envelopes: of EventBridge and its new bus, of CloudEvents and of requests.
ENVELOPE: Final = frozenset((
    *ALIASES, *ALIASES.values(), "id", "source", "time", "version", "account", "region", "resources", "replay-name",
    "Metadata", "SystemMetadata", "specversion", "datacontenttype", "dataschema", "subject", "headers",
))  # fmt: skip
_NAME = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)|("(?:[^"\\]|\\.)*")')


# --- getting a value ---


def getter(text: str, setting: str = "path") -> Getter:
    """Compile a path: names with dots between, or any JMESPath expression. It returns None if it leads nowhere."""
    steps = plain(text)
    if steps is None:
        search = _jmespath(text, setting)
        return (lambda document: search(with_aliases(document))) if ALIASES.keys() & roots(text) else search
    if steps[0] not in ALIASES:
        return lambda document: value_at(document, steps)
    first, aliased = steps[0], (ALIASES[steps[0]], *steps[1:])
    return lambda document: value_at(document, steps if first in document else aliased)


def with_aliases(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of an event with `data` and `type` as well."""
    return {alias: document[name] for alias, name in ALIASES.items() if name in document} | document


def plain(text: str) -> tuple[str, ...] | None:
    """Return the names of a plain path such as `detail.order."line-id"`, or None for any other expression."""
    steps, offset = [], 0
    while match := _name_at(text, offset):
        name, offset = match
        steps.append(name)
        if offset == len(text):
            return tuple(steps)
        if text[offset] != ".":
            return None
        offset += 1
    return None


def value_at(document: Any, steps: Sequence[str]) -> Any:
    """Return the value at a plain path, or None. It is many times as fast as the same in JMESPath."""
    for step in steps:
        if not isinstance(document, dict):
            return None
        document = document.get(step)
    return document


def constant(text: str) -> bool:
    """Return whether a path reads nothing of an event, and so has the same value for all of them."""
    if plain(text) is not None:
        return False
    import jmespath

    return not any(node["type"] in ("field", "current", "identity") for node in _nodes(jmespath.compile(text).parsed))


def roots(text: str) -> frozenset[str]:
    """Return the fields of the event with which a path begins. An expression may read several, or none."""
    steps = plain(text)
    if steps is not None:
        return frozenset(steps[:1])
    import jmespath

    return frozenset(_roots(jmespath.compile(text).parsed))


def unread_times(text: str, document: Any) -> list[Any]:
    """Return the values that a path passes to floor_time and that are not times, which is why it leads nowhere."""
    unread: list[Any] = []
    if plain(text) is None:
        _jmespath(text, "path", unread)(with_aliases(document))
    return unread


def quoted(name: str) -> str:
    """Return a name as a path writes it."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else msgspec.json.encode(name).decode()


def _name_at(text: str, offset: int) -> tuple[str, int] | None:
    """Return the name at this offset and where it ends, or None if there is none or its quoted form is invalid."""
    match = _NAME.match(text, offset)
    if match is None:
        return None
    try:
        return match[1] or msgspec.json.decode(match[2], type=str), match.end()
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _jmespath(text: str, setting: str, unread: list[Any] | None = None) -> Getter:
    import jmespath
    from jmespath.exceptions import JMESPathError

    functions = _functions(unread)
    options = jmespath.Options(custom_functions=functions)
    try:
        compiled = jmespath.compile(text)
        _check_functions(compiled.parsed, functions.FUNCTION_TABLE, f"{setting}: {text!r} is not a path")
        compiled.search({}, options)  # finds a wrong number of arguments now
    except JMESPathError as error:
        if not _concerns_a_value(error):
            raise ConfigError(f"{setting}: {text!r} is not a path{_syntax_hint(error, text)}") from None
    except _BadStep as error:
        raise ConfigError(f"{setting}: {text!r} is not a path: {error}") from None

    def search(document: Any) -> Any:
        try:
            return compiled.search(document, options)
        except (JMESPathError, _BadStep):  # a function does not take the value: it counts as missing
            return None

    return search


class _BadStep(Exception):
    """The second argument of floor_time is not a duration."""


def _nodes(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield tree
    for child in tree["children"]:
        if isinstance(child, Mapping):  # the children of a slice are numbers
            yield from _nodes(child)


_CHAINS = frozenset((  # nodes of which only the first child starts at the event
    "subexpression", "index_expression", "projection", "value_projection", "filter_projection", "pipe",
))  # fmt: skip
_WHOLE = ("current", "identity")


def _roots(tree: Mapping[str, Any]) -> Iterator[str]:
    kind, children = tree["type"], [child for child in tree["children"] if isinstance(child, Mapping)]
    if kind == "field":
        yield tree["value"]
    if kind in ("subexpression", "pipe") and children[0]["type"] in _WHOLE:  # @.detail
        children = children[1:]
    for child in children[:1] if kind in _CHAINS else () if kind == "expref" else children:
        yield from _roots(child)


def _check_functions(tree: Mapping[str, Any], functions: Mapping[str, Any], label: str) -> None:
    """Raise ConfigError for an unknown function. JMESPath itself finds one only when it calls it."""
    for node in _nodes(tree):
        if node["type"] == "function_expression" and node["value"] not in functions:
            from difflib import get_close_matches

            near = get_close_matches(node["value"], functions, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(functions))}"
            raise ConfigError(f"{label}: unknown function {node['value']!r}; {hint}")


_BARE_STEP = re.compile(r"\bfloor_time\(.*?,\s*(\d+\s*[a-z]+)\s*\)")  # such as 1s, which needs quotes

_UNQUOTED = re.compile(r"\w+(?:-\w+)+|\d\w*[A-Za-z_]\w*")  # names that need quotes, such as order-id and 1st


def _syntax_hint(error: Exception, text: str) -> str:
    offset = getattr(error, "lexer_position", getattr(error, "lex_position", None))
    if step := _BARE_STEP.search(text):
        return f" at character {step.start(1) + 1}; write the step in quotes: '{step[1]}'"
    if offset is None:
        return f": {' '.join(str(error).split())}"
    at = f" at character {offset + 1}"
    for name in _UNQUOTED.finditer(text):
        if name.start() <= offset <= name.end():
            return f'{at}; write the name in quotes: "{name[0]}"'
    if text[offset : offset + 1] in tuple("+-/%"):
        return f"{at}; JMESPath has no arithmetic, use a path to a value"
    return f"{at}; write names with dots between, such as detail.orderId, or another expression of JMESPath"


def _concerns_a_value(error: Exception) -> bool:
    """Return whether an expression failed only because it had no value to work on yet."""
    return type(error).__name__ == "JMESPathTypeError"


def _functions(unread: list[Any] | None) -> Any:
    from jmespath import functions

    class Functions(functions.Functions):
        """Our functions beside JMESPath's own."""

        @functions.signature({"types": []})
        def _func_to_string(self, value: Any) -> Any:
            # JMESPath's own makes the text "null" of a missing value, which would be a key like any other.
            parent: Any = super()
            return None if value is None else parent._func_to_string(value)

        @functions.signature({"types": []}, {"types": ["string"]})
        def _func_floor_time(self, value: Any, step: str) -> int | None:
            try:
                floored = floor_time(value, step)
            except ConfigError as error:  # the step may come from an event, which must not stop its reader
                raise _BadStep(str(error)) from None
            if floored is None and value is not None and unread is not None:
                unread.append(value)
            return floored

    return Functions()


# --- times ---

_LONGEST_STEP = 86_400_000  # a day: the weeks of a floored time would begin on Thursdays
_SECONDS_BELOW, _MILLIS_BELOW = 10**11, 10**14  # after the year 5000, in each unit
_NUMBER = r"-?([0-9]{1,17})(?:\.[0-9]+)?"
_CALENDAR = (8, 12, 14, 17)  # this many digits are a date, to the minute, second or millisecond: 20260131235959
_LEAP_SECOND = r"(?<=[Tt ]\d\d:\d\d:)60"


def floor_time(value: Any, step: str) -> int | None:
    """Return a time in milliseconds, floored to a step, or None if the value is not a time.

    A time is in ISO 8601, or seconds, milliseconds or microseconds since 1970, as a number or a string of digits. A
    leap second counts as the first second of the next minute, as it does in POSIX.
    """
    step_millis = duration(step, "floor_time")
    if not 0 < step_millis <= _LONGEST_STEP:
        raise ConfigError(f"floor_time: {step!r} is not a step; use one from 1ms to 1d, such as '1s'")
    time = _millis(value)
    return None if time is None else time // step_millis * step_millis


def _millis(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _from_number(value)
    return _from_text(value) if isinstance(value, str) else None


def _from_text(value: str) -> int | None:
    number = re.fullmatch(_NUMBER, value)
    if number and len(number[1]) not in _CALENDAR:
        return _from_number(float(value) if "." in value else int(value))
    text, leaps = re.subn(_LEAP_SECOND, "59", value)
    time = read_time(text)
    return None if time is None else int((time - _EPOCH).total_seconds() * 1000 // 1) + 1000 * leaps


def _from_number(value: float) -> int | None:
    if value != value or abs(value) >= 10**17:  # noqa: PLR0124  # NaN
        return None
    if abs(value) < _SECONDS_BELOW:
        return int(value * 1000 // 1)
    return int(value // 1) if abs(value) < _MILLIS_BELOW else int(value // 1000)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(value: Any) -> datetime | None:
    """Return an ISO 8601 time as an aware datetime (UTC if it names no zone), or None."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


# --- leaving values out ---

ANY: Final = "*"  # any name
DEEP: Final = "**"  # any number of names and list items, also none
ITEM: Final = "[*]"  # any item of a list


class Wildcard(str):
    """A wildcard. A plain string with the same characters is a name."""

    __slots__ = ()


Steps = tuple[str, ...]


def ignored_path(text: str, setting: str = "ignore") -> Steps:
    """Read a path to leave out: `meta.id`, `items[*].at`, `*.etag`, `**.traceId`."""
    steps: list[str] = []
    offset = 0
    while offset < len(text):
        wild = re.compile(r"\*\*|\*").match(text, offset)
        match = (Wildcard(wild[0]), wild.end()) if wild else _name_at(text, offset)
        if match is None:
            break
        step, offset = match
        steps.append(step)
        while text.startswith(ITEM, offset):
            steps.append(Wildcard(ITEM))
            offset += len(ITEM)
        if offset == len(text) and steps[-1] != DEEP:
            return tuple(steps)
        if not text.startswith(".", offset):
            break
        offset += 1
    raise ConfigError(
        f"{setting}: {text!r} is not a path at character {offset + 1}; write names with dots between, quote names that "
        'have other characters, and use * for any name, [*] for any item, ** for any depth: meta."request-id", '
        "**.traceId"
    )


class Ignored:
    """Paths to leave out of a content key. `strip` returns data without them, and does not change the data itself."""

    strip: Callable[[Any], Any]

    def __init__(self, paths: Iterable[Steps]) -> None:
        all_steps = tuple(paths)
        wild = any(isinstance(step, Wildcard) for steps in all_steps for step in steps)
        self.strip = _Search(all_steps) if wild else partial(_without, _tree(all_steps))


def _tree(paths: Iterable[Steps]) -> dict[str, Any]:
    """Return plain paths as nested names."""
    tree: dict[str, Any] = {}
    for steps in sorted(paths, key=len, reverse=True):  # a short path replaces the longer ones below it
        branch = tree
        for step in steps[:-1]:
            branch = branch.setdefault(step, {})
        branch[steps[-1]] = None
    return tree


def _without(tree: dict[str, Any], value: Any) -> Any:
    """Apply plain paths only. Values that no path names are not visited."""
    if not isinstance(value, dict):
        return value
    stripped = None
    for name in tree:  # noqa: PLC0206  # most of them are not there
        if name in value:
            if stripped is None:
                stripped = value.copy()
            branch = tree[name]
            if branch is None:
                del stripped[name]
            else:
                stripped[name] = _without(branch, stripped[name])
    return value if stripped is None else stripped


_State = frozenset[int]  # how far each path has come: the numbers of the steps that may come next
_OTHER = object()  # any name that no path has
_CONTAINERS = (dict, list)
_MAX_STATES = 1024  # in the cache, which has a bound because whoever sends events decides which states come up


class _Search:
    """A search that follows any paths at once. It takes the same time for a value however deep it is.

    A `**` may end anywhere, so each path may have come to several of its steps. What follows a state is cached.
    """

    def __init__(self, paths: Sequence[Steps]) -> None:
        self._steps: list[str] = []
        self._lasts: set[int] = set()
        starts: list[int] = []
        for steps in paths:
            starts.append(len(self._steps))
            self._steps += steps
            self._lasts.add(len(self._steps) - 1)
        self._names = {step for step in self._steps if not isinstance(step, Wildcard)}
        self._start = self._expand(starts)
        self._cache: dict[_State, _Below] = {}

    def __call__(self, value: Any) -> Any:
        return self._strip(value, self._start)

    def _strip(self, value: Any, state: _State) -> Any:
        if not state:
            return value
        if isinstance(value, dict):
            states, names = self._below(state), self._names
            entries = [(name, item, states[name if name in names else _OTHER]) for name, item in value.items()]
            return {
                name: self._strip(item, below) if isinstance(item, _CONTAINERS) else item
                for name, item, below in entries
                if below is not None
            }
        if isinstance(value, list):
            below = self._below(state)[None]
            if below is None:
                return []
            return [self._strip(item, below) if isinstance(item, _CONTAINERS) else item for item in value]
        return value

    def _below(self, state: _State) -> "_Below":
        below = self._cache.get(state)
        if below is None:
            if len(self._cache) >= _MAX_STATES:
                self._cache.clear()
            below = self._cache[state] = _Below(self, state)
        return below

    def advance(self, state: _State, name: object) -> _State | None:
        """Return the state below a name, or below a list's items (None). Return None if a path ends there."""
        numbers: list[int] = []
        for number in state:
            step = self._steps[number]
            if isinstance(step, Wildcard) and step == DEEP:
                numbers.append(number)
            elif _matches(step, name):
                if number in self._lasts:
                    return None
                numbers.append(number + 1)
        return self._expand(numbers)

    def _expand(self, numbers: Iterable[int]) -> _State:
        """Return the state of these steps, and of the steps after each `**` among them, which may match nothing."""
        state: set[int] = set()
        for start in numbers:
            number = start
            while number not in state:
                state.add(number)
                number += self._steps[number] == DEEP and isinstance(self._steps[number], Wildcard)
        return frozenset(state)


class _Below(dict[object, _State | None]):
    """The states that follow one state, computed when they are first needed."""

    __slots__ = ("_search", "_state")

    def __init__(self, search: _Search, state: _State) -> None:
        super().__init__()
        self._search = search
        self._state = state

    def __missing__(self, name: object) -> _State | None:
        self[name] = below = self._search.advance(self._state, name)
        return below


def _matches(step: str, name: object) -> bool:
    if isinstance(step, Wildcard):
        return step == (ITEM if name is None else ANY)
    return step == name
