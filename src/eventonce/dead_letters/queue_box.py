"""Dead letters in a queue of SQS: ours, those of EventBridge, and messages that SQS itself has moved there."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from eventonce.dead_letters.letter import MOST, read_letter
from eventonce.dead_letters.undelivered import read_undelivered
from eventonce.dead_letters.writing import OUTCOME
from eventonce.event import Delivery
from eventonce.ports import DeadLetter
from eventonce.sources.sqs import MOVED_FROM, SqsSource

if TYPE_CHECKING:
    from eventonce.dead_letters.queue_sink import DeadQueue

_BATCH = 100
_LOOKS = 2  # polls that bring nothing, before the queue counts as empty


class QueueBox:
    """A queue. Its messages are hidden from others from when they are read until `close`."""

    def __init__(self, url: str) -> None:
        self._source = _Messages(url)
        self._sink: DeadQueue | None = None
        self._held: dict[str, Delivery] = {}
        self.name = self._source.name

    def letters(self) -> Iterator[DeadLetter]:
        empty = 0
        while empty < _LOOKS and len(self._held) < MOST:
            received = self._source.receive(min(_BATCH, MOST - len(self._held)))
            empty = 0 if received else empty + 1
            for delivery in received:
                self._held[delivery.handle] = delivery
                yield self._letter(delivery)

    def hidden(self) -> int:
        return max(0, self._source.in_hand() - len(self._held))

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        self._source.ack([self._held.pop(letter.handle) for letter in letters])

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Send them anew and delete what they were. Killed between the two there are two, of which one is a copy."""
        ours = [letter for letter in letters if letter.fields]
        if not ours:
            return
        if self._sink is None:
            from eventonce.dead_letters.queue_sink import DeadQueue  # which needs its driver

            self._sink = DeadQueue(self._source.plain_url)
        self._sink.send([letter.fields for letter in ours])
        self.remove(ours)

    def close(self) -> None:
        for delivery in self._held.values():
            self._source.retry(delivery, 0)
        self._source.close()
        if self._sink is not None:
            self._sink.close()

    def _letter(self, delivery: Delivery) -> DeadLetter:
        message = self._source.messages.pop(delivery.handle)
        # Ours are sent to this queue. What SQS has moved was sent to another one, with the attributes of its sender.
        sent_here = MOVED_FROM not in message.get("Attributes", {})
        if sent_here and OUTCOME in message.get("MessageAttributes", {}):
            return read_letter(delivery.body, delivery.handle)
        return read_undelivered(delivery, message)


class _Messages(SqsSource):
    """The messages of a queue with all that was said of them."""

    attributes = ("All",)

    def __init__(self, url: str) -> None:
        # A poll of a second sees the whole queue too, and the last two bring nothing.
        super().__init__(url if "wait=" in url else f"{url}{'&' if '?' in url else '?'}wait=1s")
        self.messages: dict[str, dict[str, Any]] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def plain_url(self) -> str:
        """The queue without what only concerns reading."""
        options = {name: value for name, value in self._place.options.items() if name not in ("wait", "visibility")}
        return f"{self._name}?{urlencode(options)}"

    def in_hand(self) -> int:
        """About how many messages somebody has received, us included."""
        asked = ["ApproximateNumberOfMessagesNotVisible"]
        found = self._ask(self._calls.get_queue_attributes, AttributeNames=asked)
        return int(found.get("Attributes", {}).get(asked[0], 0))

    def _delivery(self, message: dict[str, Any]) -> Delivery:
        self.messages[message["ReceiptHandle"]] = message
        return super()._delivery(message)
