"""Choices: every decision of a run, drawn from a seed or repeated from a list, so that a run can be repeated."""

import random
from collections.abc import Callable, Iterator, Sequence

_MAX_RUNS = 3000  # that shrinking may take


class Choices:
    """Decisions as small numbers. 0 always means that nothing special happens, so a list of zeros is a calm run."""

    def __init__(self, seed: int = 0, recorded: Sequence[int] | None = None) -> None:
        self.made: list[int] = []
        self._recorded = recorded
        self._random = random.Random(seed)  # a schedule, not a secret

    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1."""
        value = int(self._random.random() * count) if self._recorded is None else self._repeat(self._recorded, count)
        self.made.append(value)
        return value

    def rarely(self, percent: int) -> bool:
        """Return whether something happens that has this chance."""
        return self.below(100) >= 100 - percent

    def _repeat(self, recorded: Sequence[int], count: int) -> int:
        index = len(self.made)
        return min(recorded[index], count - 1) if index < len(recorded) else 0


def shrink(made: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Return a calmer and shorter list that fails as well. Parts are zeroed, removed or lowered while it does."""
    best, runs = _trimmed(made), _MAX_RUNS
    calmer = True
    while calmer and runs > 0:
        calmer = False
        for candidate in _candidates(best):
            runs -= 1
            if _size(candidate) < _size(best) and fails(candidate):
                best, calmer = _trimmed(candidate), True
                break
            if not runs:
                break
    return best


def _candidates(made: list[int]) -> Iterator[list[int]]:
    """Yield smaller lists, the greatest steps first."""
    size = len(made)
    while size:
        for start in range(0, len(made), size):
            yield made[:start] + [0] * len(made[start : start + size]) + made[start + size :]
            yield made[:start] + made[start + size :]
        size //= 2
    for index, value in enumerate(made):
        for lower in {1, value // 2, value - 1} - {0, value} if value > 1 else ():
            yield made[:index] + [lower] + made[index + 1 :]


def _size(made: Sequence[int]) -> tuple[int, int, int]:
    trimmed = _trimmed(made)
    return sum(value > 0 for value in trimmed), len(trimmed), sum(trimmed)


def _trimmed(made: Sequence[int]) -> list[int]:
    """Return the list without the zeros at its end, since zeros follow it anyway."""
    trimmed = list(made)
    while trimmed and trimmed[-1] == 0:
        trimmed.pop()
    return trimmed
