"""Change records of DynamoDB Streams: an item was inserted, changed or removed."""

import re
from datetime import datetime
from typing import Any

from eventonce.clock import to_datetime
from eventonce.event import Event
from eventonce.event.formats.numbers import watch_number
from eventonce.event.formats.plain import text
from eventonce.event.formats.text import too_deep
from eventonce.event.paths import floor_time

_IMAGES = {"Keys": "keys", "NewImage": "new", "OldImage": "old"}
_WHOLE = r"-?[0-9]{1,40}"
_DECIMAL = r"-?([0-9]{1,40})(?:\.([0-9]{1,40}))?(?:[eE][+-]?[0-9]{1,3})?"
_EXACT_DIGITS = 15  # this many digits survive a float


def recognises(body: dict[str, Any]) -> bool:
    """Return whether this is a change record."""
    return body.get("eventSource") == "aws:dynamodb" and isinstance(body.get("dynamodb"), dict)


def read(body: dict[str, Any], raw: bytes) -> Event:
    """Read it: the data is `{eventName, keys, new, old}` in plain JSON, without the images the stream leaves out.

    The stream gives the record its id, which is unique within that stream alone.
    """
    change = body["dynamodb"]
    try:
        images = {event_id: _item(change[image]) for image, event_id in _IMAGES.items() if image in change}
    except RecursionError:
        raise too_deep() from None
    event_id = text(body.get("eventID"))
    attributes = {**body, **{event_id: value for event_id, value in change.items() if event_id not in _IMAGES}}
    return Event(
        id=event_id,
        source=_table(body),
        type=text(body.get("eventName")),
        time=_time(change.get("ApproximateCreationDateTime")),
        data={"eventName": body.get("eventName"), **images},
        attributes={event_id: value for event_id, value in attributes.items() if event_id not in ("dynamodb", "id")},
        raw=raw,
        named_by=(text(body.get("eventSourceARN")) or "dynamodb",) if event_id else (),
    )


def _table(body: dict[str, Any]) -> str:
    """Return `orders` from `arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/2026-01-05T09:00:00.000`."""
    if "tableName" in body:  # of a Kinesis stream
        return text(body["tableName"])
    _, _, path = text(body.get("eventSourceARN")).partition(":table/")
    return path.partition("/")[0]


def _time(value: Any) -> datetime | None:
    millis = floor_time(value, "1ms")  # seconds here, milli- or microseconds in a Kinesis stream
    try:
        return None if millis is None else to_datetime(millis)
    except (ValueError, OverflowError, OSError):
        return None


# --- DynamoDB JSON: {"S": "a"} is "a" ---


def _item(image: Any) -> Any:
    return {name: _plain(value) for name, value in image.items()} if isinstance(image, dict) else image


def _plain(typed: Any) -> Any:
    """Return the value of a typed one. Anything else stays as it is."""
    if not isinstance(typed, dict) or len(typed) != 1:
        return typed
    ((tag, value),) = typed.items()
    if tag in _SIMPLE:
        return value
    convert = _CONVERTERS.get(tag)
    return typed if convert is None else convert(value)


def _number(value: Any) -> Any:
    # DynamoDB keeps 38 digits. What a float would round becomes a tagged string: rounding could make two values one.
    if not isinstance(value, str):
        return value
    if re.fullmatch(_WHOLE, value):
        return watch_number(int(value))
    match = re.fullmatch(_DECIMAL, value)
    if match is None or len((match[1] + (match[2] or "")).strip("0")) > _EXACT_DIGITS:
        return {"$number": value}
    number = watch_number(float(value))
    return number if number == 0 or 1e-200 < abs(number) < 1e200 else {"$number": value}


def _set(values: Any) -> Any:
    # A set has no order, so it gets one. It also gets a tag, since a list with the same items is another value.
    if isinstance(values, list) and all(isinstance(item, str) for item in values):
        return {"$set": sorted(values)}
    return values


def _numbers(values: Any) -> Any:
    tagged = _set(values)
    return {"$set": [_number(item) for item in tagged["$set"]]} if isinstance(tagged, dict) else values


def _list(values: Any) -> Any:
    return [_plain(item) for item in values] if isinstance(values, list) else values


_SIMPLE = frozenset(("S", "BOOL"))
_CONVERTERS = {
    "B": lambda value: {"$binary": value},  # base64, which a string could be too
    "N": _number,
    "NULL": lambda _: None,
    "M": _item,
    "L": _list,
    "SS": _set,
    "BS": lambda values: {"$binary": _set(values)},
    "NS": _numbers,
}
