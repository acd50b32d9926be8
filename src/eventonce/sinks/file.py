"""A sink that writes events as JSON lines to a file or to standard output."""

from collections.abc import Sequence

from eventonce.event import Event
from eventonce.sinks.append import AppendFile


class FileSink:
    """Writes one line per event."""

    def __init__(self, name: str) -> None:
        self._file = AppendFile(name)
        self._file.check()

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]:
        """Write all events. Raise `SinkError` if the file cannot be written, and then none of them is in it."""
        self._file.write(event.line() for event in events)
        return [None] * len(events)

    def close(self) -> None:
        self._file.close()
