"""Backoff between attempts."""

import random


def backoff(tries: int, first: int = 100, longest: int = 30_000) -> int:
    """Return milliseconds to wait after so many tries: twice as long each time, with jitter so that workers spread."""
    delay = min(first * 2 ** min(tries - 1, 30), longest)
    return random.randint(delay // 2, delay)  # noqa: S311  # jitter, not a secret
