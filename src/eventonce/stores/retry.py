"""Patience with a server that does not answer: ask again, for as long as the lease at stake allows."""

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from eventonce.clock import Clock
from eventonce.errors import StoreBusy, StoreError, describe

GIVING_BACK = 2000  # patience for a release: where it fails, the lease ends by itself
_FIRST_PAUSE, _LONGEST_PAUSE = 50, 1000
_SILENCE = 2000  # after which it is said that all stands still
_log = logging.getLogger("eventonce.patience")
Result = TypeVar("Result")


def call_with_retries(act: Callable[[], Result], clock: Clock, within: int) -> Result:
    """Do it, and again after a `StoreError` that may pass, until so many milliseconds are over.

    Every verb of a store may be repeated with the same token, so asking again is harmless also where only the
    answer was lost.
    """
    began, pause, told = clock.steady(), _FIRST_PAUSE, False
    while True:
        try:
            answer = act()
        except StoreError as error:
            now = clock.steady()
            if not error.retryable or isinstance(error, StoreBusy) or now + pause > began + within:
                raise
            if not told and now - began >= _SILENCE:
                told = True
                _log.warning("the store does not answer, asking again for %d s: %s", within // 1000, describe(error))
        else:
            if told:
                _log.warning("the store answers again, after %d s", (clock.steady() - began) // 1000)
            return answer
        clock.sleep(random.randint(pause // 2, pause))  # noqa: S311  # jitter, not a secret
        pause = min(2 * pause, _LONGEST_PAUSE)
