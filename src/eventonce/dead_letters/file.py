"""Dead letters in a file.

A worker may be adding letters at any moment, so nothing in the file is ever changed. What became of its letters stands
in `FILE.redriven` beside it; when no letter is left, the file is emptied and that one goes.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from eventonce.dead_letters.letter import Dead, from_fields, letter, read_letter, without_body
from eventonce.errors import SourceError
from eventonce.ports import DeadLetter
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


class FileBox:
    """A file that a pipeline names as its `dead_letter`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._journal = AppendFile(f"{name}.redriven")
        if not Path(name).is_file():
            raise SourceError(f"{name}: there are no dead letters here; check the name, or nothing has died yet")

    def letters(self) -> Iterator[DeadLetter]:
        with self._opened() as file:
            yield from self._left(file)

    def hidden(self) -> int:
        return 0

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        self._note([{"letter": letter.id, "redriven": True} for letter in letters])

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        self._note([without_body(letter.fields) for letter in letters if letter.fields])

    def close(self) -> None:
        with suppress(SourceError), self._opened() as file:
            if next(self._left(file), None) is None:  # and nobody can add one meanwhile
                os.truncate(file.name, 0)
                Path(self._journal.name).unlink(missing_ok=True)
        self._journal.close()

    def _left(self, file: BinaryIO) -> Iterator[DeadLetter]:
        noted = self._noted()
        for line in file:
            letter = read_letter(line.rstrip(b"\n"))
            note = noted.get(letter.id, {})
            if not note.get("redriven"):
                yield from_fields({**letter.fields, **note}, letter.id) if note else letter

    def _note(self, notes: list[dict[str, Any]]) -> None:
        if notes:
            self._journal.write(map(msgspec.json.encode, notes))

    def _noted(self) -> dict[str, dict[str, Any]]:
        """The last note of each letter."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError), Path(self._journal.name).open("rb") as file:
            for line in file:
                with suppress(msgspec.MsgspecError):  # half a line, of a redrive that was killed: noted again
                    note = msgspec.json.decode(line, type=dict[str, Any])
                    found[str(note.get("letter"))] = note
        return found

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with open(self.name, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # so that no line is half written
                yield file
        except OSError as error:
            raise SourceError(f"{error.filename or self.name}: cannot be read: {error.strerror}") from None
