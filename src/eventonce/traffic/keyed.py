"""First pass of a copy: the keys of a part, and what has none set aside."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.dead_letters.letter import letter_fields
from eventonce.errors import EventRejected, SourceError
from eventonce.event import Delivery
from eventonce.rules import Rulebook
from eventonce.traffic.archive import Part
from eventonce.traffic.dedupe_plan import Places
from eventonce.traffic.drivers import need
from eventonce.traffic.keys import keys_arrow
from eventonce.traffic.recorded import NTH_BITS

if TYPE_CHECKING:
    import pyarrow as pa

_DOCUMENTS, _BYTES = 2000, 8 * 1024 * 1024  # at once


class KeysHeader(msgspec.Struct):
    """What is known of a part."""

    part: int
    documents: int = 0
    events: int = 0
    rejected: int = 0
    unreadable: str | None = None


def key_part(part: Part, book: Rulebook, places: Places) -> KeysHeader:
    """Find the keys of a part and keep them in a file; done before, nothing is done again."""
    note = places.header(part.number)
    if note.exists():
        return msgspec.json.decode(note.read_bytes(), type=KeysHeader)
    header = KeysHeader(part.number)
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


def _tables(part: Part, book: Rulebook, header: KeysHeader, rejected: BinaryIO) -> Iterator["pa.Table"]:
    pa = need("pyarrow", "duckdb")
    for batch in _batches(part, header):
        found = keys_arrow([None if each.unreadable else each.body for each in batch], book)
        _turn_away(found, batch, rejected)
        header.events += found.num_rows
        header.rejected += found["key"].null_count
        positions, several = _positions(found["line"].to_pylist(), batch, header.documents)
        header.documents += len(batch)
        without = pa.nulls(len(positions) - found.num_rows, pa.int64())  # rows for documents that no event is in
        yield pa.table(
            {
                "key": _and(found["key"], without),
                "part": pa.array([part.number] * len(positions), pa.int32()),
                "position": pa.array(positions, pa.int64()),
                "several": pa.array(several, pa.bool_()),
                "rule": _and(pa.chunked_array([each.indices for each in found["rule"].chunks], pa.int32()), without),
                "version": _and(found["version"], without),
                "time": _and(found["time"].cast(pa.int64()), without),
            }
        )


def _and(column: "pa.ChunkedArray", more: "pa.Array") -> "pa.ChunkedArray":
    pa = need("pyarrow", "duckdb")
    return pa.chunked_array([*column.chunks, pa.nulls(len(more), column.type)], column.type)


def _batches(part: Part, header: KeysHeader) -> Iterator[list[Delivery]]:
    batch: list[Delivery] = []
    size = 0
    try:
        for delivery in part.deliveries():
            batch.append(delivery)
            size += len(delivery.body)
            if len(batch) == _DOCUMENTS or size > _BYTES:
                yield batch
                batch, size = [], 0
    except SourceError as error:
        header.unreadable = str(error)
    yield batch


def _positions(lines: Sequence[int], batch: Sequence[Delivery], before: int) -> tuple[list[int], list[bool]]:
    """The place of each event: number of its document and number in that; and whether it is not all of that.

    Behind them, the places of documents that no event is in.
    """
    bare = [each.body[:1] in (b"{", b"") for each in batch]  # what is packed, or a list, is written anew
    counts = Counter(lines)
    begins = [line + before + 1 << NTH_BITS for line in range(len(batch))]
    if len(counts) == len(batch) == len(lines):
        return begins, [not each for each in bare]
    nth: Counter[int] = Counter()
    positions = []
    for line in lines:
        positions.append(begins[line] + nth[line])
        nth[line] += 1
    empty = [begins[line] for line in range(len(batch)) if line not in counts]
    return positions + empty, [counts[line] > 1 or not bare[line] for line in lines] + [False] * len(empty)


def _turn_away(found: "pa.Table", batch: Sequence[Delivery], rejected: BinaryIO) -> None:
    """Write what has no key, as dead letters are written: `eventonce redrive` reads them."""
    if not found["key"].null_count:
        return
    for line, reason in zip(found["line"].to_pylist(), found["reason"].to_pylist(), strict=True):
        if reason is not None:
            delivery = batch[line]
            outcome = Outcome(kind=OutcomeKind.REJECTED, error=EventRejected(delivery.unreadable or reason))
            rejected.write(msgspec.json.encode({**letter_fields(delivery, outcome, 0), "time": None}) + b"\n")
