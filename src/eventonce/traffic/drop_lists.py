"""Between the passes of a deduplication: which events are dropped, in a list for each file.

A list has one number for each event that is not copied as it is: its position, and whether it is dropped or is in a
document with others.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.rules import Rulebook
from eventonce.traffic.archive import INDEX_BITS
from eventonce.traffic.database import Database
from eventonce.traffic.dedupe_plan import DedupePlan, WorkFolder
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import DROPPED, EngineColumns, Fold
from eventonce.traffic.keyed import KeysHeader
from eventonce.traffic.ledger import Decision

if TYPE_CHECKING:
    import pyarrow as pa

DROP, SEVERAL = 2, 1
FLAG_BITS = 2
_COLUMNS = 7  # key, part, position, rule, version, time, several
_TABLES = """
CREATE VIEW rows AS SELECT * FROM read_parquet('{keys}/*.parquet');
CREATE TABLE again AS SELECT key FROM rows WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1;
"""
_SEVERAL = """
SELECT key, part, position, rule, version, time, several
    FROM rows SEMI JOIN again USING (key) ORDER BY key, part, position
"""
_COUNTS = "SELECT count(*) FILTER (NOT stale), count(*) FILTER (stale) FROM read_parquet('{lost}')"
_LISTS = """
WITH listed AS (
    SELECT part, position, 2 + several::INTEGER AS flags FROM read_parquet('{lost}')
    UNION ALL SELECT part, position, CASE WHEN key IS NULL THEN 2 ELSE 0 END + several::INTEGER
        FROM rows WHERE key IS NULL OR several)
SELECT DISTINCT file, (position + shift) * 4 + flags AS code FROM listed JOIN parts USING (part) ORDER BY file, code
"""


class DropCounts(msgspec.Struct):
    """How many events are dropped in all."""

    duplicates: int = 0
    stale: int = 0


def write_drop_lists(plan: DedupePlan, headers: Sequence[KeysHeader]) -> DropCounts:
    """Write the lists of all files, unless an earlier run did. Return how many events they drop."""
    file = plan.work_folder.drop_counts
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=DropCounts)
    counts = _write_drop_lists(plan, headers) if headers else DropCounts()
    plan.work_folder.write_json(file, counts)
    return counts


def _write_drop_lists(plan: DedupePlan, headers: Sequence[KeysHeader]) -> DropCounts:
    database = Database(plan.work)
    keys, lost = (str(path).replace("'", "''") for path in (plan.work / "keys", plan.work_folder.dropped))
    try:
        for statement in _TABLES.format(keys=keys).split(";\n")[:-1]:
            database.run(statement)
        _write_dropped(plan.work_folder, dropped_rows(database.batches(_SEVERAL), plan.rulebook))
        database.run("CREATE TABLE parts (part INTEGER, file INTEGER, shift BIGINT)")
        database.run(f"INSERT INTO parts VALUES {', '.join(map(str, part_shifts(plan, headers)))}")
        write_lists(plan.work_folder, database.batches(_LISTS.format(lost=lost)))
        ((duplicates, stale),) = database.rows(_COUNTS.format(lost=lost))
    finally:
        database.close()
    return DropCounts(duplicates, stale)


def part_shifts(plan: DedupePlan, headers: Sequence[KeysHeader]) -> list[tuple[int, int, int]]:
    """Return for each part its file, and what to add to its positions to count from the start of the file."""
    shifts: list[tuple[int, int, int]] = []
    before: dict[int, int] = {}
    for part, header in zip(plan.archive.parts, headers, strict=True):
        shifts.append((part.number, part.file, before.get(part.file, 0) << INDEX_BITS))
        before[part.file] = before.get(part.file, 0) + header.documents
    return shifts


def dropped_rows(batches: Iterator["pa.RecordBatch"], rulebook: Rulebook) -> Iterator["pa.RecordBatch"]:
    """Yield the positions of the rows that are dropped. The rows must come by key and arrival."""
    pa, fold = need("pyarrow", "duckdb"), Fold(rulebook)
    schema = _dropped_schema()
    for batch in batches:
        columns: list[list[Any]] = [column.to_pylist() for column in batch.columns[:_COLUMNS]]
        keys, parts, positions, rules, versions, times, several = columns
        orders, nothing = [*zip(parts, positions, strict=True)], [0] * len(keys)
        decisions = fold.decide(EngineColumns(keys, orders, rules, versions, nothing, times, nothing))
        rows = [
            (*order, flag, decision.kind is Decision.STALE)
            for order, flag, decision in zip(orders, several, decisions, strict=True)
            if decision.kind in DROPPED
        ]
        fields = zip(*rows, strict=True) if rows else [[]] * len(schema)
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(field), kind) for field, kind in zip(fields, schema.types, strict=True)], schema=schema
        )


def _dropped_schema() -> "pa.Schema":
    pa = need("pyarrow", "duckdb")
    return pa.schema([("part", pa.int32()), ("position", pa.int64()), ("several", pa.bool_()), ("stale", pa.bool_())])


def _write_dropped(work_folder: WorkFolder, batches: Iterator["pa.RecordBatch"]) -> None:
    parquet = need("pyarrow.parquet", "duckdb")
    options = {"compression": "none", "use_dictionary": False}
    with parquet.ParquetWriter(work_folder.dropped, _dropped_schema(), **options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_lists(work_folder: WorkFolder, batches: Iterator["pa.RecordBatch"]) -> None:
    """Write sorted rows of file and number as a list for each file."""
    slices = (piece for batch in batches for piece in _by_file(batch))
    for file, several in groupby(slices, key=lambda piece: piece[0]):
        with work_folder.writing(work_folder.drop_list(file)) as unfinished, open(unfinished, "wb") as stream:
            for _, codes in several:
                codes.tofile(stream)


def _by_file(batch: "pa.RecordBatch") -> Iterator[tuple[int, "array[int]"]]:
    files, codes = batch.column(0).to_pylist(), array("q", batch.column(1).to_pylist())
    start = 0
    for index in range(1, len(files) + 1):
        if index == len(files) or files[index] != files[start]:
            yield files[start], codes[start:index]
            start = index


def read_list(work_folder: WorkFolder, file: int) -> "array[int]":
    """Return the list of a file. Most lists are short."""
    codes = array("q")
    path = work_folder.drop_list(file)
    if path.exists():
        codes.frombytes(path.read_bytes())
    return codes
