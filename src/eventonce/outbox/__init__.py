"""The producer half: publishing under an identity that consumers can tell copies by."""

from eventonce.publish.outbox import Outbox
from eventonce.publish.outgoing import Outgoing
from eventonce.publish.published import Kind, Published
from eventonce.publish.publisher import Publisher
from eventonce.publish.relay import Relay

__all__ = ["Kind", "Outbox", "Outgoing", "Published", "Publisher", "Relay"]
