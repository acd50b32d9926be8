"""A clock that stands still between calls."""

import threading


class ManualClock:
    """A clock that starts in 2026 and moves only when something sleeps on it."""

    def __init__(self, utc: int = 1_767_225_600_000) -> None:
        self._utc = utc
        self._steady = 0
        self._lock = threading.Lock()

    def utc(self) -> int:
        return self._utc

    def steady(self) -> int:
        return self._steady

    def sleep(self, duration: int) -> None:
        with self._lock:
            self._utc += duration
            self._steady += duration
