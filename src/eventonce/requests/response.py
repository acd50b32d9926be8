"""What the sender of a request is told, by the webhook and by a Lambda function alike."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.errors import describe
from eventonce.requests.refusal import RETRY_AFTER, RequestRefused

# From what must come again to what need not. The first that is among the outcomes of a request is told.
_STATUS = {
    OutcomeKind.UNKNOWN: 503,
    OutcomeKind.FAILED: 500,
    OutcomeKind.BUSY: 503,
    OutcomeKind.REJECTED: 400,
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


def respond(outcomes: Sequence[Outcome], *, keyed: bool, kept: bool) -> Response:
    """The response to a request with these events.

    `keyed` says that its sender follows the draft of `Idempotency-Key`, which has numbers of its own: 409 for what
    is under way, and 422 for a key that came before with something else. To others 409 is dangerous: SNS and
    EventBridge do not come again after it, and the copy that runs may yet fail.

    `kept` says that failures without another attempt are in the dead letters now, so that they need not come again.
    """
    if not outcomes:  # an empty batch is a batch
        return _json(200, {"outcome": OutcomeKind.PROCESSED})
    told = min(outcomes, key=lambda outcome: _ORDER[outcome.kind])
    status = _STATUS[told.kind]
    if told.kind is OutcomeKind.FAILED and kept and not any(outcome.action is Action.RETRY for outcome in outcomes):
        status = 200
    if keyed and told.kind is OutcomeKind.BUSY:
        status = 409
    if keyed and told.first is not None and told.first.differs:
        return refused(RequestRefused(422, "this Idempotency-Key came before with another body"))
    body: dict[str, Any] = {"outcome": told.kind}
    if told.kind is OutcomeKind.REJECTED:  # the sender can mend it; what else fails is not the sender's to know
        body["error"] = describe(told.error)
    if len(outcomes) > 1:
        body["outcomes"] = [outcome.kind for outcome in outcomes]
    return _json(status, body)


def unfinished() -> Response:
    """The run goes on, but the sender would not wait for its end."""
    return _json(503, {"outcome": OutcomeKind.BUSY})


def noted(word: str) -> Response:
    """It was no event, and is done with."""
    return _json(200, {"outcome": word})


def refused(refusal: RequestRefused) -> Response:
    """The response to a request that is not taken."""
    return _response(refusal.status, {"error": str(refusal)}, refusal.headers)


def _json(status: int, body: Mapping[str, Any]) -> Response:
    headers = {"eventonce-outcome": str(body["outcome"])}
    if status in (409, 503):
        headers["retry-after"] = RETRY_AFTER
    return _response(status, body, headers)


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(status, {"content-type": "application/json", **headers}, msgspec.json.encode(body))
