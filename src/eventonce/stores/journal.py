"""The journal store: records in memory, with every change written to a file before it is answered. For one process.

    header | frame | frame | ...        a frame: magic, length, checksum, and what one call has changed

A frame is on the disk before the next one is written. So a crash can only tear the last one, whose call was never
answered, and opening the file cuts it off. A torn frame is longer than the rest of the file, or some of it still has
the zeros that were there before, because a disk writes its sectors in any order, each of them as a whole. A frame of
which nothing is missing was answered. If its checksum is wrong, it was damaged later, and is refused like any other
damage. When most of the file is out of date, a new one is written and takes its place.
"""

import errno
import fcntl
import os
import shlex
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader, FileIO
from itertools import groupby, islice
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zlib import crc32

import msgspec

from eventonce.claims.protocol import Answer, ClaimRequest, Record, Token
from eventonce.clock import Clock
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key
from eventonce.files import is_in_place, moved
from eventonce.ports import Swept
from eventonce.stores.embedded import Records, Result
from eventonce.stores.memory import MAX_KEYS, MemoryStore
from eventonce.stores.url import count, options

Groups = list[tuple[Record | None, list[Key]]]  # keys that have the same record now, or none any more (None)

_MAGIC, _VERSION = b"eventonce journal", 1
# Magic, version, a random number, so that no frame of another file fits in, and the checksum of the three.
_HEADER = struct.Struct("<17sHQI")
_FRAME, _FRAME_MAGIC = struct.Struct("<4sII"), b"\xe0\x1eJ\n"  # magic, length, checksum
_SLACK = 100_000  # outdated keys that are not worth a new file
_PREALLOCATED = 1 << 20  # zeros after the last frame: a write that does not make the file longer takes less time
_KEYS_IN_A_FRAME = 10_000  # in a new file
_sync = getattr(os, "fdatasync", os.fsync)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Groups).decode


def open_url(url: str, clock: Clock | None, create: bool) -> "JournalStore":
    """Open `journal:///FILE` or `journal:///FILE?max_keys=N`."""
    file = Path(unquote(urlsplit(url).path[1:]))
    keys = count(url, options(url, "max_keys"), "max_keys", MAX_KEYS)
    if not create and file.parent.is_dir() and not file.exists():
        raise StoreUnusable(f"store: {file}: there is no such file; check its name")
    if not create and file.is_file() and not file.stat().st_size:
        raise StoreUnusable(f"store: {file}: is empty; check its name, or start a worker first")
    return JournalStore(file, keys, clock)


