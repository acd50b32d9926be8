"""First pass of a copy: the keys of a part, and what has none set aside."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from eventonce.errors import EventRejected, SourceError
from eventonce.event import Delivery
from eventonce.outcome import Kind, Outcome
from eventonce.rules import Rulebook
from eventonce.scale.drivers import need
from eventonce.scale.keys import keys_arrow
from eventonce.scale.parts import NTH_BITS, Part
from eventonce.scale.plan import Places
from eventonce.sinks.dead_letter import letter

if TYPE_CHECKING:
    import pyarrow as pa

_DOCUMENTS = 2000  # at once


class Header(msgspec.Struct):
    """What is known of a part."""

    part: int
    documents: int = 0
    events: int = 0
    rejected: int = 0
    unreadable: str | None = None


def key_part(part: Part, book: Rulebook, places: Places) -> Header:
    """Find the keys of a part and keep them in a file; done before, nothing is done again."""
    note = places.header(part.number)
    if note.exists():
        return msgspec.json.decode(note.read_bytes(), type=Header)
    header = Header(part.number)
    with (
        places.making(places.turned(part.number)) as turned,
        places.making(places.keys(part.number)) as keys,
        open(turned, "wb") as rejected,
    ):
        _write(keys, _tables(part, book, header, rejected))
    places.publish(note, header)
    return header


def _write(file: Any, tables: Iterator["pa.Table"]) -> None:
    parquet, writer = need("pyarrow.parquet", "duckdb"), None
    try:
        for table in tables:
            writer = writer or parquet.ParquetWriter(file, table.schema, compression="none", use_dictionary=False)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _tables(part: Part, book: Rulebook, header: Header, rejected: BinaryIO) -> Iterator["pa.Table"]:
    pa = need("pyarrow", "duckdb")
    for batch in _batches(part, header):
        found = keys_arrow([None if each.trouble else each.body for each in batch], book)
        positions, several = _positions(found["line"].to_pylist(), batch, header.documents)
        header.documents += len(batch)
        header.events += found.num_rows
        header.rejected += found["key"].null_count
        _turn_away(found, batch, rejected)
        yield pa.table(
            {
                "key": found["key"],
                "part": pa.array([part.number] * found.num_rows, pa.int32()),
                "position": pa.array(positions, pa.int64()),
                "several": pa.array(several, pa.bool_()),
                "rule": pa.chunked_array([chunk.indices for chunk in found["rule"].chunks], pa.int32()),
                "version": found["version"],
                "time": found["time"].cast(pa.int64()),
            }
        )


def _batches(part: Part, header: Header) -> Iterator[list[Delivery]]:
    batch: list[Delivery] = []
    try:
        for delivery in part.deliveries():
            batch.append(delivery)
            if len(batch) == _DOCUMENTS:
                yield batch
                batch = []
    except SourceError as error:
        header.unreadable = str(error)
    yield batch


def _positions(lines: Sequence[int], batch: Sequence[Delivery], before: int) -> tuple[list[int], list[bool]]:
    """The place of each event: number of its document and number in that; and whether it is not all of that."""
    bare = [each.body[:1] in (b"{", b"") for each in batch]  # what is packed, or a list, is written anew
    if len(lines) == len(batch):
        return [line + before + 1 << NTH_BITS for line in lines], [not bare[line] for line in lines]
    positions: list[int] = []
    nth, last = 0, -1
    for line in lines:
        nth, last = (nth + 1 if line == last else 0), line
        positions.append((line + before + 1 << NTH_BITS) + nth)
    alone = {line for line in set(lines) if bare[line]} - {line for line, again in pairwise(lines) if line == again}
    return positions, [line not in alone for line in lines]


def _turn_away(found: "pa.Table", batch: Sequence[Delivery], rejected: BinaryIO) -> None:
    """Write what has no key, as dead letters are written: `eventonce redrive` reads them."""
    if not found["key"].null_count:
        return
    for line, reason in zip(found["line"].to_pylist(), found["reason"].to_pylist(), strict=True):
        if reason is not None:
            delivery = batch[line]
            outcome = Outcome(kind=Kind.REJECTED, error=EventRejected(delivery.trouble or reason))
            rejected.write(msgspec.json.encode({**letter(delivery, outcome, 0), "time": None}) + b"\n")
