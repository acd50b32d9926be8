"""Backoff between attempts."""

from random import Random, SystemRandom

# It has no state, which all functions that start from one snapshot would share. The simulator puts a seeded one here.
chance: Random = SystemRandom()


def backoff(tries: int, first: int = 100, longest: int = 30_000) -> int:
    """Return milliseconds to wait after so many tries: twice as long each time, with jitter so that workers spread."""
    return jitter(min(first * 2 ** min(tries - 1, 30), longest))


def jitter(pause: int) -> int:
    """Return a time between half of a pause and all of it."""
    return chance.randint(pause // 2, pause)
