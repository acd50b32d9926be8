"""First pass of a deduplication: the keys of a part, and what has no key set aside."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.dead_letters.letter import letter_fields
from eventonce.errors import EventRejected, SourceError
from eventonce.event import Delivery
from eventonce.rules import Rulebook
from eventonce.traffic.archive import INDEX_BITS, Part
from eventonce.traffic.dedupe_plan import WorkFolder
from eventonce.traffic.drivers import need
from eventonce.traffic.keys import keys_arrow

if TYPE_CHECKING:
    import pyarrow as pa

_DOCUMENTS, _BYTES = 2000, 8 * 1024 * 1024  # read at once


class KeysHeader(msgspec.Struct):
    """The counts of a part."""

    part: int
    documents: int = 0
    events: int = 0
    rejected: int = 0
    unreadable: str | None = None


def key_part(part: Part, rulebook: Rulebook, work_folder: WorkFolder) -> KeysHeader:
    """Write the keys of a part to a file, unless an earlier run did. Return its counts."""
    file = work_folder.header(part.number)
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=KeysHeader)
    header = KeysHeader(part.number)
    with (
        work_folder.writing(work_folder.rejected(part.number)) as unfinished,
        work_folder.writing(work_folder.keys(part.number)) as keys,
        open(unfinished, "wb") as rejected,
    ):
        _write(keys, _tables(part, rulebook, header, rejected))
    work_folder.write_json(file, header)
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


def _tables(part: Part, rulebook: Rulebook, header: KeysHeader, rejected: BinaryIO) -> Iterator["pa.Table"]:
    pa = need("pyarrow", "duckdb")
    for batch in _batches(part, header):
        keys = keys_arrow([None if delivery.unreadable else delivery.body for delivery in batch], rulebook)
        _write_rejected(keys, batch, rejected)
        header.events += keys.num_rows
        header.rejected += keys["key"].null_count
        positions, several = _positions(keys["line"].to_pylist(), batch, header.documents)
        header.documents += len(batch)
        no_events = pa.nulls(len(positions) - keys.num_rows, pa.int64())  # rows for documents without events
        yield pa.table(
            {
                "key": _extend(keys["key"], no_events),
                "part": pa.array([part.number] * len(positions), pa.int32()),
                "position": pa.array(positions, pa.int64()),
                "several": pa.array(several, pa.bool_()),
                "rule": _extend(
                    pa.chunked_array([chunk.indices for chunk in keys["rule"].chunks], pa.int32()), no_events
                ),
                "version": _extend(keys["version"], no_events),
                "time": _extend(keys["time"].cast(pa.int64()), no_events),
            }
        )


def _extend(column: "pa.ChunkedArray", nulls: "pa.Array") -> "pa.ChunkedArray":
    pa = need("pyarrow", "duckdb")
    return pa.chunked_array([*column.chunks, pa.nulls(len(nulls), column.type)], column.type)


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
    """Return the position of each event, and whether it is only a part of its document.

    The positions of documents without events follow.
    """
    bare = [delivery.body[:1] in (b"{", b"") for delivery in batch]  # a list or a packed body is written anew
    counts = Counter(lines)
    starts = [line + before + 1 << INDEX_BITS for line in range(len(batch))]
    if len(counts) == len(batch) == len(lines):
        return starts, [not each for each in bare]
    indices: Counter[int] = Counter()
    positions = []
    for line in lines:
        positions.append(starts[line] + indices[line])
        indices[line] += 1
    empty = [starts[line] for line in range(len(batch)) if line not in counts]
    return positions + empty, [counts[line] > 1 or not bare[line] for line in lines] + [False] * len(empty)


def _write_rejected(keys: "pa.Table", batch: Sequence[Delivery], file: BinaryIO) -> None:
    """Write events without a key as dead letters, which `eventonce redrive` reads."""
    if not keys["key"].null_count:
        return
    for line, reason in zip(keys["line"].to_pylist(), keys["reason"].to_pylist(), strict=True):
        if reason is not None:
            delivery = batch[line]
            outcome = Outcome(kind=OutcomeKind.REJECTED, error=EventRejected(delivery.unreadable or reason))
            file.write(msgspec.json.encode({**letter_fields(delivery, outcome, 0), "time": None}) + b"\n")
