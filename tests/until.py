"""Wait for a condition, however slow the machine is."""

import time
from collections.abc import Callable

PATIENCE = 120  # seconds; only a test that fails ever waits so long


def until(true: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < give_up, "it did not come true"
        time.sleep(0.01)
