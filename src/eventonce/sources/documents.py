"""Cutting a stream of bytes into JSON documents.

One document per line is the rule. Firehose writes documents one behind the other without a newline, and people
write one over several indented lines; both are cut where their brackets close. What is broken is given as it is,
up to the end of its line: to look for a document further on could take a part of an event for an event.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 64 * 1024 * 1024  # a document beyond this is not kept in memory whole
_SHOWN = 64 * 1024  # so much of it is
_LONG_LINE = 1024 * 1024  # a line beyond this is looked at before its end has come
_TOUCHING = re.compile(rb"\}\s*\{")  # two documents in one line, or a string that looks like it
_MARK = re.compile(rb'[{}\[\]"]')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_GOES_ON = (b" ", b"\t", b"\r", b"}", b"]", b"")  # how a line begins that can belong to the document before it
_BOM = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """The bytes of one document, and where it begins."""

    body: bytes
    line: int
    byte: int
    trouble: str | None = None


class Splitter:
    """Takes chunks and gives documents."""

    def __init__(self) -> None:
        self._carry = b""  # the begin of a line
        self._line, self._byte = 1, 0  # where the next unread byte stands
        self._at_start = True  # of the stream
        self._fresh = True  # at the begin of a line
        self._open = bytearray()  # a document whose end has not come
        self._from = (1, 0)  # where that begins
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._broken = False  # it is none, and ends with its line
        self._lost = False  # it is too long to keep, and only followed to its end

    def feed(self, chunk: bytes) -> Iterator[Document]:
        """The documents that end in this chunk."""
        data = self._carry + chunk
        if self._at_start and data != _BOM and _BOM.startswith(data):
            self._carry = data  # perhaps the begin of a BOM
            return
        *lines, self._carry = self._skip_bom(data).split(b"\n")
        for line in lines:
            yield from self._take(line, whole=self._fresh)
            yield from self._end_line()
        if len(self._carry) > _LONG_LINE:
            piece, self._carry = self._carry, b""
            yield from self._take(piece, whole=False)

    def end(self) -> Iterator[Document]:
        """What is left at the end of the stream."""
        yield from self._take(self._carry, whole=self._fresh)
        yield from self._give_up()
        self._carry = b""

    def _skip_bom(self, data: bytes) -> bytes:
        if not self._at_start or not data.startswith(_BOM):
            self._at_start = False
            return data
        self._at_start = False
        self._byte = len(_BOM)
        return data[len(_BOM) :]

    def _take(self, text: bytes, *, whole: bool) -> Iterator[Document]:
        """A whole line, or a piece of a long one."""
        inside = bool(self._open) or self._lost
        if inside and self._fresh and text[:1] not in _GOES_ON:
            yield from self._give_up()
            inside = False
        self._fresh = False
        bare = text.strip()
        if whole and not inside and bare[:1] == b"{" and bare[-1:] == b"}" and not _TOUCHING.search(bare):
            yield Document(bare, self._line, self._byte + text.index(b"{"))
        elif bare or inside:
            yield from self._cut(text)
        self._byte += len(text)

    def _end_line(self) -> Iterator[Document]:
        if self._broken:
            yield from self._give_up()
        elif self._open and not self._lost:
            self._open += b"\n"
        self._line, self._byte, self._fresh = self._line + 1, self._byte + 1, True

    def _cut(self, text: bytes) -> Iterator[Document]:
        """Follow the brackets, and cut where the outermost one closes."""
        begin = at = 0
        while at < len(text) and not self._broken:
            if not self._depth:
                begin = at = self._begin(text, at)
            at = self._follow(text, at)
            if not self._depth and begin < at and not self._broken:
                yield from self._close(text[begin:at])
                begin = at
        if not self._lost:
            self._open += text[begin:]
        if len(self._open) > LONGEST:
            yield self._cut_short()

    def _begin(self, text: bytes, at: int) -> int:
        while text[at : at + 1].isspace():
            at += 1
        self._from = (self._line, self._byte + at)
        self._broken = text[at : at + 1] not in (b"{", b"[", b"")
        return at

    def _follow(self, text: bytes, at: int) -> int:
        """Go on to the next bracket or quote, and past it."""
        if self._in_string:
            return self._follow_string(text, at)
        mark = _MARK.search(text, at)
        if mark is None:
            return len(text)
        if mark[0] == b'"':
            self._in_string = True
        else:
            self._depth += 1 if mark[0] in b"{[" else -1
        return mark.end()

    def _follow_string(self, text: bytes, at: int) -> int:
        if self._escaped:  # by the last byte of the piece before
            at, self._escaped = at + 1, False
        matched = _STRING.match(text, at)
        end = matched.end() if matched else at
        if end >= len(text):
            return end
        self._escaped = text[end : end + 1] == b"\\"  # at the very end: what it escapes is in the next piece
        self._in_string = self._escaped
        return end + 1

    def _close(self, last: bytes) -> Iterator[Document]:
        if not self._lost:
            yield Document(bytes(self._open + last), *self._from)
        self._reset()

    def _cut_short(self) -> Document:
        trouble = f"has more than {LONGEST:,} bytes; only its first {_SHOWN:,} are kept here"
        document = Document(bytes(self._open[:_SHOWN]), *self._from, trouble)
        self._open, self._lost = bytearray(), True
        return document

    def _give_up(self) -> Iterator[Document]:
        if broken := bytes(self._open).strip():
            yield Document(broken, *self._from)
        self._reset()

    def _reset(self) -> None:
        self._open = bytearray()
        self._depth = 0
        self._in_string = self._escaped = self._broken = self._lost = False
