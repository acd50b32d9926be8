"""Cutting a stream of bytes into JSON documents.

One document per line is the rule. Firehose writes documents one behind the other without a newline, and people
write one over several indented lines; both are cut where their brackets close. A broken one ends with its line.
"""

import re
from collections.abc import Generator, Iterator
from typing import NamedTuple

LONGEST = 64 * 1024 * 1024  # a document beyond this is not kept in memory whole
_SHOWN = 64 * 1024  # so much of it is
_LONG_LINE = 1024 * 1024  # a line beyond this is cut before its end has come
_TOUCHING = re.compile(rb"\}\s*\{")  # two documents in one line, or a string that looks like it
_MARK = re.compile(rb'[{}\[\]"]')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SPACE = re.compile(rb"\s*")
_GOES_ON = (b" ", b"\t", b"}", b"]", b"\r", b"")  # how a line begins that can belong to the document before it
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
        self._started = False
        self._fresh = True  # at the begin of a line
        self._reset()

    def feed(self, chunk: bytes) -> Iterator[Document]:
        """The documents that end in this chunk."""
        data = self._carry + chunk
        if not self._started and len(data) >= len(_BOM):
            data = self._skip_bom(data)
        *lines, self._carry = data.split(b"\n")
        for line in lines:
            yield from self._take(line, whole=self._fresh)
            self._next_line()
        if len(self._carry) > _LONG_LINE:
            rest, self._carry = self._carry, b""
            yield from self._take(rest, whole=False)

    def end(self) -> Iterator[Document]:
        """What is left at the end of the stream."""
        yield from self._take(self._carry, whole=self._fresh)
        self._carry = b""
        yield from self._give_up()

    def _skip_bom(self, data: bytes) -> bytes:
        self._started = True
        if data.startswith(_BOM):
            self._byte = len(_BOM)
            return data[len(_BOM) :]
        return data

    def _next_line(self) -> None:
        self._line, self._byte, self._fresh = self._line + 1, self._byte + 1, True
        if self._open:
            self._open += b"\n"
        if self._lost:
            self._reset()

    def _take(self, text: bytes, *, whole: bool) -> Iterator[Document]:
        """A whole line, or a piece of a long one."""
        if self._open and self._fresh and text[:1] not in _GOES_ON:
            yield from self._give_up()
        self._fresh = False
        bare = text.strip()
        if self._lost or not bare:
            self._byte += len(text)
        elif whole and not self._open and bare[:1] == b"{" and bare[-1:] == b"}" and not _TOUCHING.search(bare):
            yield Document(bare, self._line, self._byte + text.index(b"{"))
            self._byte += len(text)
        else:
            yield from self._cut(text)

    def _cut(self, text: bytes) -> Iterator[Document]:
        """Follow the brackets, and cut where the outermost one closes."""
        begin = at = 0
        while at < len(text):
            if not self._depth:
                begin = at = yield from self._begin(text, at)
            at = self._follow(text, at)
            if not self._depth and at > begin:
                yield self._close(text[begin:at])
                begin = at
        self._open += text[begin:]
        self._byte += len(text)
        if len(self._open) > LONGEST:
            yield self._cut_short()

    def _follow(self, text: bytes, at: int) -> int:
        """Go on to the next bracket or quote and past it."""
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
        if self._escaped:  # the escape stood at the end of the last piece
            at, self._escaped = at + 1, False
        matched = _STRING.match(text, at)
        end = matched.end() if matched else at
        if end == len(text):
            return end
        if text[end : end + 1] == b'"':
            self._in_string = False
        else:
            self._escaped = True  # a lone backslash at the very end
        return end + 1

    def _begin(self, text: bytes, at: int) -> Generator[Document, None, int]:
        """Where the next document begins; what stands before it and is none is given as it is."""
        at = _past_space(text, at)
        self._from = (self._line, self._byte + at)
        if text[at : at + 1] in (b"{", b"[", b""):
            return at
        end = text.find(b"{", at)
        end = len(text) if end < 0 else end
        yield Document(text[at:end].strip(), *self._from)
        self._from = (self._line, self._byte + end)
        return end

    def _close(self, last: bytes) -> Document:
        document = Document(bytes(self._open + last).strip(), *self._from)
        self._reset()
        return document

    def _cut_short(self) -> Document:
        shown = bytes(self._open[:_SHOWN])
        where = self._from
        self._reset()
        self._lost = True
        return Document(shown, *where, f"has more than {LONGEST:,} bytes; only its first {_SHOWN:,} are kept here")

    def _give_up(self) -> Iterator[Document]:
        if broken := bytes(self._open).strip():
            yield Document(broken, *self._from)
        self._reset()

    def _reset(self) -> None:
        self._open = bytearray()  # a document whose end has not come
        self._from = (1, 0)
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._lost = False  # too long to keep: skip to the end of the line


def _past_space(text: bytes, at: int) -> int:
    matched = _SPACE.match(text, at)
    return matched.end() if matched else at
