"""A large file of JSON lines in pieces, so that several processes can read it."""

import mmap
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from eventonce.event import Delivery
from eventonce.sources.documents import Splitter

SIZE = 2 * 1024 * 1024
_PACKED = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff")  # gzip and UTF-16, which cannot be cut


class Piece(NamedTuple):
    """From one byte of a file to another."""

    file: str
    shown: str  # the name, as it can be printed
    begin: int
    end: int
    line: int  # the number of its first line

    def deliveries(self) -> Iterator[Delivery]:
        """The documents in it, with their places in the whole file."""
        with open(self.file, "rb") as stream:
            stream.seek(self.begin)
            data = stream.read(self.end - self.begin)
        splitter = Splitter()
        for body, line, byte, trouble in (*splitter.feed(data), *splitter.end()):
            where = {"source": self.shown, "line": self.line + line - 1, "byte": self.begin + byte}
            yield Delivery(body, where, trouble=trouble)


class Pieces:
    """Cuts a file where a line begins with a brace: there a new document begins, whatever came before."""

    def __init__(self, file: str) -> None:
        self._file = file

    @classmethod
    def of(cls, file: str) -> Self | None:
        """The pieces of a file, unless it is one that cannot be cut."""
        try:
            if file == "-" or not stat.S_ISREG(Path(file).stat().st_mode):
                return None
            with open(file, "rb") as stream:
                head = stream.read(2)
        except (OSError, ValueError):
            return None
        return None if head in _PACKED or not head else cls(file)

    def __iter__(self) -> Iterator[Piece]:
        shown = self._file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        with open(self._file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            begin, line = 0, 1
            while begin < len(data):
                cut = data.find(b"\n{", begin + SIZE)
                end = len(data) if cut < 0 else cut + 1
                yield Piece(self._file, shown, begin, end, line)
                line += data[begin:end].count(b"\n")
                begin = end
