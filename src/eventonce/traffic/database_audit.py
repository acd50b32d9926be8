"""An audit of an archive of any size on one machine: processes find the facts, DuckDB brings them together."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive, Part
from eventonce.traffic.audit import DecisionColumns, conclude
from eventonce.traffic.count import AuditCount
from eventonce.traffic.database import Database
from eventonce.traffic.dedupe_plan import Places
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import NOTHING, EngineColumns, Fold, windows
from eventonce.traffic.part_facts import FactsHeader, PartFacts
from eventonce.traffic.pool import shared_out
from eventonce.traffic.recorded import NTH_BITS
from eventonce.traffic.report import AuditReport

if TYPE_CHECKING:
    import pyarrow as pa

# What is a copy of nothing by any measure never leaves DuckDB; nor do copies that are plain: those that say what the
# first of their key does and came within its window. The others come by key and in the order of arrival.
_TABLES = f"""
CREATE VIEW facts AS SELECT f.* EXCLUDE (part, positions), positions + shift AS place
    FROM read_parquet('{{folder}}/*.parquet') AS f JOIN shifts USING (part);
CREATE TABLE again_keys AS SELECT keys FROM facts GROUP BY keys HAVING count(*) > 1;
CREATE TABLE again_ids AS SELECT ids, min(place) AS first_id FROM facts WHERE ids != 0 GROUP BY ids HAVING count(*) > 1;
CREATE TABLE again_contents AS
    SELECT contents, min(place) AS first_content FROM facts GROUP BY contents HAVING count(*) > 1;
CREATE VIEW judged AS SELECT facts.*,
        coalesce(place > first_id, false) AS same_id, coalesce(place > first_content, false) AS same_content
    FROM facts LEFT JOIN again_ids USING (ids) LEFT JOIN again_contents USING (contents);
CREATE TABLE several AS SELECT keys, place, rules, versions, contents, times, names, same_id, same_content, replayed
    FROM judged SEMI JOIN again_keys USING (keys);
CREATE TABLE firsts AS SELECT keys, min(place) AS first, arg_min(times, place) AS since,
        max(versions) = {NOTHING} AND min(contents) = max(contents) AND min(rules) = max(rules)
            AND max(times)::HUGEINT - min(times) <= min(within) AS plain
    FROM several JOIN windows USING (rules) GROUP BY keys;
"""
_SINGLE = """
SELECT names, true, same_id, same_content, replayed, NULL::BIGINT, count(*)
    FROM judged ANTI JOIN again_keys USING (keys) GROUP BY ALL
"""
_PLAIN = f"""
SELECT names, place = first, same_id, same_content AND place = first, replayed,
        CASE WHEN place > first THEN abs(nullif(times, {NOTHING}) - since) END, count(*)
    FROM several JOIN firsts USING (keys) WHERE plain GROUP BY ALL
"""
_OTHERS = """
SELECT several.* FROM several JOIN firsts USING (keys) WHERE NOT plain ORDER BY keys, place
"""

_COLUMNS = 10  # of the last query


def audit(
    archive: Archive,
    book: Rulebook,
    step: Callable[[int], object] = lambda events: None,
    processes: int | None = None,
    work: str | None = None,
) -> AuditReport:
    """What `eventonce audit` tells, of more traffic than fits in memory. `work` is a folder for what does not."""
    with TemporaryDirectory(prefix="eventonce-audit-", dir=work) as folder:
        (Path(folder) / "unfinished").mkdir()
        places = Places(Path(folder))
        _find(archive, book, places, step, processes)
        tally = AuditCount(book)
        tally.head(headers(archive, places))
        _count(tally, archive, Path(folder), book)
    return conclude(archive, book, tally)


def _find(
    archive: Archive, book: Rulebook, places: Places, step: Callable[[int], object], processes: int | None
) -> None:
    found: dict[int, Found] = {}
    count = processes if len(archive.parts) > 1 else 1
    for each in shared_out(partial(write_facts, places=places), archive.parts, book, count):
        found[each.part] = each
        archive.passed_part(archive.parts[each.part])
        step(each.events)
    take(archive, found)


def take(archive: Archive, found: Mapping[int, "Found"]) -> None:
    """Tell an archive what was found out about it."""
    archive.counts = [found[part.number].documents for part in archive.parts]
    archive.documents = sum(archive.counts)
    for part in archive.parts:
        if (why := found[part.number].unreadable) is not None:
            archive.left_out(part.path, why)


class Found(msgspec.Struct):
    """What is to be known of a part at once; the rest is in its files."""

    part: int
    documents: int
    events: int
    unreadable: str | None


def write_facts(part: Part, book: Rulebook, places: Places) -> Found:
    """Find the facts of a part and keep them in a file, with a header beside it."""
    parquet = need("pyarrow.parquet", "duckdb")
    facts, writer = PartFacts(part, book), None
    with places.making(places.work / f"{part.number:08}.parquet") as unfinished:
        try:
            for table in facts.tables():
                options = {"compression": "none", "use_dictionary": False}
                writer = writer or parquet.ParquetWriter(unfinished, table.schema, **options)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
    places.publish(places.work / f"{part.number:08}.json", facts.header)
    return Found(part.number, facts.header.documents, facts.header.events, facts.header.unreadable)


def headers(archive: Archive, places: Places) -> Iterator[FactsHeader]:
    """The headers of all parts, in their order."""
    for part in archive.parts:
        yield msgspec.json.decode((places.work / f"{part.number:08}.json").read_bytes(), type=FactsHeader)


def _count(tally: AuditCount, archive: Archive, folder: Path, book: Rulebook) -> None:
    if not archive.parts:
        return
    database = Database(folder)
    try:
        _load(database, archive, folder, book)
        for query in (_SINGLE, _PLAIN):
            for batch in database.batches(query):
                tally.count(rows_of(batch))
        fold = Fold(book)
        for batch in database.batches(_OTHERS):
            enter(tally, fold, batch)
    finally:
        database.close()
    tally.settle()


def _load(database: Database, archive: Archive, folder: Path, book: Rulebook) -> None:
    shifts = [(part.number, before << NTH_BITS) for part, before in zip(archive.parts, archive.before, strict=False)]
    database.run("CREATE TABLE shifts (part INTEGER, shift BIGINT)")
    database.run(f"INSERT INTO shifts VALUES {', '.join(map(str, shifts))}")
    database.run("CREATE TABLE windows (rules INTEGER, within BIGINT)")
    database.run(f"INSERT INTO windows VALUES {', '.join(map(str, enumerate(windows(book))))}")
    for statement in _TABLES.format(folder=str(folder).replace("'", "''")).split(";\n")[:-1]:
        database.run(statement)


def rows_of(batch: "pa.RecordBatch") -> Iterator[tuple[Any, ...]]:
    """Row by row."""
    return zip(*[column.to_pylist() for column in batch.columns], strict=True)


def enter(tally: AuditCount, fold: Fold, batch: "pa.RecordBatch") -> None:
    """Judge events and count them: the columns that the queries give."""
    found = [column.to_pylist() for column in batch.columns]
    keys, places, rules, versions, contents, times, names, same_id, same_content, replayed = found[:_COLUMNS]
    orders = found[_COLUMNS] if len(found) > _COLUMNS else places  # a rank tells it, where an engine has one
    taken = fold.take(EngineColumns(keys, orders, rules, versions, contents, times, places))
    groups = {number: tally.named(number) for number in {*names}}
    tally.enter(groups, DecisionColumns(names, taken, same_id, same_content, replayed, places))