class JournalStore(MemoryStore):
    """The memory store, with a file of the same records.

    After any error of the file, it is closed and the records in memory are dropped. The next call reads the file again.
    So no answer ever depends on what is not on the disk.
    """

    def __init__(self, file: str | Path, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        super().__init__(max_keys, clock)
        self._name = Path(file).absolute()  # where others find it, also if this process changes its folder
        self._path = Path(os.path.realpath(file))  # of the file itself, which is replaced even if its name is a link
        self._journal: Journal | None = None
        self._open_journal()

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        with self._lock:
            if not is_in_place(self._open_journal().file_status(), self._name):  # commits go on: it may be put back
                raise moved(self._name)
            return super().claim(wants, token, lease)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Sweep memory only. Expired records in the file are ignored, and dropped when it is rewritten."""
        with self._lock:
            self._open_journal()
            return super().sweep(limit, cursor)

    def close(self) -> None:
        with self._lock:
            self._discard()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self._journal is not None:
            self._journal.file.close()  # not unlocked: the lock is the parent's, which alone may write
            self._journal = None
            self._discard()
        super().after_fork(in_child=in_child)

    # --- memory and file ---

    def _read(self, keys: Sequence[Key]) -> Records:
        with self._lock:  # until a change that is being made is on the disk
            self._open_journal()
            return {key: self._records[key] for key in keys if key in self._records}

    def _change(self, keys: Sequence[Key], operation: Callable[[Records], Result]) -> Result:
        def change() -> Result:
            before = [*map(self._records.get, keys)]
            result = operation(self._records)
            if groups := _group_by_record(zip(keys, before, map(self._records.get, keys), strict=True)):
                journal.append(groups)
                self._rewrite_if_worthwhile(journal)
            return result

        with self._lock:
            journal = self._open_journal()
            return self._discard_on_error(change)

    def _open_journal(self) -> "Journal":
        return self._journal or self._discard_on_error(self._load)

    def _load(self) -> "Journal":
        self._records, self._slots, self._order = {}, {}, []  # an interrupt may have left some records
        self._journal = journal = Journal(_open_locked(self._path), self._path)
        for groups in journal.read():
            _apply(self._records, groups)
        for expires, batch in groupby(self._records.items(), lambda item: item[1].expires):
            self._wait([key for key, _ in batch], expires)
        _sync_folder(self._path)
        return self._rewrite_if_worthwhile(journal)

    def _rewrite_if_worthwhile(self, journal: "Journal") -> "Journal":
        """Rewrite the file if most of it is out of date. If that fails, go on with the old one."""
        if journal.keys <= 2 * len(self._records) + _SLACK or not journal.in_place():
            return journal
        try:
            self._journal = new = journal.rewrite(_live_groups(self._records, self.clock.utc()))
        except OSError:
            journal.keys = 0  # so that not every call tries again
            return journal
        journal.close()
        _sync_folder(self._path)  # else a crash could bring the old one back
        return new

    def _discard_on_error(self, operation: Callable[[], Result]) -> Result:
        try:
            return operation()
        except OSError as error:
            self._discard()
            raise StoreUnusable(f"{self._path}: {error.strerror or error}; {_remedy(error, self._path)}") from error
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        journal, self._journal = self._journal, None  # first, so that an interrupt leaves no half-closed journal
        self._records, self._slots, self._order = {}, {}, []
        if journal is not None:
            journal.close()


class Journal:
    """The frames of a locked file."""

    def __init__(self, file: FileIO, path: Path) -> None:
        self.file = file
        self.keys = 0  # in all frames, repeated ones included
        self._path = path
        self._number = int.from_bytes(os.urandom(8), "little")
        self._end = self._size = _HEADER.size

    def file_status(self) -> os.stat_result:
        """Return the status of the open file, which identifies it."""
        return os.fstat(self.file.fileno())

    def in_place(self) -> bool:
        """Return whether the path still leads to this file."""
        return is_in_place(self.file_status(), self._path)

    def append(self, groups: Groups) -> None:
        """Append a frame, and wait until it is on the disk."""
        self._append_frame(groups)
        _sync(self.file.fileno())

    def read(self) -> Iterator[Groups]:
        """Yield the content of each frame. Then cut off a last one that a crash has torn."""
        with open(self.file.fileno(), "rb", closefd=False) as reader:
            size = self._read_header(reader)
            while (payload := self._read_payload(reader, self._end, size)) is not None:
                groups = self._decode_payload(payload)
                yield groups
                self._count(groups, payload)
            if self._end < size:
                self._refuse_damage(reader, size)
                self.file.truncate(self._end)
        _sync(self.file.fileno())  # the process that wrote the last frame may have been killed before it did so
        self._size = self._end

    def rewrite(self, contents: Iterable[Groups]) -> "Journal":
        """Write a file with these frames, put it in the place of this one, and return its journal."""
        path = self._path.with_name(f"{self._path.name}.eventonce-new")
        path.unlink(missing_ok=True)  # left by a crash; if it is a link, its target is not touched
        file = FileIO(path, "x+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before other processes can find it
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(self.file.fileno()).st_mode))
            new = Journal(file, self._path)
            new._write_header()
            for groups in contents:
                new._append_frame(groups)
            _sync(file.fileno())
            path.replace(self._path)
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        return new

    def _append_frame(self, groups: Groups) -> None:
        payload = _encode(groups)
        frame = _FRAME.pack(_FRAME_MAGIC, len(payload), self._checksum(self._end, payload)) + payload
        if self._end + len(frame) > self._size:
            self._size = self._end + len(frame) + _PREALLOCATED
            frame += bytes(_PREALLOCATED)
        _write(self.file, frame, self._end)
        self._count(groups, payload)

    def _count(self, groups: Groups, payload: bytes) -> None:
        self.keys += sum(len(keys) for _, keys in groups)
        self._end += _FRAME.size + len(payload)

    def _checksum(self, offset: int, payload: bytes) -> int:
        return crc32(payload, crc32(struct.pack("<QQI", self._number, offset, len(payload))))

    def close(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)  # also if a process that was just forked has not closed it yet
        self.file.close()

    # --- reading ---

    def _read_header(self, reader: BufferedReader) -> int:
        """Read the header, or write one into a new file. Return the size of the file."""
        status = os.fstat(self.file.fileno())
        header = reader.read(_HEADER.size) if stat.S_ISREG(status.st_mode) else None  # a pipe could block
        if header is None or header[: len(_MAGIC)] != _MAGIC[: len(header)]:
            raise StoreUnusable(f"{self._path}: is a file of another program; use another file")
        if len(header) < _HEADER.size:  # new, or torn when it was new
            self._write_header()
            return _HEADER.size
        _, version, self._number, checksum = _HEADER.unpack(header)
        if version > _VERSION:
            raise StoreUnusable(f"{self._path}: was written by a newer eventonce (journal {version}); upgrade it")
        if checksum != crc32(header[:-4]):  # with a wrong number all frames would look torn and be cut off
            raise self._damage_error(0, "its header is wrong")
        return status.st_size

    def _write_header(self) -> None:
        self.file.truncate(0)
        header = _HEADER.pack(_MAGIC, _VERSION, self._number, 0)[:-4]
        _write(self.file, header + struct.pack("<I", crc32(header)), 0)
        _sync(self.file.fileno())

    def _read_payload(self, reader: BufferedReader, offset: int, size: int) -> bytes | None:
        """Return the payload of the frame at an offset, or None if there is no whole frame."""
        reader.seek(offset)
        head = reader.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None
        magic, length, checksum = _FRAME.unpack(head)
        if magic != _FRAME_MAGIC or offset + _FRAME.size + length > size:
            return None
        payload = reader.read(length)
        return payload if self._checksum(offset, payload) == checksum else None

    def _decode_payload(self, payload: bytes) -> Groups:
        try:
            return _decode(payload)
        except msgspec.DecodeError as error:
            raise self._damage_error(self._end, str(error)) from error

    def _refuse_damage(self, reader: BufferedReader, size: int) -> None:
        """Raise unless a crash can have left these bytes: no whole frame follows, and the last one is torn."""
        reader.seek(self._end)
        rest = reader.read()
        position = rest.find(_FRAME_MAGIC, 1)
        while position >= 0:
            if self._read_payload(reader, self._end + position, size) is not None:
                raise self._damage_error(self._end, "a whole frame follows")
            position = rest.find(_FRAME_MAGIC, position + 1)
        if any(rest) and not self._is_torn(rest):
            raise self._damage_error(
                self._end,
                "its last frame is complete, and its checksum is wrong",
                f"cut that frame off with truncate -s {self._end} {shlex.quote(str(self._path))}; "
                "its keys are forgotten then, and their events may run again",
            )

    def _is_torn(self, rest: bytes) -> bool:
        """Return whether a crash may have left these bytes, because some of the frame is missing."""
        written = len(rest.rstrip(b"\0"))
        # A damaged length could make a whole frame look too short. Few payloads end with a zero, and fewer with two.
        if any(self._is_whole(rest[:end]) for end in range(written, min(written + 3, len(rest)) + 1)):
            return False
        if len(rest) < _FRAME.size:
            return _FRAME_MAGIC.startswith(rest[: len(_FRAME_MAGIC)]) or _has_gap(rest, self._end)
        magic, length, _ = _FRAME.unpack_from(rest)
        end = _FRAME.size + length if magic == _FRAME_MAGIC else max(written, _FRAME.size)
        return end > len(rest) or _has_gap(rest[:end], self._end)

    def _is_whole(self, frame: bytes) -> bool:
        """Return whether this is a whole frame apart from its magic and length."""
        if len(frame) < _FRAME.size:
            return False
        checksum: int = _FRAME.unpack_from(frame)[2]
        return self._checksum(self._end, frame[_FRAME.size :]) == checksum

    def _damage_error(self, offset: int, reason: str, remedy: str = "use another file") -> StoreUnusable:
        problem = f"{self._path}: is damaged at byte {offset} ({reason})"
        return StoreUnusable(f"{problem}; restore it from a backup or {remedy}")


# --- records ---


def _group_by_record(changes: Iterable[tuple[Key, Record | None, Record | None]]) -> Groups:
    """Group changed keys by their new record: those of one batch mostly share it, and then it is written once."""
    groups: dict[int, tuple[Record | None, list[Key]]] = {}
    last, add = None, None
    for key, before, after in changes:
        if after is before:
            continue
        if add is None or after is not last:
            last, add = after, groups.setdefault(id(after), (after, []))[1].append
        add(key)
    return [*groups.values()]


def _apply(records: Records, groups: Groups) -> None:
    for record, keys in groups:
        if record is not None:
            records.update(dict.fromkeys(keys, record))
        else:
            for key in keys:
                records.pop(key, None)


def _live_groups(records: dict[Key, Record], now: int) -> Iterator[Groups]:
    """Yield all records that have not expired, in groups for frames of limited size."""
    items = iter(records.items())
    while batch := list(islice(items, _KEYS_IN_A_FRAME)):
        yield _group_by_record((key, None, record) for key, record in batch if record.expires > now)


def _has_gap(data: bytes, offset: int) -> bool:
    """Return whether any aligned 8 bytes are zeros, the least that a disk or memory writes as a whole."""
    return any(not any(data[max(0, start) : start + 8]) for start in range(-(offset % 8), len(data), 8))


# --- files ---


def _open_locked(path: Path) -> FileIO:
    file = FileIO(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        in_place = is_in_place(os.fstat(file.fileno()), path)
    except BlockingIOError:
        file.close()
        raise StoreUnusable(
            f"{path}: another process or store has this journal open, and only one may; stop it first, or use "
            "sqlite:///FILE, which several can share"
        ) from None
    except BaseException:
        file.close()
        raise
    if in_place:
        return file
    file.close()  # it was replaced meanwhile, and the locked file is deleted
    return _open_locked(path)


def _write(file: FileIO, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(file.fileno(), data[written:] if written else data, offset + written)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remedy(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space on the disk and run again (no event was lost)"
    if error.errno == errno.EIO:
        return "check the disk and run again (no event was lost)"
    if not path.parent.is_dir():
        return f"the folder {str(path.parent)!r} does not exist; create it first"
    return "check that it is a file that this user may read and write"
