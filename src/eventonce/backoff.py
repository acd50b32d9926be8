"""How long to wait before another try."""

import random


def backoff(tries: int, first: int = 100, longest: int = 30_000) -> int:
    """Milliseconds to wait after so many tries: twice as long each time, with jitter so that workers spread."""
    most = min(first * 2 ** min(tries - 1, 30), longest)
    return random.randint(most // 2, most)  # noqa: S311  # jitter, not a secret
