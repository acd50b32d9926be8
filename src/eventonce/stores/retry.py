"""Retries of calls to a server that does not answer, for as long as the lease at stake allows."""

import logging
from collections.abc import Callable
from typing import TypeVar

from eventonce.backoff import jitter
from eventonce.clock import Clock
from eventonce.errors import StoreBusy, StoreError, describe
from eventonce.text import one_line

RELEASE_TIMEOUT = 2000  # milliseconds for a release: if it fails, the lease expires anyway
_FIRST_PAUSE, _LONGEST_PAUSE = 50, 1000
_SILENCE = 2000  # milliseconds without an answer before a warning
_log = logging.getLogger("eventonce.patience")
Result = TypeVar("Result")


def call_with_retries(operation: Callable[[], Result], clock: Clock, timeout: int) -> Result:
    """Call a function, and repeat it after a retryable `StoreError` for at most `timeout` milliseconds.

    Every verb of a store may be repeated with the same token. So a retry is harmless if only the answer was lost.
    """
    started_at, pause, reported = clock.steady(), _FIRST_PAUSE, False
    while True:
        try:
            answer = operation()
        except StoreError as error:
            now = clock.steady()
            if not error.retryable or isinstance(error, StoreBusy) or now + pause > started_at + timeout:
                raise
            if not reported and now - started_at >= _SILENCE:
                reported = True
                _log.warning(
                    "the store does not answer, retrying for %d s: %s", timeout // 1000, one_line(describe(error))
                )
        else:
            if reported:
                _log.warning("the store answers again, after %d s", (clock.steady() - started_at) // 1000)
            return answer
        clock.sleep(jitter(pause))
        pause = min(2 * pause, _LONGEST_PAUSE)
