"""Splitting a stream of bytes into JSON documents.

One document per line is the rule. Firehose concatenates documents without newlines, and people write one over several
indented lines. Both are cut where their brackets close. A broken document is returned as it is, up to the end of its
line: a search for the next document in that line could take a part of an event for an event.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 64 * 1024 * 1024  # bytes of a document that are held in memory
_EXCERPT = 64 * 1024  # bytes that are kept of a longer one
_LONG_LINE = 1024 * 1024  # bytes; a longer line is read in pieces
_TOUCHING = re.compile(rb"\}\s*\{")  # two documents in one line, or a string that looks like it
_BRACKET_OR_QUOTE = re.compile(rb'[{}\[\]"]')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_CONTINUES = (b" ", b"\t", b"\r", b"}", b"]", b"")  # the first byte of a line that may belong to the document before
_BOM = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """The bytes of one document, and the position of its first."""

    body: bytes
    line: int
    byte: int
    unreadable: str | None = None  # why, if it is


class Splitter:
    """Splits chunks of a stream into documents."""

    def __init__(self) -> None:
        self._carry = b""  # the start of a line
        self._line, self._byte = 1, 0  # of the next unread byte
        self._at_start = True  # of the stream
        self._new_line = True  # no byte of the line is read yet
        self._open = bytearray()  # a document without its end so far
        self._start = (1, 0)  # of the open document
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._broken = False  # not JSON: it ends with its line
        self._too_long = False  # not kept, only followed to its end

    def feed(self, chunk: bytes) -> Iterator[Document]:
        """Return the documents that end in this chunk."""
        data = self._carry + chunk
        if self._at_start and data != _BOM and _BOM.startswith(data):
            self._carry = data  # perhaps the start of a BOM
            return
        *lines, self._carry = self._skip_bom(data).split(b"\n")
        for line in lines:
            yield from self._take(line, whole=self._new_line)
            yield from self._end_line()
        if len(self._carry) > _LONG_LINE:
            part, self._carry = self._carry, b""
            yield from self._take(part, whole=False)

    def end(self) -> Iterator[Document]:
        """Return the remaining documents at the end of the stream."""
        yield from self._take(self._carry, whole=self._new_line)
        yield from self._emit_broken()
        self._carry = b""

    def _skip_bom(self, data: bytes) -> bytes:
        if not self._at_start or not data.startswith(_BOM):
            self._at_start = False
            return data
        self._at_start = False
        self._byte = len(_BOM)
        return data[len(_BOM) :]

    def _take(self, text: bytes, *, whole: bool) -> Iterator[Document]:
        """Read a whole line, or a part of a long one."""
        inside = bool(self._open) or self._too_long
        if inside and self._new_line and text[:1] not in _CONTINUES:
            yield from self._emit_broken()
            inside = False
        self._new_line = False
        bare = text.strip()
        if whole and not inside and bare[:1] == b"{" and bare[-1:] == b"}" and not _TOUCHING.search(bare):
            yield Document(bare, self._line, self._byte + text.index(b"{"))
        elif bare or inside:
            yield from self._cut(text)
        self._byte += len(text)

    def _end_line(self) -> Iterator[Document]:
        if self._broken:
            yield from self._emit_broken()
        elif self._open and not self._too_long:
            self._open += b"\n"
        self._line, self._byte, self._new_line = self._line + 1, self._byte + 1, True

    def _cut(self, text: bytes) -> Iterator[Document]:
        """Follow the brackets, and cut where the outermost one closes."""
        start = offset = 0
        while offset < len(text) and not self._broken:
            if not self._depth:
                start = offset = self._find_start(text, offset)
            offset = self._follow(text, offset)
            if not self._depth and start < offset and not self._broken:
                yield from self._close(text[start:offset])
                start = offset
        if not self._too_long:
            self._open += text[start:]
        if len(self._open) > LONGEST:
            yield self._cut_short()

    def _find_start(self, text: bytes, offset: int) -> int:
        while text[offset : offset + 1].isspace():
            offset += 1
        self._start = (self._line, self._byte + offset)
        self._broken = text[offset : offset + 1] not in (b"{", b"[", b"")
        return offset

    def _follow(self, text: bytes, offset: int) -> int:
        """Return the offset after the next bracket or quote."""
        if self._in_string:
            return self._follow_string(text, offset)
        match = _BRACKET_OR_QUOTE.search(text, offset)
        if match is None:
            return len(text)
        if match[0] == b'"':
            self._in_string = True
        else:
            self._depth += 1 if match[0] in b"{[" else -1
        return match.end()

    def _follow_string(self, text: bytes, offset: int) -> int:
        if self._escaped:  # by the last byte of the part before
            offset, self._escaped = offset + 1, False
        match = _STRING.match(text, offset)
        end = match.end() if match else offset
        if end >= len(text):
            return end
        self._escaped = text[end : end + 1] == b"\\"  # the last byte: what it escapes is in the next part
        self._in_string = self._escaped
        return end + 1

    def _close(self, last: bytes) -> Iterator[Document]:
        if not self._too_long:
            yield Document(bytes(self._open + last), *self._start)
        self._reset()

    def _cut_short(self) -> Document:
        reason = f"has more than {LONGEST:,} bytes; only its first {_EXCERPT:,} are kept here"
        document = Document(bytes(self._open[:_EXCERPT]), *self._start, reason)
        self._open, self._too_long = bytearray(), True
        return document

    def _emit_broken(self) -> Iterator[Document]:
        if broken := bytes(self._open).strip():
            yield Document(broken, *self._start)
        self._reset()

    def _reset(self) -> None:
        self._open = bytearray()
        self._depth = 0
        self._in_string = self._escaped = self._broken = self._too_long = False
