"""The journal store: records in memory, and every change of them in a file before it is answered. For one process.

    header | frame | frame | ...        a frame: mark, length, checksum, and what one call has changed

A frame is on the disk before the next one begins, so a crash can only tear the last one, which was never answered:
opening the file cuts it off. A frame that was torn ends behind the file, or some of it still has the zeros that were
there before, since a disk writes its sectors in any order and each of them whole. One of which nothing is missing was
answered and has been damaged since, and is refused like any other damage. When most of the file is out of date it is
written anew, and put in its own place.
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

from eventonce.claims.protocol import Answer, Record, Token, Want
from eventonce.clock import Clock
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key
from eventonce.files import is_in_place, moved
from eventonce.ports import Swept
from eventonce.stores.embedded import Records, Result
from eventonce.stores.memory import MAX_KEYS, MemoryStore
from eventonce.stores.url import count, options

Groups = list[tuple[Record | None, list[Key]]]  # keys whose record is the same now; None: they have none any more

_MAGIC, _VERSION = b"eventonce journal", 1
# Magic, version, a number of its own, so that no frame of another file fits in, and the checksum of all that.
_HEADER = struct.Struct("<17sHQI")
_FRAME, _MARK = struct.Struct("<4sII"), b"\xe0\x1eJ\n"  # mark, length, checksum
_SLACK = 100_000  # keys out of date that nobody minds
_AHEAD = 1 << 20  # zeros behind the last frame: a disk writes sooner what does not make its file longer
_AT_A_TIME = 10_000  # keys in a frame when all are written
_sync = getattr(os, "fdatasync", os.fsync)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Groups).decode


def open_url(url: str, clock: Clock | None, create: bool) -> "JournalStore":
    """Open `journal:///FILE` or `journal:///FILE?max_keys=N`."""
    file = Path(unquote(urlsplit(url).path[1:]))
    keys = count(url, options(url, "max_keys"), "max_keys", MAX_KEYS)
    if not create and file.parent.is_dir() and not file.exists():
        raise StoreUnusable(f"store: {file}: there is no such file; check its name")
    return JournalStore(file, keys, clock)


class JournalStore(MemoryStore):
    """The memory store, and a file that knows the same.

    Whatever goes wrong with the file, it is let go together with all that is in memory, and the next call reads it
    anew: so nothing is ever answered that is not on the disk.
    """

    def __init__(self, file: str | Path, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        super().__init__(max_keys, clock)
        self._name = Path(file).absolute()  # by which others find it; the same, wherever the process goes
        self._path = Path(os.path.realpath(file))  # to be written anew in its place, though the name be a link
        self._journal: Journal | None = None
        self._use()

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        with self._lock:
            if not is_in_place(self._use().opened(), self._name):  # commits may go on: it may be put back
                raise moved(self._name)
            return super().claim(wants, token, lease)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Only memory is swept: what is over counts for nothing in the file, and goes when that is written anew."""
        with self._lock:
            self._use()
            return super().sweep(limit, cursor)

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self._journal is not None:
            self._journal.file.close()  # not unlocked: the parent has it, and alone may write
            self._journal = None
            self._let_go()
        super().after_fork(in_child=in_child)

    # --- memory and file ---

    def _read(self, keys: Sequence[Key]) -> Records:
        with self._lock:  # which is held until a change is on the disk
            self._use()
            return {key: self._records[key] for key in keys if key in self._records}

    def _change(self, keys: Sequence[Key], act: Callable[[Records], Result]) -> Result:
        def change() -> Result:
            before = [*map(self._records.get, keys)]
            result = act(self._records)
            if groups := _grouped(zip(keys, before, map(self._records.get, keys), strict=True)):
                journal.append(groups)
                self._tidy(journal)
            return result

        with self._lock:
            journal = self._use()
            return self._or_let_go(change)

    def _use(self) -> "Journal":
        return self._journal or self._or_let_go(self._open)

    def _open(self) -> "Journal":
        self._records, self._slots, self._order = {}, {}, []  # an interrupt may have left some
        self._journal = journal = Journal(_locked(self._path), self._path)
        for groups in journal.read():
            _apply(self._records, groups)
        for expires, some in groupby(self._records.items(), lambda item: item[1].expires):
            self._wait([key for key, _ in some], expires)
        _sync_folder(self._path)
        return self._tidy(journal)

    def _tidy(self, journal: "Journal") -> "Journal":
        """Write the file anew where more of it is out of date than not. If that fails, the old one will do."""
        if journal.keys <= 2 * len(self._records) + _SLACK or not journal.in_place():
            return journal
        try:
            self._journal = new = journal.anew(_slices(self._records, self.clock.utc()))
        except OSError:
            journal.keys = 0  # it is not tried again at every call
            return journal
        journal.close()
        _sync_folder(self._path)  # else the old one might come back
        return new

    def _or_let_go(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except OSError as error:
            self._let_go()
            raise StoreUnusable(f"{self._path}: {error.strerror or error}; {_remedy(error, self._path)}") from error
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        journal, self._journal = self._journal, None  # first, so that an interrupt leaves none that is half closed
        self._records, self._slots, self._order = {}, {}, []
        if journal is not None:
            journal.close()


class Journal:
    """The frames of a locked file."""

    def __init__(self, file: FileIO, path: Path) -> None:
        self.file = file
        self.keys = 0  # in all frames, however often
        self._path = path
        self._number = int.from_bytes(os.urandom(8), "little")
        self._end = self._size = _HEADER.size

    def opened(self) -> os.stat_result:
        """What tells this file from one that takes its place."""
        return os.fstat(self.file.fileno())

    def in_place(self) -> bool:
        """Whether it is this file that would be written anew."""
        return is_in_place(self.opened(), self._path)

    def append(self, groups: Groups) -> None:
        """Put a frame at the end, and on the disk."""
        self._put(groups)
        _sync(self.file.fileno())

    def read(self) -> Iterator[Groups]:
        """What all frames say; then, what a crash has left of another one is cut off."""
        with open(self.file.fileno(), "rb", closefd=False) as reader:
            size = self._begun(reader)
            while (payload := self._payload(reader, self._end, size)) is not None:
                groups = self._decoded(payload)
                yield groups
                self._count(groups, payload)
            if self._end < size:
                self._refuse_damage(reader, size)
                self.file.truncate(self._end)
        _sync(self.file.fileno())  # who wrote the last frame may have been killed before
        self._size = self._end

    def anew(self, contents: Iterable[Groups]) -> "Journal":
        """A file with these frames, which has taken the place of this one."""
        path = self._path.with_name(f"{self._path.name}.eventonce-new")
        path.unlink(missing_ok=True)  # a crash has left it; what it may lead to is not touched
        file = FileIO(path, "x+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anyone can find it
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(self.file.fileno()).st_mode))
            new = Journal(file, self._path)
            new._begin()
            for groups in contents:
                new._put(groups)
            _sync(file.fileno())
            path.replace(self._path)
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        return new

    def _put(self, groups: Groups) -> None:
        payload = _encode(groups)
        frame = _FRAME.pack(_MARK, len(payload), self._checksum(self._end, payload)) + payload
        if self._end + len(frame) > self._size:
            self._size = self._end + len(frame) + _AHEAD
            frame += bytes(_AHEAD)
        _write(self.file, frame, self._end)
        self._count(groups, payload)

    def _count(self, groups: Groups, payload: bytes) -> None:
        self.keys += sum(len(keys) for _, keys in groups)
        self._end += _FRAME.size + len(payload)

    def _checksum(self, at: int, payload: bytes) -> int:
        return crc32(payload, crc32(struct.pack("<QQI", self._number, at, len(payload))))

    def close(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)  # also where a process that was just forked has not closed it yet
        self.file.close()

    # --- reading ---

    def _begun(self, reader: BufferedReader) -> int:
        """The size of the file, which has a header from now on."""
        found = os.fstat(self.file.fileno())
        header = reader.read(_HEADER.size) if stat.S_ISREG(found.st_mode) else None  # a pipe would wait for ever
        if header is None or header[: len(_MAGIC)] != _MAGIC[: len(header)]:
            raise StoreUnusable(f"{self._path}: is a file of something else; name another one")
        if len(header) < _HEADER.size:  # new, or torn when it was
            self._begin()
            return _HEADER.size
        _, version, self._number, checksum = _HEADER.unpack(header)
        if version > _VERSION:
            raise StoreUnusable(f"{self._path}: was written by a newer eventonce (journal {version}); upgrade it")
        if checksum != crc32(header[:-4]):  # with a wrong number no frame would look whole, and all would be cut off
            raise self._damaged(0, "its header is wrong")
        return found.st_size

    def _begin(self) -> None:
        self.file.truncate(0)
        header = _HEADER.pack(_MAGIC, _VERSION, self._number, 0)[:-4]
        _write(self.file, header + struct.pack("<I", crc32(header)), 0)
        _sync(self.file.fileno())

    def _payload(self, reader: BufferedReader, at: int, size: int) -> bytes | None:
        """What the frame here says, or None where there is no whole one."""
        reader.seek(at)
        head = reader.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None
        mark, length, checksum = _FRAME.unpack(head)
        if mark != _MARK or at + _FRAME.size + length > size:
            return None
        payload = reader.read(length)
        return payload if self._checksum(at, payload) == checksum else None

    def _decoded(self, payload: bytes) -> Groups:
        try:
            return _decode(payload)
        except msgspec.DecodeError as error:
            raise self._damaged(self._end, str(error)) from error

    def _refuse_damage(self, reader: BufferedReader, size: int) -> None:
        """A crash tears the last frame. Where a whole one follows it was something else, and that one must not go."""
        reader.seek(self._end)
        rest = reader.read()
        found = rest.find(_MARK, 1)
        while found >= 0:
            if self._payload(reader, self._end + found, size) is not None:
                raise self._damaged(self._end, "what follows is whole")
            found = rest.find(_MARK, found + 1)
        if any(rest) and not self._is_torn(rest):
            raise self._damaged(
                self._end,
                "its last frame is all there, and wrong",
                f"cut that frame off with truncate -s {self._end} {shlex.quote(str(self._path))}; "
                "what it says is forgotten then, and its events may run again",
            )

    def _is_torn(self, rest: bytes) -> bool:
        """Whether a crash may have left this of a frame: some of it is missing."""
        written = len(rest.rstrip(b"\0"))
        # With a wrong length it would seem to be longer than it is. Few payloads end with a zero, and fewer with more.
        if any(self._is_whole(rest[:end]) for end in range(written, min(written + 3, len(rest)) + 1)):
            return False
        if len(rest) < _FRAME.size:
            return _MARK.startswith(rest[: len(_MARK)]) or _has_gap(rest, self._end)
        mark, length, _ = _FRAME.unpack_from(rest)
        end = _FRAME.size + length if mark == _MARK else max(written, _FRAME.size)
        return end > len(rest) or _has_gap(rest[:end], self._end)

    def _is_whole(self, frame: bytes) -> bool:
        """Whether this would be a frame if its mark and its length were right."""
        if len(frame) < _FRAME.size:
            return False
        checksum: int = _FRAME.unpack_from(frame)[2]
        return self._checksum(self._end, frame[_FRAME.size :]) == checksum

    def _damaged(self, at: int, how: str, remedy: str = "name another one") -> StoreUnusable:
        place = f"{self._path}: is damaged at byte {at}"
        return StoreUnusable(f"{place} ({how}); restore it from a backup or {remedy}")


