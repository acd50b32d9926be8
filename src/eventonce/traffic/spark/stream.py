"""Streams on Spark: of the copies that arrive within a window, the first goes on.

    unique = dedup_stream(frame, "pipeline.toml", arrival="timestamp")
    query = unique.writeStream.option("checkpointLocation", place).start(...)
    watch(query)

Spark keeps the keys of a window in its state, and its checkpoint makes output and state one: what was written before a
crash is not written again. What comes with an arrival time older than the window is dropped by Spark before anyone
looks at its key; it may be the only copy. `watch` does not let that pass.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from eventonce.clock import duration, format_duration
from eventonce.errors import ConfigError, EventOnceError
from eventonce.rules import Rulebook
from eventonce.traffic.drivers import need
from eventonce.traffic.keys import Rules, book_of
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.spark import check_column, ddl
from eventonce.traffic.spark.rows import ADDED, KEYED, distinguishing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_ARRIVED, _OWN = "_arrived", "_own"
_EVERY = 1  # seconds between two looks at a query


class LateRows(EventOnceError):
    """Spark has dropped rows as late, which may have been unique."""


def dedup_stream(
    frame: "DataFrame",
    rules: Rules,
    *,
    column: str = "value",
    arrival: str | None = None,
    window: str | None = None,
    event_time: bool = False,
) -> "DataFrame":
    """The rows of a stream without copies, with the columns of `with_key`.

    `arrival` is the column that says when a row arrived, such as `timestamp` of Kafka; without one, it is when Spark
    reads it. `window` is that of the rules where all have the same. Rows without a key are never copies: they go on,
    with `ok` false and a reason.
    """
    book = book_of(rules)
    _check_rules(book)
    check_column(frame, column, [*ADDED, _ARRIVED, _OWN])
    _check_arrival(frame, arrival, event_time=event_time)
    delay = window or _window(book)
    functions = need("pyspark.sql.functions", "spark")
    keyed = frame.mapInArrow(distinguishing(Recipe.of(book), column, _OWN), f"{ddl(frame)}, {_OWN} binary, {KEYED}")
    arrived = functions.current_timestamp() if arrival is None else functions.col(arrival)
    placed = keyed.withColumn(_ARRIVED, arrived).withWatermark(_ARRIVED, _interval(delay))
    return placed.dropDuplicatesWithinWatermark([_OWN]).drop(_OWN, _ARRIVED)


def watch(query: "StreamingQuery", late: Literal["fail", "aside"] = "fail", aside: str | Path | None = None) -> None:
    """Wait for the end of a query, and act when Spark tells of rows that it dropped as late.

    `fail` stops the query and raises `LateRows`. `aside` notes in a file, one line of JSON each time, how many there
    were and from where to where the sources were read: there the rows can be read again.
    """
    if (late == "aside") != (aside is not None):
        raise ConfigError('watch: late = "aside" needs a file to note them in, and nothing else does')
    seen = -1
    active = True
    while active:
        active = not query.awaitTermination(_EVERY)
        for progress in query.recentProgress:
            batch, told = _late(progress)
            if batch > seen and told is not None:
                _act(query, told, aside)
            seen = max(seen, batch)


def _act(query: "StreamingQuery", told: dict[str, Any], aside: str | Path | None) -> None:
    if aside is not None:
        with open(aside, "ab") as stream:
            stream.write(msgspec.json.encode(told) + b"\n")
        return
    query.stop()
    raise LateRows(
        f"Spark dropped {told['rows']} rows of batch {told['batch']} as late, which may be unique: they are in the "
        f"sources from {told['from']} to {told['to']}; read that again, or widen the window"
    )


def _late(progress: Any) -> tuple[int, dict[str, Any] | None]:
    told = msgspec.json.decode(progress.json) if hasattr(progress, "json") else progress
    rows = sum(each.get("numRowsDroppedByWatermark", 0) for each in told["stateOperators"])
    sources = told["sources"]
    places = {name: [each.get(f"{name}Offset") for each in sources] for name in ("start", "end")}
    late = {"batch": told["batchId"], "rows": rows, "from": places["start"], "to": places["end"], "at": _now()}
    return told["batchId"], late if rows else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _check_rules(book: Rulebook) -> None:
    for rule in book.all:
        if rule.rule.version is not None or rule.refresh:
            raise ConfigError(
                f"rule {rule.name!r}: a stream knows no versions and no sliding windows; "
                "use the worker with a shared store, or a batch"
            )


def _check_arrival(frame: "DataFrame", arrival: str | None, *, event_time: bool) -> None:
    if arrival is None:
        return
    if arrival == "time" and not event_time:
        raise ConfigError(
            'arrival: "time" is the event\'s own time: an event that is sent late would be dropped, unique or not; '
            "name the column of its arrival, or say event_time=True where that is meant"
        )
    if arrival != "time":
        check_column(frame, arrival, [])


def _window(book: Rulebook) -> str:
    windows = {rule.window for rule in book.all}
    if len(windows) > 1:
        raise ConfigError("the rules have several windows, and a stream has one; name it with window=")
    return format_duration(windows.pop())


def _interval(window: str) -> str:
    return f"{duration(window, 'window')} milliseconds"
