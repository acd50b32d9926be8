"""Between the passes of a copy: which events are copies of earlier ones, in a list for each file.

A list has one number for each event that is not copied as it is: its position, and whether it is left out or stands
in a document with others.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.rules import Rulebook
from eventonce.scale.database import Database
from eventonce.scale.drivers import need
from eventonce.scale.fold import DROPPED, Fold, Row
from eventonce.scale.keyed import Header
from eventonce.scale.parts import NTH_BITS
from eventonce.scale.plan import Places, Plan
from eventonce.study.ledger import Taken, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

DROP, SEVERAL = 2, 1
FLAG_BITS = 2
_TABLES = """
CREATE VIEW rows AS SELECT * FROM read_parquet('{keys}/*.parquet');
CREATE TABLE again AS SELECT key FROM rows WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1;
"""
_SEVERAL = """
SELECT key, part, position, rule, version, time FROM rows SEMI JOIN again USING (key) ORDER BY key, part, position
"""
_LISTS = """
SELECT file, (position + shift) * 4 + CASE WHEN lost OR key IS NULL THEN 2 ELSE 0 END + several::INTEGER AS code
    FROM rows LEFT JOIN (SELECT *, true AS lost FROM read_parquet('{lost}')) USING (part, position)
    JOIN parts USING (part)
    WHERE lost OR key IS NULL OR several ORDER BY file, code
"""


class Judged(msgspec.Struct):
    """What became of events that have a key, in all."""

    duplicates: int = 0
    stale: int = 0


def judge(plan: Plan, headers: Sequence[Header]) -> Judged:
    """Make the lists of all files; done before, nothing is done again."""
    if plan.places.judged.exists():
        return msgspec.json.decode(plan.places.judged.read_bytes(), type=Judged)
    judged = Judged()
    if headers:
        database = Database(plan.work)
        try:
            _judge(database, plan, headers, judged)
        finally:
            database.close()
    plan.places.publish(plan.places.judged, judged)
    return judged


def _judge(database: Database, plan: Plan, headers: Sequence[Header], judged: Judged) -> None:
    places = plan.places
    keys, lost = (str(each).replace("'", "''") for each in (places.work / "keys", places.lost))
    for statement in _TABLES.format(keys=keys).split(";\n")[:-1]:
        database.run(statement)
    _write_lost(places, losers(database.batches(_SEVERAL), plan.book, judged))
    database.run("CREATE TABLE parts (part INTEGER, file INTEGER, shift BIGINT)")
    database.run(f"INSERT INTO parts VALUES {', '.join(map(str, shifts(plan, headers)))}")
    write_lists(places, database.batches(_LISTS.format(lost=lost)))


def shifts(plan: Plan, headers: Sequence[Header]) -> list[tuple[int, int, int]]:
    """For each part its file, and what to add to its positions to count from the begin of that."""
    found: list[tuple[int, int, int]] = []
    before: dict[int, int] = {}
    for part, header in zip(plan.archive.parts, headers, strict=True):
        found.append((part.number, part.file, before.get(part.file, 0) << NTH_BITS))
        before[part.file] = before.get(part.file, 0) + header.documents
    return found


def losers(batches: Iterator["pa.RecordBatch"], book: Rulebook, judged: Judged) -> Iterator["pa.RecordBatch"]:
    """Of rows that come by key and arrival, the places of those that are dropped."""
    pa, fold = need("pyarrow", "duckdb"), Fold(book)
    schema = pa.schema([("part", pa.int32()), ("position", pa.int64())])
    for batch in batches:
        rows = [_row(*each) for each in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
        taken = fold.take(rows)
        _count(judged, taken)
        lost = [row.order for row, each in zip(rows, taken, strict=True) if each.verdict in DROPPED]
        yield pa.RecordBatch.from_arrays(
            [pa.array([part for part, _ in lost], pa.int32()), pa.array([at for _, at in lost], pa.int64())],
            schema=schema,
        )


def _row(key: bytes, part: int, position: int, rule: int, version: int | None, time: int | None) -> Row:
    return Row(key, (part, position), rule, version, 0, time, 0)


def _count(judged: Judged, taken: Sequence[Taken]) -> None:
    judged.duplicates += sum(each.verdict is Verdict.DUPLICATE for each in taken)
    judged.stale += sum(each.verdict is Verdict.STALE for each in taken)


def _write_lost(places: Places, batches: Iterator["pa.RecordBatch"]) -> None:
    pa, parquet = need("pyarrow", "duckdb"), need("pyarrow.parquet", "duckdb")
    schema = pa.schema([("part", pa.int32()), ("position", pa.int64())])
    with parquet.ParquetWriter(places.lost, schema, compression="none", use_dictionary=False) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_lists(places: Places, batches: Iterator["pa.RecordBatch"]) -> None:
    """Write rows of file and number, which come sorted, as a list for each file."""
    stream: Any = None
    current = -1
    try:
        for batch in batches:
            for file, codes in _by_file(batch):
                if file != current:
                    if stream is not None:
                        stream.close()
                    stream, current = open(places.listed(file), "wb"), file  # noqa: SIM115  # closed below
                codes.tofile(stream)
    finally:
        if stream is not None:
            stream.close()


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
