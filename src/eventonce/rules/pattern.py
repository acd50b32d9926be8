"""The Amazon EventBridge event pattern language: one pattern, compiled once, tested against many events.

    pattern = Pattern({"source": ["shop"], "detail": {"price": [{"numeric": [">", 100]}]}})
    pattern.matches(event)

Where the user guide is silent, AWS event-ruler decides, as EventBridge runs on it. Two ideas carry the file:

* `$or` is multiplied out. A pattern becomes a list of rules, each a plain "all of these fields". An event matches if
  one rule does.
* A field has one of three results. Arrays need "absent" and "found" apart: an element of an array is chosen by a value
  in it, never by a value that it lacks.

It uses the standard library alone and nothing from the rest of the package, so the file can be lifted out.
"""

from __future__ import annotations

import ipaddress
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Pattern", "PatternError"]

_MAX_DEPTH: Final = 100
_MAX_RULES: Final = 1000
_MAX_NUMBER: Final = 5e9

_NO, _ABSENT, _FOUND = 0, 1, 2  # in rising order: an object has the result of its best field, unless one is _NO
_MISSING: Final = object()
_ARRAY: Final = (list, tuple)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_KINDS: Final[tuple[tuple[Any, str], ...]] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int, "a number"),
    (str, "a string"),
    (_ARRAY, "a list"),
    (Mapping, "an object"),
)
_WILDCARD_TOKEN: Final = re.compile(r"\*+|\\[*\\]|\\|[^*\\]+")

_Test = Callable[[Any], bool]  # of one scalar of the event
_Matcher = Callable[[Any], int]  # of whatever the event holds under a name
_Keys = frozenset[tuple[bool, Any]]
_Path = tuple[str, ...]
_Rule = dict[_Path, "_Leaf"]


class PatternError(ValueError):
    """AWS would refuse this pattern. The message names the position, the problem and a remedy."""


