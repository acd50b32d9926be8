"""Events as JSON lines into a file or to standard output."""

from collections.abc import Sequence

from eventonce.event import Event
from eventonce.sinks.append import AppendFile


class FileSink:
    """One line for each event."""

    def __init__(self, name: str) -> None:
        self._file = AppendFile(name)
        self._file.check()

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]:
        """Write all of them; a file that cannot be written raises and leaves every one of them to be sent again."""
        self._file.write(event.line() for event in events)
        return [None] * len(events)

    def close(self) -> None:
        self._file.close()
