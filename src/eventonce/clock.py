"""Time: the clock that everything reads, and durations as people write them.

Times are whole milliseconds since 1970 in UTC, durations are whole milliseconds. In records 0 means never.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from eventonce.errors import ConfigError

# Boot time goes on while a laptop sleeps or a virtual machine is paused. So does a lease.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
LONGEST = 100 * 365 * 86_400_000  # far beyond any window, near enough to fit every store's integers


class Clock(Protocol):
    """A clock: the time, and how to wait."""

    def utc(self) -> int: ...
    def steady(self) -> int: ...
    def sleep(self, duration: int) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def utc(self) -> int:
        # If it is not set and shows 1969, time does not pass until it is set: nothing expires, and nothing runs twice.
        return max(1, time.time_ns() // 1_000_000)

    def steady(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def sleep(self, duration: int) -> None:
        time.sleep(duration / 1000)


Duration = str | timedelta  # as a user writes it


def duration(value: Duration, setting: str = "duration") -> int:
    """Read `"14d"`, `"1h30m"`, `"250ms"` or a timedelta as milliseconds. A bare number is refused: it has no unit."""
    if isinstance(value, timedelta):
        millis: float | None = value / timedelta(milliseconds=1)
    else:
        millis = _parse(value) if isinstance(value, str) else None
    if millis is None or not 0 <= millis <= LONGEST:
        number = str(value).strip()
        if _NUMBER.fullmatch(number):
            remedy = f'write "{number}s" for seconds or "{number}d" for days (in Python also a timedelta)'
            raise ConfigError(f"{setting}: {value!r} has no unit; {remedy}")
        if millis is not None and millis > LONGEST:
            raise ConfigError(f"{setting}: {value!r} is over the limit of {LONGEST // _UNITS['d']}d; use a shorter one")
        if isinstance(value, timedelta):
            raise ConfigError(f"{setting}: {value!r} is negative; use a timedelta from 0 on")
        raise ConfigError(f"{setting}: {value!r} is not a duration; write it like 500ms, 60s, 15m, 24h or 14d")
    return round(millis)


def format_duration(millis: int) -> str:
    """Return a duration as a rule takes it: `14d`, `1h30m`, `250ms`."""
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, millis = divmod(millis, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0ms"


def _parse(text: str) -> float | None:
    total, offset = 0.0, 0
    while match := _DURATION.match(text, offset):
        total += float(match[1]) * _UNITS[match[2]]
        offset = match.end()
    return total if offset == len(text) and offset else None


def to_datetime(millis: int) -> datetime:
    """Return a time in milliseconds as an aware datetime."""
    return datetime.fromtimestamp(millis / 1000, UTC)
