"""Logs, for people or as JSON lines: what went wrong, and a sample of what was left out. Never a payload."""

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.clock import Clock, SystemClock, to_datetime
from eventonce.errors import describe
from eventonce.observe.text import one_line
from eventonce.ports import Called, Hook, Seen

_log = logging.getLogger("eventonce.events")
_LEVELS = {
    OutcomeKind.PROCESSED: logging.DEBUG,
    OutcomeKind.BUSY: logging.DEBUG,
    OutcomeKind.UNKNOWN: logging.DEBUG,  # the outage itself is said once
    OutcomeKind.DUPLICATE: logging.INFO,
    OutcomeKind.STALE: logging.INFO,
    OutcomeKind.EXPIRED: logging.INFO,
    OutcomeKind.FAILED: logging.WARNING,
    OutcomeKind.REJECTED: logging.WARNING,
}
_PLACE = ("source", "line", "message", "record")
_SAMPLE_FIRST, _SAMPLE_EVERY = 10, 100  # of each minute
_MINUTE = 60_000
_CALM = 5000  # milliseconds without a failure before an outage is over


def setup(level: str = "warning", *, json: bool = False) -> None:
    """Log to stderr. Below warning only what eventonce itself says: others would log requests and their headers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else logging.Formatter("eventonce: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("eventonce").setLevel(level.upper())


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": to_datetime(int(record.created * 1000)).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "seen", {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


class LogHook(Hook):
    """Logs what became of events: failures always, what was left out in samples, an outage of the store once."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sample = _Sample(self._clock)
        self._out = False
        self._failed_at = 0

    def settled(self, seen: Sequence[Seen]) -> None:
        for each in seen:
            outcome = each.outcome
            level = _LEVELS[outcome.kind]
            if outcome.kind is OutcomeKind.PROCESSED and outcome.error is not None:
                level = logging.WARNING  # it ran, and will run again: nothing remembers it
            if _log.isEnabledFor(level) and (level != logging.INFO or self._sample.takes(outcome)):
                told = _told(each)
                _log.log(level, "%s", _sentence(told), extra={"seen": told})

    def called(self, call: Called) -> None:
        now = self._clock.steady()
        if call.error is not None:
            self._failed_at, before, self._out = now, self._out, True
            if not before:
                _log.warning("the store did not answer to %s: %s", call.verb, one_line(describe(call.error)))
        elif self._out and now - self._failed_at >= _CALM:
            self._out = False
            _log.warning("the store answers again")


class _Sample:
    """Which of many alike to log: of each rule and outcome the first ten of a minute, then one in a hundred."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute = 0
        self._counts: Counter[tuple[str | None, OutcomeKind]] = Counter()

    def takes(self, outcome: Outcome) -> bool:
        minute = self._clock.steady() // _MINUTE
        if minute != self._minute:
            self._minute, self._counts = minute, Counter()
        alike = (outcome.rule, outcome.kind)
        self._counts[alike] += 1
        return self._counts[alike] <= _SAMPLE_FIRST or self._counts[alike] % _SAMPLE_EVERY == 0


def _told(seen: Seen) -> dict[str, Any]:
    """What may be known of an event: never its data, nor what its handler returned."""
    outcome, event = seen.outcome, seen.event
    told = {
        "outcome": outcome.kind.value,
        "rule": outcome.rule,
        "key": outcome.key.hex() if outcome.key else None,
        "id": one_line(event.id) if event is not None else None,
        "attempt": outcome.attempt or None,
        "place": _place(seen.origin) or None,
        "first_at": outcome.first.at.isoformat() if outcome.first else None,
        "differs": outcome.first.differs if outcome.first else None,
        "dead_letter": outcome.action is Action.DEAD_LETTER or None,
        "error": f"{type(outcome.error).__name__}: {one_line(describe(outcome.error))}" if outcome.error else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _place(where: Mapping[str, Any]) -> str:
    return one_line(":".join(str(where[name]) for name in _PLACE if name in where))


def _sentence(told: Mapping[str, Any]) -> str:
    """The same in one line for people."""
    known = [f"{name} {told[name]}" for name in ("rule", "key", "id", "attempt") if told.get(name)]
    known += [f"first done {told['first_at']}"] if "first_at" in told else []
    known += ["its content differs"] if told.get("differs") else []
    parts = [
        told.get("place"),
        f"{told['outcome']} ({', '.join(known)})" if known else told["outcome"],
        told.get("error"),
    ]
    return ": ".join(part for part in parts if part)
