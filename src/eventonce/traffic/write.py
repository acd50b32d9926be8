"""Second pass of a copy: a file is read again, and written without what its list leaves out."""

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
from eventonce.traffic.dedupe_plan import Places, Target
from eventonce.traffic.drivers import need
from eventonce.traffic.drop_lists import DROP, FLAG_BITS, SEVERAL, read_list
from eventonce.traffic.output import ParquetOutput, open_output
from eventonce.traffic.parquet import ParquetLines, is_parquet
from eventonce.traffic.recorded import NTH_BITS

_LINES = 2000  # at once
_DOCUMENT = NTH_BITS + FLAG_BITS  # a number of a list, shifted by this, is the number of its document


class Written(msgspec.Struct):
    """What was written of a file."""

    file: int
    size: int
    events: int = 0


def write_file(target: Target, book: Rulebook, places: Places) -> Written:
    """Write one file of the output; done before, nothing is done again."""
    note = places.done(target.file)
    if note.exists():
        return msgspec.json.decode(note.read_bytes(), type=Written)
    target.check()
    written = Written(target.file, target.size)
    _write_rejected(target, places)
    _write_events(target, places, written)
    places.publish(note, written)
    return written


def _write_events(target: Target, places: Places, written: Written) -> None:
    picked = Picked(read_list(places, target.file))
    with places.making(places.result / "events" / target.name) as unfinished:
        if target.form == "parquet" and is_parquet(target.place):
            _write_rows(target, unfinished, picked, written)
        else:
            _write_lines(target, unfinished, picked, written)


def _write_lines(target: Target, unfinished: Path, picked: "Picked", written: Written) -> None:
    output = open_output(unfinished, target.form)
    try:
        for lines in _batched(picked.lines(_deliveries(target))):
            output.write(lines)
            written.events += len(lines)
    finally:
        output.close()


def _deliveries(target: Target) -> Iterator[Delivery]:
    try:
        yield from chain.from_iterable(part.deliveries() for part in target.parts)
    except SourceError:
        return  # the first pass has told it, and came as far


def _write_rows(target: Target, unfinished: Path, picked: "Picked", written: Written) -> None:
    source = ParquetLines(target.place, target.parts[0].column)
    output = ParquetOutput(unfinished, source.schema)
    try:
        for rows in _rows(source, picked):
            written.events += rows.num_rows
            output.write_rows(rows)
    except SourceError:
        pass  # the first pass has told it, and came as far
    finally:
        output.close()
        source.close()


def _rows(source: ParquetLines, picked: "Picked") -> Iterator[Any]:
    pa = need("pyarrow", "duckdb")
    before = 0
    for batch in source.batches(whole=True):
        bodies = source.lines(batch)
        chosen = [(at, line) for at, body in enumerate(bodies) for line in picked.of(before + at + 1, body or b"")]
        before += len(bodies)
        rows = pa.Table.from_batches([batch]).take(pa.array([at for at, _ in chosen], pa.int64()))
        if any(line is not bodies[at] for at, line in chosen):
            number = source.schema.get_field_index(source.column)
            lines = pa.array([line for _, line in chosen], pa.binary()).cast(source.schema.field(number).type)
            rows = rows.set_column(number, source.schema.field(number), lines)
        yield rows


def _write_rejected(target: Target, places: Places) -> None:
    turned = [places.turned(part.number) for part in target.parts]
    if not any(each.stat().st_size for each in turned):
        return
    with (
        places.making(places.result / "rejected" / f"{target.name}.jsonl") as unfinished,
        open(unfinished, "wb") as out,
    ):
        for each in turned:
            with open(each, "rb") as stream:
                shutil.copyfileobj(stream, out)


class Picked:
    """Takes documents in their order, and gives what is kept of each."""

    def __init__(self, codes: Sequence[int]) -> None:
        self._codes = codes
        self._at = 0
        self._next = codes[0] >> _DOCUMENT if codes else -1  # the next document that is not kept as it is

    def lines(self, deliveries: Iterable[Delivery]) -> Iterator[bytes]:
        """All lines that are kept."""
        for number, delivery in enumerate(deliveries, 1):
            if number != self._next:
                yield _line(delivery.body)
            else:
                yield from map(_line, self.of(number, delivery.body))

    def of(self, number: int, body: bytes) -> list[bytes]:
        """What is kept of a document: itself, or the events in it that are."""
        if number != self._next:
            return [body]
        begin = self._at
        while self._at < len(self._codes) and self._codes[self._at] >> _DOCUMENT == number:
            self._at += 1
        self._next = self._codes[self._at] >> _DOCUMENT if self._at < len(self._codes) else -1
        codes = self._codes[begin : self._at]
        return _events(body, codes) if codes[0] & SEVERAL else []


def _events(body: bytes, codes: Sequence[int]) -> list[bytes]:
    dropped = {code >> FLAG_BITS & (1 << NTH_BITS) - 1 for code in codes if code & DROP}
    return [
        event.line()
        for nth, event in enumerate(read_events(body, LONGEST))
        if nth not in dropped and not isinstance(event, EventRejected)
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
