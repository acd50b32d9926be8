"""A large file of JSON lines in ranges, so that several processes can read it."""

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
_UNCUTTABLE = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"PA")  # how gzip, UTF-16 and Parquet start
_HEAD_SIZE = 1024 * 1024  # if no line in it begins with a brace, there may be none at all
_TOUCHING = re.compile(rb"\}[ \t\r\v\f]*\{")  # two documents in one line, or a string that looks like it
_OPENING, _CLOSING = set(b"{"), set(b"}")
_first, _last = itemgetter(0), itemgetter(-1)
DocumentRow = tuple[bytes, int, int, str | None]  # the fields of a `Document`, which costs more to make


class FileRange(NamedTuple):
    """The bytes of a file from one line to another."""

    path: str
    display_name: str
    start: int
    end: int
    line: int = 1  # the number of its first line

    def documents(self, *, hasty: bool = False) -> Iterator[DocumentRow]:
        """Yield the documents, with their lines and bytes in the whole file.

        In haste, several documents in one line are taken for one, which no reader takes for an event.
        """
        line, byte = self.line, self.start
        with open(self.path, "rb") as stream:
            stream.seek(byte)
            for data, remainder in _blocks(iter(lambda: stream.read(min(SIZE, self.end - stream.tell())), b"")):
                lines = None if remainder else _plain_lines(data, hasty=hasty)
                if lines is None:
                    for body, line_in_block, offset, unreadable in _split(chain((data,), remainder)):
                        yield body, line + line_in_block - 1, byte + offset, unreadable
                else:
                    before = accumulate(map(len, lines), initial=byte)
                    yield from zip(
                        lines, count(line), map(add, before, count()), repeat(None)
                    )  # all but the first go on
                line += data.count(b"\n") if lines is None else len(lines)
                byte += len(data)

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the documents as deliveries, as a pipeline takes them."""
        return to_deliveries(self.documents(), self.display_name)


class FileRanges:
    """Cuts a file where a line begins with a brace: there a new document begins, whatever came before."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def of(cls, path: str) -> Self | None:
        """Return the ranges of a file. None if it cannot be cut."""
        try:
            if path == "-" or not stat.S_ISREG(Path(path).stat().st_mode):
                return None
            with open(path, "rb") as stream:
                head = stream.read(_HEAD_SIZE)
        except (OSError, ValueError):
            return None
        without_lines = len(head) == _HEAD_SIZE and b"\n{" not in head
        return None if head[:2] in _UNCUTTABLE or not head or without_lines else cls(path)

    def __iter__(self) -> Iterator[FileRange]:
        lines = LineCounter(self._path)
        for file_range in self.unnumbered():
            yield file_range._replace(line=1 + lines.before(file_range.start))

    def unnumbered(self) -> Iterator[FileRange]:
        """Yield the ranges, each as if its first line were the first of the file: counting lines takes a while."""
        name = self._path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        with open(self._path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = 0
            while start < len(data):
                cut = data.find(b"\n{", start + SIZE)
                end = len(data) if cut < 0 else cut + 1
                yield FileRange(self._path, name, start, end)
                start = end


class LineCounter:
    """Counts the lines of a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._end = self._lines = 0

    def before(self, byte: int) -> int:
        """Return how many lines end before a byte. Calls must come in the order of their bytes."""
        with open(self._path, "rb") as stream:
            stream.seek(self._end)
            while data := stream.read(min(SIZE, byte - self._end)):
                self._end += len(data)
                self._lines += data.count(b"\n")
        return self._lines


def to_deliveries(documents: Iterable[DocumentRow], name: str) -> Iterator[Delivery]:
    """Yield the documents of a file as deliveries, as a pipeline takes them."""
    for body, line, byte, unreadable in documents:
        yield Delivery(body, {"source": name, "line": line, "byte": byte}, unreadable=unreadable)


def _blocks(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, Iterable[bytes]]]:
    """Yield the chunks, cut where a document begins. One too long for memory comes with all chunks after it."""
    buffer = bytearray()  # grows in place: bytes would be copied whole with each chunk of a long document
    for chunk in chunks:
        buffer += chunk
        if cut := buffer.rfind(b"\n{", -len(chunk) - 1) + 1:
            yield bytes(buffer[:cut]), ()
            del buffer[:cut]
        elif len(buffer) > LONGEST:
            yield bytes(buffer), chunks
            return
    if buffer:
        yield bytes(buffer), ()


def _plain_lines(data: bytes, *, hasty: bool) -> list[bytes] | None:
    """Return the lines if each is one document, as nearly always. The splitter would return the same, more slowly."""
    lines = data.removesuffix(b"\n").split(b"\n")
    if b"" in lines or {*map(_first, lines)} != _OPENING or {*map(_last, lines)} != _CLOSING:
        return None
    return lines if hasty or not _TOUCHING.search(data) else None


def _split(chunks: Iterable[bytes]) -> Iterator[Document]:
    splitter = Splitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.end()
