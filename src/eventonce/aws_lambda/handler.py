"""The handler that AWS Lambda calls."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from eventonce.aws_lambda.gate import Gate
from eventonce.aws_lambda.invocation import Invocation, InvocationMessage, Reply, is_of_aws, recognise, unknown
from eventonce.aws_lambda.responses import Settled, answer, as_response, enriched, to_request
from eventonce.claims.outcome import Action, Outcome
from eventonce.claims.protocol import LONGEST_LEASE
from eventonce.clock import Clock
from eventonce.errors import describe
from eventonce.event import Delivery, Event
from eventonce.event.formats import gateway, read_message
from eventonce.event.formats.headers import IDEMPOTENCY_KEY, from_api_destination
from eventonce.observe import emf
from eventonce.requests.reading import deliveries
from eventonce.requests.refusal import RequestRefused
from eventonce.requests.response import noted, refused

Runner = Callable[[Sequence[Delivery], int | None], list[Outcome]]
_BEYOND = 1000  # milliseconds by which a claim outlives the function, whose end is not as punctual as its start
_MOST_COMPLAINTS = 5
_log = logging.getLogger("eventonce")


class LambdaHandler:
    """Runs what Lambda brings, each event once, and answers as its carrier wants to be told.

    `run` takes deliveries and the lease of their claims: the time that the function has left. With `enrichment` the
    function stands inside a pipe and hands on what is new. With `report_kafka_failures` the mapping of a Kafka topic is
    known to understand which records failed.
    """

    def __init__(
        self,
        run: Runner,
        consumer: str,
        max_bytes: int,
        clock: Clock,
        gate: Gate,
        *,
        enrichment: bool,
        report_kafka_failures: bool,
    ) -> None:
        self._run = run
        self._consumer = consumer
        self._max_bytes = max_bytes
        self._clock = clock
        self._gate = gate
        self._enrichment = enrichment
        self._report_kafka_failures = report_kafka_failures

    def __call__(self, event: Any, context: Any = None) -> Any:
        envelope = recognise(event)
        if envelope.reply is Reply.RESPONSE:
            return self._respond(envelope, _lease(context))
        if not (self._gate.is_open or is_of_aws(envelope)):
            raise unknown(event, "is neither a request nor what a service of AWS sends, so that auth= cannot check it")
        if envelope.reply is Reply.OFFSETS and not self._report_kafka_failures:
            envelope = envelope._replace(reply=Reply.RAISE)  # any answer could be taken for success of all
        parts = [self._deliveries(envelope, message) for message in envelope.messages]
        outcomes = iter(self._run([delivery for part in parts for delivery in part], _lease(context)))
        settled = [
            Settled(message, [next(outcomes) for _ in part])
            for message, part in zip(envelope.messages, parts, strict=True)
        ]
        self._tell(envelope, settled)
        return enriched(envelope, settled) if self._enrichment else answer(envelope, settled)

    def _respond(self, envelope: Invocation, lease: int | None) -> Any:
        """A request goes the way that it goes through the webhook."""
        try:
            admitted = self._gate.admit(envelope.document)
            if isinstance(admitted, str):
                return as_response(noted(admitted), envelope.document)
            headers, body, name = admitted
            found = deliveries(headers, body, self._max_bytes, envelope.carrier, name)
        except RequestRefused as refusal:
            self._gate.refused(refusal)
            return as_response(refused(refusal), envelope.document)
        settled = Settled(envelope.messages[0], self._run(found, lease))
        self._tell(envelope, [settled])
        if self._enrichment:
            return enriched(envelope, [settled])
        keyed = IDEMPOTENCY_KEY in headers and not from_api_destination(gateway.headers(envelope.document))
        return to_request(settled, envelope.document, keyed=keyed)

    def _deliveries(self, envelope: Invocation, message: InvocationMessage) -> list[Delivery]:
        where = {"source": envelope.carrier, "message": message.name}
        # What is passed on is done with it, but its carrier may still send it again: then it must pass again.
        passed_on = self._enrichment or envelope.reply is Reply.RECORDS
        mark = f"{message.carried.namer}:{message.name}" if passed_on and message.name else None
        return [
            Delivery(
                body=b"",
                origin=where,
                event=each if isinstance(each, Event) else None,
                unreadable=None if isinstance(each, Event) else describe(each),
                group=message.group,
                message_id=mark,
            )
            for each in read_message(message.carried, self._max_bytes)
        ]

    def _tell(self, envelope: Invocation, settled: Sequence[Settled]) -> None:
        outcomes = [outcome for each in settled for outcome in each.outcomes]
        sys.stdout.write(emf.line(self._consumer, envelope.carrier, outcomes, self._clock.utc()) + "\n")
        failed = [(each.message, each.failure) for each in settled if each.failure is not None]
        for message, failure in failed[:_MOST_COMPLAINTS]:
            kept = "" if failure.action is Action.RETRY else "; it cannot succeed as it is"
            _log.warning("%s %s: %s: %s%s", envelope.carrier, message.name, failure.kind, describe(failure.error), kept)
        if len(failed) > _MOST_COMPLAINTS:
            _log.warning("%d more failed", len(failed) - _MOST_COMPLAINTS)


def _lease(context: Any) -> int | None:
    """The time the function has left, and a little: then a claim of a function that was stopped is free at once."""
    left = getattr(context, "get_remaining_time_in_millis", None)
    return None if left is None else min(max(int(left()), 0) + _BEYOND, LONGEST_LEASE)
