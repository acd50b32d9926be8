"""The handler that AWS Lambda calls."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from eventonce.aws_lambda.letters import LetterWriter

Runner = Callable[[Sequence[Delivery], int | None], list[Outcome]]
_MARGIN = 1000  # milliseconds by which a claim outlives its function, which may end a little late
_MAX_WARNINGS = 5
_log = logging.getLogger("eventonce")


class LambdaHandler:
    """Runs the events of an invocation once each, and responds in the form that their carrier expects.

    `run` takes deliveries and the lease of their claims, which is the time the function has left. With `enrichment` the
    function is a step of a pipe and returns the new items. With `report_kafka_failures` the mapping of a Kafka topic
    understands which records failed. With `letters` an event that cannot be processed ends as a dead letter.
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
        letters: "LetterWriter | None" = None,
    ) -> None:
        self._run = run
        self._consumer = consumer
        self._max_bytes = max_bytes
        self._clock = clock
        self._gate = gate
        self._enrichment = enrichment
        self._report_kafka_failures = report_kafka_failures
        self._letters = letters

    def __call__(self, event: Any, context: Any = None) -> Any:
        invocation = recognise(event)
        if invocation.reply is Reply.RESPONSE:
            return self._respond(invocation, context)
        if not (self._gate.is_open or is_of_aws(invocation)):
            raise unknown(event, "is neither a request nor what a service of AWS sends, so that auth= cannot check it")
        if invocation.reply is Reply.OFFSETS and not self._report_kafka_failures:
            invocation = invocation._replace(reply=Reply.RAISE)  # the mapping could take any response for success
        parts = [self._deliveries(invocation, message) for message in invocation.messages]
        settled = self._settle(invocation, parts, context)
        return new_items(invocation, settled) if self._enrichment else response_for(invocation, settled)

    def _settle(
        self, invocation: Invocation, parts: Sequence[Sequence[Delivery]], context: Any
    ) -> list[MessageOutcomes]:
        """Run the deliveries of each message, write what are dead letters now, and report the outcomes."""
        outcomes = iter(self._outcomes([delivery for part in parts for delivery in part], context))
        settled = [
            MessageOutcomes(message, [next(outcomes) for _ in part])
            for message, part in zip(invocation.messages, parts, strict=True)
        ]
        if self._letters is not None:
            settled = self._letters.write(settled, parts, whole=self._enrichment or invocation.reply is Reply.RAISE)
        self._report(invocation, settled)
        return settled

    def _outcomes(self, deliveries: Sequence[Delivery], context: Any) -> list[Outcome]:
        outcomes = self._run(deliveries, _lease(context))
        if self._letters is None:
            return outcomes
        from eventonce.aws_lambda.letters import behind_dead_letters

        while positions := behind_dead_letters(deliveries, outcomes):  # else a batch that returns whole never ends
            again = self._run([deliveries[position] for position in positions], _lease(context))
            for position, outcome in zip(positions, again, strict=True):
                outcomes[position] = outcome
        return outcomes

    def _respond(self, invocation: Invocation, context: Any) -> Any:
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
        (settled,) = self._settle(invocation, [requested], context)
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
        failed = [
            (message, failure, "" if failure.action is Action.RETRY else "; it cannot succeed as it is")
            for message, failure in ((each.message, each.failure) for each in settled)
            if failure is not None
        ]
        _warn(invocation, failed, "failed")
        if self._letters is not None:
            ending = f"; its dead letter is in {self._letters.name}"
            dead = [(each.message, outcome, ending) for each in settled for outcome in each.dead]
            _warn(invocation, dead, "dead letters")


def _warn(invocation: Invocation, failed: Sequence[tuple[InvocationMessage, Outcome, str]], noun: str) -> None:
    for message, outcome, ending in failed[:_MAX_WARNINGS]:
        reason = one_line(describe(outcome.error))
        _log.warning("%s %s: %s: %s%s", invocation.carrier, one_line(message.name), outcome.kind, reason, ending)
    if len(failed) > _MAX_WARNINGS:
        _log.warning("%d more %s", len(failed) - _MAX_WARNINGS, noun)


def _lease(context: Any) -> int | None:
    """Return the time the function has left, and a little more, so that its claims end with it."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    return None if remaining is None else min(max(int(remaining()), 0) + _MARGIN, LONGEST_LEASE)
