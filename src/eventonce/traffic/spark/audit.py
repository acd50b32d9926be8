"""An audit on Spark, with the same figures as on one machine."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import conclude
from eventonce.traffic.count import AuditCount
from eventonce.traffic.database_audit import (
    alike_rows,
    count_folded,
    count_headers,
    make_work_folder,
    write_facts,
)
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import NOTHING, Fold, windows
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.report import AuditReport
from eventonce.traffic.spark.engine import RANK, Cluster, ranked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_DECIDED = ["keys", "place", "rules", "versions", "contents", "times", "names", "same_id", "same_content", "replayed"]
_NEEDED = ["keys", "rules", "versions", "contents", "times", "names", "ids", "replayed"]
_RESULT = "counted binary"
_ALIKE = ["names", "new", "same_id", "same_content", "replayed", "gap"]  # the fields of `AlikeEvents`
_PLAIN = [
    "names",
    f"{RANK} = 1 AS new",
    "same_id",
    f"same_content AND {RANK} = 1 AS same_content",
    "replayed",
    f"if({RANK} > 1, abs(nullif(times, {NOTHING}) - _since), NULL) AS gap",
]


def audit_archive(spark: "SparkSession", archive: Archive, rulebook: Rulebook, work: str | None = None) -> AuditReport:
    """Audit files that all workers see. `work` is a folder that they see, too. Without one it is this machine's own."""
    with TemporaryDirectory(prefix="eventonce-audit-", dir=work) as folder:
        work_folder = make_work_folder(folder)
        summaries = Cluster(spark).map(partial(write_facts, work_folder=work_folder), archive.parts, rulebook)
        for summary in sorted(summaries, key=attrgetter("part")):
            archive.skip_part(summary.part, summary.documents, summary.unreadable)
        count = count_headers(archive, work_folder)
        if archive.parts:
            facts = spark.read.parquet(f"{folder}/*.parquet")
            shifts = spark.createDataFrame(list(enumerate(archive.shifts)), "part int, shift long")
            facts = facts.join(shifts, "part").selectExpr(*_NEEDED, "positions + shift AS place")
            count_facts(facts, rulebook, count)
    return conclude(archive, rulebook, count)


def count_facts(facts: "DataFrame", rulebook: Rulebook, count: AuditCount, order: Sequence[str] = ("place",)) -> None:
    """Count facts. The columns in `order` grow with each arrival.

    As on one machine, plain copies and what is a copy of nothing are counted by a query. The others are folded.
    """
    compared = _with_seen(_with_seen(facts, "ids", "same_id", order), "contents", "same_content", order)
    decided = _with_plain(ranked(compared, "keys", order), rulebook, order)
    plain = decided.where("_plain").selectExpr(*_PLAIN).groupBy(*_ALIKE).count()
    others = decided.where("NOT _plain").select(*_DECIDED, RANK)
    recipe, numbers = Recipe.of(rulebook), count.numbers
    counted = plain.mapInArrow(_count_alike(recipe, numbers), _RESULT)
    folded = others.mapInArrow(_count_folded(recipe, numbers), _RESULT)
    for row in counted.union(folded).collect():  # one query, so that what both need is shuffled once
        count.merge(bytes(row[0]))


def _with_plain(rows: "DataFrame", rulebook: Rulebook, order: Sequence[str]) -> "DataFrame":
    """Add whether a query can decide on all events of a key, and the time of the first.

    In floating point, which has no integer too large for it, and is exact where a time is near another.
    """
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    together = window.Window.partitionBy("keys")
    numbers = ", ".join(f"{number}L" for number in windows(rulebook))
    within = functions.expr(f"element_at(array({numbers}), rules + 1)")
    lowest, highest = (
        {name: function(name).over(together) for name in ("rules", "contents", "times")}
        for function in (functions.min, functions.max)
    )
    alike = (lowest["rules"] == highest["rules"]) & (lowest["contents"] == highest["contents"])
    near = highest["times"].cast("double") - lowest["times"].cast("double") <= within
    unversioned = functions.max("versions").over(together) == functions.expr(NOTHING)
    alone = functions.count(functions.lit(1)).over(together) == 1
    first = functions.first("times").over(together.orderBy(*order))
    return rows.withColumn("_since", first).withColumn("_plain", alone | (unversioned & alike & near))


def _with_seen(facts: "DataFrame", name: str, added: str, order: Sequence[str]) -> "DataFrame":
    """Add whether an earlier event has the same id or content. Events without an id (0) are not grouped: NULL."""
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    arrival = functions.col(order[0]) if len(order) == 1 else functions.struct(*order)
    alone = functions.expr(f"if({name} = 0, {order[-1]}, 0)")
    first = functions.min(arrival).over(window.Window.partitionBy(name, alone))
    return facts.withColumn(added, functions.when(functions.col(name) != 0, arrival > first))


# --- on workers ---


def _count_folded(recipe: Recipe, numbers: Sequence[int]) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        count, fold = AuditCount.on_worker(numbers), Fold(recipe.rulebook())
        for batch in batches:
            count_folded(count, fold, batch)
        yield _packed(count)

    return on_worker


def _count_alike(recipe: Recipe, numbers: Sequence[int]) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        recipe.rulebook()  # checks the worker
        count = AuditCount.on_worker(numbers)
        for batch in batches:
            count.add_alike(alike_rows(batch))
        yield _packed(count)

    return on_worker


def _packed(count: AuditCount) -> "pa.RecordBatch":
    pa = need("pyarrow", "spark")
    return pa.RecordBatch.from_pydict({"counted": [count.packed()]}, schema=pa.schema([("counted", pa.binary())]))
