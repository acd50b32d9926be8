"""A log that says a thing once a minute, not a thousand times."""

import logging
import time

_EVERY = 60.0  # seconds


class Repeats(logging.Filter):
    """Leaves out what was said a short while ago, whatever the numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to say it."""
        now, said = time.monotonic(), self._said.get(str(record.msg))
        if said is not None and now - said < _EVERY:
            return False
        self._said[str(record.msg)] = now
        return True