class Pattern:
    """A compiled event pattern. Later changes to the mapping it was made from do not affect it."""

    __slots__ = ("_matchers", "_rules")

    def __init__(self, pattern: Mapping[str, Any]) -> None:
        self._rules = _expand([{}], pattern, (), _Position())
        self._matchers = [_all_of(rule) for rule in self._rules]

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether the event matches. It never raises on parsed JSON, however unusual."""
        return isinstance(event, Mapping) and any(match(event) for match in self._matchers)

    @property
    def fields(self) -> frozenset[str]:
        """Return all fields that it reads if they are strings at the top level, else a field that never exists."""
        paths = frozenset(path for rule in self._rules for path in rule)
        plain = all(len(path) == 1 and self.exact(path[0]) is not None for path in paths)
        return frozenset(path[0] for path in paths) if plain else frozenset([""])

    def exact(self, field: str) -> frozenset[str] | None:
        """Return the strings of which a top-level field must be one (or, as an array, contain one) for a match.

        None means that the pattern does not limit the field to strings, so an index must always try it.
        """
        first, *others = [rule.get((field,)) for rule in self._rules]
        if first is None or any(leaf is not first for leaf in others):
            return None
        return first.strings()


# --- Reading a pattern ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Position:
    """A position in the pattern, for errors."""

    text: str = ""
    depth: int = 1
    in_or: bool = False

    def name(self, name: str) -> _Position:
        text = f"{self.text}.{name}" if self.text else name
        return _Position(text, self.depth + 1, self.in_or or name == "$or")

    def item(self, index: int) -> _Position:
        return _Position(f"{self.text}[{index}]", self.depth, self.in_or)

    def error(self, problem: str, remedy: str) -> PatternError:
        return PatternError(f"{self.text or 'pattern'}: {problem}; {remedy}")


def _expand(rules: list[_Rule], node: Any, path: _Path, position: _Position) -> list[_Rule]:
    """Add the fields of one pattern object to every rule. As at AWS, the last one at a path counts."""
    for name, value in _fields(node, position):
        here = position.name(name)
        if name == "$or":
            rules = _expand_or(rules, value, path, here)
        elif isinstance(value, Mapping):
            rules = _expand(rules, value, (*path, name), here)
        else:
            leaf = _leaf(value, here)
            for rule in rules:
                rule[(*path, name)] = leaf
    return rules


def _expand_or(rules: list[_Rule], branches: Any, path: _Path, position: _Position) -> list[_Rule]:
    if not isinstance(branches, _ARRAY) or len(branches) < 2:
        raise position.error("must be a list of at least two objects", "add an alternative or drop the $or")
    grown: list[_Rule] = []
    for index, branch in enumerate(branches):
        copies = [dict(rule) for rule in rules]
        grown += _expand(copies, branch, path, position.item(index))
        if len(grown) > _MAX_RULES:
            raise position.error(f"makes more than {_MAX_RULES} combinations", "split the pattern into several")
    return grown


def _fields(node: Any, position: _Position) -> Iterator[tuple[str, Any]]:
    if not isinstance(node, Mapping):
        raise position.error(f"must be an object, not {_kind(node)}", "write {name: [values]}")
    if not node:
        raise position.error("must not be an empty object", "name at least one field or remove it")
    if position.depth > _MAX_DEPTH:
        raise position.error(f"is deeper than {_MAX_DEPTH} levels", "match on fewer levels")
    for name, value in node.items():
        if not isinstance(name, str):
            raise position.error(f"has {_kind(name)} as a field name", "use strings as names")
        if position.in_or and name in _RESERVED_IN_OR:
            raise position.name(name).error("is a reserved name under $or", "put operators in a field's list")
        yield name, value


def _leaf(choices: Any, position: _Position) -> _Leaf:
    literals, tests = [], []
    for here, choice in _items(choices, position, "list the accepted values, even a single one: [value]"):
        if isinstance(choice, Mapping):
            name, operand = _only_entry(choice, here, _OPERATORS)
            tests.append(_OPERATORS[name](operand, here.name(name)))
        elif choice is None or isinstance(choice, str | bool) or _is_number(choice):
            literals.append(choice)
        else:
            raise here.error(f"cannot be {_kind(choice)}", "use a string, number, true, false, null or operator")
    return _Leaf(_keys(literals), tuple(tests))


def _items(value: Any, position: _Position, remedy: str) -> list[tuple[_Position, Any]]:
    if not isinstance(value, _ARRAY):
        raise position.error(f"must be a list, not {_kind(value)}", remedy)
    if not value:
        raise position.error("must not be an empty list", remedy)
    return [(position.item(index), item) for index, item in enumerate(value)]


def _only_entry(node: Mapping[str, Any], position: _Position, operators: Mapping[str, Any]) -> tuple[str, Any]:
    if len(node) != 1:
        raise position.error(f"must hold one operator, not {len(node)}", "give each an object of its own")
    name, operand = next(iter(node.items()))
    if name not in operators:
        from difflib import get_close_matches

        near = get_close_matches(str(name), operators, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(operators)}"
        raise position.error(f"unknown operator {name!r:.40}", remedy)
    return name, operand


def _text(value: Any, position: _Position) -> str:
    if not isinstance(value, str):
        raise position.error(f"must be a string, not {_kind(value)}", "write one string in quotes")
    return value


def _number(value: Any, position: _Position) -> float:
    if not _is_number(value):
        raise position.error(f"must be a number, not {_kind(value)}", "write it without quotes")
    if abs(value) > _MAX_NUMBER:
        raise position.error("is out of range", "stay between -5e9 and 5e9")
    return float(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)  # Python's json reads NaN and Infinity, which JSON does not have
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), repr(value))


# --- Operators: each takes its operand and returns a test -------------------------------------------------


def _prefix(operand: Any, position: _Position) -> _Test:
    start, fold = _cased(operand, position)
    return lambda value: isinstance(value, str) and fold(value).startswith(start)


def _suffix(operand: Any, position: _Position) -> _Test:
    end, fold = _cased(operand, position)
    return lambda value: isinstance(value, str) and fold(value).endswith(end)


def _cased(operand: Any, position: _Position) -> tuple[str, Callable[[str], str]]:
    """Return the operand of prefix and suffix and how to fold case: a string, or one in equals-ignore-case."""
    if not isinstance(operand, Mapping):
        return _text(operand, position), str
    name, inner = _only_entry(operand, position, {"equals-ignore-case": None})
    return _text(inner, position.name(name)).casefold(), str.casefold


def _equals_ignore_case(operand: Any, position: _Position) -> _Test:
    # casefold and not lower, which gives the Greek sigma two forms, depending on its position in a word.
    wanted = _text(operand, position).casefold()
    return lambda value: isinstance(value, str) and value.casefold() == wanted


def _wildcard(operand: Any, position: _Position) -> _Test:
    first, *others = _segments(_text(operand, position), position)
    if not others:
        return lambda value: isinstance(value, str) and value == first
    *middle, last = others
    return lambda value: isinstance(value, str) and _fits(value, first, middle, last)


def _segments(text: str, position: _Position) -> list[str]:
    """Return the literal pieces between the stars."""
    pieces = [""]
    for token in _WILDCARD_TOKEN.findall(text):
        if token == "*":
            pieces.append("")
        elif token[0] == "*":
            raise position.error("has consecutive wildcards", "write a single *")
        elif token == "\\":
            raise position.error("has a stray backslash", r"escape only \* and \\")
        else:
            pieces[-1] += token.removeprefix("\\") if len(token) == 2 else token
    return pieces


def _fits(value: str, first: str, middle: list[str], last: str) -> bool:
    # The pieces are literal, so the leftmost hit is always a safe choice and nothing is tried twice.
    start, end = len(first), len(value) - len(last)
    if start > end or not value.startswith(first) or not value.endswith(last):
        return False
    for piece in middle:
        hit = value.find(piece, start, end)
        if hit < 0:
            return False
        start = hit + len(piece)
    return True


def _numeric(operand: Any, position: _Position) -> _Test:
    terms = _terms(operand, position)
    names = "".join(name[0] for name, _ in terms)  # > and >= are equal here, and so are < and <=
    if names not in ("=", ">", "<", "><"):
        raise position.error("cannot combine these comparisons", "write [lower op, n, upper op, n]")
    # AWS does not see numbers beyond its limit, so an open end stops there.
    low, bottom = terms[0] if names != "<" else (">=", -_MAX_NUMBER)
    high, top = terms[-1] if names != ">" else ("<=", _MAX_NUMBER)
    if names != "=" and bottom >= top:
        raise position.error(f"no number lies between {bottom:g} and {top:g}", "put the smaller number first")
    above, below = _COMPARE[low], _COMPARE[high]
    return lambda value: _is_number(value) and above(value, bottom) and below(value, top)


def _terms(operand: Any, position: _Position) -> list[tuple[str, float]]:
    items = _items(operand, position, "write [operator, number] or [operator, number, operator, number]")
    if len(items) not in (2, 4):
        raise position.error("has neither 2 nor 4 items", "write one or two pairs of operator and number")
    for here, name in items[::2]:
        if not isinstance(name, str) or name not in _COMPARE:
            raise here.error(f"unknown comparison {name!r:.40}", f"use one of {' '.join(_COMPARE)}")
    numbers = [_number(value, here) for here, value in items[1::2]]
    return list(zip(operand[::2], numbers, strict=True))


def _cidr(operand: Any, position: _Position) -> _Test:
    address, _, bits = _text(operand, position).partition("/")
    remedy = "write a block such as 10.0.0.0/24 or 2001:db8::/32"
    if not (bits.isascii() and bits.isdigit()):
        raise position.error("has no mask length after a single slash", remedy)
    try:
        network = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    except ValueError as error:
        raise position.error(str(error), remedy) from None
    if network.prefixlen == network.max_prefixlen:
        raise position.error("holds a single address, which AWS refuses", "use the address as a plain string")
    return lambda value: isinstance(value, str) and _is_within(value, network)


def _is_within(value: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        return ipaddress.ip_address(value) in network
    except ValueError:
        return False


def _anything_but(operand: Any, position: _Position) -> _Test:
    """Return a test that accepts a value of any type except those named."""
    if isinstance(operand, Mapping):
        return _anything_but_like(operand, position)
    values = _one_or_many(operand, position)
    first = values[0][1]
    if not isinstance(first, str) and not _is_number(first):
        raise values[0][0].error(f"cannot be {_kind(first)}", "name strings, or numbers, or an operator")
    check = _text if isinstance(first, str) else _number  # AWS takes no mixture of the two
    unwanted = _keys(check(value, here) for here, value in values)
    return lambda value: (value.__class__ is bool, value) not in unwanted


def _anything_but_like(operand: Mapping[str, Any], position: _Position) -> _Test:
    name, inner = _only_entry(operand, position, _TEXT_OPERATORS)
    tests = []
    for here, value in _one_or_many(inner, position.name(name)):
        if not _text(value, here) and name in ("prefix", "suffix"):
            raise here.error("must not be empty, every string has it", "give at least one character")
        tests.append(_TEXT_OPERATORS[name](value, here))
    return lambda value: not any(test(value) for test in tests)


def _one_or_many(operand: Any, position: _Position) -> list[tuple[_Position, Any]]:
    return _items(operand, position, "name a value") if isinstance(operand, _ARRAY) else [(position, operand)]


def _exists(operand: Any, position: _Position) -> _Test:
    if not isinstance(operand, bool):
        raise position.error(f"must be true or false, not {_kind(operand)}", "write it without quotes")
    return _is_present if operand else _is_absent


def _is_present(_: Any) -> bool:
    return True


def _is_absent(_: Any) -> bool:
    return False  # a test gets only values that exist; the leaf itself handles their absence


_TEXT_OPERATORS: Final[Mapping[str, Callable[[Any, _Position], _Test]]] = {
    "prefix": _prefix,
    "suffix": _suffix,
    "equals-ignore-case": _equals_ignore_case,
    "wildcard": _wildcard,
}
_OPERATORS: Final[Mapping[str, Callable[[Any, _Position], _Test]]] = {
    **_TEXT_OPERATORS,
    "anything-but": _anything_but,
    "numeric": _numeric,
    "cidr": _cidr,
    "exists": _exists,
}
# event-ruler keeps these too, so that a misplaced operator under $or is never taken for a field.
_NOT_YET_OPERATORS: Final = (
    "exactly regex not-wildcard not-equals-ignore-case date-after date-on-or-after date-before "
    "date-on-or-before in-date-range ip-address-in-range ip-address-not-in-range"
)
_RESERVED_IN_OR: Final = frozenset((*_OPERATORS, *_COMPARE, *_NOT_YET_OPERATORS.split()))


# --- Matching -------------------------------------------------------------------------------------------


def _keys(values: Iterable[Any]) -> _Keys:
    # To Python 1, 1.0 and True are equal. JSON agrees about the first two only.
    return frozenset((value.__class__ is bool, value) for value in values)


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """What a pattern accepts under one name: any of its values, or any of its tests."""

    literals: _Keys
    tests: tuple[_Test, ...]

    def strings(self) -> frozenset[str] | None:
        values = frozenset(value for _, value in self.literals)
        return values if not self.tests and all(isinstance(value, str) for value in values) else None

    def accepts(self, scalar: Any) -> bool:
        if (scalar.__class__ is bool, scalar) in self.literals:
            return True
        return any(test(scalar) for test in self.tests) if self.tests else False

    def match(self, value: Any) -> int:
        if isinstance(value, str):  # by far the most common, so it skips the loop
            return _FOUND if self.accepts(value) else _NO
        scalars = list(_scalars(value))
        if any(map(self.accepts, scalars)):
            return _FOUND
        return _NO if scalars or _is_absent not in self.tests else _ABSENT


def _all_of(rule: Mapping[_Path, _Leaf]) -> _Matcher:
    """Return the matcher of an object in which every field has to agree. Cheap fields are tried first."""
    fields: list[tuple[str, _Matcher]] = []
    deeper: dict[str, dict[_Path, _Leaf]] = {}
    for path, leaf in rule.items():
        if len(path) == 1:
            fields.append((path[0], leaf.match))
        else:
            deeper.setdefault(path[0], {})[path[1:]] = leaf
    fields += [(name, _inside(_all_of(subrule))) for name, subrule in deeper.items()]

    def match(node: Any) -> int:
        best = _ABSENT
        for name, match_field in fields:
            result = match_field(node.get(name, _MISSING))
            if not result:
                return _NO
            best = max(best, result)
        return best

    return match


def _inside(match_object: _Matcher) -> _Matcher:
    """Return the matcher of the object under a name. In an array there, one object alone has to satisfy all of it."""
    without = match_object({})  # a missing object is fine if the pattern wants nothing but absence

    def match(value: Any) -> int:
        if isinstance(value, Mapping):
            return match_object(value)
        worst = without
        for element in _elements(value):
            result = match_object(element) if isinstance(element, Mapping) else without
            if result == _FOUND:
                return _FOUND
            worst = min(worst, result)
        return worst

    return match


def _scalars(value: Any) -> Iterator[Any]:
    """Yield what a leaf can be compared with: not an object, and nothing from an empty array."""
    if isinstance(value, _ARRAY):
        yield from (element for element in _elements(value) if not isinstance(element, Mapping))
    elif value is not _MISSING and not isinstance(value, Mapping):
        yield value


def _elements(value: Any) -> Iterator[Any]:
    """Yield the elements of an array and of arrays in it. No recursion: an event may be nested too deep for it."""
    open_arrays = [iter(value)] if isinstance(value, _ARRAY) else []
    while open_arrays:
        for element in open_arrays[-1]:
            if isinstance(element, _ARRAY):
                open_arrays.append(iter(element))
                break
            yield element
        else:
            open_arrays.pop()
