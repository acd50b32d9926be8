"""Appending lines to a file so that nothing written is lost and no line is torn, with several writers at once."""

import errno
import fcntl
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from eventonce.errors import SinkError
from eventonce.files import is_in_place

_BLOCK = 64 * 1024


class AppendFile:
    """A file that lines are added to, or standard output as `-`. It is made when the first line comes.

    What is written is on the disk when `write` returns. A writer that was killed may leave half a line behind;
    the event of it was never recorded as done, so it comes again, and the half line is cut off first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._fd: int | None = None
        self._regular = False
        self._lock = threading.Lock()  # flock is for processes: threads share the descriptor, and so the lock

    def check(self) -> None:
        """Raise now if the file cannot be written, rather than when the first line comes."""
        file = Path(self.name)
        if self.name == "-" or file.exists():
            self._open()
        elif not file.parent.is_dir():
            raise self._error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        elif not os.access(file.parent, os.W_OK | os.X_OK):
            raise self._error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def write(self, lines: Iterable[bytes]) -> None:
        """Add whole lines."""
        data = b"".join(line + b"\n" for line in lines)
        try:
            with self._lock, self._locked(self._in_place()) as fd:
                if self._regular:
                    _mend(fd)
                    _write_whole(fd, data)
                else:
                    _write_all(fd, data)
        except OSError as error:
            raise self._error(error) from error

    def close(self) -> None:
        if self._fd is not None and self.name != "-":
            os.close(self._fd)
        self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = self._new_fd()
            except OSError as error:
                raise self._error(error) from error
            self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode) and self.name != "-"
        return self._fd

    def _in_place(self) -> int:
        """What is open now; a file that was moved or deleted is let go, as lines in it would be looked for in vain."""
        if self._fd is not None and self._regular and not is_in_place(os.fstat(self._fd), self.name):
            self.close()
        return self._open()

    def _new_fd(self) -> int:
        if self.name == "-":
            if sys.stdout is None:  # its number may be another file's by now
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return sys.stdout.fileno()
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(self.name, os.O_RDWR | flags, 0o666)
        except PermissionError:  # a pipe or device may be for writing only
            return os.open(self.name, os.O_WRONLY | flags, 0o666)

    @contextmanager
    def _locked(self, fd: int) -> Iterator[int]:
        if not self._regular:
            yield fd
            return
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _error(self, error: OSError) -> SinkError:
        name = "stdout" if self.name == "-" else self.name
        return SinkError(f"{name}: cannot be written: {error.strerror}; mend that and run again, nothing is lost")


def _write_whole(fd: int, data: bytes) -> None:
    """Write all of it to the disk, or nothing: what was not sent as a whole will be sent again."""
    size = os.fstat(fd).st_size
    try:
        _write_all(fd, data)
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, size)
        raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _mend(fd: int) -> None:
    """End the last line where a killed writer left it open: half an object goes, anything else gets its newline."""
    size = os.fstat(fd).st_size
    if not size or os.pread(fd, 1, size - 1) == b"\n":
        return
    begin = _line_begin(fd, size)
    if _is_torn(os.pread(fd, size - begin, begin)):
        os.ftruncate(fd, begin)
    else:
        _write_all(fd, b"\n")


def _is_torn(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return line.startswith(b"{")
    return False


def _line_begin(fd: int, size: int) -> int:
    at = size
    while at > 0:
        start = max(0, at - _BLOCK)
        newline = os.pread(fd, at - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        at = start
    return 0
