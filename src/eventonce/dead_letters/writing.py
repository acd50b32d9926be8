"""Dead letters: events that cannot be processed, kept with the reason."""

import logging
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from eventonce.claims.outcome import Outcome
from eventonce.clock import to_datetime
from eventonce.errors import LettersNotKept, describe
from eventonce.event import Delivery, Event
from eventonce.ports import DeadLetters

OUTCOME, RULE = "eventonce-outcome", "eventonce-rule"  # attributes of a message, to tell letters apart unread
Dead = Sequence[tuple[Delivery, Outcome]]
_log = logging.getLogger("eventonce")


def keep(place: DeadLetters, dead: Dead, now: int) -> Dead:
    """Keep these; return those that can never be kept there, which must not be settled.

    Whoever may send events decides how large they are, so that one of them must not be the end of all others.
    """
    try:
        place.write(dead, now)
    except LettersNotKept as error:
        _log.error("%s", describe(error))
        return [dead[number] for number in error.numbers]
    return ()


def letter(delivery: Delivery, outcome: Outcome, now: int) -> dict[str, Any]:
    """One dead letter: reason, history, place, and the event's own bytes."""
    return {
        **fate(outcome, outcome.attempt, now),
        **{name: _writable(value) for name, value in delivery.origin.items()},
        **_identity(delivery.event),
        **_body(delivery.body),
    }


def _identity(event: Event | None) -> dict[str, Any]:
    """The event's id, and which carriers gave it: its bytes do not say that."""
    if event is None or not event.id:
        return {}
    named_by = {"named_by": [_writable(each) for each in event.named_by]} if event.named_by else {}
    return {"event_id": _writable(event.id), **named_by}


def fate(outcome: Outcome, attempts: int, now: int) -> dict[str, Any]:
    """What a dead letter says of how its event ended."""
    return {
        "outcome": outcome.kind,
        "reason": describe(outcome.error),
        "error": type(outcome.error).__name__,
        "attempts": attempts,
        "rule": outcome.rule,
        "key": outcome.key.hex() if outcome.key else None,
        "time": to_datetime(now).isoformat(),
    }


def _writable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
