"""Dead letters: events that cannot be processed, kept with the reason."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec

from eventonce.clock import moment
from eventonce.errors import describe
from eventonce.event import Delivery
from eventonce.outcome import Outcome
from eventonce.sinks.append import AppendFile


class DeadLetters:
    """A file of dead letters, one JSON line each: reason, history, place, and the event's own bytes."""

    def __init__(self, name: str) -> None:
        self._file = AppendFile(name)
        self._file.check()
        self.name = name

    def write(self, dead: Sequence[tuple[Delivery, Outcome]], now: int) -> None:
        """Keep these; they are on the disk when this returns."""
        if dead:
            self._file.write(msgspec.json.encode(letter(delivery, outcome, now)) for delivery, outcome in dead)

    def close(self) -> None:
        self._file.close()


def letter(delivery: Delivery, outcome: Outcome, now: int) -> dict[str, Any]:
    """One dead letter."""
    return {
        "outcome": outcome.kind,
        "reason": describe(outcome.error),
        "error": type(outcome.error).__name__,
        "attempts": outcome.attempt,
        "rule": outcome.rule,
        "key": outcome.key.hex() if outcome.key else None,
        "time": moment(now).isoformat(),
        **{name: _writable(value) for name, value in delivery.where.items()},
        **_body(delivery.body),
    }


def _writable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
