"""A filter that logs the same message at most once a minute."""

import logging
import time

_EVERY = 60.0  # seconds


class Repeats(logging.Filter):
    """Leaves out messages that were logged less than a minute ago, whatever their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False if the same message was logged within a minute."""
        now, logged_at = time.monotonic(), self._logged_at.get(str(record.msg))
        if logged_at is not None and now - logged_at < _EVERY:
            return False
        self._logged_at[str(record.msg)] = now
        return True
