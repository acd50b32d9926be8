"""JSON text from outside, with bounds on its size and depth."""

import re
from typing import Any

import msgspec

from eventonce.errors import EventRejected
from eventonce.key import MAX_DEPTH

MAX_BYTES = 4 * 1024 * 1024  # four times what EventBridge, SQS and Lambda carry, for what wraps and escapes it
_LONE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def read_json(raw: bytes, max_bytes: int = MAX_BYTES) -> Any:
    """Read a document, or say why it cannot be read. Of repeated names in an object the last one counts."""
    if len(raw) > max_bytes:
        raise EventRejected(f"has {len(raw):,} bytes, over the limit of {max_bytes:,}")
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise EventRejected(f"is not UTF-8: {error.reason}") from None
    except msgspec.MsgspecError as error:
        raise EventRejected(f"is not JSON: {_why(raw, error)}") from None
    # Counting brackets is far cheaper than walking, and an ordinary event never has so many.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _why(raw: bytes, error: Exception) -> str:
    # msgspec calls a document truncated when the second half of a surrogate pair is missing in the middle of it.
    if str(error) == "Input data was truncated" and _LONE.search(raw):
        return "half a surrogate pair, which has no UTF-8 form"
    return str(error)


def _too_deep() -> EventRejected:
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
