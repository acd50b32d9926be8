"""The response that each carrier expects, with the outcomes of its messages."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from eventonce.aws_lambda.invocation import Invocation, InvocationMessage, Reply, unknown
from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.errors import EventOnceError, EventRejected, describe
from eventonce.event.formats.text import to_base64
from eventonce.requests.response import Response, respond
from eventonce.text import one_line

_OF_CONNECTIONS = ("connection",)  # headers that only a server may send
_log = logging.getLogger("eventonce")


class MessageOutcomes(NamedTuple):
    """A message and the outcome of each of its events, nearly always one.

    `dead_lettered` says that what cannot be processed of it is a dead letter now.
    """

    message: InvocationMessage
    outcomes: Sequence[Outcome]
    dead_lettered: bool = False

    @property
    def failure(self) -> Outcome | None:
        """The first outcome that needs a redelivery, if any."""
        ended = (Action.ACK, Action.DEAD_LETTER) if self.dead_lettered else (Action.ACK,)
        return next((outcome for outcome in self.outcomes if outcome.action not in ended), None)

    @property
    def is_retried(self) -> bool:
        return any(outcome.action is Action.RETRY for outcome in self.outcomes)

    @property
    def dead(self) -> list[Outcome]:
        """The outcomes that are dead letters now."""
        return [outcome for outcome in self.outcomes if self.dead_lettered and outcome.action is Action.DEAD_LETTER]

    @property
    def processed(self) -> bool:
        return any(outcome.kind is OutcomeKind.PROCESSED for outcome in self.outcomes)

    @property
    def result(self) -> Any:
        """The result of the handler, if the message had one event."""
        return self.outcomes[0].result if len(self.outcomes) == 1 else None


def response_for(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> Any:
    """Return the response to an invocation, or raise if its carrier expects an exception."""
    return _RESPONSES[invocation.reply](invocation, settled)


def new_items(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> list[Any]:
    """Return the new items for the pipe: the result of the handler, or else the item as received.

    A pipe cannot report single failures, so one of them redelivers all. Items that were passed on before are recognised
    by their name at the carrier, and passed on again.
    """
    _raise_failure(invocation, settled)
    return [each.message.item if each.result is None else each.result for each in settled if each.processed]


def _messages(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> dict[str, Any]:
    return {"batchItemFailures": [_failure(each) for each in settled if each.failure is not None]}


def _offsets(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> dict[str, Any]:
    """Report every record that failed, not only the first of its partition: the others are not redelivered."""
    failed = [each.message for each in settled if each.failure is not None]
    offsets = [{"partition": message.group, "offset": message.item["offset"]} for message in failed]
    return {"batchItemFailures": [{"itemIdentifier": offset} for offset in offsets]}


def _checkpoint(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> dict[str, Any]:
    first = next((each for each in settled if each.failure is not None), None)
    response: dict[str, Any] = {"batchItemFailures": [] if first is None else [_failure(first)]}
    if "window" in invocation.document:  # a tumbling one, whose state is in the response
        response["state"] = invocation.document.get("state") or {}
    return response


def _failure(settled: MessageOutcomes) -> dict[str, str]:
    return {"itemIdentifier": settled.message.name}


def _records(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> dict[str, Any]:
    return {"records": [_record(each) for each in settled]}


def _record(settled: MessageOutcomes) -> dict[str, Any]:
    record = {"recordId": settled.message.name, "data": settled.message.item.get("data", "")}
    if settled.failure is not None:
        return {**record, "result": "ProcessingFailed"}
    if not settled.processed:
        return {**record, "result": "Dropped"}
    if settled.result is None:
        return {**record, "result": "Ok"}
    try:
        return {**record, "result": "Ok", "data": _encoded(settled.result)}
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # which must not fail the other records
        _log.warning(
            "firehose %s: its result cannot be written: %s", one_line(settled.message.name), one_line(str(error))
        )
        return {**record, "result": "ProcessingFailed"}


def _encoded(result: Any) -> str:
    text = result.encode() if isinstance(result, str) else result
    return to_base64(text if isinstance(text, bytes) else msgspec.json.encode(text))


def to_request(settled: MessageOutcomes, document: Mapping[str, Any], *, keyed: bool) -> dict[str, Any]:
    """Return the response to a request: that of the handler, or the one that the webhook would give."""
    outcomes, result = settled.outcomes, settled.result
    response = respond(outcomes, keyed=keyed, dead_lettered=settled.dead_lettered)
    if response.status == 200 and isinstance(result, Mapping) and "statusCode" in result:
        return {**result, "headers": {**(result.get("headers") or {}), "eventonce-outcome": str(outcomes[0].kind)}}
    return as_response(response, document)


def as_response(response: Response, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response in the form of a function's result."""
    headers = {name: value for name, value in response.headers.items() if name not in _OF_CONNECTIONS}
    result: dict[str, Any] = {"statusCode": response.status, "headers": headers, "body": response.body.decode()}
    if "multiValueHeaders" in document and "headers" not in document:  # a load balancer that expects the same form
        result["multiValueHeaders"] = {name: [value] for name, value in headers.items()}
    return result


def _nothing(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> Any:
    _raise_failure(invocation, settled)
    if isinstance(invocation.document, Mapping) and len(settled) == 1:
        return settled[0].result
    return None


def _raise_failure(invocation: Invocation, settled: Sequence[MessageOutcomes]) -> None:
    """Raise the first failure, so that Lambda or the pipe redelivers everything."""
    for item in settled:
        failure = item.failure
        if failure is None:
            continue
        if isinstance(failure.error, EventRejected) and item.message.carried.carrier == "none":
            raise unknown(invocation.document, describe(failure.error)) from failure.error
        raise failure.error or EventOnceError(f"{failure.kind}, for an unknown reason")


_RESPONSES: dict[Reply, Callable[[Invocation, Sequence[MessageOutcomes]], Any]] = {
    Reply.MESSAGES: _messages,
    Reply.OFFSETS: _offsets,
    Reply.CHECKPOINT: _checkpoint,
    Reply.RECORDS: _records,
    Reply.RAISE: _nothing,
}
