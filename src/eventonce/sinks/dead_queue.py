"""Dead letters in a queue of SQS."""

import gzip
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventonce.errors import SinkError
from eventonce.event import Event
from eventonce.sinks.dead_letter import OUTCOME, RULE, Dead, letter
from eventonce.sinks.parcel import Entry, Parcel
from eventonce.sinks.sqs import SqsSink

_ROOM = 1024  # bytes of a message that are left for its attributes
_LONGEST = 256  # characters of an attribute


class DeadQueue:
    """`sqs://QUEUE` or `sqs://ACCOUNT/QUEUE`; each message is one dead letter as JSON."""

    def __init__(self, url: str) -> None:
        self._sink = _Letters(url)
        self.name = self._sink.where

    def write(self, dead: Dead, now: int) -> None:
        """Keep these; SQS has them when this returns."""
        self.send([letter(delivery, outcome, now) for delivery, outcome in dead])

    def send(self, letters: Sequence[Mapping[str, Any]]) -> None:
        """Send letters as they are."""
        events = [Event(data=each, raw=self._encoded(each)) for each in letters]
        names = [hashlib.sha256(event.raw).hexdigest() for event in events]
        for answer in self._sink.send(events, names) if events else ():
            if isinstance(answer, SinkError):
                raise answer
            if answer is not None:
                raise SinkError(f"{self.name}: cannot keep a dead letter: {answer}; mend that and run again")

    def close(self) -> None:
        self._sink.close()

    def _encoded(self, told: Mapping[str, Any]) -> bytes:
        raw = _encode(told)
        most = self._sink.limits.alone - _ROOM
        if len(raw) > most:
            raw = _encode(packed(told))
        if len(raw) > most:
            raise SinkError(
                f"{self.name}: a dead letter has {len(raw):,} bytes even when packed, over the {most:,} of a message; "
                "keep dead letters in a file or in a table of the store, nothing is lost"
            )
        return raw


class _Letters(SqsSink):
    what = "dead_letter"

    def _entry(self, event: Event, parcel: Parcel) -> Entry:
        given = {OUTCOME: event.data["outcome"], RULE: event.data["rule"]}
        named = {name: {"DataType": "String", "StringValue": _plain(value)} for name, value in given.items() if value}
        size = len(event.raw) + sum(len(name + "String" + each["StringValue"]) for name, each in named.items())
        # A group of its own for each: dead letters keep no order.
        names = ("MessageDeduplicationId", "MessageGroupId") if self.where.endswith(".fifo") else ()
        order = dict.fromkeys(names, parcel.key)
        return Entry({"MessageBody": event.raw.decode(), "MessageAttributes": named, **order}, size)


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
