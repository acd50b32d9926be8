"""Dead letters in a queue of SQS: ours, those of EventBridge, and messages that SQS itself has moved there."""

import gzip
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from eventonce.dead_letters.letter import MOST, OUTCOME, RULE, Dead, letter, read_letter
from eventonce.dead_letters.undelivered import read_undelivered
from eventonce.errors import EventRejected, LettersNotKept, SinkError
from eventonce.event import Delivery, Event
from eventonce.ports import BatchEntry, DeadLetter, Sendable
from eventonce.sinks.sqs import SqsSink
from eventonce.sources.sqs import MOVED_FROM, SqsSource

_ROOM = 1024  # bytes of a message that are left for its attributes
_LONGEST = 256  # characters of an attribute
_BATCH = 100
_LOOKS = 2  # polls that bring nothing, before the queue counts as empty


class DeadQueue:
    """`sqs://QUEUE` or `sqs://ACCOUNT/QUEUE`; each message is one dead letter as JSON."""

    def __init__(self, url: str) -> None:
        self._sink = _Letters(url)
        self.name = self._sink.label

    def write(self, dead: Dead, now: int) -> None:
        """Keep these; SQS has them when this returns."""
        self.send([letter(delivery, outcome, now) for delivery, outcome in dead])

    def send(self, letters: Sequence[Mapping[str, Any]]) -> None:
        """Send letters as they are, all that the queue takes; raises `LettersNotKept` for the others."""
        raws = [self._encoded(each) for each in letters]
        refused = {number: why for number, raw in enumerate(raws) if (why := self._excess(raw))}
        fitting = [number for number in range(len(raws)) if number not in refused]
        events = [Event(data=letters[number], raw=raws[number]) for number in fitting]
        names = [hashlib.sha256(event.raw).hexdigest() for event in events]
        for number, answer in zip(fitting, self._sink.send(events, names) if events else (), strict=True):
            if isinstance(answer, EventRejected):
                refused[number] = str(answer)
            elif isinstance(answer, SinkError):
                raise answer
            elif answer is not None:
                raise SinkError(
                    f"{self.name}: cannot keep a dead letter: {answer}; mend that and run again, nothing is lost"
                )
        if refused:
            why = refused[min(refused)]
            raise LettersNotKept(
                f"{self.name}: cannot keep a dead letter, and its event stays where it was: {why}; keep dead letters "
                "in a file or in a table of the store, nothing is lost",
                sorted(refused),
            )

    def close(self) -> None:
        self._sink.close()

    def _encoded(self, told: Mapping[str, Any]) -> bytes:
        raw = _encode(told)
        return _encode(packed(told)) if len(raw) > self._most else raw

    def _excess(self, raw: bytes) -> str:
        """Why a letter is too large, or nothing where it is not."""
        if len(raw) <= self._most:
            return ""
        return f"it has {len(raw):,} bytes even when packed, over the {self._most:,} of a message"

    @property
    def _most(self) -> int:
        return self._sink.limits.alone - _ROOM


class _Letters(SqsSink):
    what = "dead_letter"

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        given = {OUTCOME: event.data["outcome"], RULE: event.data["rule"]}
        named = {name: {"DataType": "String", "StringValue": _plain(value)} for name, value in given.items() if value}
        size = len(event.raw) + sum(len(name + "String" + each["StringValue"]) for name, each in named.items())
        # A group of its own for each: dead letters keep no order.
        names = ("MessageDeduplicationId", "MessageGroupId") if self.label.endswith(".fifo") else ()
        order = dict.fromkeys(names, item.key)
        return BatchEntry({"MessageBody": event.raw.decode(), "MessageAttributes": named, **order}, size)


def packed(told: Mapping[str, Any]) -> dict[str, Any]:
    """The letter with its body in gzip."""
    rest = {name: value for name, value in told.items() if name not in ("body", "body_base64")}
    body = told["body"].encode() if "body" in told else b64decode(told["body_base64"])
    return {**rest, "body_gzip": b64encode(gzip.compress(body, mtime=0)).decode()}


def _encode(told: Mapping[str, Any]) -> bytes:
    text = msgspec.json.encode(told).decode()
    # The two characters that JSON may have in it and SQS does not take.
    return text.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff").encode()


def _plain(value: str) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in value[:_LONGEST])


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


open_url = DeadQueue
open_box = QueueBox
