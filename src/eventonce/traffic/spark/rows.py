"""The functions that workers apply to the rows of a DataFrame."""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.event import Event
from eventonce.event.formats import read_events
from eventonce.sources.documents import LONGEST
from eventonce.traffic.archive import INDEX_BITS
from eventonce.traffic.drivers import need
from eventonce.traffic.file_ranges import DocumentRow
from eventonce.traffic.fold import DROPPED, EngineColumns, Fold
from eventonce.traffic.keys import keys_arrow
from eventonce.traffic.part_facts import PartFacts
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.spark.engine import RANK

if TYPE_CHECKING:
    import pyarrow as pa

KEYED = "key binary, rule string, version long, time timestamp, ok boolean, reason string"
ADDED = [column.split()[0] for column in KEYED.split(", ")]
PLACE, TIE, INDEX, RULE = "_place", "_tie", "_nth", "_rule"
FACTS = (
    "header binary, place long, tie long, nth int, rules int, keys long, versions long, contents long, "
    "times long, ids long, names long, replayed int"
)

_UNIQUE_BYTES = 17  # no key is as long


def add_keys(recipe: Recipe, column: str) -> Callable[..., Any]:
    """Return a function that adds keys to rows."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        rulebook = recipe.rulebook()
        for batch in batches:
            keys = keys_arrow(batch.column(column), rulebook)
            yield from _with_keys(_rows_of(batch, keys), keys)

    return on_worker


def split_and_add_keys(recipe: Recipe, column: str) -> Callable[..., Any]:
    """Return a function that adds keys to rows, with a row for each event, and its index in its line."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, rulebook = need("pyarrow", "spark"), recipe.rulebook()
        for batch in batches:
            keys = keys_arrow(batch.column(column), rulebook)
            lines = keys["line"].to_pylist()
            indices = _indices(lines)
            rows = _rows_of(batch, keys)
            rows = _split(rows, column, lines, indices) if any(indices) else rows
            rules = pa.chunked_array([chunk.indices for chunk in keys["rule"].chunks], pa.int32())
            rows = rows.append_column(INDEX, pa.array(indices, pa.int32())).append_column(RULE, rules)
            yield from _with_keys(rows, keys)

    return on_worker


def add_distinct_values(recipe: Recipe, column: str, added: str) -> Callable[..., Any]:
    """Return a function that adds keys to rows, and a value that is the key, or unique if there is none.

    Engines take NULL for equal to NULL: without it, only one of the rows that have no key would remain.
    """

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, rulebook = need("pyarrow", "spark"), recipe.rulebook()
        for batch in batches:
            keys = keys_arrow(batch.column(column), rulebook)
            values = [key or os.urandom(_UNIQUE_BYTES) for key in keys["key"].to_pylist()]
            rows = _rows_of(batch, keys).append_column(added, pa.array(values, pa.binary()))
            yield from _with_keys(rows, keys)

    return on_worker


def _rows_of(batch: "pa.RecordBatch", keys: "pa.Table") -> "pa.Table":
    """Return the row of each event."""
    return need("pyarrow", "spark").Table.from_batches([batch]).take(keys["line"])


def _with_keys(rows: "pa.Table", keys: "pa.Table") -> Iterator["pa.RecordBatch"]:
    pa = need("pyarrow", "spark")
    kinds = {"key": pa.binary(), "rule": pa.string(), "time": pa.timestamp("us", "UTC")}  # as Spark wants them
    for name in ADDED:
        rows = rows.append_column(name, keys[name].cast(kinds.get(name, keys[name].type)))
    yield from rows.to_batches()


def _indices(lines: list[int]) -> list[int]:
    """Return the index of each event in its line."""
    indices: list[int] = []
    for number, line in enumerate(lines):
        indices.append(indices[-1] + 1 if number and lines[number - 1] == line else 0)
    return indices


