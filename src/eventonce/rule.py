"""A rule: what makes two events the same, for how long, and what is remembered."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec

from eventonce.clock import duration
from eventonce.errors import ConfigError, EventRejected
from eventonce.key import path

DEFAULT_WINDOW = "14d"  # as long as SQS can keep a message, dead-letter queue included
MAX_VERSION = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


Remember = Literal[
    "seen",  # that it ran, and when
    "note",  # and the first copy's id, time and fingerprint
    "result",  # and what the handler returned
]
Replay = Literal[
    "dedupe",  # a replayed event is a copy like any other
    "reprocess",  # each named replay may run each event once more
]
Trouble = Literal[
    "retry",  # the store does not answer: try again later
    "process",  # run it now, at the risk of running it twice
]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two events of a kind the same.

    `key` is "id", "content" or a list of paths; `window` and `max_age` are durations ("14d", or seconds).
    """

    name: str
    match: Mapping[str, Any] | None = None
    key: str | Sequence[str] = "id"
    ignore: Sequence[str] = ()
    version: str | None = None
    window: str | float = DEFAULT_WINDOW
    refresh: bool = False
    max_age: str | float | None = None
    replay: Replay = "dedupe"
    remember: Remember = "seen"
    store_trouble: Trouble = "retry"

    def __post_init__(self) -> None:
        where = f"rule {self.name!r}"
        if not self.name:
            raise ConfigError("a rule has no name; give each rule a name of its own")
        for field, kind in _CHOICES:
            if getattr(self, field) not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise ConfigError(f"{where}: {field}: {getattr(self, field)!r} is not one of {choices}")
        self._check_key(where)
        if duration(self.window, f"{where}: window") == 0:
            raise ConfigError(f"{where}: a window of 0 remembers nothing; leave the rule out instead")
        if self.max_age is not None:
            duration(self.max_age, f"{where}: max_age")

    def _check_key(self, where: str) -> None:
        if isinstance(self.key, str) and self.key not in ("id", "content"):
            raise ConfigError(f'{where}: key: {self.key!r} is not known; use "id", "content" or a list of paths')
        if not self.key:
            raise ConfigError(f'{where}: key: name at least one path, or use "id" or "content"')
        if self.ignore and self.key != "content":
            raise ConfigError(f'{where}: ignore only means something with key = "content"')
        paths = [] if isinstance(self.key, str) else [("key", text) for text in self.key]
        paths += [("ignore", text) for text in self.ignore]
        paths += [("version", self.version)] if self.version is not None else []
        for field, text in paths:
            path(text, f"{where}: {field}")


_CHOICES = (("replay", Replay), ("remember", Remember), ("store_trouble", Trouble))


def version_number(value: Any, where: str) -> int:
    """Read a version as one whole number: integers, digits, or a time to the microsecond."""
    number = _number(value)
    if number is None or not -MAX_VERSION <= number <= MAX_VERSION:
        raise EventRejected(
            f"{where} is {str(value)[:60]!r}, which is no version; "
            "use a whole number below 2^63 or a time such as 2026-01-31T12:00:00Z"
        )
    return number


def _number(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or len(value) > 60:
        return None
    try:
        return int(value)
    except ValueError:
        time = read_time(value)
        return None if time is None else (time - _EPOCH) // timedelta(microseconds=1)


def read_time(value: Any) -> datetime | None:
    """An ISO 8601 time as an aware moment (UTC where it names no zone), or None."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
