"""The handler that AWS Lambda calls."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from eventonce.aws_lambda.gate import Gate
from eventonce.aws_lambda.invocation import Invocation, InvocationMessage, Reply, is_of_aws, recognise, unknown
from eventonce.aws_lambda.responses import MessageOutcomes, as_response, new_items, response_for, to_request
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
from eventonce.text import one_line

Runner = Callable[[Sequence[Delivery], int | None], list[Outcome]]
_MARGIN = 1000  # milliseconds by which a claim outlives its function, which may end a little late
_MAX_WARNINGS = 5
_log = logging.getLogger("eventonce")


class LambdaHandler:
    """Runs the events of an invocation once each, and responds in the form that their carrier expects.

    `run` takes deliveries and the lease of their claims, which is the time the function has left. With `enrichment` the
    function is a step of a pipe and returns the new items. With `report_kafka_failures` the mapping of a Kafka topic
    understands which records failed.
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
        invocation = recognise(event)
        if invocation.reply is Reply.RESPONSE:
            return self._respond(invocation, _lease(context))
        if not (self._gate.is_open or is_of_aws(invocation)):
            raise unknown(event, "is neither a request nor what a service of AWS sends, so that auth= cannot check it")
        if invocation.reply is Reply.OFFSETS and not self._report_kafka_failures:
            invocation = invocation._replace(reply=Reply.RAISE)  # the mapping could take any response for success
        parts = [self._deliveries(invocation, message) for message in invocation.messages]
        outcomes = iter(self._run([delivery for part in parts for delivery in part], _lease(context)))
        settled = [
            MessageOutcomes(message, [next(outcomes) for _ in part])
            for message, part in zip(invocation.messages, parts, strict=True)
        ]
        self._report(invocation, settled)
        return new_items(invocation, settled) if self._enrichment else response_for(invocation, settled)

    def _respond(self, invocation: Invocation, lease: int | None) -> Any:
        """Return the response to a request, as the webhook would give it."""
        try:
            admitted = self._gate.admit(invocation.document)
            if isinstance(admitted, str):
                return as_response(noted(admitted), invocation.document)
            headers, body, name = admitted
            requested = deliveries(headers, body, self._max_bytes, invocation.carrier, name)
        except RequestRefused as refusal:
            self._gate.refused(refusal)
            return as_response(refused(refusal), invocation.document)
        settled = MessageOutcomes(invocation.messages[0], self._run(requested, lease))
        self._report(invocation, [settled])
        if self._enrichment:
            return new_items(invocation, [settled])
        keyed = IDEMPOTENCY_KEY in headers and not from_api_destination(gateway.headers(invocation.document))
        return to_request(settled, invocation.document, keyed=keyed)

    def _deliveries(self, invocation: Invocation, message: InvocationMessage) -> list[Delivery]:
        origin = {"source": invocation.carrier, "message": message.name}
        # An item that was passed on is done, but its carrier may redeliver it: then it must be passed on again.
        passed_on = self._enrichment or invocation.reply is Reply.RECORDS
        message_id = f"{message.carried.namer}:{message.name}" if passed_on and message.name else None
        return [
            Delivery(
                body=b"",
                origin=origin,
                event=event if isinstance(event, Event) else None,
                unreadable=None if isinstance(event, Event) else describe(event),
                group=message.group,
                message_id=message_id,
            )
            for event in read_message(message.carried, self._max_bytes)
        ]

    def _report(self, invocation: Invocation, settled: Sequence[MessageOutcomes]) -> None:
        outcomes = [outcome for each in settled for outcome in each.outcomes]
        sys.stdout.write(emf.line(self._consumer, invocation.carrier, outcomes, self._clock.utc()) + "\n")
        failed = [(each.message, each.failure) for each in settled if each.failure is not None]
        for message, failure in failed[:_MAX_WARNINGS]:
            hint = "" if failure.action is Action.RETRY else "; it cannot succeed as it is"
            _log.warning(
                "%s %s: %s: %s%s",
                invocation.carrier,
                one_line(message.name),
                failure.kind,
                one_line(describe(failure.error)),
                hint,
            )
        if len(failed) > _MAX_WARNINGS:
            _log.warning("%d more failed", len(failed) - _MAX_WARNINGS)


def _lease(context: Any) -> int | None:
    """Return the time the function has left, and a little more, so that its claims end with it."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    return None if remaining is None else min(max(int(remaining()), 0) + _MARGIN, LONGEST_LEASE)
