"""An archive in parts, each of which one process reads on its own: a piece of a large file, or a file."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from eventonce.errors import SourceError
from eventonce.event import Delivery
from eventonce.sources.file import FileSource
from eventonce.traffic.file_ranges import DocumentRow, Piece, Pieces, delivered
from eventonce.traffic.parquet import ParquetLines, is_parquet
from eventonce.traffic.recorded import NTH_BITS, SUFFIXES, RecordedEvent, Traffic, unpack

SIZE = 32 * 1024 * 1024  # of a part, where a file can be cut
_BATCH = 500


class Part(NamedTuple):
    """What one process reads at a time."""

    number: int  # its place in the archive
    file: int  # the file's place
    path: str  # as it was given, and as it is shown
    place: str  # the same from the root, for processes that were started elsewhere
    size: int
    piece: Piece | None = None  # none: the whole file
    column: str | None = None  # of a Parquet file

    @property
    def shown(self) -> str:
        """Its name, as it can be printed."""
        return printable(self.path)

    def documents(self) -> Iterator[DocumentRow]:
        """The documents in it; raises `SourceError` where it cannot be read, or no further."""
        if self.piece is not None:
            return self._of_piece(self.piece._replace(file=self.place))
        return ((each.body, each.origin["line"], 0, each.unreadable) for each in self.deliveries())

    def deliveries(self) -> Iterator[Delivery]:
        """The same, as they go through a pipeline."""
        if self.piece is not None:
            return delivered(self.documents(), self.shown)
        return self._of_whole()

    def _of_whole(self) -> Iterator[Delivery]:
        try:
            yield from of_parquet(self.place, self.path, self.column) if is_parquet(self.place) else self._of_file()
        except SourceError as error:
            told = str(error).removeprefix(f"{self.place}: ").removeprefix(f"{printable(self.place)}: ")
            raise SourceError(told) from None

    def _of_piece(self, whole: Piece) -> Iterator[DocumentRow]:
        try:
            yield from whole.documents()
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}") from None

    def _of_file(self) -> Iterator[Delivery]:
        source, shown = FileSource(self.place), self.shown
        try:
            while deliveries := source.receive(_BATCH):
                for delivery in deliveries:
                    delivery.origin = {**delivery.origin, "source": shown}
                    yield delivery
        finally:
            source.close()


def of_parquet(place: str, path: str, column: str | None) -> Iterator[Delivery]:
    """The events of a Parquet file, which is shown as `path`; its rows are its lines."""
    source, shown, row = ParquetLines(place, column), printable(path), 0
    try:
        for batch in source.batches():
            for line in source.lines(batch):
                row += 1
                trouble = "is null, not an event" if line is None else None
                yield Delivery(line or b"", {"source": shown, "line": row}, unreadable=trouble)
    finally:
        source.close()


def absolute(path: str) -> str:
    """A path from the root; links in it stay as they are."""
    return os.path.abspath(path)  # noqa: PTH100  # resolve() would follow them


def printable(path: str) -> str:
    """A name as it can be printed."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class Archive(Traffic):
    """Traffic that may also be in Parquet, and that is read in parts."""

    suffixes = (*SUFFIXES, ".parquet")

    def __init__(self, paths: Sequence[str], column: str | None = None) -> None:
        super().__init__(paths)
        self.column = column
        self.counts: list[int] = []  # documents of each part, once they are known

    @cached_property
    def parts(self) -> list[Part]:
        """All parts, in the order of what is in them."""
        found: list[Part] = []
        for number, file in enumerate(self.names):
            for piece in _joined(file):
                size = piece.end - piece.begin if piece else _size(file)
                found.append(Part(len(found), number, file, absolute(file), size, piece, self.column))
        return found

    @property
    def before(self) -> list[int]:
        """How many documents come before each part."""
        return [0, *accumulate(self.counts)]

    def passed_part(self, part: Part) -> None:
        """A part was read elsewhere."""
        self._behind += part.size

    def again(self, positions: Collection[int]) -> Iterator[RecordedEvent]:
        """The events at these positions; only the parts that they are in are read again."""
        if not self.counts:
            yield from super().again(positions)
            return
        wanted = {position >> NTH_BITS for position in positions}
        for part, before, count in zip(self.parts, self.before, self.counts, strict=False):
            here = {number for number in wanted if before < number <= before + count}
            if here:
                yield from _at(part, before, here, positions)

    def _received(self, file: str) -> Iterator[Sequence[Delivery]]:
        if file == "-" or not is_parquet(file):
            yield from super()._received(file)
            return
        try:
            yield from ([delivery] for delivery in of_parquet(file, file, self.column))
        except SourceError as error:
            self.left_out(file, error)

    def left_out(self, file: str, error: SourceError | str) -> None:
        """Note why a file was not read, or not to its end."""
        self.unreadable[printable(file)] = str(error).removeprefix(f"{file}: ").removeprefix(f"{printable(file)}: ")


def _at(part: Part, before: int, here: set[int], positions: Collection[int]) -> Iterator[RecordedEvent]:
    last = max(here)
    for number, delivery in enumerate(part.deliveries(), before + 1):
        if number in here:
            found = unpack(number, delivery.body, delivery.unreadable)
            yield from (RecordedEvent(event, delivery, position) for position, event in found if position in positions)
        if number == last:
            return


def _joined(file: str) -> Iterator[Piece | None]:
    """A file in pieces that are worth a task; None is the whole file."""
    found = Pieces.of(file)
    if found is None:
        yield None
        return
    joined: Piece | None = None
    for piece in found:
        joined = joined._replace(end=piece.end) if joined else piece
        if joined.end - joined.begin >= SIZE:
            yield joined
            joined = None
    if joined:
        yield joined


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size  # noqa: PTH116  # a Path says no more
    except (OSError, ValueError):
        return 0
