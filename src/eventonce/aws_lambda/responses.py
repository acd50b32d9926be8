"""What each carrier is told: its own words for what became of its messages."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from eventonce.aws_lambda.invocation import Invocation, InvocationMessage, Reply, unknown
from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.errors import EventOnceError, EventRejected, describe
from eventonce.event.formats.text import to_base64
from eventonce.requests.response import Response, respond

_OF_CONNECTIONS = ("connection",)  # headers that only a server may send
_log = logging.getLogger("eventonce")


class Settled(NamedTuple):
    """A message and what became of each of its events, nearly always one."""

    message: InvocationMessage
    outcomes: Sequence[Outcome]

    @property
    def failure(self) -> Outcome | None:
        """Why the message must come again, if it must."""
        return next((outcome for outcome in self.outcomes if outcome.action is not Action.ACK), None)

    @property
    def processed(self) -> bool:
        return any(outcome.kind is OutcomeKind.PROCESSED for outcome in self.outcomes)

    @property
    def result(self) -> Any:
        """What the handler returned, where the message had one event."""
        return self.outcomes[0].result if len(self.outcomes) == 1 else None


def answer(envelope: Invocation, settled: Sequence[Settled]) -> Any:
    """The answer to an invocation; raises where an exception is the carrier's way to be told."""
    return _ANSWERS[envelope.reply](envelope, settled)


def enriched(envelope: Invocation, settled: Sequence[Settled]) -> list[Any]:
    """What a pipe's enrichment hands on: what is new, as the handler returns it or else as it came.

    A pipe cannot be told of single failures, so that one of them brings back all; those that were handed on before
    are known by their carrier's name for them, and handed on again.
    """
    _raise_failure(envelope, settled)
    return [each.message.item if each.result is None else each.result for each in settled if each.processed]


def _messages(envelope: Invocation, settled: Sequence[Settled]) -> dict[str, Any]:
    return {"batchItemFailures": [_failure(each) for each in settled if each.failure is not None]}


def _offsets(envelope: Invocation, settled: Sequence[Settled]) -> dict[str, Any]:
    """Every record that is not done, and not the first of its partition alone: no other may come again."""
    failed = [each.message for each in settled if each.failure is not None]
    places = [{"partition": message.group, "offset": message.item["offset"]} for message in failed]
    return {"batchItemFailures": [{"itemIdentifier": place} for place in places]}


def _checkpoint(envelope: Invocation, settled: Sequence[Settled]) -> dict[str, Any]:
    first = next((each for each in settled if each.failure is not None), None)
    told: dict[str, Any] = {"batchItemFailures": [] if first is None else [_failure(first)]}
    if "window" in envelope.document:  # a tumbling one, whose state is the function's answer
        told["state"] = envelope.document.get("state") or {}
    return told


def _failure(settled: Settled) -> dict[str, str]:
    return {"itemIdentifier": settled.message.name}


def _records(envelope: Invocation, settled: Sequence[Settled]) -> dict[str, Any]:
    return {"records": [_record(each) for each in settled]}


def _record(settled: Settled) -> dict[str, Any]:
    told = {"recordId": settled.message.name, "data": settled.message.item.get("data", "")}
    if settled.failure is not None:
        return {**told, "result": "ProcessingFailed"}
    if not settled.processed:
        return {**told, "result": "Dropped"}
    if settled.result is None:
        return {**told, "result": "Ok"}
    try:
        return {**told, "result": "Ok", "data": _packed(settled.result)}
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # which must not be all the others' fate
        _log.warning("firehose %s: its result cannot be written: %s", settled.message.name, error)
        return {**told, "result": "ProcessingFailed"}


def _packed(result: Any) -> str:
    text = result.encode() if isinstance(result, str) else result
    return to_base64(text if isinstance(text, bytes) else msgspec.json.encode(text))


def to_request(settled: Settled, document: Mapping[str, Any], *, keyed: bool) -> dict[str, Any]:
    """The response to a request: the handler's own, or the one that the webhook would give."""
    outcomes, result = settled.outcomes, settled.result
    response = respond(outcomes, keyed=keyed, dead_lettered=False)
    if response.status == 200 and isinstance(result, Mapping) and "statusCode" in result:
        return {**result, "headers": {**(result.get("headers") or {}), "eventonce-outcome": str(outcomes[0].kind)}}
    return as_response(response, document)


def as_response(response: Response, document: Mapping[str, Any]) -> dict[str, Any]:
    """A response as a function returns it to who sent this request."""
    headers = {name: value for name, value in response.headers.items() if name not in _OF_CONNECTIONS}
    result: dict[str, Any] = {"statusCode": response.status, "headers": headers, "body": response.body.decode()}
    if "multiValueHeaders" in document and "headers" not in document:  # a load balancer that then wants them so as well
        result["multiValueHeaders"] = {name: [value] for name, value in headers.items()}
    return result


def _nothing(envelope: Invocation, settled: Sequence[Settled]) -> Any:
    _raise_failure(envelope, settled)
    if isinstance(envelope.document, Mapping) and len(settled) == 1:
        return settled[0].result
    return None


def _raise_failure(envelope: Invocation, settled: Sequence[Settled]) -> None:
    """Raise the first failure, so that Lambda or the pipe sends all of it again."""
    for each in settled:
        failure = each.failure
        if failure is None:
            continue
        if isinstance(failure.error, EventRejected) and each.message.carried.carrier == "none":
            raise unknown(envelope.document, describe(failure.error)) from failure.error
        raise failure.error or EventOnceError(f"{failure.kind}, for a reason that is not known")


_ANSWERS: dict[Reply, Callable[[Invocation, Sequence[Settled]], Any]] = {
    Reply.MESSAGES: _messages,
    Reply.OFFSETS: _offsets,
    Reply.CHECKPOINT: _checkpoint,
    Reply.RECORDS: _records,
    Reply.RAISE: _nothing,
}
