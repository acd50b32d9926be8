"""Bytes and JSON text from outside, with bounds on their size and depth."""

import os
import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from functools import cache
from typing import Annotated, Any, Union

import msgspec

from eventonce.errors import EventRejected
from eventonce.event.decoding import decode
from eventonce.event.formats.numbers import LARGEST, odd
from eventonce.event.keys import MAX_DEPTH

MAX_BYTES = 4 * 1024 * 1024  # four times what EventBridge, SQS and Lambda carry, for what wraps and escapes it
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
SMALL = 4096  # bytes of a document that can cost a few milliseconds at most, whatever is in it
_PART = 4096
_GLIMPSE = 48
_MOST_GLIMPSES = 32
LEVELS = 7  # of an ordinary document
_FEW_VALUES = 64 * 1024
_BYTES_OF_A_VALUE = 8  # of the bytes that an event may have; ordinary ones have more than 10 for each value
_LONE = rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"


def content(body: str | bytes | bytearray | memoryview, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a body: without a BOM, and unpacked where they are gzip."""
    try:
        raw = body.encode() if isinstance(body, str) else bytes(body)
    except UnicodeEncodeError:
        raise EventRejected("holds half a surrogate pair, which has no UTF-8 form") from None
    if raw[:1] == b"{":
        return raw
    check_size(raw, max_bytes)
    return (_gunzip(raw, max_bytes) if raw[:2] == GZIP else raw).removeprefix(BOM)


def check_size(raw: bytes, max_bytes: int) -> None:
    """Refuse what is too large."""
    if len(raw) > max_bytes:
        raise EventRejected(f"has {len(raw):,} bytes, over the limit of {max_bytes:,}")


def _gunzip(packed: bytes, max_bytes: int) -> bytes:
    import io
    import zlib
    from gzip import GzipFile

    try:
        # Asked for one byte too many, it stops there: a small bomb never becomes a large string.
        raw = GzipFile(fileobj=io.BytesIO(packed)).read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise EventRejected(f"is not gzip: {error}") from None
    if len(raw) > max_bytes:
        raise EventRejected(f"unpacks to more than the limit of {max_bytes:,} bytes")
    return raw


def read_json(raw: bytes, max_bytes: int = MAX_BYTES, small: int = SMALL) -> Any:
    """Read a document, or say why it cannot be read. Of repeated names in an object the last one counts.

    What it costs has a bound for each byte, whatever the document holds. One of at most `small` bytes is not looked
    through for that first.
    """
    if len(raw) > max_bytes:
        check_size(raw, max_bytes)
    if len(raw) > small and is_dear(raw, max_bytes):
        _check_values(raw, max_bytes)
        return _read_any(raw)
    try:
        return _ordinary_decoder().decode(raw)
    except msgspec.ValidationError:
        return _read_any(raw)
    except _UNREADABLE as error:
        raise _unreadable(raw, error) from None


def is_dear(raw: bytes, max_bytes: int) -> bool:
    """Whether a document may cost far more than others of its size.

    That is where it holds many numbers below 1e-99, which there hardly ever are, or a great many tiny values. (A number
    with a large exponent ends the reading of an ordinary document.)
    """
    seen = raw if len(raw) <= SMALL else _glimpses(raw)
    if _tiny(seen) or _TINY(seen):
        return True
    most = most_values(max_bytes)
    return len(raw) > most and values_in(raw) > most


def _glimpses(raw: bytes) -> bytes:
    """A few bytes from each part of a document, where nobody can preview it: all of it would take a fifth of its time.

    What is missed is rare in it, and so takes little time.
    """
    count = min(len(raw) // _PART, _MOST_GLIMPSES)
    part = len(raw) // count
    chances = enumerate(memoryview(os.urandom(2 * count)).cast("H"))
    return b"-".join([raw[(at := number * part + (chance * part >> 16)) : at + _GLIMPSE] for number, chance in chances])


def _read_any(raw: bytes) -> Any:
    odd()
    try:
        value = decode(raw)
    except _UNREADABLE as error:
        raise _unreadable(raw, error) from None
    # Counting brackets is far cheaper than walking, and few events have so many.
    if len(raw.translate(None, _NO_BRACKETS)) > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise too_deep()
    return value


def _check_values(raw: bytes, max_bytes: int) -> None:
    """Refuse what would take a hundred times its size: a value can have two bytes, and an empty object takes 64."""
    most = most_values(max_bytes)
    if values_in(raw) > most and values_in(_TEXTS.sub(b"", raw)) > most:
        raise EventRejected(f"holds more than {most:,} values")


def most_values(max_bytes: int) -> int:
    """How many values an event of so many bytes may have."""
    return max(max_bytes // _BYTES_OF_A_VALUE, _FEW_VALUES)


def values_in(raw: bytes) -> int:
    """How many values a document has at most: what stands in its texts is counted as well."""
    return raw.count(b",") + raw.count(b"{") + raw.count(b"[") + 1


def tiny_values(raw: bytes) -> int:
    """How many values a document has, where it has more of them than ordinary ones of its size, and else none."""
    few = len(raw) // _BYTES_OF_A_VALUE
    if values_in(raw) <= few:
        return 0
    values = values_in(_TEXTS.sub(b"", raw))
    return values if values > few else 0


def ordinary(levels: int) -> Any:
    """The type of nearly all objects: few levels, integers of 64 bits, numbers that need no large exponent.

    That an event is of it is found out on the way, at no cost: neither its depth nor its integers are looked at again.
    """
    whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    number = Annotated[float, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]
    value = item = simple = Union[str, whole, number, bool, None]  # noqa: UP007  # made of variables
    for _ in range(levels):
        # Lists of lists are rare, and with them each level would take twice as long to prepare as the one below.
        below = dict[str, value]  # type: ignore[valid-type]
        value, item = Union[simple, below, list[item]], Union[simple, below, list[simple]]  # type: ignore[valid-type] # noqa: UP007
    return dict[str, value]  # type: ignore[valid-type]


@cache  # a millisecond: where everything is as EventBridge writes it, it is never needed
def _ordinary_decoder() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ordinary(LEVELS))


_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{[")
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)  # the last one may have no end
_tiny = re.compile(rb"e-(?<=[0-9]e-)0*[1-9][0-9]{2}(?=[,\]}\s])").search  # letters at the beginning are quickly found
_TINY = re.compile(rb"E-(?<=[0-9]E-)0*[1-9][0-9]{2}(?=[,\]}\s])").search
_UNREADABLE = (RecursionError, UnicodeDecodeError, msgspec.MsgspecError)


def read_object(text: str) -> Any:
    """The object that a text spells, or the text itself where it spells none.

    Some producers and routes write an object as text; the same event has the same content either way.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        raw = text.encode()
        return read_json(raw, max(len(raw), MAX_BYTES))
    except (EventRejected, UnicodeEncodeError):
        return text


def from_base64(text: Any) -> bytes | None:
    """The bytes that a base64 text stands for, or None where it is none."""
    try:
        return a2b_base64(text, strict_mode=True) if isinstance(text, str) else None
    except (Base64Error, ValueError):
        return None


def to_base64(raw: bytes) -> str:
    """Bytes as JSON can carry them."""
    return b2a_base64(raw, newline=False).decode()


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    return _KINDS.get(type(value)) or f"a {type(value).__name__}"


def _unreadable(raw: bytes, error: Exception) -> EventRejected:
    if isinstance(error, RecursionError):
        return too_deep()
    if isinstance(error, UnicodeDecodeError):
        return EventRejected(f"is not UTF-8: {error.reason}")
    # msgspec calls a document truncated when the second half of a surrogate pair is missing in the middle of it.
    if str(error) == "Input data was truncated" and re.search(_LONE, raw):
        return EventRejected("is not JSON: half a surrogate pair, which has no UTF-8 form")
    return EventRejected(f"is not JSON: {error}")


def too_deep() -> EventRejected:
    """The error for what is nested too deep."""
    return EventRejected(f"is nested deeper than {MAX_DEPTH} levels")


def deeper_than(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested deeper than this."""
    level = [value]
    for _ in range(limit + 1):
        level = [item for outer in level for item in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
