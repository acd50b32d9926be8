"""What workers do with the rows of a DataFrame."""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.event import Event
from eventonce.event.formats import read_events
from eventonce.sources.documents import LONGEST
from eventonce.traffic.drivers import need
from eventonce.traffic.file_ranges import DocumentRow
from eventonce.traffic.fold import DROPPED, EngineColumns, Fold
from eventonce.traffic.keys import keys_arrow
from eventonce.traffic.part_facts import PartFacts
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.recorded import NTH_BITS
from eventonce.traffic.spark.engine import RANK

if TYPE_CHECKING:
    import pyarrow as pa

KEYED = "key binary, rule string, version long, time timestamp, ok boolean, reason string"
ADDED = [each.split()[0] for each in KEYED.split(", ")]
PLACE, TIE, NTH, RULE = "_place", "_tie", "_nth", "_rule"
FACTS = (
    "header binary, place long, tie long, nth int, rules int, keys long, versions long, contents long, "
    "times long, ids long, names long, replayed int"
)

_OWN_BYTES = 17  # no key is as long


def keying(recipe: Recipe, column: str) -> Callable[..., Any]:
    """Rows with their keys."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        book = recipe.book()
        for batch in batches:
            found = keys_arrow(batch.column(column), book)
            yield from _with_keys(_rows_of(batch, found), found)

    return on_worker


def marking(recipe: Recipe, column: str) -> Callable[..., Any]:
    """Rows with their keys; each event of a line that carries several on a line of its own, and its number there."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, book = need("pyarrow", "spark"), recipe.book()
        for batch in batches:
            found = keys_arrow(batch.column(column), book)
            lines = found["line"].to_pylist()
            nths = _nths(lines)
            rows = _rows_of(batch, found)
            rows = _apart(rows, column, lines, nths) if any(nths) else rows
            rules = pa.chunked_array([chunk.indices for chunk in found["rule"].chunks], pa.int32())
            rows = rows.append_column(NTH, pa.array(nths, pa.int32())).append_column(RULE, rules)
            yield from _with_keys(rows, found)

    return on_worker


def distinguishing(recipe: Recipe, column: str, own: str) -> Callable[..., Any]:
    """Rows with their keys, and a value that is the key, or one of its own where there is none.

    Engines take NULL for equal to NULL: without it, all rows but one that have no key would be gone as copies.
    """

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, book = need("pyarrow", "spark"), recipe.book()
        for batch in batches:
            found = keys_arrow(batch.column(column), book)
            values = [key or os.urandom(_OWN_BYTES) for key in found["key"].to_pylist()]
            rows = _rows_of(batch, found).append_column(own, pa.array(values, pa.binary()))
            yield from _with_keys(rows, found)

    return on_worker


def _rows_of(batch: "pa.RecordBatch", found: "pa.Table") -> "pa.Table":
    """The row of each event."""
    return need("pyarrow", "spark").Table.from_batches([batch]).take(found["line"])


def _with_keys(rows: "pa.Table", found: "pa.Table") -> Iterator["pa.RecordBatch"]:
    pa = need("pyarrow", "spark")
    kinds = {"key": pa.binary(), "rule": pa.string(), "time": pa.timestamp("us", "UTC")}  # as Spark wants them
    for name in ADDED:
        rows = rows.append_column(name, found[name].cast(kinds.get(name, found[name].type)))
    yield from rows.to_batches()


def _nths(lines: list[int]) -> list[int]:
    """Of each event, its number in its line."""
    nths: list[int] = []
    for at, line in enumerate(lines):
        nths.append(nths[-1] + 1 if at and lines[at - 1] == line else 0)
    return nths


def _apart(table: "pa.Table", column: str, numbers: list[int], nths: list[int]) -> "pa.Table":
    pa = need("pyarrow", "spark")
    several = {line for line, nth in zip(numbers, nths, strict=True) if nth}
    events: dict[int, list[Any]] = {}
    lines = table[column].to_pylist()
    for at, (line, nth) in enumerate(zip(numbers, nths, strict=True)):
        if line in several:
            found = events.setdefault(line, read_events(lines[at], LONGEST)) if not nth else events[line]
            lines[at] = found[nth].line().decode() if isinstance(found[nth], Event) else lines[at]
    values = [each.decode() if isinstance(each, bytes) else each for each in lines]
    number = table.schema.get_field_index(column)
    return table.set_column(
        number, table.schema.field(number), pa.array(values, pa.string()).cast(table.field(number).type)
    )


def keeping(recipe: Recipe, names: list[str]) -> Callable[..., Any]:
    """Of rows by key and in order, those that are no copies."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, fold = need("pyarrow", "spark"), Fold(recipe.book())
        for batch in batches:
            taken = fold.take(_rows(batch))
            kept = pa.array([each.verdict not in DROPPED for each in taken], pa.bool_())
            yield batch.filter(kept).select(names)

    return on_worker


def _rows(batch: "pa.RecordBatch") -> EngineColumns:
    pa = need("pyarrow", "spark")
    keys, ranks, rules, versions = (batch.column(name).to_pylist() for name in ("key", RANK, RULE, "version"))
    times = batch.column("time").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    nothing = [0] * len(keys)
    return EngineColumns(keys, ranks, rules, versions, nothing, times, nothing)


class _Lines:
    """The rows of a partition as documents."""

    number, shown = 0, "row"

    def __init__(self, batches: Iterator["pa.RecordBatch"], column: str) -> None:
        self._batches, self._column = batches, column
        self._places: list[tuple[int, int]] = []
        self._before = 0  # rows whose events have been handed on

    def documents(self) -> Iterator[DocumentRow]:
        for batch in self._batches:
            columns = (batch.column(name).to_pylist() for name in (self._column, PLACE, TIE))
            for line, place, tie in zip(*columns, strict=True):
                self._places.append((place, tie))
                raw = line.encode() if isinstance(line, str) else bytes(line or b"")
                yield raw, place, 0, "is null, not an event" if line is None else None

    def placed(self, table: "pa.Table", documents: int) -> "pa.Table":
        """Facts with the places of their rows."""
        pa = need("pyarrow", "spark")
        positions = table["positions"].to_pylist()
        found = [self._places[(position >> NTH_BITS) - 1 - self._before] for position in positions]
        self._places = self._places[documents - self._before :]
        self._before = documents
        return pa.table(
            {
                "header": pa.nulls(len(positions), pa.binary()),
                "place": pa.array([place for place, _ in found], pa.int64()),
                "tie": pa.array([tie for _, tie in found], pa.int64()),
                "nth": pa.array([position & (1 << NTH_BITS) - 1 for position in positions], pa.int32()),
                **{name: table[name] for name in ("rules", "keys", "versions", "contents", "times", "ids", "names")},
                "replayed": table["replayed"].cast(pa.int32()),
            }
        )


def studying(recipe: Recipe, column: str) -> Callable[..., Any]:
    """The facts of rows, and at the end of each partition a header."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, lines = need("pyarrow", "spark"), _Lines(batches, column)
        facts = PartFacts(lines, recipe.book())
        for table in facts.tables():
            placed = lines.placed(table, facts.header.documents)
            yield from placed.to_batches()
        header = pa.array([msgspec.msgpack.encode(facts.header)], pa.binary())
        empty = [header, *(pa.nulls(1, kind) for kind in placed.schema.types[1:])]
        yield pa.RecordBatch.from_arrays(empty, schema=placed.schema)

    return on_worker
