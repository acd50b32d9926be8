"""Keys: the canonical form of JSON, and the digest a store sees."""

import hashlib
import re
import sys
from collections.abc import Iterable
from typing import Any, NewType

import msgspec

from eventonce.errors import EventRejected

Key = NewType("Key", bytes)
Part = tuple[bytes, bytes]  # a type tag and the value's own bytes

KEY_BYTES = 16
MAX_DEPTH = 200
_EXACT = 2**53
_DECIMAL_BELOW = 10**21  # RFC 8785 writes larger numbers with an exponent
_sorted = msgspec.json.Encoder(order="sorted").encode


def is_empty(value: Any) -> bool:
    """Return whether a JSON value identifies nothing: all events or calls that have it would be the same.

    So are null, a string without a character but spaces, and a list or an object of nothing else.
    """
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, dict):
        return all(map(is_empty, value.values()))
    return value is None or (isinstance(value, list) and all(map(is_empty, value)))


# --- canonical JSON (RFC 8785; integers of any size stay exact) ---


def canonical(value: Any) -> bytes:
    """Return the one spelling of a JSON value, whatever its key order, escapes and spelling of numbers."""
    try:
        return _sorted(_plain(value))
    except RecursionError:
        raise EventRejected(f"nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise EventRejected("holds half a surrogate pair, which has no UTF-8 form") from None
    except ValueError:  # Python itself writes no such number
        raise EventRejected(f"holds an integer of more than {sys.get_int_max_str_digits():,} digits") from None


def canonical_parsed(value: Any, *, plain: bool = False) -> bytes:
    """Return the same for a value parsed from JSON text, many times as fast if the plain encoder is already right.

    It is right unless there are exponents, fractions of .0, integers of over 21 digits, or names beyond U+E000. It
    misspells nothing else that JSON text can hold. `plain` says that all integers have 64 bits and all other numbers
    are below 1e15. Then there are few signs to look for. Else, and if there is a sign, numbers are found by reading
    the result again, as no regular expression is as quick.
    """
    try:
        text = _sorted(value)
        if not text.isascii() and _high(text):
            return canonical(value)
        if not plain:
            _check_integers(text)
        if not plain or _whole(text) or _tiny(text):
            _check_numbers(text)
        return text
    except (_Misspelt, RecursionError, ValueError):
        return canonical(value)


class _Misspelt(Exception):
    """A number that RFC 8785 writes in another way."""


def _check_number(text: str) -> float:
    if "e" in text or text.endswith(".0"):
        raise _Misspelt
    return 0.0


def _check_integers(text: bytes) -> None:
    if _HUGE in text.translate(_DIGITS):
        raise _Misspelt


_check_numbers = msgspec.json.Decoder(float_hook=_check_number).decode
_whole = re.compile(rb"\.0(?:[,}\]]|\Z)").search  # 1.0, or a string that looks like it
_tiny = re.compile(rb"e-(?<=[0-9]e-)[0-9]").search  # 1e-7, likewise; a pattern that begins with letters is quick
_high = re.compile(rb"[\xee-\xff]").search  # the first byte of U+E000 and beyond
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_HUGE = b"0" * 22


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is dict:
        return _object(value)
    if kind is list or kind is tuple:
        return [_plain(item) for item in value]
    if kind is int:
        return value if -_DECIMAL_BELOW < value < _DECIMAL_BELOW else _big(value)
    if kind is float:
        return _float(value)
    raise EventRejected(f"holds a {kind.__name__}, which JSON has no form for")


def _object(value: dict[Any, Any]) -> Any:
    for name in value:
        if type(name) is not str:
            raise EventRejected(f"has the name {name!r}, and JSON names are strings")
        if not name.isascii() and max(name) > "\ud7ff":
            return _utf16_sorted(value)
    return {name: _plain(item) for name, item in value.items()}


def _utf16_sorted(value: dict[str, Any]) -> msgspec.Raw:
    # RFC 8785 orders names by UTF-16 code units, the encoder by code points: they differ from U+E000 on.
    names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return msgspec.Raw(b"{" + b",".join(_sorted(name) + b":" + canonical(value[name]) for name in names) + b"}")


def _float(value: float) -> int | msgspec.Raw:
    if -_EXACT < value < _EXACT and value.is_integer():
        return int(value)
    if value - value != 0:  # NaN or infinite
        raise EventRejected(f"holds the number {value!r}, which JSON has no form for")
    return msgspec.Raw(_shortest(value).encode())


def _big(value: int) -> int | msgspec.Raw:
    # 1e21 and 1000000000000000000000 are the same number; 1000000000000000000001 is another one.
    try:
        digits, exponent = _digits(float(abs(value)))
        is_exact = int(digits) * 10 ** (exponent - len(digits)) == abs(value)
        return msgspec.Raw(_shortest(float(value)).encode()) if is_exact else value
    except OverflowError:
        return value


def _digits(value: float) -> tuple[str, int]:
    """Return the shortest digits that read back as this positive number, and the position of its decimal point."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    return digits.rstrip("0"), point


def _shortest(value: float) -> str:
    """Return a number as ECMAScript writes it."""
    digits, point = _digits(abs(value))
    sign = "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


# --- digests ---

_VERSION = b"eventonce key 1"
_MAX_CACHED = 1024  # pairs of source and type whose part of the digest is cached
_LONGEST_CACHED = 1000  # characters: others choose what is cached, so it has a bound


def part(value: Any) -> Part:
    """Return one part of a key with its type, so that 1 and "1" differ while 1 and 1.0 do not."""
    if type(value) is str:
        return b"s", value.encode("utf-8", "surrogatepass")
    return b"j", canonical(value)


def carrier_part(carriers: Iterable[str], name: Any) -> Part:
    """Return a name that carriers gave as a part. It differs from all parts that a sender can cause."""
    return b"c", canonical([*carriers, name])


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


class Digester:
    """The digest of one consumer's rule. A key depends on nothing but its parts and the replay."""

    def __init__(self, consumer: str, rule: str, kind: str) -> None:
        prefix = (_VERSION, consumer.encode(), rule.encode(), kind.encode())
        self._start = hashlib.sha256(b"".join(map(_sized, prefix)))
        self._origins: dict[tuple[str, str, str], Any] = {}

    def __call__(self, parts: Iterable[Part], replay: str = "") -> Key:
        state = self._start.copy()
        state.update(_sized(replay.encode()) + b"".join([tag + _sized(data) for tag, data in parts]))
        return Key(state.digest()[:KEY_BYTES])

    def content(self, source: str, kind: str, content: bytes, replay: str = "") -> Key:
        """Return the digest of three parts. The first two are few, so their state is cached."""
        state = (self._origins.get((source, kind, replay)) or self._start_content(source, kind, replay)).copy()
        state.update(b"j" + len(content).to_bytes(8, "big"))
        state.update(content)
        key: Key = state.digest()[:KEY_BYTES]
        return key

    def _start_content(self, source: str, kind: str, replay: str) -> Any:
        state = self._start.copy()
        parts = [part(source), part(kind)]
        state.update(_sized(replay.encode()) + b"".join([tag + _sized(data) for tag, data in parts]))
        if len(self._origins) >= _MAX_CACHED:
            self._origins.clear()
        if len(source) + len(kind) + len(replay) <= _LONGEST_CACHED:
            self._origins[source, kind, replay] = state
        return state


def powertools_key(values: list[Any], replay: str = "") -> Key:
    """Return the key that Powertools for AWS Lambda (Python) makes of the same values: one as it is, several as a list.

    Powertools has no replays. The key of one has a line break before its name, which JSON on one line never contains.
    """
    import json

    text = json.dumps(values[0] if len(values) == 1 else values, sort_keys=True)
    text += f"\n{replay}" if replay else ""
    return Key(hashlib.md5(text.encode(), usedforsecurity=False).digest())
