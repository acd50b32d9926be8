"""Dead letters in a file.

A worker may add letters at any time, so no line of the file is ever changed. The results of redrives are written to
`FILE.redriven` beside it. When no letter remains, the file is emptied and `FILE.redriven` is deleted.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from eventonce.dead_letters.letter import DeadEvents, from_fields, letter_fields, read_letter, without_body
from eventonce.errors import SourceError
from eventonce.ports import DeadLetter
from eventonce.sinks.append import AppendFile


class DeadFile:
    """Writes letters to a file, one JSON line each. `-` is standard output."""

    def __init__(self, name: str) -> None:
        self._file = AppendFile(name)
        self._file.check()
        self.name = name

    def write(self, dead: DeadEvents, now: int) -> None:
        """Write letters. They are on the disk when this returns."""
        if dead:
            self._file.write(msgspec.json.encode(letter_fields(delivery, outcome, now)) for delivery, outcome in dead)

    def close(self) -> None:
        self._file.close()


class FileBox:
    """Reads the file that a pipeline names as its `dead_letter`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._journal = AppendFile(f"{name}.redriven")
        if not Path(name).is_file():
            raise SourceError(f"{name}: no such file, so nothing has failed yet, or the path is wrong")

    def letters(self) -> Iterator[DeadLetter]:
        with self._locked() as file:
            yield from self._remaining(file)

    def hidden(self) -> int:
        return 0

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        self._note([{"letter": letter.id, "redriven": True} for letter in letters])

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        self._note([without_body(letter.fields) for letter in letters if letter.fields])

    def close(self) -> None:
        with suppress(SourceError), self._locked() as file:
            if next(self._remaining(file), None) is None:  # the lock keeps writers out
                os.truncate(file.name, 0)
                Path(self._journal.name).unlink(missing_ok=True)
        self._journal.close()

    def _remaining(self, file: BinaryIO) -> Iterator[DeadLetter]:
        notes = self._last_notes()
        for line in file:
            letter = read_letter(line.rstrip(b"\n"))
            note = notes.get(letter.id, {})
            if not note.get("redriven"):
                yield from_fields({**letter.fields, **note}, letter.id) if note else letter

    def _note(self, notes: list[dict[str, Any]]) -> None:
        if notes:
            self._journal.write(map(msgspec.json.encode, notes))

    def _last_notes(self) -> dict[str, dict[str, Any]]:
        by_letter: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError), Path(self._journal.name).open("rb") as file:
            for line in file:
                with suppress(msgspec.MsgspecError):  # a redrive was killed in mid line; the next one notes it again
                    note = msgspec.json.decode(line, type=dict[str, Any])
                    by_letter[str(note.get("letter"))] = note
        return by_letter

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        try:
            with open(self.name, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # no writer is in mid line
                yield file
        except OSError as error:
            raise SourceError(f"{error.filename or self.name}: cannot be read: {error.strerror}") from None
