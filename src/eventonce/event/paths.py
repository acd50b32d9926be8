"""Paths: how a rule names what is inside an event, and what it leaves out."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from eventonce.clock import duration
from eventonce.errors import ConfigError

Getter = Callable[[Any], Any]

_NAME = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)|("(?:[^"\\]|\\.)*")')


# --- getting a value ---


def getter(text: str, what: str = "path") -> Getter:
    """Prepare a path: names with dots between, or anything JMESPath can say. It gives None where it leads nowhere."""
    steps = plain(text)
    if steps is not None:
        return lambda document: value_at(document, steps)
    return _jmespath(text, what)


def plain(text: str) -> tuple[str, ...] | None:
    """The names of a plain path such as `detail.order."line-id"`; None for any other expression."""
    steps, at = [], 0
    while found := _name_at(text, at):
        name, at = found
        steps.append(name)
        if at == len(text):
            return tuple(steps)
        if text[at] != ".":
            return None
        at += 1
    return None


def value_at(document: Any, steps: Sequence[str]) -> Any:
    """What a plain path leads to, or None. Many times as fast as a JMESPath expression that says the same."""
    for step in steps:
        if not isinstance(document, dict):
            return None
        document = document.get(step)
    return document


def constant(text: str) -> bool:
    """Whether a path looks at nothing in an event, and so leads to the same value in all of them."""
    if plain(text) is not None:
        return False
    import jmespath

    return not any(node["type"] in ("field", "current", "identity") for node in _nodes(jmespath.compile(text).parsed))


def unread_times(text: str, document: Any) -> list[Any]:
    """The values that a path gives to floor_time and that are no times: why it leads nowhere."""
    unread: list[Any] = []
    if plain(text) is None:
        _jmespath(text, "path", unread)(document)
    return unread


def quoted(name: str) -> str:
    """A name as a path writes it."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else msgspec.json.encode(name).decode()


def _name_at(text: str, at: int) -> tuple[str, int] | None:
    """The name that stands here and where it ends; None where there is none, or what stands in quotes is no text."""
    match = _NAME.match(text, at)
    if match is None:
        return None
    try:
        return match[1] or msgspec.json.decode(match[2], type=str), match.end()
    except msgspec.DecodeError:
        return None


def _jmespath(text: str, what: str, unread: list[Any] | None = None) -> Getter:
    import jmespath
    from jmespath.exceptions import JMESPathError

    functions = _functions(unread)
    options = jmespath.Options(custom_functions=functions)
    try:
        compiled = jmespath.compile(text)
        _check_functions(compiled.parsed, functions.FUNCTION_TABLE, f"{what}: {text!r} is not a path")
        compiled.search({}, options)  # so that a wrong number of arguments is found now
    except JMESPathError as error:
        if not _only_a_value(error):
            raise ConfigError(f"{what}: {text!r} is not a path{_why(error)}") from None
    except _BadStep as error:
        raise ConfigError(f"{what}: {text!r} is not a path: {error}") from None

    def search(document: Any) -> Any:
        try:
            return compiled.search(document, options)
        except (JMESPathError, _BadStep):  # a function was given what it does not take: as good as missing
            return None

    return search


class _BadStep(Exception):
    """What floor_time is to floor to is no duration."""


