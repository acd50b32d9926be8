"""A large file of JSON lines in pieces, so that several processes can read it."""

import mmap
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, count, repeat
from operator import add, itemgetter
from pathlib import Path
from typing import NamedTuple, Self

from eventonce.event import Delivery
from eventonce.sources.documents import LONGEST, Document, Splitter

SIZE = 512 * 1024
_PACKED = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"PA")  # gzip, UTF-16 and Parquet, which cannot be cut
_LOOKED_AT = 1024 * 1024  # where no line in it begins with a brace, there may be none at all
_TOUCHING = re.compile(rb"\}[ \t\r\v\f]*\{")  # two documents in one line, or a string that looks like it
_BEGIN, _END = set(b"{"), set(b"}")
_first, _last = itemgetter(0), itemgetter(-1)
DocumentRow = tuple[bytes, int, int, str | None]  # what a `Document` is, which costs more to make


class Piece(NamedTuple):
    """From one byte of a file to another."""

    file: str
    shown: str  # the name, as it can be printed
    begin: int
    end: int
    line: int = 1  # the number of its first line

    def documents(self, *, hasty: bool = False) -> Iterator[DocumentRow]:
        """The documents in it, with their places in the whole file.

        In haste, several documents in one line are taken for one, which no reader takes for an event.
        """
        line, byte = self.line, self.begin
        with open(self.file, "rb") as stream:
            stream.seek(byte)
            for data, rest in _texts(iter(lambda: stream.read(min(SIZE, self.end - stream.tell())), b"")):
                lines = None if rest else _plain_lines(data, hasty=hasty)
                if lines is None:
                    for body, nth, offset, trouble in _split(chain((data,), rest)):
                        yield body, line + nth - 1, byte + offset, trouble
                else:
                    before = accumulate(map(len, lines), initial=byte)
                    yield from zip(
                        lines, count(line), map(add, before, count()), repeat(None)
                    )  # all but the first go on
                line += data.count(b"\n") if lines is None else len(lines)
                byte += len(data)

    def deliveries(self) -> Iterator[Delivery]:
        """The same, as they go through a pipeline."""
        return delivered(self.documents(), self.shown)


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
        lines = LineCounter(self._file)
        return (piece._replace(line=1 + lines.before(piece.begin)) for piece in self.unnumbered())

    def unnumbered(self) -> Iterator[Piece]:
        """The same, each as if its first line were the first of the file: to count lines takes a while."""
        shown = self._file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        with open(self._file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            begin = 0
            while begin < len(data):
                cut = data.find(b"\n{", begin + SIZE)
                end = len(data) if cut < 0 else cut + 1
                yield Piece(self._file, shown, begin, end)
                begin = end


class LineCounter:
    """Counts the lines of a file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._until = self._count = 0

    def before(self, byte: int) -> int:
        """How many lines end before a byte, which is none before the one that was asked for last."""
        with open(self._file, "rb") as stream:
            stream.seek(self._until)
            while data := stream.read(min(SIZE, byte - self._until)):
                self._until += len(data)
                self._count += data.count(b"\n")
        return self._count


def delivered(documents: Iterable[DocumentRow], shown: str) -> Iterator[Delivery]:
    """Documents of a file as they go through a pipeline."""
    for body, line, byte, trouble in documents:
        yield Delivery(body, {"source": shown, "line": line, "byte": byte}, unreadable=trouble)


def _texts(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, Iterable[bytes]]]:
    """The chunks, cut where a document begins. One that is too long to keep comes with all that is behind it."""
    held = bytearray()  # grows in place: bytes would be copied whole with each chunk of a long document
    for chunk in chunks:
        held += chunk
        if cut := held.rfind(b"\n{", -len(chunk) - 1) + 1:
            yield bytes(held[:cut]), ()
            del held[:cut]
        elif len(held) > LONGEST:
            yield bytes(held), chunks
            return
    if held:
        yield bytes(held), ()


def _plain_lines(data: bytes, *, hasty: bool) -> list[bytes] | None:
    """The documents where each line is one, as nearly always. The splitter would find the same, more slowly."""
    lines = data.removesuffix(b"\n").split(b"\n")
    if b"" in lines or {*map(_first, lines)} != _BEGIN or {*map(_last, lines)} != _END:
        return None
    return lines if hasty or not _TOUCHING.search(data) else None


def _split(chunks: Iterable[bytes]) -> Iterator[Document]:
    splitter = Splitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.end()
