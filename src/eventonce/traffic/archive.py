"""An archive: recorded events of files, folders and pipes in their order, and the parts that processes read."""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from eventonce.errors import EventRejected, SourceError
from eventonce.event import Delivery, Event
from eventonce.event.formats import MAX_BYTES, read_events
from eventonce.sources.file import FileSource
from eventonce.traffic.file_ranges import DocumentRow, FileRange, FileRanges, to_deliveries
from eventonce.traffic.parquet import ParquetLines, is_parquet

PART_SIZE = 32 * 1024 * 1024  # bytes of a part, if its file can be cut
INDEX_BITS = 24  # of a position, for the index of an event in its document: 64 MB hold fewer events than that
_SUFFIXES = ("", ".json", ".jsonl", ".ndjson", ".gz", ".txt")  # of the files that are read in a folder
_PARQUET = ".parquet"
_BATCH = 500


class RecordedEvent(NamedTuple):
    """An event, or why there is none, with its delivery and its position in the archive."""

    event: Event | EventRejected
    delivery: Delivery
    position: int  # grows with each event, and is the same in a second reading

    @property
    def location(self) -> str:
        """The file and line of the event, as `file:line`."""
        return self.delivery.location


class Part(NamedTuple):
    """What one process reads at a time: a range of a large file, or a whole file."""

    number: int  # in the archive
    file: int  # the number of its file
    path: str  # as it was given
    absolute_path: str  # for processes that were started elsewhere
    size: int
    file_range: FileRange | None = None  # None: the whole file
    column: str | None = None  # of a Parquet file

    @property
    def display_name(self) -> str:
        return display_name(self.path)

    def documents(self) -> Iterator[DocumentRow]:
        """Yield the documents. Raise `SourceError` if the file cannot be read, or no further."""
        if self.file_range is not None:
            return self._range_documents(self.file_range._replace(path=self.absolute_path))
        return (
            (delivery.body, delivery.origin["line"], 0, delivery.unreadable) for delivery in self._file_deliveries()
        )

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the documents as deliveries, as a pipeline takes them."""
        if self.file_range is not None:
            return to_deliveries(self.documents(), self.display_name)
        return self._file_deliveries()

    def _range_documents(self, file_range: FileRange) -> Iterator[DocumentRow]:
        try:
            yield from file_range.documents()
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}") from None

    def _file_deliveries(self) -> Iterator[Delivery]:
        path = self.absolute_path
        try:
            if is_parquet(path):
                yield from _parquet_deliveries(path, self.display_name, self.column)
            else:
                yield from self._json_deliveries()
        except SourceError as error:
            raise SourceError(_without_path(error, path)) from None

    def _json_deliveries(self) -> Iterator[Delivery]:
        source, name = FileSource(self.absolute_path), self.display_name
        try:
            while deliveries := source.receive(_BATCH):
                for delivery in deliveries:
                    delivery.origin = {**delivery.origin, "source": name}
                    yield delivery
        finally:
            source.close()


class Archive:
    """Files, folders (all files in them, sorted) and `-` for standard input. Each file is read once.

    `unreadable` has the reason by path of each file that could not be read. It is complete when the reading has ended.
    """

    def __init__(self, paths: Sequence[str], column: str | None = None, *, parquet: bool = True) -> None:
        self.column = column
        self.unreadable: dict[str, str] = {}
        self.documents = 0  # read so far
        self._parquet = parquet
        self._documents_by_part: dict[int, int] = {}
        self._bytes_before = 0  # of the files that have been read
        self._source: FileSource | None = None
        self.files = list(_distinct(self._expand(paths)))

    @property
    def size(self) -> int | None:
        """The size of all files in bytes. None for a pipe."""
        return sum(_size(file) for file in self.files) if self.repeatable else None

    @property
    def position(self) -> int:
        """The bytes read so far."""
        return self._bytes_before + (self._source.position if self._source else 0)

    @property
    def repeatable(self) -> bool:
        """Whether the archive can be read a second time. A pipe cannot."""
        return all(_is_repeatable(file) for file in self.files)

    def __iter__(self) -> Iterator[RecordedEvent]:
        for file in self.files:
            for batch in self.batches(file):
                yield from batch

    def batches(self, file: str) -> Iterator[Iterator[RecordedEvent]]:
        """Yield the events of one file, as many at once as are ready."""
        return map(self._events, self._deliveries(file))

    def skip_range(self, file_range: FileRange, documents: int) -> int:
        """Count a range that was read elsewhere. Return what to add to the positions in it."""
        shift = self.documents << INDEX_BITS
        self.documents += documents
        self._bytes_before += file_range.end - file_range.start
        return shift

    def mark_unreadable(self, file: str, error: SourceError | str) -> None:
        """Note why a file was not read, or not to its end."""
        self.unreadable[display_name(file)] = _without_path(error, file)

    def _events(self, deliveries: Iterable[Delivery]) -> Iterator[RecordedEvent]:
        for delivery in deliveries:
            self.documents += 1
            for position, event in _unpack(self.documents, delivery):
                yield RecordedEvent(event, delivery, position)

    def _deliveries(self, file: str) -> Iterator[Sequence[Delivery]]:
        try:
            if self._parquet and file != "-" and is_parquet(file):
                yield from ([row] for row in _parquet_deliveries(file, display_name(file), self.column))
                return
            self._source = FileSource(file)
            while deliveries := self._source.receive(_BATCH):
                yield deliveries
        except SourceError as error:
            self.mark_unreadable(file, error)
        finally:
            self._close_source()

    def _close_source(self) -> None:
        if self._source is not None:
            self._bytes_before = self.position
            self._source.close()
            self._source = None

    # --- in parts ---

    @cached_property
    def parts(self) -> list[Part]:
        """All parts, in the order of their events."""
        parts: list[Part] = []
        for number, file in enumerate(self.files):
            for file_range in _large_ranges(file):
                size = file_range.end - file_range.start if file_range else _size(file)
                parts.append(Part(len(parts), number, file, absolute(file), size, file_range, self.column))
        return parts

    @property
    def shifts(self) -> list[int]:
        """For each counted part, the number that turns positions in it into positions in the archive."""
        counts = [self._documents_by_part[number] for number in sorted(self._documents_by_part)]
        return [documents << INDEX_BITS for documents in accumulate(counts, initial=0)][:-1]

    def skip_part(self, number: int, documents: int, unreadable: str | None) -> None:
        """Count a part that was read elsewhere. `unreadable` is the reason if it was not read to its end."""
        part = self.parts[number]
        self._documents_by_part[number] = documents
        self.documents += documents
        self._bytes_before += part.size
        if unreadable is not None:
            self.mark_unreadable(part.path, unreadable)

    def reread(self, positions: Collection[int]) -> Iterator[RecordedEvent]:
        """Yield the events at these positions. Counted parts that hold none of them are not opened."""
        wanted = {position >> INDEX_BITS for position in positions}
        before = 0  # documents in earlier parts
        for part in self.parts if wanted else ():
            documents, count = self._documents_by_part.get(part.number), 0
            in_part = {number for number in wanted if documents is None or number <= before + documents}
            wanted -= in_part
            with suppress(SourceError):  # the first reading has noted it
                for count, delivery in enumerate(part.deliveries() if in_part else (), 1):
                    if before + count in in_part:
                        events = _unpack(before + count, delivery)
                        yield from (
                            RecordedEvent(event, delivery, position)
                            for position, event in events
                            if position in positions
                        )
                        in_part.remove(before + count)
                        if not in_part:
                            break
            wanted |= in_part
            before += count if documents is None else documents
            if not wanted:
                return

    # --- the files ---

    def _expand(self, paths: Iterable[str]) -> Iterator[str]:
        suffixes = (*_SUFFIXES, _PARQUET) if self._parquet else _SUFFIXES
        for path in paths:
            if path == "-" or not Path(path).is_dir():
                yield path
            elif files := self._walk(path, suffixes):
                yield from files
            elif display_name(path) not in self.unreadable:
                names = ", ".join(suffixes[1:])
                reason = f"is a folder without traffic; files may end in {names} or in nothing"
                self.unreadable[display_name(path)] = reason

    def _walk(self, folder: str, suffixes: Sequence[str]) -> list[str]:
        files: list[str] = []
        for parent, folders, names in os.walk(folder, onerror=self._mark_closed):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            files += [str(Path(parent, name)) for name in names if _is_traffic(Path(parent, name), suffixes)]
        return sorted(files)

    def _mark_closed(self, error: OSError) -> None:
        self.unreadable[display_name(str(error.filename))] = f"cannot be read: {error.strerror}"


def time_ms(event: Event) -> int | None:
    """Return an event's own time in milliseconds since 1970, if it has one."""
    return None if event.time is None else round(event.time.timestamp() * 1000)


