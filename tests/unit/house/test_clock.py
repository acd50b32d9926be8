"""Durations and the clock."""

import time
from datetime import timedelta
from typing import Any

import pytest

from eventonce.clock import SystemClock, duration, to_datetime
from eventonce.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("14d", 14 * 86_400_000),
        ("1h30m", 5_400_000),
        (" 1.5 s ", 1500),
        ("250ms", 250),
        ("2w", 14 * 86_400_000),
        ("0s", 0),
        (timedelta(days=14), 14 * 86_400_000),
        (timedelta(milliseconds=250), 250),
    ],
)
def test_durations_are_written_as_people_write_them(text: Any, millis: int) -> None:
    assert duration(text) == millis


@pytest.mark.parametrize("bad", ["", "d", "14 days", "-1s", "1s,2s", -1, True, None, [], "1e3s", float("nan")])
def test_an_invalid_duration_is_refused_with_its_setting(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"window: .* is not a duration; write it like"):
        duration(bad, "window")


@pytest.mark.parametrize("long", ["36501d", "9999999w", timedelta(days=40_000)])
def test_a_duration_over_the_limit_is_refused_with_the_limit(long: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        duration(long, "window")
    assert str(caught.value) == f"window: {long!r} is over the limit of 36500d; use a shorter one"


def test_a_negative_timedelta_is_refused_as_such() -> None:
    with pytest.raises(
        ConfigError, match=r"^window: datetime.timedelta\(days=-1\) is negative; use a timedelta from 0"
    ):
        duration(timedelta(-1), "window")


@pytest.mark.parametrize("number", [14, "14", 0, "0", 0.25, " 60 ", 10**30])
def test_a_number_is_refused_because_it_has_no_unit(number: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        duration(number, "window")
    text = str(number).strip()
    remedy = f'write "{text}s" for seconds or "{text}d" for days (in Python also a timedelta)'
    assert str(refusal.value) == f"window: {number!r} has no unit; {remedy}"


def test_the_system_clock_is_utc_and_moves() -> None:
    clock = SystemClock()
    before, utc = clock.steady(), clock.utc()
    clock.sleep(5)
    assert clock.steady() > before
    assert abs(utc / 1000 - time.time()) < 60
    assert to_datetime(0).isoformat() == "1970-01-01T00:00:00+00:00"
