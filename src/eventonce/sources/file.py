"""A source that reads a file or standard input: JSON lines, concatenated documents, gzip, with or without a BOM."""

import gzip
import heapq
import io
import itertools
import os
import select
import stat
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import BinaryIO, cast

from eventonce.clock import Clock, SystemClock
from eventonce.errors import SourceError
from eventonce.event import Delivery
from eventonce.sources.documents import Document, Splitter

_CHUNK = 256 * 1024
_MAX_RETRIES = 10_000  # deliveries that wait for a retry; beyond that nothing new is read
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MAX_DELAY = 1000  # milliseconds; a file has no receive count, so an early retry is cheap


class FileSource:
    """Reads a file, or standard input as `-`. It ends with its input. Deliveries to retry wait in memory."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self._name = "stdin" if name == "-" else os.fsencode(name).decode("utf-8", "backslashreplace")
        self._clock = clock or SystemClock()
        self._raw = _open(name)
        self._regular = stat.S_ISREG(os.fstat(self._raw.fileno()).st_mode)
        self._stream: io.RawIOBase | gzip.GzipFile | None = None
        self._splitter = Splitter()
        self._ready: deque[Delivery] = deque()
        self._waiting: list[tuple[int, int, Delivery]] = []  # a heap by the time of the retry
        self._number = itertools.count()
        self._ended = False

    @property
    def size(self) -> int | None:
        """The size of the file in bytes, or None for a pipe."""
        return os.fstat(self._raw.fileno()).st_size if self._regular else None

    @property
    def position(self) -> int:
        """The bytes read so far."""
        return self._raw.tell() if self._regular else 0

    def receive(self, limit: int) -> Sequence[Delivery]:
        """Return the next deliveries, new ones and retries, or none at the end of the input."""
        while True:
            due = self._due(limit)
            while self._wants_more(limit - len(due), waited=bool(due)):
                self._read()
            due += [self._ready.popleft() for _ in range(min(limit - len(due), len(self._ready)))]
            if due or not self._waiting:
                return due
            self._clock.sleep(max(1, self._waiting[0][0] - self._clock.steady()))

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: a file keeps no state of its lines."""

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Redeliver after the delay, or sooner."""
        delivery.receive_count += 1
        retry_at = self._clock.steady() + min(delay, _MAX_DELAY)
        heapq.heappush(self._waiting, (retry_at, next(self._number), delivery))

    def close(self) -> None:
        self._raw.close()

    def _due(self, limit: int) -> list[Delivery]:
        now = self._clock.steady()
        due: list[Delivery] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < limit:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def _wants_more(self, room: int, *, waited: bool) -> bool:
        if self._ended or len(self._ready) >= room or len(self._waiting) >= _MAX_RETRIES:
            return False
        if self._regular:
            return True
        # A pipe may be silent for long, so what is ready does not wait for more.
        return not self._ready and not waited and self._has_input()

    def _has_input(self) -> bool:
        if not self._waiting or self._stream is not self._raw:
            return True
        pause = max(0, self._waiting[0][0] - self._clock.steady()) / 1000
        return bool(select.select([self._raw], [], [], pause)[0])

    def _read(self) -> None:
        try:
            stream = self._open_stream()
            chunk = stream.read1(_CHUNK) if isinstance(stream, gzip.GzipFile) else stream.read(_CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._end([Document(b"", 0, 0, f"the gzip data is damaged, and the rest cannot be read: {error}")])
        except OSError as error:
            raise SourceError(f"{self._name}: cannot be read: {error.strerror}") from None
        else:
            if chunk:
                self._add(self._splitter.feed(chunk))
            else:
                self._end([])

    def _end(self, more: Iterable[Document]) -> None:
        self._ended = True
        self._add(self._splitter.end())
        self._add(more)

    def _add(self, documents: Iterable[Document]) -> None:
        for body, line, byte, unreadable in documents:
            origin = {"source": self._name, "line": line, "byte": byte}
            self._ready.append(Delivery(body, origin, unreadable=unreadable))

    def _open_stream(self) -> BinaryIO:
        if self._stream is None:
            self._stream = self._recognise()
        return cast(BinaryIO, self._stream)

    def _recognise(self) -> io.RawIOBase | gzip.GzipFile:
        head = self._raw.read(2) or b""
        if len(head) == 1:  # a pipe may deliver byte by byte
            head += self._raw.read(1) or b""
        if head in _UTF16:
            raise SourceError(f"{self._name}: is UTF-16; convert it first, such as with iconv -f UTF-16 -t UTF-8")
        if head == _GZIP:
            return gzip.GzipFile(fileobj=_Unread(head, self._raw))
        self._add(self._splitter.feed(head))
        return self._raw


class _Unread(io.RawIOBase):
    """A stream with its first bytes, which were read to recognise its format."""

    def __init__(self, head: bytes, raw: io.RawIOBase) -> None:
        self._head = head
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = self._head or self._raw.read(len(buffer)) or b""
        self._head = b""
        buffer[: len(data)] = data
        return len(data)


def _open(name: str) -> io.FileIO:
    if name == "-" and sys.stdin is None:  # its number may belong to another file by now
        raise SourceError("stdin: is closed; pass events on stdin, or name a file")
    try:
        if name == "-":
            return io.FileIO(sys.stdin.fileno(), closefd=False)
        return io.FileIO(name)
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}; check the name and the permissions") from None
