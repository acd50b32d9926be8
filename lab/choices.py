"""Choices: every decision of a run, drawn from a seed or repeated from a list, so that a run can be had again."""

import random
from collections.abc import Callable, Iterator, Sequence

_TRIES = 3000  # runs that shrinking may take


class Choices:
    """Decisions as small numbers. 0 always means that nothing special happens, so a list of zeros is a calm run."""

    def __init__(self, seed: int = 0, given: Sequence[int] | None = None) -> None:
        self.made: list[int] = []
        self._given = given
        self._random = random.Random(seed)  # a schedule, not a secret

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        value = self._again(count) if self._given is not None else int(self._random.random() * count)
        self.made.append(value)
        return value

    def rarely(self, percent: int) -> bool:
        """Whether something happens that happens so often."""
        return self.below(100) >= 100 - percent

    def _again(self, count: int) -> int:
        given, at = self._given or (), len(self.made)
        return min(given[at], count - 1) if at < len(given) else 0


def shrink(made: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """A calmer and shorter list that fails as well: pieces are made zero, left out or lowered while it does."""
    best, tries = _trimmed(made), _TRIES
    calmer = True
    while calmer and tries > 0:
        calmer = False
        for candidate in _candidates(best):
            tries -= 1
            if _size(candidate) < _size(best) and fails(candidate):
                best, calmer = _trimmed(candidate), True
                break
            if not tries:
                break
    return best


def _candidates(made: list[int]) -> Iterator[list[int]]:
    """Ways to make a list smaller, the greatest steps first."""
    size = len(made)
    while size:
        for at in range(0, len(made), size):
            yield made[:at] + [0] * len(made[at : at + size]) + made[at + size :]
            yield made[:at] + made[at + size :]
        size //= 2
    for at, value in enumerate(made):
        for lower in {1, value // 2, value - 1} - {0, value} if value > 1 else ():
            yield made[:at] + [lower] + made[at + 1 :]


def _size(made: Sequence[int]) -> tuple[int, int, int]:
    kept = _trimmed(made)
    return sum(value > 0 for value in kept), len(kept), sum(kept)


def _trimmed(made: Sequence[int]) -> list[int]:
    """Without the zeros at its end, which are what follows anyway."""
    kept = list(made)
    while kept and kept[-1] == 0:
        kept.pop()
    return kept