def _nodes(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield tree
    for child in tree["children"]:
        if isinstance(child, Mapping):  # the children of a slice are numbers
            yield from _nodes(child)


def _check_functions(tree: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """JMESPath itself finds an unknown function only when it comes to call it."""
    for node in _nodes(tree):
        if node["type"] == "function_expression" and node["value"] not in known:
            from difflib import get_close_matches

            near = get_close_matches(node["value"], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{where}: there is no function {node['value']!r}; {hint}")


def _why(error: Exception) -> str:
    at = getattr(error, "lexer_position", getattr(error, "lex_position", None))
    if at is None:
        return f": {' '.join(str(error).split())}"
    return (
        f' at character {at + 1}; quote names that have other characters than letters, digits and _: detail."order-id"'
    )


def _only_a_value(error: Exception) -> bool:
    """Whether an expression failed only because there was nothing for it to work on yet."""
    return type(error).__name__ == "JMESPathTypeError"


def _functions(unread: list[Any] | None) -> Any:
    from jmespath import functions

    class Functions(functions.Functions):
        """Our functions beside JMESPath's own."""

        @functions.signature({"types": []}, {"types": ["string"]})
        def _func_floor_time(self, value: Any, step: str) -> int | None:
            try:
                floored = floor_time(value, step)
            except ConfigError as error:  # the step may come from an event, which must not stop what reads it
                raise _BadStep(str(error)) from None
            if floored is None and value is not None and unread is not None:
                unread.append(value)
            return floored

    return Functions()


# --- times ---

_SECONDS_BELOW, _MILLIS_BELOW = 10**11, 10**14  # later than the year 5000, in each unit
_NUMBER = r"-?([0-9]{1,17})(?:\.[0-9]+)?"
_CALENDAR = (8, 12, 14, 17)  # so many digits are a date, to the minute, second or millisecond: 20260131235959
_LEAP_SECOND = r"(?<=[Tt ]\d\d:\d\d:)60"


def floor_time(value: Any, step: str) -> int | None:
    """A time floored, in milliseconds; None where it is none.

    It is written in ISO 8601, or as seconds, milliseconds or microseconds since 1970, in a number or a text of digits.
    A leap second counts as the first second of the next minute, as it does in POSIX.
    """
    every = duration(step, "floor_time") or 1
    moment = _millis(value)
    return None if moment is None else moment // every * every


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
    """An ISO 8601 time as an aware moment (UTC where it names no zone), or None."""
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
    """A wildcard; a plain string with the same letters is a name."""

    __slots__ = ()


Steps = tuple[str, ...]


def ignored_path(text: str, what: str = "ignore") -> Steps:
    """Read a path to leave out: `meta.id`, `items[*].at`, `*.etag`, `**.traceId`."""
    steps: list[str] = []
    at = 0
    while at < len(text):
        wild = re.compile(r"\*\*|\*").match(text, at)
        found = (Wildcard(wild[0]), wild.end()) if wild else _name_at(text, at)
        if found is None:
            break
        step, at = found
        steps.append(step)
        while text.startswith(ITEM, at):
            steps.append(Wildcard(ITEM))
            at += len(ITEM)
        if at == len(text) and steps[-1] != DEEP:
            return tuple(steps)
        if not text.startswith(".", at):
            break
        at += 1
    raise ConfigError(
        f"{what}: {text!r} is not a path at character {at + 1}; write names with dots between, quote names that have "
        'other characters, and use * for any name, [*] for any item, ** for any depth: meta."request-id", **.traceId'
    )


class Ignored:
    """Paths to leave out of a content key."""

    def __init__(self, paths: Iterable[Steps]) -> None:
        listed = tuple(paths)
        wild = any(isinstance(step, Wildcard) for steps in listed for step in steps)
        self._search = _Search(listed) if wild else None
        self._tree: dict[str, Any] = {}
        for steps in sorted(listed, key=len, reverse=True):  # a short path also swallows the longer ones below
            branch = self._tree
            for step in steps[:-1]:
                branch = branch.setdefault(step, {})
            branch[steps[-1]] = None

    def strip(self, data: Any) -> Any:
        """The data without what is ignored; what was given is left as it is."""
        return _without(data, self._tree) if self._search is None else self._search(data)


def _without(value: Any, tree: dict[str, Any]) -> Any:
    """Plain paths only: looks at nothing that no path names."""
    if not isinstance(value, dict):
        return value
    kept = None
    for name in tree:  # noqa: PLC0206  # most of them are not there
        if name in value:
            if kept is None:
                kept = value.copy()
            branch = tree[name]
            if branch is None:
                del kept[name]
            else:
                kept[name] = _without(kept[name], branch)
    return value if kept is None else kept


_State = frozenset[int]  # how far each path has come: the numbers of the steps that may come next
_OTHER = object()  # any name that no path has
_HOLDERS = (dict, list)
_MOST_STATES = 1024  # that are kept; which of them come up, whoever sends events decides


class _Search:
    """Any paths: follows all of them at once, and takes the same time for a value however deep it is.

    A `**` may end anywhere, so each path may have come to several of its steps. What follows is found out once.
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
        self._start = self._reached(starts)
        self._known: dict[_State, _Below] = {}

    def __call__(self, value: Any) -> Any:
        return self._kept(value, self._start)

    def _kept(self, value: Any, state: _State) -> Any:
        if not state:
            return value
        if isinstance(value, dict):
            known, names = self._below(state), self._names
            found = [(name, item, known[name if name in names else _OTHER]) for name, item in value.items()]
            return {
                name: self._kept(item, below) if isinstance(item, _HOLDERS) else item
                for name, item, below in found
                if below is not None
            }
        if isinstance(value, list):
            below = self._below(state)[None]
            if below is None:
                return []
            return [self._kept(item, below) if isinstance(item, _HOLDERS) else item for item in value]
        return value

    def _below(self, state: _State) -> "_Below":
        known = self._known.get(state)
        if known is None:
            if len(self._known) >= _MOST_STATES:
                self._known.clear()
            known = self._known[state] = _Below(self, state)
        return known

    def after(self, state: _State, name: object) -> _State | None:
        """How far the paths have come below a name, or below a list's items (None); None where one ends there."""
        after: list[int] = []
        for number in state:
            step = self._steps[number]
            if isinstance(step, Wildcard) and step == DEEP:
                after.append(number)
            elif _matches(step, name):
                if number in self._lasts:
                    return None
                after.append(number + 1)
        return self._reached(after)

    def _reached(self, numbers: Iterable[int]) -> _State:
        """These, and what stands behind a `**` among them, which may be none at all."""
        reached: set[int] = set()
        for start in numbers:
            number = start
            while number not in reached:
                reached.add(number)
                number += self._steps[number] == DEEP and isinstance(self._steps[number], Wildcard)
        return frozenset(reached)


class _Below(dict[object, _State | None]):
    """What follows on one state, as far as it has been asked for."""

    __slots__ = ("_search", "_state")

    def __init__(self, search: _Search, state: _State) -> None:
        super().__init__()
        self._search = search
        self._state = state

    def __missing__(self, name: object) -> _State | None:
        self[name] = below = self._search.after(self._state, name)
        return below


def _matches(head: str, name: object) -> bool:
    if isinstance(head, Wildcard):
        return head == (ITEM if name is None else ANY)
    return head == name
