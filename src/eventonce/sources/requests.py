"""Requests as a way in: they come by themselves, and the webhook answers them."""

from collections.abc import Sequence

from eventonce.errors import SourceError
from eventonce.event import Delivery


class Requests:
    """Where requests are awaited, as `http://HOST:PORT/path`. There is nothing to receive: `webhook/` serves them."""

    def __init__(self, url: str) -> None:
        self.url = url

    def receive(self, limit: int) -> Sequence[Delivery]:
        raise SourceError(f"{self.url}: requests come by themselves; serve them with eventonce run")

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """A request is answered, not acked."""

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Who sent it sends it again."""

    def close(self) -> None:
        """Nothing is open."""
