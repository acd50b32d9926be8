"""The steps of a deduplication on Spark: tasks by `mapInArrow`, copies by a window over keys.

The steps and their files are those of one machine. All workers must see the folders of the input and of the output.
Keys alone are shuffled. Nothing is broadcast, and what is collected is one small header for each part.
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
from eventonce.traffic.dedupe_plan import DedupePlan, Target, WorkFolder
from eventonce.traffic.drivers import need
from eventonce.traffic.drop_lists import DROP, DropCounts, dropped_rows, part_shifts, write_lists
from eventonce.traffic.keyed import KeysHeader
from eventonce.traffic.recipe import Recipe

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RANK = "_rank"
_MAX_TASKS = 10_000  # of Spark; beyond it, one takes several of ours


class Cluster:
    """Spark, as an engine of `Dedupe`."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def map(self, function: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], rulebook: Rulebook) -> Iterator[Any]:
        """Yield what the function returns for each task, in any order."""
        packed = [(_pack(task),) for task in tasks]
        if not packed:
            return iter(())
        rows = self._spark.createDataFrame(packed, "task binary").repartition(min(len(packed), _MAX_TASKS))
        results = rows.mapInArrow(_call(function, Recipe.of(rulebook)), "result binary").collect()
        return (_decode_result(function, bytes(row.result)) for row in results)

    def find_drops(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts:
        """Write the drop lists of all files, unless an earlier run did. Return how many events they drop."""
        file = plan.work_folder.drop_counts
        if file.exists():
            return msgspec.json.decode(file.read_bytes(), type=DropCounts)
        counts = self._find_drops(plan, headers) if headers else DropCounts()
        plan.work_folder.write_json(file, counts)
        return counts

    def _find_drops(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts:
        functions = need("pyspark.sql.functions", "spark")
        rows = self._spark.read.parquet(f"{plan.work}/keys/*.parquet")
        several = copies(rows.where("key IS NOT NULL"), "key", ["part", "position"])
        dropped = several.select("key", "part", "position", "rule", "version", "time", "several", RANK).mapInArrow(
            _drop_rows(Recipe.of(plan.rulebook)), "part int, position long, several boolean, stale boolean"
        )
        dropped.write.mode("overwrite").parquet(f"{plan.work}/lost")  # it is needed twice
        dropped = self._spark.read.parquet(f"{plan.work}/lost")
        self._write_lists(plan, headers, rows, dropped)
        counts = {row.stale: row["count"] for row in dropped.groupBy(functions.col("stale")).count().collect()}
        return DropCounts(duplicates=counts.get(False, 0), stale=counts.get(True, 0))

    def _write_lists(
        self, plan: DedupePlan, headers: list[KeysHeader], rows: "DataFrame", dropped: "DataFrame"
    ) -> None:
        flagged = dropped.selectExpr("part", "position", f"{DROP} + int(several) AS flags")
        others = rows.where("key IS NULL OR several").selectExpr(
            "part", "position", f"if(key IS NULL, {DROP}, 0) + int(several) AS flags"
        )
        parts = self._spark.createDataFrame(part_shifts(plan, headers), "part int, file int, shift long")
        codes = flagged.union(others).join(parts, "part").selectExpr("file", "(position + shift) * 4 + flags AS code")
        numbered = ranked(codes.distinct(), "file", ["code"]).select("file", "code", RANK)
        numbered.mapInArrow(_write_lists(plan.work_folder), "file int").collect()


def ranked(rows: "DataFrame", by: str, order: Sequence[str]) -> "DataFrame":
    """Group the rows by a column, and add the rank of each in its group.

    By a window and not by a sort: an engine may take a sort for useless (Sail 0.7 does, before `mapInArrow`). What a
    window needs it has to keep, as long as its column is selected. The fold still checks the order of the rows.
    """
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    rank = functions.row_number().over(window.Window.partitionBy(by).orderBy(*order))
    return rows.withColumn(RANK, rank)


def copies(rows: "DataFrame", by: str, order: Sequence[str]) -> "DataFrame":
    """Return the rows whose key other rows have, too, grouped and ranked."""
    functions, window = need("pyspark.sql.functions", "spark"), need("pyspark.sql.window", "spark")
    several = functions.count(functions.lit(1)).over(window.Window.partitionBy(by))
    return ranked(rows, by, order).withColumn("_copies", several).where("_copies > 1")


# --- on workers ---


def _call(function: Callable[[Any, Rulebook], Any], recipe: Recipe) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        rulebook = recipe.rulebook()
        for batch in batches:
            for packed in batch.column(0).to_pylist():
                task = _unpack(packed)
                _check_visible(task)
                yield _binary(msgspec.msgpack.encode(function(task, rulebook)))

    return on_worker


def _check_visible(task: Part | Target) -> None:
    """Raise `ConfigError` if the worker does not see the file, which would be left out in silence."""
    path = task.absolute_path
    if task.size and not os.path.lexists(path):
        raise ConfigError(f"{path}: does not exist on {socket.gethostname()}; use a folder that all workers see")


def _drop_rows(recipe: Recipe) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        return dropped_rows(batches, recipe.rulebook())

    return on_worker


def _write_lists(work_folder: WorkFolder) -> Callable[..., Any]:
    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa = need("pyarrow", "spark")
        write_lists(work_folder, batches)
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
            f"{task.path!r}: has a name that is not UTF-8, which Spark cannot pass on; rename it"
        ) from None


def _unpack(packed: bytes) -> Any:
    kind, raw = msgspec.msgpack.decode(packed, type=tuple[str, msgspec.Raw])
    return msgspec.msgpack.decode(raw, type=_KINDS[kind])


def _decode_result(function: Callable[..., Any], data: bytes) -> Any:
    """Decode what a function has returned, by its return type."""
    while isinstance(function, partial):
        function = function.func
    return msgspec.msgpack.decode(data, type=function.__annotations__["return"])
