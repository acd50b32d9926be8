"""The producer half: publishing under an identity that consumers can tell copies by."""

from eventonce.outbox.message import Outgoing
from eventonce.outbox.outbox import Outbox
from eventonce.outbox.publish_result import Kind, Published
from eventonce.outbox.publisher import Publisher
from eventonce.outbox.relay import Relay

__all__ = ["Kind", "Outbox", "Outgoing", "Published", "Publisher", "Relay"]
