"""Dead letters in a queue of SQS."""

import gzip
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventonce.dead_letters.writing import OUTCOME, RULE, Dead, letter
from eventonce.errors import EventRejected, LettersNotKept, SinkError
from eventonce.event import Event
from eventonce.ports import BatchEntry, Sendable
from eventonce.sinks.sqs import SqsSink

_ROOM = 1024  # bytes of a message that are left for its attributes
_LONGEST = 256  # characters of an attribute


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


open_url = DeadQueue
