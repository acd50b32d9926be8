"""Dead letters in an SQS queue: ours, those of EventBridge, and messages that SQS itself moved there."""

import gzip
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from eventonce.dead_letters.letter import MAX_LETTERS, OUTCOME, RULE, DeadEvents, letter_fields, read_letter
from eventonce.dead_letters.undelivered import read_undelivered
from eventonce.errors import EventRejected, LettersNotKept, SinkError
from eventonce.event import Delivery, Event
from eventonce.ports import BatchEntry, DeadLetter, Sendable
from eventonce.sinks.sqs import SqsSink
from eventonce.sources.sqs import MOVED_FROM, SqsSource

_ATTRIBUTE_BYTES = 1024  # of a message, reserved for its attributes
_MAX_ATTRIBUTE = 256  # characters
_BATCH = 100
_EMPTY_POLLS = 2  # in a row, before the queue counts as empty


class DeadQueue:
    """Writes to `sqs://QUEUE` or `sqs://ACCOUNT/QUEUE`. Each message is one letter as JSON."""

    def __init__(self, url: str) -> None:
        self._sink = _Letters(url)
        self.name = self._sink.label

    def write(self, dead: DeadEvents, now: int) -> None:
        """Write letters. SQS has them when this returns."""
        self.send([letter_fields(delivery, outcome, now) for delivery, outcome in dead])

    def send(self, letters: Sequence[Mapping[str, Any]]) -> None:
        """Send all letters that the queue accepts. Raise `LettersNotKept` for the others."""
        raws = [self._encode_to_fit(fields) for fields in letters]
        refused = {number: reason for number, raw in enumerate(raws) if (reason := self._excess(raw))}
        fitting = [number for number in range(len(raws)) if number not in refused]
        events = [Event(data=letters[number], raw=raws[number]) for number in fitting]
        keys = [hashlib.sha256(event.raw).hexdigest() for event in events]
        for number, error in zip(fitting, self._sink.send(events, keys) if events else (), strict=True):
            if isinstance(error, EventRejected):
                refused[number] = str(error)
            elif isinstance(error, SinkError):
                raise error
            elif error is not None:
                raise SinkError(
                    f"{self.name}: cannot keep a dead letter: {error}; fix this and run again (no event was lost)"
                )
        if refused:
            reason = refused[min(refused)]
            raise LettersNotKept(
                f"{self.name}: cannot keep a dead letter, and its event stays where it was: {reason}; keep dead "
                "letters in a file or in a table of the store (no event was lost)",
                sorted(refused),
            )

    def close(self) -> None:
        self._sink.close()

    def _encode_to_fit(self, fields: Mapping[str, Any]) -> bytes:
        raw = _encode(fields)
        return _encode(compress_body(fields)) if len(raw) > self._max_bytes else raw

    def _excess(self, raw: bytes) -> str:
        """Return why a letter is too large, or an empty string."""
        if len(raw) <= self._max_bytes:
            return ""
        return f"it has {len(raw):,} bytes even when compressed, over the {self._max_bytes:,} of a message"

    @property
    def _max_bytes(self) -> int:
        return self._sink.limits.alone - _ATTRIBUTE_BYTES


class _Letters(SqsSink):
    setting = "dead_letter"

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        fields = {OUTCOME: event.data["outcome"], RULE: event.data["rule"]}
        values = {name: _printable(value) for name, value in fields.items() if value}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
        size = len(event.raw) + sum(len(name + "String" + value) for name, value in values.items())
        # Each letter has a group of its own: they keep no order.
        names = ("MessageDeduplicationId", "MessageGroupId") if self.label.endswith(".fifo") else ()
        order = dict.fromkeys(names, item.key)
        return BatchEntry({"MessageBody": event.raw.decode(), "MessageAttributes": attributes, **order}, size)


def compress_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the letter with its body in gzip."""
    others = {name: value for name, value in fields.items() if name not in ("body", "body_base64")}
    body = fields["body"].encode() if "body" in fields else b64decode(fields["body_base64"])
    return {**others, "body_gzip": b64encode(gzip.compress(body, mtime=0)).decode()}


def _encode(fields: Mapping[str, Any]) -> bytes:
    text = msgspec.json.encode(fields).decode()
    # JSON allows these two characters, and SQS does not.
    return text.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff").encode()


def _printable(value: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in value[:_MAX_ATTRIBUTE])


class QueueBox:
    """Reads a queue. What it has read is hidden from other readers until `close`."""

    def __init__(self, url: str) -> None:
        self._source = _Messages(url)
        self._sink: DeadQueue | None = None
        self._deliveries: dict[str, Delivery] = {}  # by handle, all that are hidden
        self.name = self._source.name

    def letters(self) -> Iterator[DeadLetter]:
        empty_polls = 0
        while empty_polls < _EMPTY_POLLS and len(self._deliveries) < MAX_LETTERS:
            deliveries = self._source.receive(min(_BATCH, MAX_LETTERS - len(self._deliveries)))
            empty_polls = 0 if deliveries else empty_polls + 1
            for delivery in deliveries:
                self._deliveries[delivery.handle] = delivery
                yield self._letter(delivery)

    def hidden(self) -> int:
        return max(0, self._source.count_hidden() - len(self._deliveries))

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        self._source.ack([self._deliveries.pop(letter.handle) for letter in letters])

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Send the changed letters and delete the old ones. A kill between the two leaves both, and one is a copy."""
        changed = [letter for letter in letters if letter.fields]
        if not changed:
            return
        if self._sink is None:
            self._sink = DeadQueue(self._source.plain_url)
        self._sink.send([letter.fields for letter in changed])
        self.remove(changed)

    def close(self) -> None:
        for delivery in self._deliveries.values():
            self._source.retry(delivery, 0)
        self._source.close()
        if self._sink is not None:
            self._sink.close()

    def _letter(self, delivery: Delivery) -> DeadLetter:
        message = self._source.messages.pop(delivery.handle)
        # Ours are sent to this queue. What SQS moved was sent to another one, with attributes that its sender chose.
        sent_here = MOVED_FROM not in message.get("Attributes", {})
        if sent_here and OUTCOME in message.get("MessageAttributes", {}):
            return read_letter(delivery.body, delivery.handle)
        return read_undelivered(delivery, message)


class _Messages(SqsSource):
    """The messages of a queue with all their attributes."""

    attributes = ("All",)

    def __init__(self, url: str) -> None:
        # A poll of a second also covers the whole queue, and the last two polls are always empty.
        super().__init__(url if "wait=" in url else f"{url}{'&' if '?' in url else '?'}wait=1s")
        self.messages: dict[str, dict[str, Any]] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def plain_url(self) -> str:
        """The URL of the queue, without the options that only concern reading."""
        options = {name: value for name, value in self._address.options.items() if name not in ("wait", "visibility")}
        return f"{self._name}?{urlencode(options)}"

    def count_hidden(self) -> int:
        """Return about how many messages are received and not settled, by this reader and by others."""
        name = "ApproximateNumberOfMessagesNotVisible"
        response = self._call(self._calls.get_queue_attributes, AttributeNames=[name])
        return int(response.get("Attributes", {}).get(name, 0))

    def _delivery(self, message: dict[str, Any]) -> Delivery:
        self.messages[message["ReceiptHandle"]] = message
        return super()._delivery(message)


open_url = DeadQueue
open_box = QueueBox
