"""Dead letters in a table of a database."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

import msgspec

from eventonce.dead_letters import open_dead_letters
from eventonce.dead_letters.letter import read_letter
from eventonce.dead_letters.table_sink import DeadTable
from eventonce.errors import SourceError
from eventonce.ports import DeadLetter

_PAGE = 500


class TableBox:
    """The table that a pipeline's `dead_letter` names."""

    def __init__(self, url: str) -> None:
        file = unquote(urlsplit(url).path[1:])
        if url.startswith("sqlite:") and not Path(file).is_file():  # to look is not to make one
            raise SourceError(f"{file}: there is no such file; check its name")
        self._table = cast(DeadTable, open_dead_letters(url))
        self.name = self._table.name

    def letters(self) -> Iterator[DeadLetter]:
        last = 0
        while rows := self._table.read(last, _PAGE):
            last = rows[-1][0]
            yield from (read_letter(raw, number) for number, raw in rows)

    def hidden(self) -> int:
        return 0

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        self._table.remove([letter.handle for letter in letters])

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        self._table.replace(
            [(letter.handle, msgspec.json.encode(letter.fields)) for letter in letters if letter.fields]
        )

    def close(self) -> None:
        self._table.close()
