"""Second pass of a deduplication: a file is read again, and written without what its list drops."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from eventonce.errors import EventRejected, SourceError
from eventonce.event import Delivery
from eventonce.event.formats import read_events
from eventonce.rules import Rulebook
from eventonce.sources.documents import LONGEST
from eventonce.traffic.archive import INDEX_BITS
from eventonce.traffic.dedupe_plan import Target, WorkFolder
from eventonce.traffic.drivers import need
from eventonce.traffic.drop_lists import DROP, FLAG_BITS, SEVERAL, read_list
from eventonce.traffic.output import ParquetOutput, open_output
from eventonce.traffic.parquet import ParquetLines, is_parquet

_LINES = 2000  # written at once
_DOCUMENT = INDEX_BITS + FLAG_BITS  # a number of a list, shifted by this, is the number of its document


class Written(msgspec.Struct):
    """What was written of a file."""

    file: int
    size: int
    events: int = 0


def write_file(target: Target, rulebook: Rulebook, work_folder: WorkFolder) -> Written:
    """Write one file of the output, unless an earlier run did."""
    file = work_folder.written(target.file)
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=Written)
    target.check()
    written = Written(target.file, target.size)
    _write_rejected(target, work_folder)
    _write_events(target, work_folder, written)
    work_folder.write_json(file, written)
    return written


def _write_events(target: Target, work_folder: WorkFolder, written: Written) -> None:
    selection = Selection(read_list(work_folder, target.file))
    with work_folder.writing(work_folder.result / "events" / target.name) as unfinished:
        if target.form == "parquet" and is_parquet(target.absolute_path):
            _write_rows(target, unfinished, selection, written)
        else:
            _write_lines(target, unfinished, selection, written)


def _write_lines(target: Target, unfinished: Path, selection: "Selection", written: Written) -> None:
    output = open_output(unfinished, target.form)
    try:
        for lines in _batched(selection.lines(_deliveries(target))):
            output.write(lines)
            written.events += len(lines)
    finally:
        output.close()


def _deliveries(target: Target) -> Iterator[Delivery]:
    try:
        yield from chain.from_iterable(part.deliveries() for part in target.parts)
    except SourceError:
        return  # the first pass has reported it, and came as far


def _write_rows(target: Target, unfinished: Path, selection: "Selection", written: Written) -> None:
    source = ParquetLines(target.absolute_path, target.parts[0].column)
    output = ParquetOutput(unfinished, source.schema)
    try:
        for rows in _rows(source, selection):
            written.events += rows.num_rows
            output.write_rows(rows)
    except SourceError:
        pass  # the first pass has reported it, and came as far
    finally:
        output.close()
        source.close()


def _rows(source: ParquetLines, selection: "Selection") -> Iterator[Any]:
    pa = need("pyarrow", "duckdb")
    before = 0
    for batch in source.batches(whole=True):
        bodies = source.lines(batch)
        selected = [
            (index, line)
            for index, body in enumerate(bodies)
            for line in selection.events(before + index + 1, body or b"")
        ]
        before += len(bodies)
        rows = pa.Table.from_batches([batch]).take(pa.array([index for index, _ in selected], pa.int64()))
        if any(line is not bodies[index] for index, line in selected):
            number = source.schema.get_field_index(source.column)
            lines = pa.array([line for _, line in selected], pa.binary()).cast(source.schema.field(number).type)
            rows = rows.set_column(number, source.schema.field(number), lines)
        yield rows


def _write_rejected(target: Target, work_folder: WorkFolder) -> None:
    rejected = [work_folder.rejected(part.number) for part in target.parts]
    if not any(file.stat().st_size for file in rejected):
        return
    with (
        work_folder.writing(work_folder.result / "rejected" / f"{target.name}.jsonl") as unfinished,
        open(unfinished, "wb") as out,
    ):
        for file in rejected:
            with open(file, "rb") as stream:
                shutil.copyfileobj(stream, out)


class Selection:
    """Selects the events that are kept, document by document in their order."""

    def __init__(self, codes: Sequence[int]) -> None:
        self._codes = codes
        self._index = 0
        self._next = codes[0] >> _DOCUMENT if codes else -1  # the next document that is not kept as it is

    def lines(self, deliveries: Iterable[Delivery]) -> Iterator[bytes]:
        """Yield all lines that are kept."""
        for number, delivery in enumerate(deliveries, 1):
            if number != self._next:
                yield _line(delivery.body)
            else:
                yield from map(_line, self.events(number, delivery.body))

    def events(self, number: int, body: bytes) -> list[bytes]:
        """Return what is kept of a document: the document itself, or events in it."""
        if number != self._next:
            return [body]
        start = self._index
        while self._index < len(self._codes) and self._codes[self._index] >> _DOCUMENT == number:
            self._index += 1
        self._next = self._codes[self._index] >> _DOCUMENT if self._index < len(self._codes) else -1
        codes = self._codes[start : self._index]
        return _events(body, codes) if codes[0] & SEVERAL else []


def _events(body: bytes, codes: Sequence[int]) -> list[bytes]:
    dropped = {code >> FLAG_BITS & (1 << INDEX_BITS) - 1 for code in codes if code & DROP}
    return [
        event.line()
        for index, event in enumerate(read_events(body, LONGEST))
        if index not in dropped and not isinstance(event, EventRejected)
    ]


def _line(body: bytes) -> bytes:
    return body if b"\n" not in body else msgspec.json.format(body, indent=-1)


def _batched(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _LINES:
            yield batch
            batch = []
    if batch:
        yield batch
