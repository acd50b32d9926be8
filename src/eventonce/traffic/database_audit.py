"""An audit of an archive of any size on one machine: processes make the facts, DuckDB brings equal keys together."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive, Part
from eventonce.traffic.audit import conclude
from eventonce.traffic.count import AlikeEvents, AuditCount, DecisionColumns
from eventonce.traffic.database import Database
from eventonce.traffic.dedupe_plan import WorkFolder
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import NOTHING, EngineColumns, Fold, windows
from eventonce.traffic.part_facts import FactsHeader, PartFacts
from eventonce.traffic.processes import map_in_processes
from eventonce.traffic.report import AuditReport

if TYPE_CHECKING:
    import pyarrow as pa

# What is a copy of nothing by any measure never leaves DuckDB. Nor do plain copies: those that say what the first of
# their key does and came within its window. The others come by key and in the order of arrival.
_TABLES = f"""
CREATE VIEW facts AS SELECT f.* EXCLUDE (part, positions), positions + shift AS place
    FROM read_parquet('{{folder}}/*.parquet') AS f JOIN shifts USING (part);
CREATE TABLE again_keys AS SELECT keys FROM facts GROUP BY keys HAVING count(*) > 1;
CREATE TABLE again_ids AS SELECT ids, min(place) AS first_id FROM facts WHERE ids != 0 GROUP BY ids HAVING count(*) > 1;
CREATE TABLE again_contents AS
    SELECT contents, min(place) AS first_content FROM facts GROUP BY contents HAVING count(*) > 1;
CREATE VIEW judged AS SELECT facts.*,
        CASE WHEN ids != 0 THEN coalesce(place > first_id, false) END AS same_id,
        coalesce(place > first_content, false) AS same_content
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
    rulebook: Rulebook,
    step: Callable[[int], object] = lambda events: None,
    processes: int | None = None,
    work: str | None = None,
) -> AuditReport:
    """Audit more traffic than fits in memory. `work` is a folder for the rest."""
    with TemporaryDirectory(prefix="eventonce-audit-", dir=work) as folder:
        work_folder = make_work_folder(folder)
        function = partial(write_facts, work_folder=work_folder)
        in_processes = processes if len(archive.parts) > 1 else 1
        for summary in map_in_processes(function, archive.parts, rulebook, in_processes):
            archive.skip_part(summary.part, summary.documents, summary.unreadable)
            step(summary.events)
        count = count_headers(archive, work_folder)
        if archive.parts:
            _count_facts(count, archive, Path(folder), rulebook)
    return conclude(archive, rulebook, count)


class PartSummary(msgspec.Struct):
    """What is needed of a part at once. The rest is in its files."""

    part: int
    documents: int
    events: int
    unreadable: str | None


def make_work_folder(folder: str) -> WorkFolder:
    """Prepare a folder for facts."""
    (Path(folder) / "unfinished").mkdir()
    return WorkFolder(Path(folder))


def write_facts(part: Part, rulebook: Rulebook, work_folder: WorkFolder) -> PartSummary:
    """Write the facts of a part to a file, with a header beside it."""
    parquet = need("pyarrow.parquet", "duckdb")
    facts, writer = PartFacts(part, rulebook), None
    with work_folder.writing(work_folder.path / f"{part.number:08}.parquet") as unfinished:
        try:
            for table in facts.tables():
                options = {"compression": "none", "use_dictionary": False}
                writer = writer or parquet.ParquetWriter(unfinished, table.schema, **options)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
    header = facts.header
    work_folder.write_json(work_folder.path / f"{part.number:08}.json", header)
    return PartSummary(part.number, header.documents, header.events, header.unreadable)


def count_headers(archive: Archive, work_folder: WorkFolder) -> AuditCount:
    """Return a count of what the headers of all parts have."""
    count = AuditCount()
    for part in archive.parts:
        header = (work_folder.path / f"{part.number:08}.json").read_bytes()
        msgspec.json.decode(header, type=FactsHeader).add_to(count)
    return count


def _count_facts(count: AuditCount, archive: Archive, folder: Path, rulebook: Rulebook) -> None:
    database = Database(folder)
    try:
        _load(database, archive, folder, rulebook)
        for query in (_SINGLE, _PLAIN):
            for batch in database.batches(query):
                count.add_alike(alike_rows(batch))
        fold = Fold(rulebook)
        for batch in database.batches(_OTHERS):
            count_folded(count, fold, batch)
    finally:
        database.close()


def _load(database: Database, archive: Archive, folder: Path, rulebook: Rulebook) -> None:
    database.run("CREATE TABLE shifts (part INTEGER, shift BIGINT)")
    database.run(f"INSERT INTO shifts VALUES {', '.join(map(str, enumerate(archive.shifts)))}")
    database.run("CREATE TABLE windows (rules INTEGER, within BIGINT)")
    database.run(f"INSERT INTO windows VALUES {', '.join(map(str, enumerate(windows(rulebook))))}")
    for statement in _TABLES.format(folder=str(folder).replace("'", "''")).split(";\n")[:-1]:
        database.run(statement)


def alike_rows(batch: "pa.RecordBatch") -> Iterator[AlikeEvents]:
    """Yield the rows of a query that has counted events."""
    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
    return map(AlikeEvents._make, zip(*columns, strict=True))


def count_folded(count: AuditCount, fold: Fold, batch: "pa.RecordBatch") -> None:
    """Decide on the events of a batch, and count them."""
    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
    keys, positions, rules, versions, contents, times, names, same_id, same_content, replayed = columns[:_COLUMNS]
    orders = columns[_COLUMNS] if len(columns) > _COLUMNS else positions  # the rank, if an engine has one
    decisions = fold.decide(EngineColumns(keys, orders, rules, versions, contents, times, positions))
    types = {number: count.numbered(number) for number in {*names}}
    count.add(types, DecisionColumns(names, decisions, same_id, same_content, replayed, positions))