def absolute(path: str) -> str:
    """Return the path from the root. Links in it stay as they are."""
    return os.path.abspath(path)  # noqa: PTH100  # resolve() would follow them


def display_name(path: str) -> str:
    """Return a path in a form that can be printed."""
    return "stdin" if path == "-" else os.fsencode(path).decode("utf-8", "backslashreplace")


def _without_path(error: SourceError | str, path: str) -> str:
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{display_name(path)}: ")


def _unpack(number: int, delivery: Delivery) -> Iterable[tuple[int, Event | EventRejected]]:
    """Return the events of a document, in any carrier's shape, each with its position."""
    if delivery.unreadable is None:
        return enumerate(read_events(delivery.body, MAX_BYTES), number << INDEX_BITS)
    return [(number << INDEX_BITS, EventRejected(delivery.unreadable))]


def _parquet_deliveries(path: str, name: str, column: str | None) -> Iterator[Delivery]:
    """Yield the rows of a Parquet file, each as if it were a line."""
    source, row = ParquetLines(path, column), 0
    try:
        for batch in source.batches():
            for line in source.lines(batch):
                row += 1
                unreadable = "is null, not an event" if line is None else None
                yield Delivery(line or b"", {"source": name, "line": row}, unreadable=unreadable)
    finally:
        source.close()


