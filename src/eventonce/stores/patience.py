"""Patience with a server that does not answer: ask again, for as long as the lease at stake allows."""

import random
from collections.abc import Callable
from typing import TypeVar

from eventonce.clock import Clock
from eventonce.errors import StoreBusy, StoreError

GIVING_BACK = 2000  # patience for a release: where it fails, the lease ends by itself
_FIRST_PAUSE, _LONGEST_PAUSE = 50, 1000
Result = TypeVar("Result")


def ask(act: Callable[[], Result], clock: Clock, within: int) -> Result:
    """Do it, and again after a `StoreError` that may pass, until so many milliseconds are over.

    Every verb of a store may be repeated with the same token, so asking again is harmless also where only the
    answer was lost.
    """
    give_up, pause = clock.steady() + within, _FIRST_PAUSE
    while True:
        try:
            return act()
        except StoreError as error:
            if not error.retryable or isinstance(error, StoreBusy) or clock.steady() + pause > give_up:
                raise
        clock.sleep(random.randint(pause // 2, pause))  # noqa: S311  # jitter, not a secret
        pause = min(2 * pause, _LONGEST_PAUSE)
