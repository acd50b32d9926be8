"""Streams on Spark: of the copies that arrive within a window, the first is kept.

    unique = dedup_stream(frame, "pipeline.toml", arrival="timestamp")
    query = unique.writeStream.option("checkpointLocation", folder).start(...)
    watch(query)

Spark keeps the keys of a window in its state, and its checkpoint makes output and state one: what was written before a
crash is not written again. Spark drops a row whose arrival time is older than the window without a look at its key. It
may be the only copy. `watch` does not let that pass.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from eventonce.clock import duration, format_duration
from eventonce.errors import ConfigError, EventOnceError
from eventonce.rules import Rulebook
from eventonce.text import counted
from eventonce.traffic.drivers import need
from eventonce.traffic.keys import Rules, rulebook_of
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.spark import check_column, ddl
from eventonce.traffic.spark.rows import ADDED, KEYED, add_distinct_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
else:
    DataFrame = StreamingQuery = Any  # so that type hints can be read without Spark

_ARRIVED, _OWN = "_arrived", "_own"
_POLL_SECONDS = 1  # between two looks at a query


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
    """Return the rows of a stream without duplicates, with the columns of `with_key`.

    `arrival` is the column with the time of a row's arrival, such as `timestamp` of Kafka. Without one, it is the time
    at which Spark reads the row. `window` is that of the rules if all have the same. Rows without a key are never
    copies: they are kept, with `ok` false and a reason.
    """
    rulebook = rulebook_of(rules)
    _check_rules(rulebook)
    check_column(frame, column, [*ADDED, _ARRIVED, _OWN])
    _check_arrival(frame, arrival, event_time=event_time)
    delay = window or _window(rulebook)
    functions = need("pyspark.sql.functions", "spark")
    function = add_distinct_values(Recipe.of(rulebook), column, _OWN)
    keyed = frame.mapInArrow(function, f"{ddl(frame)}, {_OWN} binary, {KEYED}")
    arrived = functions.current_timestamp() if arrival is None else functions.col(arrival)
    timed = keyed.withColumn(_ARRIVED, arrived).withWatermark(_ARRIVED, _interval(delay))
    return timed.dropDuplicatesWithinWatermark([_OWN]).drop(_OWN, _ARRIVED)


def watch(query: "StreamingQuery", late: Literal["fail", "aside"] = "fail", aside: str | Path | None = None) -> None:
    """Wait for the end of a query, and act if Spark reports rows that it dropped as late.

    `fail` stops the query and raises `LateRows`. `aside` writes a line of JSON to a file each time: how many rows there
    were, and between which offsets the sources can be read again for them.
    """
    if (late == "aside") != (aside is not None):
        raise ConfigError('watch: late = "aside" needs a file to note them in, and nothing else does')
    last_batch = -1
    active = True
    while active:
        active = not query.awaitTermination(_POLL_SECONDS)
        for progress in query.recentProgress:
            batch, late_rows = _late_rows(progress)
            if batch > last_batch and late_rows is not None:
                _report(query, late_rows, aside)
            last_batch = max(last_batch, batch)


def _report(query: "StreamingQuery", late_rows: dict[str, Any], aside: str | Path | None) -> None:
    if aside is not None:
        with open(aside, "ab") as stream:
            stream.write(msgspec.json.encode(late_rows) + b"\n")
        return
    query.stop()
    raise LateRows(
        f"Spark dropped {counted(late_rows['rows'], 'row')} of batch {late_rows['batch']} as late, which may be "
        f"unique; read the sources again from {late_rows['from']} to {late_rows['to']}, or widen the window"
    )


def _late_rows(progress: Any) -> tuple[int, dict[str, Any] | None]:
    """Return the number of a batch, and its late rows if there are any."""
    fields = msgspec.json.decode(progress.json) if hasattr(progress, "json") else progress
    rows = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in fields["stateOperators"])
    offsets = {name: [source.get(f"{name}Offset") for source in fields["sources"]] for name in ("start", "end")}
    late_rows = {"batch": fields["batchId"], "rows": rows, "from": offsets["start"], "to": offsets["end"], "at": _now()}
    return fields["batchId"], late_rows if rows else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _check_rules(rulebook: Rulebook) -> None:
    for rule in rulebook.all:
        if rule.rule.version is not None or rule.refresh:
            raise ConfigError(
                f"rule {rule.name!r}: a stream has neither versions nor sliding windows; "
                "use the worker with a shared store, or a batch"
            )


def _check_arrival(frame: "DataFrame", arrival: str | None, *, event_time: bool) -> None:
    if arrival is None:
        return
    if arrival == "time" and not event_time:
        raise ConfigError(
            'arrival: "time" is the event\'s own time: an event that is sent late would be dropped, unique or not; '
            "name the column of its arrival, or use event_time=True if that is intended"
        )
    if arrival != "time":
        check_column(frame, arrival, [])


def _window(rulebook: Rulebook) -> str:
    windows = {rule.window for rule in rulebook.all}
    if len(windows) > 1:
        raise ConfigError("the rules have several windows, and a stream has one; name it with window=")
    return format_duration(windows.pop())


def _interval(window: str) -> str:
    return f"{duration(window, 'window')} milliseconds"
