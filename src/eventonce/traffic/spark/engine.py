"""The steps of a copy on Spark: tasks by `mapInArrow`, copies found by a window over keys.

The steps and their files are those of one machine; the folders of the input and of the output are ones that all workers
see. Keys alone are shuffled. Nothing is broadcast, and what is gathered is one small header for each part.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules import Rulebook
from eventonce.traffic.archive import Part
from eventonce.traffic.dedupe_plan import DedupePlan, Places, Target
from eventonce.traffic.drivers import need
from eventonce.traffic.drop_lists import DROP, DropCounts, losers, shifts, write_lists
from eventonce.traffic.keyed import KeysHeader
from eventonce.traffic.recipe import Recipe

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RANK = "_rank"
_MOST_TASKS = 10_000  # of Spark; beyond it, one takes several of ours


class Cluster:
    """Spark, for `Copy`."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def map(self, act: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], book: Rulebook) -> Iterator[Any]:
        """What becomes of each task, in any order."""
        packed = [(_pack(task),) for task in tasks]
        if not packed:
            return iter(())
        given = self._spark.createDataFrame(packed, "task binary").repartition(min(len(packed), _MOST_TASKS))
        done = given.mapInArrow(_acting(act, Recipe.of(book)), "result binary").collect()
        return (act_result(act, bytes(row.result)) for row in done)

    def judge(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts:
        """Which events lose, in a list for each file."""
        if plan.places.judged.exists():
            return msgspec.json.decode(plan.places.judged.read_bytes(), type=DropCounts)
        judged = self._judge(plan, headers) if headers else DropCounts()
        plan.places.publish(plan.places.judged, judged)
        return judged

    def _judge(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts:
        functions = need("pyspark.sql.functions", "spark")
        rows = self._spark.read.parquet(f"{plan.work}/keys/*.parquet")
        several = copies(rows.where("key IS NOT NULL"), "key", ["part", "position"])
        lost = several.select("key", "part", "position", "rule", "version", "time", "several", RANK).mapInArrow(
            _losing(Recipe.of(plan.book)), "part int, position long, several boolean, stale boolean"
        )
        lost.write.mode("overwrite").parquet(f"{plan.work}/lost")  # it is needed twice
        lost = self._spark.read.parquet(f"{plan.work}/lost")
        self._write_lists(plan, headers, rows, lost)
        counted = {row.stale: row["count"] for row in lost.groupBy(functions.col("stale")).count().collect()}
        return DropCounts(duplicates=counted.get(False, 0), stale=counted.get(True, 0))

    def _write_lists(self, plan: DedupePlan, headers: list[KeysHeader], rows: "DataFrame", lost: "DataFrame") -> None:
        dropped = lost.selectExpr("part", "position", f"{DROP} + int(several) AS flags")
        others = rows.where("key IS NULL OR several").selectExpr(
            "part", "position", f"if(key IS NULL, {DROP}, 0) + int(several) AS flags"
        )
        parts = self._spark.createDataFrame(shifts(plan, headers), "part int, file int, shift long")
        codes = dropped.union(others).join(parts, "part").selectExpr("file", "(position + shift) * 4 + flags AS code")
        numbered = ordered(codes.distinct(), "file", ["code"]).select("file", "code", RANK)
        numbered.mapInArrow(_listing(plan.places), "file int").collect()


def ordered(rows: "DataFrame", by: str, order: Sequence[str]) -> "DataFrame":
    """Rows of one `by` together, in order.

    By a window and not by a sort: an engine may take a sort for useless (Sail 0.7 does, before `mapInArrow`), while
    what a window needs it has to keep, as long as its column is taken. The fold still looks at the order of what comes.
    """
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    rank = functions.row_number().over(window.Window.partitionBy(by).orderBy(*order))
    return rows.withColumn(RANK, rank)


def copies(rows: "DataFrame", by: str, order: Sequence[str]) -> "DataFrame":
    """Of rows in order, those whose key others have, too."""
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    several = functions.count(functions.lit(1)).over(window.Window.partitionBy(by))
    return ordered(rows, by, order).withColumn("_copies", several).where("_copies > 1")


# --- on workers ---


def _acting(act: Callable[[Any, Rulebook], Any], recipe: Recipe) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        book = recipe.book()
        for batch in batches:
            for packed in batch.column(0).to_pylist():
                task = _unpack(packed)
                _check_seen(task)
                yield _binary(msgspec.msgpack.encode(act(task, book)))

    return on_worker


def _check_seen(task: Part | Target) -> None:
    """A file that the driver has found, and a worker does not, would be left out in silence."""
    if task.size and not os.path.lexists(task.place):
        raise ConfigError(f"{task.place}: is not there for {socket.gethostname()}; use a folder that all workers see")


def _losing(recipe: Recipe) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        return losers(batches, recipe.book())

    return on_worker


def _listing(places: Places) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa = need("pyarrow", "spark")
        write_lists(places, batches)
        yield pa.RecordBatch.from_pydict({"file": []}, schema=pa.schema([("file", pa.int32())]))

    return on_worker


def _binary(data: bytes) -> "pa.RecordBatch":
    pa = need("pyarrow", "spark")
    return pa.RecordBatch.from_pydict({"result": [data]}, schema=pa.schema([("result", pa.binary())]))


# --- tasks and results as bytes ---

_KINDS = {"part": Part, "target": Target}


def _pack(task: Part | Target) -> bytes:
    kind = "part" if isinstance(task, Part) else "target"
    try:
        return msgspec.msgpack.encode((kind, task))
    except UnicodeEncodeError:
        raise ConfigError(
            f"{task.path!r}: has a name that is no UTF-8, which Spark cannot hand on; rename it"
        ) from None


def _unpack(packed: bytes) -> Any:
    kind, raw = msgspec.msgpack.decode(packed, type=tuple[str, msgspec.Raw])
    return msgspec.msgpack.decode(raw, type=_KINDS[kind])


def act_result(act: Callable[..., Any], data: bytes) -> Any:
    """What an act has given, as its return type says."""
    while isinstance(act, partial):
        act = act.func
    return msgspec.msgpack.decode(data, type=act.__annotations__["return"])
