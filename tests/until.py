"""Waiting for a condition, however slow the machine is."""

import time
from collections.abc import Callable

PATIENCE = 120  # seconds; only a failing test waits that long


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)
