"""An audit on Spark, with the figures of one machine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from eventonce.rules import Rulebook
from eventonce.scale.audit import enter, headers, take, write_facts
from eventonce.scale.drivers import need
from eventonce.scale.fold import Fold
from eventonce.scale.parts import Archive
from eventonce.scale.plan import Places
from eventonce.scale.recipe import Recipe
from eventonce.scale.spark_engine import RANK, Cluster, ordered, with_count
from eventonce.scale.tally import Tally
from eventonce.study.audit import conclude
from eventonce.study.report import Report
from eventonce.study.traffic import NTH_BITS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_JUDGED = ["keys", "place", "rules", "versions", "contents", "times", "names", "same_id", "same_content", "replayed"]
_NEEDED = ["keys", "rules", "versions", "contents", "times", "names", "ids", "replayed"]
_RESULT = "counted binary, names long, same_id boolean, same_content boolean, replayed int, events long"


def audit_archive(spark: "SparkSession", archive: Archive, book: Rulebook, work: str | None = None) -> Report:
    """Audit files that all workers see. `work` is a folder that they see, too; without one, this machine's own."""
    with TemporaryDirectory(prefix="eventonce-audit-", dir=work) as folder:
        (Path(folder) / "unfinished").mkdir()
        places = Places(Path(folder))
        found = Cluster(spark).map(partial(write_facts, places=places), archive.parts, book)
        take(archive, {each.part: each for each in found})
        tally = Tally(book)
        tally.head(headers(archive, places))
        if archive.parts:
            shifts = zip(range(len(archive.parts)), (before << NTH_BITS for before in archive.before), strict=False)
            facts = spark.read.parquet(f"{folder}/*.parquet")
            facts = facts.join(spark.createDataFrame(list(shifts), "part int, shift long"), "part")
            count(facts.selectExpr(*_NEEDED, "positions + shift AS place"), book, tally)
    return conclude(archive, book, tally)


def count(facts: "DataFrame", book: Rulebook, tally: Tally, order: Sequence[str] = ("place",)) -> None:
    """Count facts; the columns in `order` grow with each arrival."""
    seen = _seen(_seen(facts, "ids", "same_id", order), "contents", "same_content", order)
    judged = with_count(ordered(seen, "keys", order), "keys")
    single = judged.where("_copies = 1").groupBy("names", "same_id", "same_content", "replayed").count()
    several = judged.where("_copies > 1").select(*_JUDGED, RANK)
    folded = several.mapInArrow(_folding(Recipe.of(book), tally.numbers), _RESULT)
    # In one question: what both need is then shuffled once.
    counted = single.selectExpr(
        "CAST(NULL AS binary) AS counted", "names", "same_id", "same_content", "int(replayed) AS replayed", "count"
    )
    for row in counted.union(folded).collect():
        _add(tally, row)
    tally.settle()


def _add(tally: Tally, row: Any) -> None:
    if row[0] is not None:
        tally.merge(bytes(row[0]))
        return
    _, name, same_id, same_content, replayed, events = row
    tally.count([(name, True, same_id, same_content, replayed, None, events)])


def _seen(facts: "DataFrame", name: str, told: str, order: Sequence[str]) -> "DataFrame":
    """With whether an earlier event has the same id or content; those without an id (0) are not put together."""
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    at = functions.col(order[0]) if len(order) == 1 else functions.struct(*order)
    alone = functions.expr(f"if({name} = 0, {order[-1]}, 0)")
    first = functions.min(at).over(window.Window.partitionBy(name, alone))
    return facts.withColumn(told, (at > first) & (functions.col(name) != 0))


def _folding(recipe: Recipe, numbers: Iterable[int]) -> Callable[..., Any]:
    expected = list(numbers)

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        book = recipe.book()
        tally, fold = Tally(book), Fold(book)
        tally.expect(expected)
        for batch in batches:
            enter(tally, fold, batch)
        yield _row(tally.counted())

    return on_worker


def _row(counted: bytes) -> "pa.RecordBatch":
    pa = need("pyarrow", "spark")
    kinds = [pa.binary(), pa.int64(), pa.bool_(), pa.bool_(), pa.int32(), pa.int64()]
    names = ["counted", "names", "same_id", "same_content", "replayed", "events"]
    values = [[counted], [0], [False], [False], [0], [0]]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    return pa.RecordBatch.from_pydict(dict(zip(names, values, strict=True)), schema=schema)
