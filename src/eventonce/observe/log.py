"""Logs, for people or as JSON lines: failures, and a sample of the duplicates. They hold no payload."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.clock import Clock, SystemClock
from eventonce.errors import describe
from eventonce.observe.lines import setup
from eventonce.ports import Hook, OutcomeDetails, StoreCallDetails
from eventonce.text import one_line

__all__ = ["LogHook", "setup"]

_log = logging.getLogger("eventonce.events")
_LEVELS = {
    OutcomeKind.PROCESSED: logging.DEBUG,
    OutcomeKind.BUSY: logging.DEBUG,
    OutcomeKind.UNKNOWN: logging.DEBUG,  # the outage itself is logged once
    OutcomeKind.DUPLICATE: logging.INFO,
    OutcomeKind.STALE: logging.INFO,
    OutcomeKind.EXPIRED: logging.INFO,
    OutcomeKind.FAILED: logging.WARNING,
    OutcomeKind.REJECTED: logging.WARNING,
    OutcomeKind.UNROUTED: logging.WARNING,
}
_POSITION = ("source", "line", "message", "record")
_SAMPLE_FIRST, _SAMPLE_EVERY = 10, 100  # of each minute
_MINUTE = 60_000
_CALM = 5000  # milliseconds without a failure that end an outage


class LogHook(Hook):
    """Logs every failure, a sample of the other outcomes, and an outage of the store once."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sample = _Sample(self._clock)
        self._out = False
        self._failed_at = 0

    def after_settle(self, seen: Sequence[OutcomeDetails]) -> None:
        for details in seen:
            outcome = details.outcome
            level = _LEVELS[outcome.kind]
            if outcome.kind is OutcomeKind.PROCESSED and outcome.error is not None:
                level = logging.WARNING  # it ran and will run again, because it could not be recorded
            if outcome.kind is OutcomeKind.UNROUTED and outcome.action is Action.ACK:
                level = logging.INFO  # it is dropped, as its router says
            if _log.isEnabledFor(level) and (level != logging.INFO or self._sample.includes(outcome)):
                fields = _fields(details)
                _log.log(level, "%s", _sentence(fields), extra={"seen": fields})

    def after_store_call(self, call: StoreCallDetails) -> None:
        now = self._clock.steady()
        if call.error is not None:
            self._failed_at, was_out, self._out = now, self._out, True
            if not was_out:
                _log.warning("the store did not answer to %s: %s", call.verb, one_line(describe(call.error)))
        elif self._out and now - self._failed_at >= _CALM:
            self._out = False
            _log.warning("the store answers again")


class _Sample:
    """Selects what to log: of each rule and outcome the first ten in a minute, then one in a hundred."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute = 0
        self._counts: Counter[tuple[str | None, OutcomeKind]] = Counter()

    def includes(self, outcome: Outcome) -> bool:
        """Count an outcome, and return whether to log it."""
        minute = self._clock.steady() // _MINUTE
        if minute != self._minute:
            self._minute, self._counts = minute, Counter()
        pair = (outcome.rule, outcome.kind)
        self._counts[pair] += 1
        return self._counts[pair] <= _SAMPLE_FIRST or self._counts[pair] % _SAMPLE_EVERY == 0


def _fields(details: OutcomeDetails) -> dict[str, Any]:
    """Return the fields of an event for the log: never its data or the result of its handler."""
    outcome, event = details.outcome, details.event
    fields = {
        "outcome": outcome.kind.value,
        "rule": outcome.rule,
        "key": outcome.key.hex() if outcome.key else None,
        "id": one_line(event.id) if event is not None else None,
        "attempt": outcome.attempt or None,
        "place": _position(details.origin) or None,
        "first_at": outcome.first.at.isoformat() if outcome.first else None,
        "differs": outcome.first.differs if outcome.first else None,
        "dead_letter": outcome.action is Action.DEAD_LETTER or None,
        "error": f"{type(outcome.error).__name__}: {one_line(describe(outcome.error))}" if outcome.error else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _position(origin: Mapping[str, Any]) -> str:
    return one_line(":".join(str(origin[name]) for name in _POSITION if name in origin))


def _sentence(fields: Mapping[str, Any]) -> str:
    """Return the same fields as one line for people."""
    notes = [f"{name} {fields[name]}" for name in ("rule", "key", "id", "attempt") if fields.get(name)]
    notes += [f"first done {fields['first_at']}"] if "first_at" in fields else []
    notes += ["its content differs"] if fields.get("differs") else []
    parts = [
        fields.get("place"),
        f"{fields['outcome']} ({', '.join(notes)})" if notes else fields["outcome"],
        fields.get("error"),
    ]
    return ": ".join(part for part in parts if part)
