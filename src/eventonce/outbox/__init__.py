"""The producer half: publishing events under an identity by which consumers recognise copies."""

from eventonce.outbox.message import Message, PublishKind, PublishResult
from eventonce.outbox.outbox import Outbox
from eventonce.outbox.publisher import Publisher
from eventonce.outbox.relay import Relay

__all__ = ["PublishKind", "Outbox", "Message", "PublishResult", "Publisher", "Relay"]
