"""Keys, audits and copies of any DataFrame of Spark: what a column of JSON lines holds, wherever it came from.

    from eventonce.traffic import spark
    keyed = spark.with_key(frame, "pipeline.toml", column="value")

For folders that all workers see, `eventonce audit` and `eventonce dedupe` with `--engine` shuffle keys only. A copy of
a DataFrame shuffles its rows.
"""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from eventonce.errors import ConfigError
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import conclude
from eventonce.traffic.count import AuditCount
from eventonce.traffic.drivers import need
from eventonce.traffic.keys import Rules, book_of
from eventonce.traffic.part_facts import FactsHeader
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.report import AuditReport
from eventonce.traffic.spark.audit import count
from eventonce.traffic.spark.engine import ordered
from eventonce.traffic.spark.rows import ADDED, FACTS, KEYED, NTH, PLACE, RULE, TIE, keeping, keying, marking, studying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_key(frame: "DataFrame", rules: Rules, column: str = "value") -> "DataFrame":
    """The rows with `key`, `rule`, `version`, `time`, `ok` and `reason`, as `keys_arrow` gives them.

    A line that carries several events becomes several rows. A row that has no key has a reason: never let such rows
    take part in `dropDuplicates`, where NULL equals NULL and all but one of them would be gone.
    """
    check_column(frame, column, ADDED)
    recipe = Recipe.of(book_of(rules))
    return frame.mapInArrow(keying(recipe, column), f"{ddl(frame)}, {KEYED}")


class SparkDedupeResult(NamedTuple):
    """A copy of a DataFrame."""

    kept: "DataFrame"
    rejected: "DataFrame"  # with the reason


def copy(frame: "DataFrame", rules: Rules, column: str = "value", order: str | None = None) -> SparkDedupeResult:
    """The rows without copies, and those that have no key.

    `order` is a column of whole numbers that grows with each arrival: of several copies, the first by it is kept.
    Without one it is the order of the DataFrame. Of a line that carries several events, each that is kept has a row.
    """
    placed, recipe = _placed(frame, column, order), Recipe.of(book_of(rules))
    keyed = placed.mapInArrow(marking(recipe, column), f"{ddl(placed)}, {NTH} int, {RULE} int, {KEYED}")
    rejected = keyed.where("NOT ok").select(*frame.columns, "reason")
    sorted_rows = ordered(keyed.where("ok"), "key", [PLACE, TIE, NTH])
    kept = sorted_rows.mapInArrow(keeping(recipe, frame.columns), ddl(frame))
    return SparkDedupeResult(kept, rejected)


def audit(frame: "DataFrame", rules: Rules, column: str = "value", order: str | None = None) -> AuditReport:
    """What `eventonce audit` tells of the same lines; which fields of suspicious drops differ is not looked at."""
    book = book_of(rules)
    found = _placed(frame, column, order).mapInArrow(studying(Recipe.of(book), column), FACTS).persist()
    try:
        told = found.where("header IS NOT NULL").select("header").collect()
        headers = [msgspec.msgpack.decode(bytes(row.header), type=FactsHeader) for row in told]
        tally = AuditCount(book)
        tally.head(headers)
        count(found.where("header IS NULL").drop("header"), book, tally, ("place", "tie", "nth"))
    finally:
        found.unpersist()
    archive = Archive([])
    archive.documents = sum(header.documents for header in headers)
    return conclude(archive, book, tally)


# --- columns ---


def _placed(frame: "DataFrame", column: str, order: str | None) -> "DataFrame":
    """With the place of each row, and what tells rows of one place apart."""
    functions = need("pyspark.sql.functions", "spark")
    check_column(frame, column, [PLACE, TIE])
    if order is not None:
        check_column(frame, order, [])
    own = functions.monotonically_increasing_id()
    placed = frame.withColumn(TIE, own)
    return placed.withColumn(PLACE, functions.col(TIE) if order is None else functions.col(order).cast("long"))


def check_column(frame: "DataFrame", column: str, added: list[str]) -> None:
    """That there is such a column, and none of those that are to be added."""
    if column not in frame.columns:
        raise ConfigError(f"the DataFrame has no column {column!r}; it has {', '.join(frame.columns)[:300]}")
    if taken := [name for name in added if name in frame.columns]:
        raise ConfigError(f"the DataFrame has a column {taken[0]!r} already, which is to be added; rename it")


def ddl(frame: "DataFrame") -> str:
    """The columns, as a schema is written."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields)
