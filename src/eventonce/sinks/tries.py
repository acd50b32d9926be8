"""Trying again: how often, after which pause, and what it means that nothing can be sent at all."""

import random
from collections.abc import Sequence

from eventonce.errors import SinkDown

TRIES = 4  # for one event in one go; what fails then comes again by way of the engine
_FIRST_PAUSE = 250
_LONGEST_PAUSE = 20_000

Answers = Sequence[Exception | None]


class Hopeless(SinkDown):
    """Nothing can be sent until someone acts."""


def pause(tried: int) -> int:
    """How many milliseconds to wait after so many tries."""
    longest = min(_FIRST_PAUSE * 2 ** min(tried - 1, 10), _LONGEST_PAUSE)
    return random.randint(longest // 2, longest)  # noqa: S311  # jitter, not a secret


def told(answers: Answers) -> Answers:
    """These answers; where nothing was sent and nothing can be, that is raised instead.

    What was sent must be recorded or it would be sent twice, so then the error is told of the others only.
    """
    hopeless = next((answer for answer in answers if isinstance(answer, Hopeless)), None)
    if hopeless is not None and None not in answers:
        raise hopeless
    return answers
