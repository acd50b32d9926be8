"""Reading a body: raw bytes, text or a mapping become an `Event`, through every envelope and carrier."""

from eventonce.event.formats.carriers import Carried, unpack
from eventonce.event.formats.cloudevents import read_binary
from eventonce.event.formats.reader import read_event, read_events, read_message
from eventonce.event.formats.sdk import to_sdk
from eventonce.event.formats.text import MAX_BYTES

__all__ = [
    "MAX_BYTES",
    "Carried",
    "read_binary",
    "read_event",
    "read_events",
    "read_message",
    "to_sdk",
    "unpack",
]
