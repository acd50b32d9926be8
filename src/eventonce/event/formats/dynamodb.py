"""Change records of DynamoDB Streams: an item was put in, changed or removed."""

import re
from datetime import datetime
from typing import Any

from eventonce.clock import moment
from eventonce.event import Event
from eventonce.event.formats.numbers import noticed
from eventonce.event.formats.plain import text
from eventonce.event.formats.text import too_deep
from eventonce.event.paths import floor_time

_IMAGES = {"Keys": "keys", "NewImage": "new", "OldImage": "old"}
_WHOLE = r"-?[0-9]{1,40}"
_DECIMAL = r"-?([0-9]{1,40})(?:\.([0-9]{1,40}))?(?:[eE][+-]?[0-9]{1,3})?"
_SURE_DIGITS = 15  # so many digits come back from a float as they went in


def recognises(body: dict[str, Any]) -> bool:
    """Whether this is a change record."""
    return body.get("eventSource") == "aws:dynamodb" and isinstance(body.get("dynamodb"), dict)


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it: the data is `{eventName, keys, new, old}` in plain JSON, without the images the stream leaves out.

    The stream gives the record its id, which counts within the stream alone.
    """
    change = body["dynamodb"]
    try:
        images = {name: _item(change[given]) for given, name in _IMAGES.items() if given in change}
    except RecursionError:
        raise too_deep() from None
    name = text(body.get("eventID"))
    rest = {**body, **{name: value for name, value in change.items() if name not in _IMAGES}}
    return Event(
        id=name,
        source=_table(body),
        type=text(body.get("eventName")),
        time=_time(change.get("ApproximateCreationDateTime")),
        data={"eventName": body.get("eventName"), **images},
        attributes={name: value for name, value in rest.items() if name not in ("dynamodb", "id")},
        raw=raw,
        named_by=(text(body.get("eventSourceARN")) or "dynamodb",) if name else (),
    )


def _table(body: dict[str, Any]) -> str:
    """`orders` of `arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/2026-01-05T09:00:00.000`."""
    if "tableName" in body:  # where the stream is one of Kinesis
        return text(body["tableName"])
    _, found, rest = text(body.get("eventSourceARN")).partition(":table/")
    return rest.partition("/")[0] if found else ""


def _time(value: Any) -> datetime | None:
    millis = floor_time(value, "1ms")  # seconds here, milli- or microseconds where the stream is one of Kinesis
    try:
        return None if millis is None else moment(millis)
    except (ValueError, OverflowError, OSError):
        return None


# --- DynamoDB JSON: {"S": "a"} is "a" ---


def _item(image: Any) -> Any:
    return {name: _plain(value) for name, value in image.items()} if isinstance(image, dict) else image


def _plain(typed: Any) -> Any:
    """The value a typed one stands for; what is no typed value stays as it is."""
    if not isinstance(typed, dict) or len(typed) != 1:
        return typed
    ((tag, value),) = typed.items()
    if tag in _SIMPLE:
        return value
    change = _CHANGES.get(tag)
    return typed if change is None else change(value)


def _number(value: Any) -> Any:
    # DynamoDB keeps 38 digits. What a float would round stays text, marked: rounding could make two values one.
    if not isinstance(value, str):
        return value
    if re.fullmatch(_WHOLE, value):
        return noticed(int(value))
    found = re.fullmatch(_DECIMAL, value)
    if found is None or len((found[1] + (found[2] or "")).strip("0")) > _SURE_DIGITS:
        return {"$number": value}
    read = noticed(float(value))
    return read if read == 0 or 1e-200 < abs(read) < 1e200 else {"$number": value}


def _set(values: Any) -> Any:
    # A set has no order, so one is given to it; and a mark, since a list with the same items is another value.
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        return {"$set": sorted(values)}
    return values


def _numbers(values: Any) -> Any:
    marked = _set(values)
    return {"$set": [_number(each) for each in marked["$set"]]} if isinstance(marked, dict) else values


def _list(values: Any) -> Any:
    return [_plain(each) for each in values] if isinstance(values, list) else values


_SIMPLE = frozenset(("S", "BOOL"))
_CHANGES = {
    "B": lambda value: {"$binary": value},  # base64 text, which a string could be too
    "N": _number,
    "NULL": lambda _: None,
    "M": _item,
    "L": _list,
    "SS": _set,
    "BS": lambda values: {"$binary": _set(values)},
    "NS": _numbers,
}
