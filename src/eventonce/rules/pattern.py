"""The Amazon EventBridge event pattern language: one pattern, compiled once, tested against many events.

    pattern = Pattern({"source": ["shop"], "detail": {"price": [{"numeric": [">", 100]}]}})
    pattern.matches(event)

Where the user guide is silent, AWS event-ruler decides, as EventBridge runs on it. Two ideas carry the file:

* `$or` is multiplied out. A pattern becomes a list of rules, each a plain "all of these fields". An event matches if
  one rule does.
* A field is its path: `{"a": {"b": ...}}`, `{"a.b": ...}` and an event's `{"a.b": 1}` mean the same field.
* Fields of one array must match in the same element. Fields are tried in the order of their paths, and the first one
  that any element has chooses the element. Until then, `exists: false` is a question to the whole array.

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
_MAX_BEGINNINGS: Final = 10  # of wildcards, that one value can match; EventBridge refuses more
_MAX_STATES: Final = 5_000  # of a check of wildcards
_STAR, _END, _OTHER = -1, -2, -3  # in place of a byte

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
# Of whatever the event holds under a name. The result is the number of the first field that is present, in the order
# of their paths, or the number of all fields if none is. Its complement (~) says the same of what does not match.
_Matcher = Callable[[Any], int]
_Keys = frozenset[tuple[bool, Any]]
_Path = tuple[str, ...]
_Wildcards = tuple[bool, tuple[str, ...]]  # the texts of one operator, and whether it is negated
_Rule = dict[_Path, "_Leaf"]


class PatternError(ValueError):
    """AWS would refuse this pattern. The message names the position, the problem and a remedy."""


class Pattern:
    """A compiled event pattern. Later changes to the mapping it was made from do not affect it."""

    __slots__ = ("_matchers", "_rules")

    def __init__(self, pattern: Mapping[str, Any]) -> None:
        self._rules = _expand([{}], pattern, (), _Position())
        _refuse_complex_wildcards(self._rules)
        self._matchers = [_all_of(_in_order(rule)) for rule in self._rules]

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether the event matches. It never raises on parsed JSON, however unusual."""
        return isinstance(event, Mapping) and any(match(event) >= 0 for match in self._matchers)

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
            steps = tuple(".".join((*path, name)).split("."))
            for rule in rules:
                rule[steps] = leaf
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
    wildcards: list[_Wildcards] = []
    for here, choice in _items(choices, position, "list the accepted values, even a single one: [value]"):
        if isinstance(choice, Mapping):
            name, operand = _only_entry(choice, here, _OPERATORS)
            tests.append(_OPERATORS[name](operand, here.name(name)))
            wildcards += _wildcards(name, operand)
        elif choice is None or isinstance(choice, str | bool) or _is_number(choice):
            literals.append(choice)
        else:
            raise here.error(f"cannot be {_kind(choice)}", "use a string, number, true, false, null or operator")
    return _Leaf(_keys(literals), tuple(tests), tuple(wildcards))


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
    number = _double(value)
    if number is None:
        raise position.error("is out of range", "stay within the range of a double")
    return number


def _double(value: Any) -> float | None:
    """Return a number as event-ruler compares it, or None for what is not a number or beyond all doubles."""
    try:
        return float(value) if _is_number(value) else None
    except OverflowError:
        return None


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


def _wildcards(name: str, operand: Any) -> tuple[_Wildcards, ...]:
    """Return the wildcards of an operator, with whether it is negated."""
    negated = name == "anything-but" and isinstance(operand, Mapping)
    if negated:
        name, operand = next(iter(operand.items()))
    if name != "wildcard":
        return ()
    return ((negated, (operand,) if isinstance(operand, str) else tuple(operand)),)


def _refuse_complex_wildcards(rules: Iterable[_Rule]) -> None:
    """Raise `PatternError` if one value could match too many beginnings of the wildcards of a field.

    Branches of `$or` count together at a field if they agree about all fields before it.
    """
    fields: dict[Any, set[_Wildcards]] = {}
    for rule in rules:
        before: tuple[Any, ...] = ()
        for path in sorted(rule, key=".".join):
            if rule[path].wildcards:
                fields.setdefault((before, path), set()).update(rule[path].wildcards)
            before = (*before, path, id(rule[path]))
    for (_, path), wildcards in fields.items():
        if _are_complex(wildcards):
            raise _Position(".".join(path)).error("has wildcards that AWS refuses as too complex", "use fewer of them")


def _are_complex(wildcards: Iterable[_Wildcards]) -> bool:
    """Read every possible value at once, byte by byte, and count the beginnings that match together.

    event-ruler counts so (MachineComplexityEvaluator). The limit is that of EventBridge, as far as it is known.
    """
    awaited: list[int] = []  # by state, which is a beginning: the byte that leads to the next one
    names: list[Any] = []  # by state; event-ruler has what comes before the second star once for each operator
    starts: list[int] = []
    for term in wildcards:
        for text in term[1]:
            starts.append(len(names))
            tokens = _tokens(text)
            for end, token in enumerate((*tokens, _END)):
                beginning = (_END,) if token == _END else tokens[:end]
                names.append((term, beginning if _STAR not in beginning[:-1] else len(names)))
                awaited.append(token)
    bytes_ = {_OTHER, *awaited} - {_STAR, _END}
    state = frozenset(starts)
    seen, waiting = {state}, [state]
    while waiting:
        state = waiting.pop()
        for byte in bytes_:
            after = {each for each in state if each and awaited[each - 1] == _STAR}
            after |= {each + 1 for each in state if awaited[each] == byte}
            after |= {each + 1 for each in after if awaited[each] == _STAR}  # which may stand for nothing
            if len({names[each] for each in after}) > _MAX_BEGINNINGS or len(seen) > _MAX_STATES:
                return True
            if after and after not in seen:
                seen.add(frozenset(after))
                waiting.append(frozenset(after))
    return False