def _large_ranges(file: str) -> Iterator[FileRange | None]:
    """Yield the ranges of a file that are large enough for a task. None is the whole file."""
    ranges = FileRanges.of(file)
    if ranges is None:
        yield None
        return
    joined: FileRange | None = None
    for file_range in ranges:
        joined = joined._replace(end=file_range.end) if joined else file_range
        if joined.end - joined.start >= PART_SIZE:
            yield joined
            joined = None
    if joined:
        yield joined


def _distinct(files: Iterable[str]) -> Iterator[str]:
    # A folder and a file in it may both be given. To read the file twice would make copies that never were.
    seen: set[object] = set()
    for file in files:
        status = _status(file)
        identity = file if status is None else (status.st_dev, status.st_ino)
        if identity not in seen:
            seen.add(identity)
            yield file


def _is_traffic(file: Path, suffixes: Sequence[str]) -> bool:
    return not file.name.startswith(".") and file.suffix.lower() in suffixes and file.is_file()


def _is_repeatable(file: str) -> bool:
    status = _status(file)
    return file != "-" and (status is None or stat.S_ISREG(status.st_mode))  # a missing file is reported when opened


def _size(file: str) -> int:
    status = _status(file)
    return 0 if status is None else status.st_size


def _status(file: str) -> os.stat_result | None:
    try:
        return None if file == "-" else Path(file).stat()
    except (OSError, ValueError):  # a name with a NUL in it is a ValueError
        return None
