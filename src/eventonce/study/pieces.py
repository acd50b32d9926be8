"""A large file of JSON lines in pieces, so that several processes can read it."""

import mmap
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, count, repeat
from pathlib import Path
from typing import NamedTuple, Self

from eventonce.event import Delivery
from eventonce.sources.documents import LONGEST, Document, Splitter

SIZE = 512 * 1024
_PACKED = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"PA")  # gzip, UTF-16 and Parquet, which cannot be cut
_LOOKED_AT = 1024 * 1024  # where no line in it begins with a brace, there may be none at all
_TOUCHING = re.compile(rb"\}[ \t\r\v\f]*\{")  # two documents in one line, or a string that looks like it
_Found = tuple[bytes, int, int, str | None]  # a document and its place


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
            first = stream.read(min(self.end - self.begin, LONGEST))
            rest = iter(lambda: stream.read(min(self.end - stream.tell(), SIZE)), b"")
            plain = _plain_lines(first) if stream.tell() == self.end else None
            for body, line, byte, trouble in plain or _split(chain((first,), rest)):
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
                head = stream.read(_LOOKED_AT)
        except (OSError, ValueError):
            return None
        uncut = len(head) == _LOOKED_AT and b"\n{" not in head
        return None if head[:2] in _PACKED or not head or uncut else cls(file)

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


def _plain_lines(data: bytes) -> Iterable[_Found] | None:
    """The documents where each line is one, as nearly always. The splitter would find the same, more slowly."""
    lines = data.removesuffix(b"\n").split(b"\n")
    if _TOUCHING.search(data) or any(line[:1] != b"{" or line[-1:] != b"}" for line in lines):
        return None
    begins = accumulate((len(line) + 1 for line in lines), initial=0)
    return zip(lines, count(1), begins, repeat(None))  # all but the lines go on


def _split(chunks: Iterable[bytes]) -> Iterator[Document]:
    splitter = Splitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.end()
