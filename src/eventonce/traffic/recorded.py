"""Recorded traffic: events out of files, folders and pipes, in the order in which they are given."""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from eventonce.errors import EventRejected, SourceError
from eventonce.event import Delivery, Event
from eventonce.event.formats import MAX_BYTES, read_events
from eventonce.sources.file import FileSource
from eventonce.traffic.file_ranges import Piece

SUFFIXES = ("", ".json", ".jsonl", ".ndjson", ".gz", ".txt")  # what is read of a folder
_BATCH = 500
NTH_BITS = 24  # a document of 64 MB holds fewer events than this can number


class RecordedEvent(NamedTuple):
    """An event, or why it is none, and its arrival in the traffic."""

    event: Event | EventRejected
    delivery: Delivery
    position: int  # grows with each arrival; the same event has it again when the traffic is read again

    @property
    def place(self) -> str:
        """Where it was found, as `file:line`."""
        return self.delivery.location

    @property
    def time(self) -> int | None:
        """The event's own time in milliseconds since 1970, where it has one."""
        return None if isinstance(self.event, EventRejected) else millis(self.event)


def read(paths: Sequence[str], progress: Callable[[], object] | None = None) -> Iterator[RecordedEvent]:
    """The events of files, folders and `-`; what cannot be read is left out. `Traffic` also says what that was."""
    return iter(Traffic(paths, progress))


class Traffic:
    """Files, folders (all that is in them, sorted) and `-` for standard input; each file is read once.

    `unreadable` tells by path why something was left out; it is complete when the reading has ended.
    `progress` is called after each document.
    """

    suffixes: Sequence[str] = SUFFIXES

    def __init__(self, paths: Sequence[str], progress: Callable[[], object] | None = None) -> None:
        self.unreadable: dict[str, str] = {}
        self.documents = 0
        self._progress = progress or (lambda: None)
        self._files = list(_once(self._expanded(paths)))
        self._behind = 0  # bytes of the files that have been read
        self._source: FileSource | None = None

    @property
    def files(self) -> int:
        """How many files there are to read, standard input included."""
        return len(self._files)

    @property
    def size(self) -> int | None:
        """Bytes in all, where that can be known."""
        return sum(_size(file) for file in self._files) if self.lasting else None

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._behind + (self._source.position if self._source else 0)

    @property
    def lasting(self) -> bool:
        """Whether it can be read a second time, as a pipe cannot."""
        return all(_is_lasting(file) for file in self._files)

    def __iter__(self) -> Iterator[RecordedEvent]:
        for file in self._files:
            for batch in self.batches(file):
                yield from batch

    def again(self, positions: Collection[int]) -> Iterator[RecordedEvent]:
        """The events at these positions, by a second reading that opens only the documents they are in."""
        wanted = {position >> NTH_BITS for position in positions}
        for number, delivery in Traffic(self._files)._numbered() if wanted else ():
            if number in wanted:
                found = unpack(number, delivery.body, delivery.unreadable)
                yield from (
                    RecordedEvent(event, delivery, position) for position, event in found if position in positions
                )
                wanted.remove(number)
                if not wanted:
                    return

    @property
    def names(self) -> Sequence[str]:
        """The files to read, in order."""
        return self._files

    def batches(self, file: str) -> Iterator[Iterator[RecordedEvent]]:
        """The events of one file, as many at once as are at hand; for who takes the files one by one."""
        return map(self._of, self._received(file))

    def _of(self, deliveries: Iterable[Delivery]) -> Iterator[RecordedEvent]:
        for delivery in deliveries:
            self.documents += 1
            for position, event in unpack(self.documents, delivery.body, delivery.unreadable):
                yield RecordedEvent(event, delivery, position)
            self._progress()

    def passed(self, piece: Piece, documents: int) -> int:
        """A piece of a file was read elsewhere: what to add to the positions that were found in it."""
        before = self.documents << NTH_BITS
        self.documents += documents
        self._behind += piece.end - piece.begin
        return before

    def _numbered(self) -> Iterator[tuple[int, Delivery]]:
        for file in self._files:
            for deliveries in self._received(file):
                for delivery in deliveries:
                    self.documents += 1
                    yield self.documents, delivery

    def _received(self, file: str) -> Iterator[Sequence[Delivery]]:
        try:
            self._source = FileSource(file)
            while deliveries := self._source.receive(_BATCH):
                yield deliveries
        except SourceError as error:
            self.unreadable[_shown(file)] = _reason(file, error)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._source is not None:
            self._behind = self.position
            self._source.close()
            self._source = None

    def _expanded(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            if path == "-" or not Path(path).is_dir():
                yield path
            elif files := self._inside(path):
                yield from files
            elif _shown(path) not in self.unreadable:
                names = ", ".join(self.suffixes[1:])
                self.unreadable[_shown(path)] = f"is a folder without traffic; files may end in {names} or in nothing"

    def _inside(self, folder: str) -> list[str]:
        found: list[str] = []
        for place, folders, names in os.walk(folder, onerror=self._closed):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [str(Path(place, name)) for name in names if self._is_traffic(Path(place, name))]
        return sorted(found)

    def _is_traffic(self, file: Path) -> bool:
        return not file.name.startswith(".") and file.suffix.lower() in self.suffixes and file.is_file()

    def _closed(self, error: OSError) -> None:
        self.unreadable[_shown(str(error.filename))] = f"cannot be read: {error.strerror}"


def unpack(number: int, body: bytes, trouble: str | None) -> Iterable[tuple[int, Event | EventRejected]]:
    """The events of a document, in any carrier's shape, and the position of each."""
    events = read_events(body, MAX_BYTES) if trouble is None else (EventRejected(trouble),)
    return enumerate(events, number << NTH_BITS)


def millis(event: Event) -> int | None:
    """An event's own time in milliseconds since 1970, where it has one."""
    return None if event.time is None else round(event.time.timestamp() * 1000)


def _once(files: Iterable[str]) -> Iterator[str]:
    # A folder and a file in it may both be given, and to read it twice would make copies that never were.
    met: set[object] = set()
    for file in files:
        own = _identity(file)
        if own not in met:
            met.add(own)
            yield file


def _identity(file: str) -> object:
    status = _status(file)
    return file if status is None else (status.st_dev, status.st_ino)


def _is_lasting(file: str) -> bool:
    status = _status(file)
    return file != "-" and (status is None or stat.S_ISREG(status.st_mode))  # what is not there is told when opened


def _size(file: str) -> int:
    status = _status(file)
    return 0 if status is None else status.st_size


def _status(file: str) -> os.stat_result | None:
    try:
        return None if file == "-" else Path(file).stat()
    except (OSError, ValueError):  # a name with a NUL in it is a ValueError
        return None


def _shown(file: str) -> str:
    return "stdin" if file == "-" else os.fsencode(file).decode("utf-8", "backslashreplace")


def _reason(file: str, error: SourceError) -> str:
    return str(error).removeprefix(f"{file}: ").removeprefix(f"{_shown(file)}: ")
