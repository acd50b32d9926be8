"""An audit on Spark, with the figures of one machine."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import conclude
from eventonce.traffic.count import AuditCount
from eventonce.traffic.database_audit import enter, headers, rows_of, take, write_facts
from eventonce.traffic.dedupe_plan import Places
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import NOTHING, Fold, windows
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.recorded import NTH_BITS
from eventonce.traffic.report import AuditReport
from eventonce.traffic.spark.engine import RANK, Cluster, ordered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_JUDGED = ["keys", "place", "rules", "versions", "contents", "times", "names", "same_id", "same_content", "replayed"]
_NEEDED = ["keys", "rules", "versions", "contents", "times", "names", "ids", "replayed"]
_RESULT = "counted binary"
_ALIKE = ["names", "new", "same_id", "same_content", "replayed", "gap"]  # as a tally counts them
_PLAIN = [
    "names",
    f"{RANK} = 1 AS new",
    "same_id",
    f"same_content AND {RANK} = 1 AS same_content",
    "replayed",
    f"if({RANK} > 1, abs(nullif(times, {NOTHING}) - _since), NULL) AS gap",
]


def audit_archive(spark: "SparkSession", archive: Archive, book: Rulebook, work: str | None = None) -> AuditReport:
    """Audit files that all workers see. `work` is a folder that they see, too; without one, this machine's own."""
    with TemporaryDirectory(prefix="eventonce-audit-", dir=work) as folder:
        (Path(folder) / "unfinished").mkdir()
        places = Places(Path(folder))
        found = Cluster(spark).map(partial(write_facts, places=places), archive.parts, book)
        take(archive, {each.part: each for each in found})
        tally = AuditCount(book)
        tally.head(headers(archive, places))
        if archive.parts:
            shifts = zip(range(len(archive.parts)), (before << NTH_BITS for before in archive.before), strict=False)
            facts = spark.read.parquet(f"{folder}/*.parquet")
            facts = facts.join(spark.createDataFrame(list(shifts), "part int, shift long"), "part")
            count(facts.selectExpr(*_NEEDED, "positions + shift AS place"), book, tally)
    return conclude(archive, book, tally)


def count(facts: "DataFrame", book: Rulebook, tally: AuditCount, order: Sequence[str] = ("place",)) -> None:
    """Count facts; the columns in `order` grow with each arrival.

    As on one machine, what is a copy of nothing is only counted, and so are plain copies; the others are folded.
    """
    seen = _seen(_seen(facts, "ids", "same_id", order), "contents", "same_content", order)
    judged = _with_plain(ordered(seen, "keys", order), book, order)
    plain = judged.where("_plain").selectExpr(*_PLAIN).groupBy(*_ALIKE).count()
    others = judged.where("NOT _plain").select(*_JUDGED, RANK)
    recipe, numbers = Recipe.of(book), tally.numbers
    counted = plain.mapInArrow(_counting(recipe, numbers), _RESULT)
    folded = others.mapInArrow(_folding(recipe, numbers), _RESULT)
    for row in counted.union(folded).collect():  # in one question: what both need is then shuffled once
        tally.merge(bytes(row[0]))
    tally.settle()


def _with_plain(rows: "DataFrame", book: Rulebook, order: Sequence[str]) -> "DataFrame":
    """With whether a query can judge all events of a key, and the time of the first.

    In floating point, which has no integer too large for it, and is exact where a time is near another.
    """
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    together = window.Window.partitionBy("keys")
    within = functions.expr(f"element_at(array({', '.join(f'{each}L' for each in windows(book))}), rules + 1)")
    least, most = (
        {name: how(name).over(together) for name in ("rules", "contents", "times")}
        for how in (functions.min, functions.max)
    )
    alike = (least["rules"] == most["rules"]) & (least["contents"] == most["contents"])
    near = most["times"].cast("double") - least["times"].cast("double") <= within
    unversioned = functions.max("versions").over(together) == functions.expr(NOTHING)
    alone = functions.count(functions.lit(1)).over(together) == 1
    first = functions.first("times").over(together.orderBy(*order))
    return rows.withColumn("_since", first).withColumn("_plain", alone | (unversioned & alike & near))


def _seen(facts: "DataFrame", name: str, told: str, order: Sequence[str]) -> "DataFrame":
    """With whether an earlier event has the same id or content; those without an id (0) are not put together."""
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    at = functions.col(order[0]) if len(order) == 1 else functions.struct(*order)
    alone = functions.expr(f"if({name} = 0, {order[-1]}, 0)")
    first = functions.min(at).over(window.Window.partitionBy(name, alone))
    return facts.withColumn(told, (at > first) & (functions.col(name) != 0))


def _folding(recipe: Recipe, numbers: Sequence[int]) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        tally, rows = _expecting(recipe, numbers), 0
        fold = Fold(recipe.book())
        for batch in batches:
            rows += batch.num_rows
            enter(tally, fold, batch)
        yield from _told(tally, rows)

    return on_worker


def _counting(recipe: Recipe, numbers: Sequence[int]) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        tally, rows = _expecting(recipe, numbers), 0
        for batch in batches:
            rows += batch.num_rows
            tally.count(rows_of(batch))
        yield from _told(tally, rows)

    return on_worker


def _expecting(recipe: Recipe, numbers: Sequence[int]) -> AuditCount:
    tally = AuditCount(recipe.book())
    tally.expect(numbers)
    return tally


def _told(tally: AuditCount, rows: int) -> Iterator["pa.RecordBatch"]:
    """What was counted, if there was anything: a tally of nothing is as large as any."""
    pa = need("pyarrow", "spark")
    if rows:
        told = {"counted": [tally.counted()]}
        yield pa.RecordBatch.from_pydict(told, schema=pa.schema([("counted", pa.binary())]))
