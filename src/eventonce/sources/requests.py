"""Requests as a source: senders push them, and the webhook responds."""

from collections.abc import Sequence

from eventonce.errors import SourceError
from eventonce.event import Delivery


class Requests:
    """The address of a webhook, as `http://HOST:PORT/path`. There is nothing to receive: `webhook/` serves it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def receive(self, limit: int) -> Sequence[Delivery]:
        raise SourceError(f"{self.url}: requests cannot be polled; serve them with eventonce run")

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: the response settles a request."""

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Do nothing: the sender retries."""

    def close(self) -> None:
        """Do nothing: nothing is open."""
