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
from eventonce.event.formats.numbers import LARGEST, report_unusual_number
from eventonce.event.keys import MAX_DEPTH
from eventonce.text import type_of

MAX_BYTES = 4 * 1024 * 1024  # four times what EventBridge, SQS and Lambda carry, for what wraps and escapes it
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
SMALL = 4096  # bytes: a document of this size costs a few milliseconds at most, whatever is in it
_PART = 4096
_SAMPLE = 48
_MAX_SAMPLES = 32
LEVELS = 7  # of an ordinary document
_FEW_VALUES = 64 * 1024
_BYTES_OF_A_VALUE = 8  # of the bytes that an event may have; ordinary events have more than 10 for each value
_LONE = rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"


def content(body: str | bytes | bytearray | memoryview, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a body, without a BOM and unpacked from gzip."""
    try:
        raw = body.encode() if isinstance(body, str) else bytes(body)
    except UnicodeEncodeError:
        raise EventRejected("holds half a surrogate pair, which has no UTF-8 form") from None
    if raw[:1] == b"{":
        return raw
    check_size(raw, max_bytes)
    return (_gunzip(raw, max_bytes) if raw[:2] == GZIP else raw).removeprefix(BOM)


def check_size(raw: bytes, max_bytes: int) -> None:
    """Raise EventRejected if a body is too large."""
    if len(raw) > max_bytes:
        raise EventRejected(f"has {len(raw):,} bytes, over the limit of {max_bytes:,}")


def _gunzip(packed: bytes, max_bytes: int) -> bytes:
    import io
    import zlib
    from gzip import GzipFile

    try:
        # It stops at one byte too many, so a small bomb never becomes a large string.
        raw = GzipFile(fileobj=io.BytesIO(packed)).read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise EventRejected(f"is not gzip: {error}") from None
    if len(raw) > max_bytes:
        raise EventRejected(f"unpacks to more than the limit of {max_bytes:,} bytes")
    return raw


def read_json(raw: bytes, max_bytes: int = MAX_BYTES, small: int = SMALL) -> Any:
    """Read a document, or raise EventRejected with the reason. The last one of repeated names in an object counts.

    The cost per byte has a bound, whatever the document holds. A document of at most `small` bytes is not searched for
    costly values first.
    """
    if len(raw) > max_bytes:
        check_size(raw, max_bytes)
    if len(raw) > small and is_costly(raw, max_bytes):
        _check_values(raw, max_bytes)
        return _read_any(raw)
    try:
        return _ordinary_decoder().decode(raw)
    except msgspec.ValidationError:
        return _read_any(raw)
    except _UNREADABLE as error:
        raise _unreadable(raw, error) from None


def is_costly(raw: bytes, max_bytes: int) -> bool:
    """Return whether a document may cost far more than others of its size.

    It may if it holds many numbers below 1e-99, which are very rare, or a great many tiny values. (A number with a
    large exponent ends the reading of an ordinary document.)
    """
    sample = raw if len(raw) <= SMALL else _samples(raw)
    if _tiny(sample) or _TINY(sample):
        return True
    limit = max_values(max_bytes)
    return len(raw) > limit and values_in(raw) > limit


def _samples(raw: bytes) -> bytes:
    """Return a few bytes from each part of a document. To search all of it would take a fifth of its reading time.

    The offsets are random, so that a sender cannot avoid them. What they miss is rare, and so takes little time.
    """
    count = min(len(raw) // _PART, _MAX_SAMPLES)
    size = len(raw) // count
    randoms = enumerate(memoryview(os.urandom(2 * count)).cast("H"))
    offsets = [number * size + (random * size >> 16) for number, random in randoms]
    return b"-".join([raw[offset : offset + _SAMPLE] for offset in offsets])


def _read_any(raw: bytes) -> Any:
    report_unusual_number()
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
    limit = max_values(max_bytes)
    if values_in(raw) > limit and values_in(_STRINGS.sub(b"", raw)) > limit:
        raise EventRejected(f"holds more than {limit:,} values")


def max_values(max_bytes: int) -> int:
    """Return how many values an event of so many bytes may have."""
    return max(max_bytes // _BYTES_OF_A_VALUE, _FEW_VALUES)


def values_in(raw: bytes) -> int:
    """Return how many values a document has at most. Characters in its strings are counted as well."""
    return raw.count(b",") + raw.count(b"{") + raw.count(b"[") + 1


def tiny_values(raw: bytes) -> int:
    """Return how many values a document has if it has more than an ordinary one of its size, else 0."""
    few = len(raw) // _BYTES_OF_A_VALUE
    if values_in(raw) <= few:
        return 0
    values = values_in(_STRINGS.sub(b"", raw))
    return values if values > few else 0


def ordinary(levels: int) -> Any:
    """Return the type of nearly all objects: few levels, integers of 64 bits, numbers that need no large exponent.

    Decoding checks it at no cost. Neither the depth nor the integers of such an object are looked at again.
    """
    whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    number = Annotated[float, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]
    value = item = simple = Union[str, whole, number, bool, None]  # noqa: UP007  # made of variables
    for _ in range(levels):
        # Lists of lists are rare, and with them each level would take twice as long to build as the one below.
        below = dict[str, value]  # type: ignore[valid-type]
        value, item = Union[simple, below, list[item]], Union[simple, below, list[simple]]  # type: ignore[valid-type] # noqa: UP007
    return dict[str, value]  # type: ignore[valid-type]


@cache  # building it takes a millisecond, and for events as EventBridge writes them it is never needed
def _ordinary_decoder() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ordinary(LEVELS))


_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{[")
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)  # the last one may have no end
_tiny = re.compile(rb"e-(?<=[0-9]e-)0*[1-9][0-9]{2}(?=[,\]}\s])").search  # a pattern that begins with letters is quick
_TINY = re.compile(rb"E-(?<=[0-9]E-)0*[1-9][0-9]{2}(?=[,\]}\s])").search
_UNREADABLE = (RecursionError, UnicodeDecodeError, msgspec.MsgspecError)


def read_object(text: str, small: int = SMALL) -> Any:
    """Return the object that a string encodes, or the string itself if it encodes none.

    Some producers and routes write an object as a string. The same event has the same content either way.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        raw = text.encode()
        return read_json(raw, max(len(raw), MAX_BYTES), small)
    except (EventRejected, UnicodeEncodeError):
        return text


def from_base64(text: Any) -> bytes | None:
    """Return the bytes of a base64 string, or None if it is not valid."""
    try:
        return a2b_base64(text, strict_mode=True) if isinstance(text, str) else None
    except (Base64Error, ValueError):
        return None


def to_base64(raw: bytes) -> str:
    """Return bytes as JSON can carry them."""
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
    """Return the kind of a value in words, such as "an object"."""
    return _KINDS.get(type(value)) or type_of(value)


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
    """Return the error for a document that is nested too deep."""
    return EventRejected(f"is nested deeper than {MAX_DEPTH} levels")


def deeper_than(value: Any, limit: int) -> bool:
    """Return whether objects and lists are nested deeper than this."""
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
