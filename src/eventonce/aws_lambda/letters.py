"""Dead letters of a function: what its carrier would redeliver without end."""

import json
import logging
from collections.abc import Sequence

from msgspec import structs

from eventonce.aws_lambda.invocation import InvocationMessage
from eventonce.aws_lambda.responses import MessageOutcomes
from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.clock import Clock
from eventonce.dead_letters import write_dead_letters
from eventonce.errors import SinkError, describe
from eventonce.event import Delivery, Event
from eventonce.ports import DeadLetterSink
from eventonce.text import one_line

_log = logging.getLogger("eventonce")


def behind_dead_letters(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> list[int]:
    """Return the positions of what waited for an earlier one of its group that is a dead letter, and may run now."""
    dead, stopped = set(), set()
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome.action is Action.DEAD_LETTER:
            dead.add(delivery.group)
        elif outcome.action is Action.RETRY and not _waits(outcome):
            stopped.add(delivery.group)
    groups = dead - stopped - {None}
    return [
        position
        for position, (delivery, outcome) in enumerate(zip(deliveries, outcomes, strict=True))
        if delivery.group in groups and _waits(outcome)
    ]


def _waits(outcome: Outcome) -> bool:
    return outcome.kind is OutcomeKind.BUSY and outcome.retry_at is None


class LetterWriter:
    """Writes the dead letters of an invocation, so that its carrier may forget their messages."""

    def __init__(self, sink: DeadLetterSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self.name = sink.name

    def write(
        self, settled: Sequence[MessageOutcomes], parts: Sequence[Sequence[Delivery]], *, whole: bool
    ) -> list[MessageOutcomes]:
        """Write the dead letters of the messages that come to an end. Return these messages as dead-lettered.

        What is redelivered becomes a dead letter at its next delivery. With `whole` that is all of the invocation.
        """
        if whole and any(message.is_retried for message in settled):
            return list(settled)
        ends = _ends(settled)
        dead = {index: _letters(settled[index], parts[index]) for index in ends}
        unwritten = self._write([letter for index in ends for letter in dead[index]])
        written = {index for index in ends if unwritten.isdisjoint(id(delivery) for delivery, _ in dead[index])}
        return [
            message._replace(dead_lettered=index in written and bool(dead[index]))
            for index, message in enumerate(settled)
        ]

    def _write(self, dead: Sequence[tuple[Delivery, Outcome]]) -> set[int]:
        """Write letters. Return the deliveries (by `id`) without one, which must come back."""
        if not dead:
            return set()
        try:
            unwritten = write_dead_letters(self._sink, dead, self._clock.utc())
        except SinkError as error:
            _log.error("dead letters could not be written, and their events come back: %s", one_line(describe(error)))
            unwritten = dead
        return {id(delivery) for delivery, _ in unwritten}


def _ends(settled: Sequence[MessageOutcomes]) -> list[int]:
    """Return the positions of the messages that end: neither they nor an earlier one of their group is retried."""
    stopped: set[str | None] = set()
    ends = []
    for index, message in enumerate(settled):
        if message.is_retried:
            stopped.add(message.message.group)
        elif message.message.group is None or message.message.group not in stopped:
            ends.append(index)
    return ends


def _letters(settled: MessageOutcomes, part: Sequence[Delivery]) -> list[tuple[Delivery, Outcome]]:
    return [
        (structs.replace(delivery, body=_body(delivery, settled.message, alone=len(part) == 1)), outcome)
        for delivery, outcome in zip(part, settled.outcomes, strict=True)
        if outcome.action is Action.DEAD_LETTER
    ]


def _body(delivery: Delivery, message: InvocationMessage, *, alone: bool) -> bytes:
    """Return the bytes that a redrive reads: those of the message, or of its one event among several."""
    body = message.carried.body
    if delivery.body:
        return delivery.body
    if delivery.event is not None and (isinstance(body, Event) or not alone):
        return delivery.event.raw or delivery.event.line()
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode("utf-8", "backslashreplace")
