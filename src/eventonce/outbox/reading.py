"""What may be published: read, checked, and in the plain JSON that consumers will see."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.formats import read_event, to_sdk
from eventonce.event.stamp import remove_stamp


def read(item: object) -> Event:
    """The event in an item, or `EventRejected`. Keys are made of what it reads as on the other side."""
    if isinstance(item, Event):
        event = read_event(item)
        event = structs.replace(event, data=decode(_json(event.data)))
    else:
        event = read_event(_json(dict(item)) if isinstance(item, Mapping) else item)
    if event.form == "cloudevents":
        to_sdk(event)  # which checks its attributes
    return remove_stamp(event)


def kept(item: object) -> bytes:
    """Some bytes of an item that cannot be published, for its dead letter."""
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    if isinstance(item, str):
        return item.encode("utf-8", "backslashreplace")
    try:
        given = item.document() if isinstance(item, Event) else item
        return msgspec.json.encode(given, enc_hook=_shown)
    except Exception:  # whatever it is, its letter says so
        return f"(a {type(item).__name__} that has no JSON form)".encode()


def _json(value: Any) -> bytes:
    try:
        raw = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventRejected(f"cannot be written as JSON: {error}") from None
    if b"null" in raw and not _finite(value):  # which is how NaN is written, and nobody would know
        raise EventRejected("holds a number that is not finite, which JSON has no form for")
    return raw


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_finite, value))


def _shown(value: object) -> str:
    return f"(a {type(value).__name__})"