def _split(table: "pa.Table", column: str, lines: list[int], indices: list[int]) -> "pa.Table":
    """Replace each line with several events by its events, one in each row."""
    pa = need("pyarrow", "spark")
    several = {line for line, index in zip(lines, indices, strict=True) if index}
    events_of: dict[int, list[Any]] = {}
    values = table[column].to_pylist()
    for row, (line, index) in enumerate(zip(lines, indices, strict=True)):
        if line in several:
            if not index:
                events_of[line] = read_events(values[row], LONGEST)
            event = events_of[line][index]
            values[row] = event.line().decode() if isinstance(event, Event) else values[row]
    texts = [value.decode() if isinstance(value, bytes) else value for value in values]
    number = table.schema.get_field_index(column)
    return table.set_column(
        number, table.schema.field(number), pa.array(texts, pa.string()).cast(table.field(number).type)
    )


def drop_duplicates(recipe: Recipe, names: list[str]) -> Callable[..., Any]:
    """Return a function that drops duplicates from rows that come by key and arrival."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, fold = need("pyarrow", "spark"), Fold(recipe.rulebook())
        for batch in batches:
            decisions = fold.decide(_engine_columns(batch))
            kept_rows = pa.array([decision.kind not in DROPPED for decision in decisions], pa.bool_())
            yield batch.filter(kept_rows).select(names)

    return on_worker


def _engine_columns(batch: "pa.RecordBatch") -> EngineColumns:
    pa = need("pyarrow", "spark")
    keys, ranks, rules, versions = (batch.column(name).to_pylist() for name in ("key", RANK, RULE, "version"))
    times = batch.column("time").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    nothing = [0] * len(keys)
    return EngineColumns(keys, ranks, rules, versions, nothing, times, nothing)


class _Lines:
    """The rows of a partition as documents."""

    number, display_name = 0, "row"

    def __init__(self, batches: Iterator["pa.RecordBatch"], column: str) -> None:
        self._batches, self._column = batches, column
        self._places: list[tuple[int, int]] = []
        self._before = 0  # rows whose facts are complete

    def documents(self) -> Iterator[DocumentRow]:
        for batch in self._batches:
            columns = (batch.column(name).to_pylist() for name in (self._column, PLACE, TIE))
            for line, place, tie in zip(*columns, strict=True):
                self._places.append((place, tie))
                raw = line.encode() if isinstance(line, str) else bytes(line or b"")
                yield raw, place, 0, "is null, not an event" if line is None else None

    def with_places(self, table: "pa.Table", documents: int) -> "pa.Table":
        """Return facts with the places of their rows."""
        pa = need("pyarrow", "spark")
        positions = table["positions"].to_pylist()
        places = [self._places[(position >> INDEX_BITS) - 1 - self._before] for position in positions]
        self._places = self._places[documents - self._before :]
        self._before = documents
        return pa.table(
            {
                "header": pa.nulls(len(positions), pa.binary()),
                "place": pa.array([place for place, _ in places], pa.int64()),
                "tie": pa.array([tie for _, tie in places], pa.int64()),
                "nth": pa.array([position & (1 << INDEX_BITS) - 1 for position in positions], pa.int32()),
                **{name: table[name] for name in ("rules", "keys", "versions", "contents", "times", "ids", "names")},
                "replayed": table["replayed"].cast(pa.int32()),
            }
        )


def make_facts(recipe: Recipe, column: str) -> Callable[..., Any]:
    """Return a function that makes the facts of rows, and a header at the end of each partition."""

    def on_worker(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        pa, lines = need("pyarrow", "spark"), _Lines(batches, column)
        facts = PartFacts(lines, recipe.rulebook())
        for table in facts.tables():
            with_places = lines.with_places(table, facts.header.documents)
            yield from with_places.to_batches()
        header = pa.array([msgspec.msgpack.encode(facts.header)], pa.binary())
        empty = [header, *(pa.nulls(1, kind) for kind in with_places.schema.types[1:])]
        yield pa.RecordBatch.from_arrays(empty, schema=with_places.schema)

    return on_worker
