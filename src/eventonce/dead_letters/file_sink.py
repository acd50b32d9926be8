"""Dead letters in a file."""

import msgspec

from eventonce.dead_letters.writing import Dead, letter
from eventonce.sinks.append import AppendFile


class DeadFile:
    """A file of dead letters, one JSON line each; `-` is standard output."""

    def __init__(self, name: str) -> None:
        self._file = AppendFile(name)
        self._file.check()
        self.name = name

    def write(self, dead: Dead, now: int) -> None:
        """Keep these; they are on the disk when this returns."""
        if dead:
            self._file.write(msgspec.json.encode(letter(delivery, outcome, now)) for delivery, outcome in dead)

    def close(self) -> None:
        self._file.close()