# --- records ---


def _grouped(changes: Iterable[tuple[Key, Record | None, Record | None]]) -> Groups:
    """Keys, what was and what is. Those of one batch mostly share their new record, and then it is written once."""
    groups: dict[int, tuple[Record | None, list[Key]]] = {}
    last, add = None, None
    for key, old, new in changes:
        if new is old:
            continue
        if add is None or new is not last:
            last, add = new, groups.setdefault(id(new), (new, []))[1].append
        add(key)
    return [*groups.values()]


def _apply(records: Records, groups: Groups) -> None:
    for record, keys in groups:
        if record is not None:
            records.update(dict.fromkeys(keys, record))
        else:
            for key in keys:
                records.pop(key, None)


def _slices(records: dict[Key, Record], now: int) -> Iterator[Groups]:
    """All that is not over, in frames of a bearable size."""
    items = iter(records.items())
    while some := list(islice(items, _AT_A_TIME)):
        yield _grouped((key, None, record) for key, record in some if record.expires > now)


def _has_gap(data: bytes, at: int) -> bool:
    """Whether anything that a disk writes as a whole is still zeros: 8 bytes of memory, or a sector of more of them."""
    return any(not any(data[max(0, begin) : begin + 8]) for begin in range(-(at % 8), len(data), 8))


# --- files ---


def _locked(path: Path) -> FileIO:
    file = FileIO(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = is_in_place(os.fstat(file.fileno()), path)
    except BlockingIOError:
        file.close()
        raise StoreUnusable(
            f"{path}: another process or store holds this journal, and only one may; stop it first, or use "
            "sqlite:///FILE, which several can share"
        ) from None
    except BaseException:
        file.close()
        raise
    if same:
        return file
    file.close()  # it was written anew meanwhile, and what we have locked is gone
    return _locked(path)


def _write(file: FileIO, data: bytes, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file.fileno(), data[done:] if done else data, at + done)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remedy(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space on the disk and run again, nothing is lost"
    if error.errno == errno.EIO:
        return "check the disk and run again, nothing is lost"
    if not path.parent.is_dir():
        return f"the folder {str(path.parent)!r} does not exist; create it first"
    return "check that it is a file you may read and write"
