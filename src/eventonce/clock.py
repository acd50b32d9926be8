"""Time: the clock everything reads, and durations as people write them.

Moments are whole milliseconds since 1970 in UTC, durations are whole milliseconds. In what is remembered 0 means never.
"""

import re
import time
from datetime import UTC, datetime
from typing import Protocol

from eventonce.errors import ConfigError

# Boot time also counts while a laptop sleeps or a virtual machine is paused; a lease does too.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
LONGEST = 100 * 365 * 86_400_000  # far beyond any window, near enough to fit every store's integers


class Clock(Protocol):
    """What the time is, and how to wait."""

    def utc(self) -> int: ...
    def steady(self) -> int: ...
    def sleep(self, duration: int) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def utc(self) -> int:
        # Where it is not set and says 1969, time stands still until it is: nothing ends, and nothing runs twice.
        return max(1, time.time_ns() // 1_000_000)

    def steady(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def sleep(self, duration: int) -> None:
        time.sleep(duration / 1000)


def duration(value: str | float, what: str = "duration") -> int:
    """Read `"14d"`, `"1h30m"`, `"250ms"` or a number of seconds as milliseconds."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{what}: {value!r} is not a duration; write it like 500ms, 60s, 15m, 24h or 14d")
    millis = _spelled(value) if isinstance(value, str) else value * 1000
    if millis is None or not 0 <= millis <= LONGEST:
        raise ConfigError(f"{what}: {value!r} is not a duration; write it like 500ms, 60s, 15m, 24h or 14d")
    return round(millis)


def format_duration(millis: int) -> str:
    """Return a duration as a rule takes it: `14d`, `1h30m`, `250ms`."""
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, millis = divmod(millis, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0ms"


def _spelled(text: str) -> float | None:
    total, at = 0.0, 0
    while match := _DURATION.match(text, at):
        total += float(match[1]) * _UNITS[match[2]]
        at = match.end()
    return total if at == len(text) and at else None


def moment(millis: int) -> datetime:
    """A moment as an aware datetime."""
    return datetime.fromtimestamp(millis / 1000, UTC)
