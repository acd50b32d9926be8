"""An event to publish: what the caller knows of it, how it is read, and what became of it."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.formats import read_event, to_sdk
from eventonce.event.stamp import unstamped


class Message(msgspec.Struct, frozen=True):
    """An event to publish, where there is more to say than the event itself.

    `identity` is what consumers tell copies by; without one it comes from the event. Events of one `group` keep their
    order. `attempts` is how often it was sent before, so that the count goes on.
    """

    event: Any
    identity: str | None = None
    group: str | None = None
    attempts: int = 0


class PublishKind(StrEnum):
    """What became of it."""

    PUBLISHED = "published"  # the carrier has it
    DEDUPLICATED = "deduplicated"  # the carrier had it already, and says so
    REFUSED = "refused"  # will never be taken; a dead letter, where there is a place for them
    FAILED = "failed"  # not taken, or nobody knows; may be sent again under the same identity


class PublishResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one event. `id` is the carrier's own (EventId, MessageId), `code` what it calls its refusal.

    `attempts` counts every time it was sent, also those of earlier calls that `Outgoing.attempts` told of.
    """

    kind: PublishKind
    identity: str  # empty where the event could not even be read
    id: str | None = None
    attempts: int = 0
    code: str | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether the carrier has it."""
        return self.kind in (PublishKind.PUBLISHED, PublishKind.DEDUPLICATED)


# --- reading ---


def read(item: object) -> Event:
    """The event in an item, or `EventRejected`. Keys are made of what it reads as on the other side."""
    if isinstance(item, Event):
        event = read_event(item)
        event = structs.replace(event, data=decode(_json(event.data)))
    else:
        event = read_event(_json(dict(item)) if isinstance(item, Mapping) else item)
    if event.form == "cloudevents":
        to_sdk(event)  # which checks its attributes
    return unstamped(event)


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
