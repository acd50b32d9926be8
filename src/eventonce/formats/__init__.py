"""Ways to read a body: raw bytes, text or a mapping become an `Event`, through every envelope and carrier."""

from eventonce.formats.carriers import Carried, unpack
from eventonce.formats.cloudevents import read_binary
from eventonce.formats.reader import read_event, read_events, read_message
from eventonce.formats.sdk import to_sdk
from eventonce.formats.text import MAX_BYTES

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
