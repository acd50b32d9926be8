"""Between the passes of a copy: which events are copies of earlier ones, in a list for each file.

A list has one number for each event that is not copied as it is: its position, and whether it is left out or stands
in a document with others.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from eventonce.rules import Rulebook
from eventonce.traffic.database import Database
from eventonce.traffic.dedupe_plan import DedupePlan, Places
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import DROPPED, EngineColumns, Fold
from eventonce.traffic.keyed import KeysHeader
from eventonce.traffic.ledger import Decision
from eventonce.traffic.recorded import NTH_BITS

if TYPE_CHECKING:
    import pyarrow as pa

DROP, SEVERAL = 2, 1
FLAG_BITS = 2
_ROW = 7  # columns: key, part, position, rule, version, time, several
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
    """What became of events that have a key, in all."""

    duplicates: int = 0
    stale: int = 0


def judge(plan: DedupePlan, headers: Sequence[KeysHeader]) -> DropCounts:
    """Make the lists of all files; done before, nothing is done again."""
    if plan.places.judged.exists():
        return msgspec.json.decode(plan.places.judged.read_bytes(), type=DropCounts)
    judged = _judge(plan, headers) if headers else DropCounts()
    plan.places.publish(plan.places.judged, judged)
    return judged


def _judge(plan: DedupePlan, headers: Sequence[KeysHeader]) -> DropCounts:
    database = Database(plan.work)
    keys, lost = (str(each).replace("'", "''") for each in (plan.work / "keys", plan.places.lost))
    try:
        for statement in _TABLES.format(keys=keys).split(";\n")[:-1]:
            database.run(statement)
        _write_lost(plan.places, losers(database.batches(_SEVERAL), plan.book))
        database.run("CREATE TABLE parts (part INTEGER, file INTEGER, shift BIGINT)")
        database.run(f"INSERT INTO parts VALUES {', '.join(map(str, shifts(plan, headers)))}")
        write_lists(plan.places, database.batches(_LISTS.format(lost=lost)))
        ((duplicates, stale),) = database.rows(_COUNTS.format(lost=lost))
    finally:
        database.close()
    return DropCounts(duplicates, stale)


def shifts(plan: DedupePlan, headers: Sequence[KeysHeader]) -> list[tuple[int, int, int]]:
    """For each part its file, and what to add to its positions to count from the begin of that."""
    found: list[tuple[int, int, int]] = []
    before: dict[int, int] = {}
    for part, header in zip(plan.archive.parts, headers, strict=True):
        found.append((part.number, part.file, before.get(part.file, 0) << NTH_BITS))
        before[part.file] = before.get(part.file, 0) + header.documents
    return found


def losers(batches: Iterator["pa.RecordBatch"], book: Rulebook) -> Iterator["pa.RecordBatch"]:
    """Of rows that come by key and arrival, the places of those that are dropped."""
    pa, fold = need("pyarrow", "duckdb"), Fold(book)
    for batch in batches:
        keys, parts, positions, rules, versions, times, several = (each.to_pylist() for each in batch.columns[:_ROW])
        places, nothing = [*zip(parts, positions, strict=True)], [0] * len(keys)
        found = fold.take(EngineColumns(keys, places, rules, versions, nothing, times, nothing))
        lost = [
            (*place, flag, taken.verdict is Decision.STALE)
            for place, flag, taken in zip(places, several, found, strict=True)
            if taken.verdict in DROPPED
        ]
        fields = zip(*lost, strict=True) if lost else [[]] * 4
        schema = _lost_schema()
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(each), kind) for each, kind in zip(fields, schema.types, strict=True)], schema=schema
        )


def _lost_schema() -> "pa.Schema":
    pa = need("pyarrow", "duckdb")
    return pa.schema([("part", pa.int32()), ("position", pa.int64()), ("several", pa.bool_()), ("stale", pa.bool_())])


def _write_lost(places: Places, batches: Iterator["pa.RecordBatch"]) -> None:
    parquet = need("pyarrow.parquet", "duckdb")
    with parquet.ParquetWriter(places.lost, _lost_schema(), compression="none", use_dictionary=False) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_lists(places: Places, batches: Iterator["pa.RecordBatch"]) -> None:
    """Write rows of file and number, which come sorted, as a list for each file."""
    pieces = (piece for batch in batches for piece in _by_file(batch))
    for file, several in groupby(pieces, key=lambda piece: piece[0]):
        with places.making(places.listed(file)) as unfinished, open(unfinished, "wb") as stream:
            for _, codes in several:
                codes.tofile(stream)


def _by_file(batch: "pa.RecordBatch") -> Iterator[tuple[int, "array[int]"]]:
    files, codes = batch.column(0).to_pylist(), array("q", batch.column(1).to_pylist())
    begin = 0
    for at in range(1, len(files) + 1):
        if at == len(files) or files[at] != files[begin]:
            yield files[begin], codes[begin:at]
            begin = at


def read_list(places: Places, file: int) -> "array[int]":
    """The list of a file; of most files it is short."""
    codes = array("q")
    listed = places.listed(file)
    if listed.exists():
        codes.frombytes(listed.read_bytes())
    return codes
