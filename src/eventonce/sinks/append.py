"""Appending lines to a file, with several writers at once: no written line is lost, and none is torn."""

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
    """Adds lines to a file, or to standard output as `-`. The first line creates the file.

    A line is on the disk when `write` returns. A writer that was killed may leave half a line. Its event was never
    recorded as done, so it is redelivered, and the half line is removed before the next write.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._fd: int | None = None
        self._regular = False
        self._lock = threading.Lock()  # flock is for processes: threads share the descriptor, and so the lock

    def check(self) -> None:
        """Raise `SinkError` now if the file cannot be written, rather than at the first line."""
        file = Path(self.name)
        if self.name == "-" or file.exists():
            self._open()
        elif not file.parent.is_dir():
            raise self._error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        elif not os.access(file.parent, os.W_OK | os.X_OK):
            raise self._error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def write(self, lines: Iterable[bytes]) -> None:
        """Add lines, each with its newline."""
        data = b"".join(line + b"\n" for line in lines)
        try:
            with self._lock, self._locked(self._open_in_place()) as fd:
                if self._regular:
                    _end_last_line(fd)
                    _write_or_undo(fd, data)
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

    def _open_in_place(self) -> int:
        """Return the descriptor. If the file was moved or deleted, open it anew: no reader would find the lines."""
        if self._fd is not None and self._regular and not is_in_place(os.fstat(self._fd), self.name):
            self.close()
        return self._open()

    def _new_fd(self) -> int:
        if self.name == "-":
            if sys.stdout is None:  # its number may belong to another file by now
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
        return SinkError(f"{name}: cannot be written: {error.strerror}; fix this and run again (no event was lost)")


def _write_or_undo(fd: int, data: bytes) -> None:
    """Write all of the data to the disk, or nothing: a batch that fails is sent again as a whole."""
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


def _end_last_line(fd: int) -> None:
    """End a last line that a killed writer left open: remove half an object, add the newline to anything else."""
    size = os.fstat(fd).st_size
    if not size or os.pread(fd, 1, size - 1) == b"\n":
        return
    start = _line_start(fd, size)
    if _is_torn(os.pread(fd, size - start, start)):
        os.ftruncate(fd, start)
    else:
        _write_all(fd, b"\n")


def _is_torn(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return line.startswith(b"{")
    return False


def _line_start(fd: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
