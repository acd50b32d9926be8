"""Memos: what is remembered of a processed event beside that it ran, as bytes that stores need not understand."""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from eventonce.claims.outcome import FirstCopy
from eventonce.clock import moment
from eventonce.errors import ResultUnavailable, describe
from eventonce.event import Event
from eventonce.rules.rule import Remember

MAX_RESULT = 32 * 1024
_FINGERPRINT = 12  # characters
_MAX_DEPTH = 100
_DAMAGED = "what was remembered of it cannot be read"


def write(
    remember: Remember, event: Event, content: bytes, result: Any, max_result: int, mark: str | None = None
) -> tuple[bytes | None, str | None]:
    """The memo of a run, and why its result could not be kept where it could not."""
    if remember == "seen" and mark is None:
        return None, None
    memo: dict[str, Any] = {} if mark is None else {"mark": mark}
    if remember == "seen":
        return _dump(memo).encode(), None
    memo |= {"id": event.id, "fingerprint": fingerprint(content)}
    if event.time is not None:
        memo["time"] = event.time.isoformat()
    trouble = _add_result(memo, result, max_result) if remember == "result" else None
    return _dump(memo).encode(), trouble


def _add_result(memo: dict[str, Any], result: Any, max_result: int) -> str | None:
    try:
        packed = pack(result)
        size = len(_dump(packed))
    except Exception as error:  # the effect has happened, so whatever a result does, the run is remembered
        memo["not_kept"] = describe(error)
        return describe(error)
    if size > max_result:
        memo["not_kept"] = f"the result takes {size:,} bytes, over the limit of {max_result:,}"
        return str(memo["not_kept"])
    memo["result"] = packed
    return None


def read(
    remember: Remember, memo: bytes | None, at: int, attempts: int, content: bytes
) -> tuple[FirstCopy, Any, ResultUnavailable | None]:
    """What is remembered: of the first copy, its result, and why there is none where one is wanted."""
    if memo is None and remember != "result":  # nearly always
        return FirstCopy(at=moment(at), attempts=attempts), None, None
    notes = _notes(memo)
    known = notes.get("fingerprint")
    first = FirstCopy(
        at=moment(at),
        attempts=attempts,
        id=notes.get("id"),
        time=notes.get("time"),
        differs=None if known is None else known != fingerprint(content),
    )
    if remember == "result" and "result" not in notes:
        why = notes.get("not_kept", "its rule did not remember results then")
        return first, None, ResultUnavailable(f"processed before, but {why}")
    try:
        return first, unpack(notes.get("result")), None
    except Exception:  # whatever stands there, it was processed
        return first, None, ResultUnavailable(f"processed before, but {_DAMAGED}")


def _notes(memo: bytes | None) -> dict[str, Any]:
    """What a memo says. A damaged one says nothing; that the event ran is known all the same."""
    try:
        notes = json.loads(memo) if memo else {}
    except (ValueError, TypeError, RecursionError):
        notes = None
    return notes if isinstance(notes, dict) else {"not_kept": _DAMAGED}


def mark(memo: bytes | None) -> str | None:
    """The message that a carrier brought it in, where that was remembered."""
    found: str | None = _notes(memo).get("mark")
    return found


def fingerprint(content: bytes) -> str:
    """A short mark of an event's content, to see whether a duplicate says the same."""
    return hashlib.sha256(content).hexdigest()[:_FINGERPRINT]


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- results: exactly what was returned, or not at all ---


def _iso(time: datetime) -> str:
    text = time.isoformat()
    if repr(datetime.fromisoformat(text)) != repr(time):
        raise ResultUnavailable("the result holds a time in a named zone, which cannot be remembered exactly")
    return text


# What JSON cannot say travels as {"$": kind, "v": text or items}.
_KINDS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("tuple", list, tuple),
    bytes: ("bytes", lambda value: b64encode(value).decode(), b64decode),
    Decimal: ("decimal", str, Decimal),
    datetime: ("datetime", _iso, datetime.fromisoformat),
    UUID: ("uuid", str, UUID),
}
_READ = {name: back for name, _, back in _KINDS.values()}


def pack(value: Any, depth: int = 0) -> Any:
    """A result as JSON that `unpack` reads back as exactly the same, types included."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth > _MAX_DEPTH:
        raise ResultUnavailable(f"the result is nested deeper than {_MAX_DEPTH} levels")
    if kind is list:
        return [pack(item, depth + 1) for item in value]
    if kind is dict and all(type(name) is str for name in value):
        packed = {name: pack(item, depth + 1) for name, item in value.items()}
        return {"$": "dict", "v": packed} if "$" in packed else packed
    if kind in _KINDS:
        name, write, _ = _KINDS[kind]
        return {"$": name, "v": pack(write(value), depth + 1)}
    what = "a dict whose names are not all strings" if kind is dict else f"a {kind.__name__}"
    raise ResultUnavailable(f"the result holds {what}, which cannot be remembered exactly")


def unpack(value: Any) -> Any:
    """A result as it was returned."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {name: unpack(item) for name, item in value.items()}
    if value["$"] == "dict":
        return {name: unpack(item) for name, item in value["v"].items()}
    return _READ[value["$"]](unpack(value["v"]))