def _tokens(text: str) -> tuple[int, ...]:
    """Return a wildcard as event-ruler reads it: its bytes in quotes, and its stars."""
    tokens: list[int] = []
    for piece in _segments(f'"{text}"', _Position()):
        tokens += (_STAR, *piece.encode("utf-8", "surrogatepass"))
    return tuple(tokens[1:])


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
    low, bottom = terms[0] if names != "<" else (">=", -math.inf)
    high, top = terms[-1] if names != ">" else ("<=", math.inf)
    if names != "=" and bottom >= top:
        raise position.error(f"no number lies between {bottom:g} and {top:g}", "put the smaller number first")
    above, below = _COMPARE[low], _COMPARE[high]

    def test(value: Any) -> bool:
        number = _double(value)
        return number is not None and above(number, bottom) and below(number, top)

    return test


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
    wildcards: tuple[_Wildcards, ...]

    def strings(self) -> frozenset[str] | None:
        values = frozenset(value for _, value in self.literals)
        return values if not self.tests and all(isinstance(value, str) for value in values) else None

    def accepts(self, scalar: Any) -> bool:
        if (scalar.__class__ is bool, scalar) in self.literals:
            return True
        return any(test(scalar) for test in self.tests) if self.tests else False

    @property
    def accepts_absence(self) -> bool:
        return _is_absent in self.tests

    def match(self, value: Any) -> int:
        if isinstance(value, str):  # by far the most common, so it skips the loop
            return 0 if self.accepts(value) else ~0
        scalars = list(_scalars(value))
        if any(map(self.accepts, scalars)):
            return 0
        return ~0 if scalars else 1 if self.accepts_absence else ~1


def _in_order(rule: _Rule) -> _Rule:
    """Return the fields in the order in which they choose elements. If none may be absent, any order does."""
    paths = list(rule)
    if any(leaf.accepts_absence for leaf in rule.values()):
        paths.sort(key=lambda path: ".".join(path).encode("utf-16-be", "surrogatepass"))  # as Java sorts strings
    else:
        paths.sort(key=len)  # cheap fields first
    return {path: rule[path] for path in paths}


def _all_of(rule: Mapping[_Path, _Leaf]) -> _Matcher:
    """Return the matcher of an object in which every field has to agree."""
    groups: dict[tuple[str, bool], dict[_Path, _Leaf]] = {}
    for path, leaf in rule.items():
        groups.setdefault((path[0], len(path) > 1), {})[path[1:]] = leaf
    fields: list[tuple[str, _Matcher, int, int]] = []
    first = 0
    for (name, deeper), group in groups.items():
        fields.append((name, _inside(_all_of(group)) if deeper else group[()].match, first, first + len(group)))
        first += len(group)
    count = len(rule)
    dotted = _dotted_names(rule)

    def match(node: Any) -> int:
        if dotted and not dotted.isdisjoint(node):
            node = _undotted(node, dotted)
        present = count
        for name, match_field, start, end in fields:
            result = match_field(node.get(name, _MISSING))
            found = start + (result if result >= 0 else ~result)
            if present == count and found < end:
                present = found
            if result < 0:
                return ~present
        return present

    return match


def _dotted_names(rule: Iterable[_Path]) -> frozenset[str]:
    """Return the names with dots by which an object may spell the beginnings of these paths."""
    return frozenset(".".join(path[:end]) for path in rule for end in range(2, len(path) + 1))


def _undotted(node: Mapping[str, Any], dotted: Iterable[str]) -> dict[str, Any]:
    """Return an object in which what is under `a.b` is under `b` in `a`."""
    plain = dict(node)
    for name in dotted:
        if name in node:
            first, _, rest = name.partition(".")
            inner = {rest: node[name]}
            plain[first] = _both(plain[first], inner) if first in plain else inner
    return plain


class _Joined(tuple[Any, Any]):
    """Two objects at one path. They count as one, and are put together when a pattern looks inside."""

    __slots__ = ()


def _both(one: Any, other: Any) -> Any:
    """Return two values of one path as one value. If one is an array, the other counts as one more element."""
    kinds = (Mapping, _Joined)
    return _Joined((one, other)) if isinstance(one, kinds) and isinstance(other, kinds) else [one, other]


def _join(value: Any) -> Mapping[str, Any]:
    """Return two objects as one. Their common names have both values."""
    if not isinstance(value, _Joined):
        return value  # type: ignore[no-any-return]  # a Mapping
    one, other = map(_join, value)
    return {**one, **other, **{name: _both(one[name], other[name]) for name in one.keys() & other.keys()}}


def _inside(match_object: _Matcher) -> _Matcher:
    """Return the matcher of the object under a name. In an array there, one object alone has to satisfy all of it."""
    without = match_object({})  # a missing object is fine if the pattern wants nothing but absence

    def match(value: Any) -> int:
        if isinstance(value, Mapping):
            return match_object(value)
        if isinstance(value, _Joined):
            return match_object(_join(value))
        first, matches = (without, True) if without >= 0 else (~without, False)
        for element in _elements(value):
            if isinstance(element, Mapping):
                result = match_object(element)
                present = result if result >= 0 else ~result
                if present < first:
                    first, matches = present, result >= 0
                elif present == first:
                    matches = matches or result >= 0
        return first if matches else ~first

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
