"""Responses to requests, of the webhook and of a Lambda function alike."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.errors import describe
from eventonce.requests.refusal import RETRY_AFTER, RequestRefused

# From what must be sent again to what need not. The first kind among the outcomes of a request decides its response.
_STATUS = {
    OutcomeKind.UNKNOWN: 503,
    OutcomeKind.FAILED: 500,
    OutcomeKind.BUSY: 503,
    OutcomeKind.REJECTED: 400,
    OutcomeKind.UNROUTED: 400,
    OutcomeKind.PROCESSED: 200,
    OutcomeKind.DUPLICATE: 200,
    OutcomeKind.STALE: 200,
    OutcomeKind.EXPIRED: 200,
}
_ORDER = {kind: number for number, kind in enumerate(_STATUS)}


class Response(NamedTuple):
    """A status, headers and a body of JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def respond(outcomes: Sequence[Outcome], *, keyed: bool, dead_lettered: bool) -> Response:
    """Return the response to a request with these events.

    `keyed` says that its sender follows the draft of `Idempotency-Key`, which has statuses of its own: 409 for a
    request in progress, and 422 for a key that was sent before with another body. To others 409 is dangerous: SNS and
    EventBridge do not retry after it, and the copy that runs may yet fail.

    `dead_lettered` says that failures without another attempt are dead letters now and need not be sent again.
    """
    if not outcomes:  # an empty batch is valid
        return _json(200, {"outcome": OutcomeKind.PROCESSED})
    worst = min(outcomes, key=lambda outcome: _ORDER[outcome.kind])
    status = _STATUS[worst.kind]
    retried = any(outcome.action is Action.RETRY for outcome in outcomes)
    if worst.kind is OutcomeKind.FAILED and dead_lettered and not retried:
        status = 200
    if worst.kind is OutcomeKind.UNROUTED and worst.action is Action.ACK:
        status = 200
    if keyed and worst.kind is OutcomeKind.BUSY:
        status = 409
    if keyed and worst.first is not None and worst.first.differs:
        return refused(RequestRefused(422, "this Idempotency-Key was sent before with another body"))
    body: dict[str, Any] = {"outcome": worst.kind}
    if status == 400:  # the sender can fix it; other errors are not for the sender to know
        body["error"] = describe(worst.error)
    if len(outcomes) > 1:
        body["outcomes"] = [outcome.kind for outcome in outcomes]
    return _json(status, body)


def unfinished() -> Response:
    """Return the response to a sender that does not wait for the end of its run."""
    return _json(503, {"outcome": OutcomeKind.BUSY})


def noted(word: str) -> Response:
    """Return the response to a request that was not an event and needs nothing more."""
    return _json(200, {"outcome": word})


def refused(refusal: RequestRefused) -> Response:
    """Return the response to a refused request."""
    return _response(refusal.status, {"error": str(refusal)}, refusal.headers)


def _json(status: int, body: Mapping[str, Any]) -> Response:
    headers = {"eventonce-outcome": str(body["outcome"])}
    if status in (409, 503):
        headers["retry-after"] = RETRY_AFTER
    return _response(status, body, headers)


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(status, {"content-type": "application/json", **headers}, msgspec.json.encode(body))
