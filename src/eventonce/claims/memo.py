"""Memos: what is remembered of a processed event besides its run, as bytes that stores need not understand."""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from eventonce.claims.outcome import FirstCopy
from eventonce.clock import to_datetime
from eventonce.errors import EventRejected, ResultUnavailable, describe
from eventonce.event import Event
from eventonce.event.event import Restore
from eventonce.event.values import spell
from eventonce.rules.rule import Remember

_FINGERPRINT = 12  # characters
_MAX_DEPTH = 100
_DAMAGED = "its memo cannot be read"


def write(
    remember: Remember,
    event: Event,
    content: bytes,
    result: Any,
    max_result: int,
    message_id: str | None = None,
    restore: Restore | None = None,
) -> tuple[bytes | None, str | None]:
    """Return the memo of a run, and the reason if its result could not be stored. `restore` makes its type again."""
    memo: dict[str, Any] = {} if message_id is None else {"mark": message_id}
    if remember == "seen":
        return _dump(memo).encode(), None
    memo |= {"id": event.id, "fingerprint": fingerprint(content)}
    if event.time is not None:
        memo["time"] = event.time.isoformat()
    reason = _add_result(memo, result, max_result, restore) if remember == "result" else None
    return _dump(memo).encode(), reason


def _add_result(memo: dict[str, Any], result: Any, max_result: int, restore: Restore | None) -> str | None:
    try:
        name, stored = _stored(result, restore)
        size = len(_dump(stored))
    except Exception as error:  # the effect has happened, so the run is remembered whatever its result raises
        memo["not_kept"] = describe(error)
        return describe(error)
    if size > max_result:
        memo["not_kept"] = f"the result takes {size:,} bytes, over the limit of {max_result:,}"
        return str(memo["not_kept"])
    memo[name] = stored
    return None


def _stored(result: Any, restore: Restore | None) -> tuple[str, Any]:
    """Return a result packed, or else spelt if its type is known, with the name of the field that it is stored in."""
    try:
        return "result", pack(result)
    except ResultUnavailable:
        if restore is None:
            raise
    spelt = _spell_result(result)
    restored = restore(json.loads(_dump(spelt)))
    if type(restored) is not type(result) or restored != result or _spell_result(restored) != spelt:
        raise ResultUnavailable("the result would come back as another value; annotate what the handler returns")
    return "value", spelt


def _spell_result(result: Any) -> Any:
    try:
        return spell(result, "the result", exact=True)
    except EventRejected as error:
        raise ResultUnavailable(str(error)) from None


def read(
    remember: Remember,
    memo: bytes | None,
    done_at: int,
    attempts: int,
    content: bytes,
    restore: Restore | None = None,
) -> tuple[FirstCopy, Any, ResultUnavailable | None]:
    """Return the first copy and its result, or an error if a result is wanted and not available."""
    fields = _fields(memo)
    first_fingerprint = fields.get("fingerprint")
    first = FirstCopy(
        at=to_datetime(done_at),
        attempts=attempts,
        id=fields.get("id"),
        time=fields.get("time"),
        differs=None if first_fingerprint is None else first_fingerprint != fingerprint(content),
    )
    if remember == "result" and "value" in fields:
        try:
            return first, fields["value"] if restore is None else restore(fields["value"]), None
        except Exception as error:  # the type has changed since then
            return first, None, ResultUnavailable(f"processed before, but its result is of another type: {error}")
    if remember == "result" and "result" not in fields:
        reason = fields.get("not_kept", "its rule did not remember results then")
        return first, None, ResultUnavailable(f"processed before, but {reason}")
    try:
        return first, unpack(fields.get("result")), None
    except Exception:  # the event was processed, whatever the memo holds
        return first, None, ResultUnavailable(f"processed before, but {_DAMAGED}")


def _fields(memo: bytes | None) -> dict[str, Any]:
    """Return the fields of a memo. A damaged one has none, but its event ran all the same."""
    try:
        fields = json.loads(memo) if memo else {}
    except (ValueError, TypeError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {"not_kept": _DAMAGED}


def message_id(memo: bytes | None) -> str | None:
    """Return the id of the carrier's message, if it was remembered."""
    name: str | None = _fields(memo).get("mark")
    return name


def fingerprint(content: bytes) -> str:
    """Return a short hash of an event's content, by which a duplicate with other content is recognised."""
    return hashlib.sha256(content).hexdigest()[:_FINGERPRINT]


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- packed results: exactly what was returned, without its annotation ---


def _iso(time: datetime) -> str:
    text = time.isoformat()
    if repr(datetime.fromisoformat(text)) != repr(time):
        raise ResultUnavailable("the result holds a time in a named zone, which cannot be remembered exactly")
    return text


# A value that JSON has no form for is stored as {"$": kind, "v": text or items}.
_KINDS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("tuple", list, tuple),
    bytes: ("bytes", lambda value: b64encode(value).decode(), b64decode),
    Decimal: ("decimal", str, Decimal),
    datetime: ("datetime", _iso, datetime.fromisoformat),
    UUID: ("uuid", str, UUID),
}
_READ = {name: back for name, _, back in _KINDS.values()}


def pack(value: Any, depth: int = 0) -> Any:
    """Return a result as JSON that `unpack` reads back as exactly the same, types included."""
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
    item = "a dict whose names are not all strings" if kind is dict else f"a {kind.__name__}"
    raise ResultUnavailable(
        f"the result holds {item}, which cannot be remembered exactly; annotate what the handler returns"
    )


def unpack(value: Any) -> Any:
    """Return a result as the handler returned it."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {name: unpack(item) for name, item in value.items()}
    if value["$"] == "dict":
        return {name: unpack(item) for name, item in value["v"].items()}
    return _READ[value["$"]](unpack(value["v"]))
