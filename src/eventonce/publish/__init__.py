"""The producer half: publishing under an identity that consumers can tell copies by."""

from eventonce.publish.outgoing import Outgoing
from eventonce.publish.published import Kind, Published
from eventonce.publish.publisher import Publisher

__all__ = ["Kind", "Outgoing", "Published", "Publisher"]
