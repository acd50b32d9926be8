"""A message: an event to publish, how it is read, and the result of publishing it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import structs

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.formats import read_event, to_sdk
from eventonce.event.stamp import remove_stamp
from eventonce.event.values import is_model, spell


class Message(msgspec.Struct, frozen=True):
    """An event to publish, with what the caller knows of it.

    Consumers recognise copies by the `identity`. Without one it comes from the event. Events of one `group` keep their
    order. `attempts` is how often it was sent before, so that the count continues.
    """

    event: Any
    identity: str | None = None
    group: str | None = None
    attempts: int = 0


class PublishKind(StrEnum):
    """How publishing an event ended."""

    PUBLISHED = "published"  # the carrier has it
    DEDUPLICATED = "deduplicated"  # the carrier reports that it had it already
    REFUSED = "refused"  # will never be accepted: a dead letter, if there is a sink for them
    FAILED = "failed"  # not accepted, or unknown; it may be sent again under the same identity


class PublishResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of publishing one event. `id` is the carrier's own (EventId, MessageId), and `code` its error code.

    `attempts` counts every time it was sent, including the `attempts` of its `Message`.
    """

    kind: PublishKind
    identity: str  # empty if the event could not be read
    id: str | None = None
    attempts: int = 0
    code: str | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """True if the carrier has it."""
        return self.kind in (PublishKind.PUBLISHED, PublishKind.DEDUPLICATED)


# --- reading ---


def read_publishable(source: object) -> Event:
    """Return the event in what a caller passed, as consumers will read it. Raise `EventRejected` if there is none."""
    if isinstance(source, Event):
        event = read_event(source)
        event = structs.replace(event, data=decode(_json(event.data)))
    else:
        event = read_event(_json(spell(source)) if isinstance(source, Mapping) or is_model(source) else source)
    if event.form == "cloudevents":
        to_sdk(event)  # which checks its attributes
    return remove_stamp(event)


def raw_bytes(source: object) -> bytes:
    """Return bytes for the dead letter of what cannot be published."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str):
        return source.encode("utf-8", "backslashreplace")
    try:
        document = source.document() if isinstance(source, Event) else source
        return msgspec.json.encode(document, enc_hook=_describe)
    except Exception:  # whatever it is, there is a letter of it
        return f"({type(source).__name__}, which has no JSON form)".encode()


def _json(value: Any) -> bytes:
    try:
        raw = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventRejected(f"cannot be written as JSON: {error}") from None
    return raw


def _describe(value: object) -> str:
    return f"({type(value).__name__})"
