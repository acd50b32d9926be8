"""Keys, audits and deduplication of any DataFrame of Spark that has a column of JSON lines.

    from eventonce.traffic import spark
    keyed = spark.with_key(frame, "pipeline.toml", column="value")

For folders that all workers see, `eventonce audit` and `eventonce dedupe` with `--engine` shuffle keys only. The
deduplication of a DataFrame shuffles its rows.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from eventonce.errors import ConfigError
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import conclude
from eventonce.traffic.count import AuditCount
from eventonce.traffic.drivers import need
from eventonce.traffic.keys import Rules, rulebook_of
from eventonce.traffic.part_facts import FactsHeader
from eventonce.traffic.recipe import Recipe
from eventonce.traffic.report import AuditReport
from eventonce.traffic.spark import rows as on_workers
from eventonce.traffic.spark.audit import count_facts
from eventonce.traffic.spark.engine import ranked
from eventonce.traffic.spark.rows import ADDED, FACTS, INDEX, KEYED, PLACE, RULE, TIE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
else:
    DataFrame = Any  # so that type hints can be read without Spark


def with_key(frame: "DataFrame", rules: Rules, column: str = "value") -> "DataFrame":
    """Return the rows with `key`, `rule`, `version`, `time`, `ok` and `reason`, as `keys_arrow` does.

    A line with several events becomes several rows. A row without a key has a reason: never let such rows take part in
    `dropDuplicates`, where NULL equals NULL and only one of them would remain.
    """
    check_column(frame, column, ADDED)
    recipe = Recipe.of(rulebook_of(rules))
    return frame.mapInArrow(on_workers.add_keys(recipe, column), f"{ddl(frame)}, {KEYED}")


class SparkDedupeResult(NamedTuple):
    """The rows of a DataFrame without duplicates, and those without a key."""

    kept: "DataFrame"
    rejected: "DataFrame"  # with the reason


def dedupe(frame: "DataFrame", rules: Rules, column: str = "value", order: str | None = None) -> SparkDedupeResult:
    """Return the rows without duplicates, and those without a key.

    `order` is a column of whole numbers that grows with each arrival: of several copies, the first by it is kept.
    Without one, the order of the DataFrame is taken. Each event that is kept of a line with several has a row.
    """
    numbered, recipe = _with_order(frame, column, order), Recipe.of(rulebook_of(rules))
    schema = f"{ddl(numbered)}, {INDEX} int, {RULE} int, {KEYED}"
    keyed = numbered.mapInArrow(on_workers.split_and_add_keys(recipe, column), schema)
    rejected = keyed.where("NOT ok").select(*frame.columns, "reason")
    by_key = ranked(keyed.where("ok"), "key", [PLACE, TIE, INDEX])
    kept = by_key.mapInArrow(on_workers.drop_duplicates(recipe, frame.columns), ddl(frame))
    return SparkDedupeResult(kept, rejected)


def audit(frame: "DataFrame", rules: Rules, column: str = "value", order: str | None = None) -> AuditReport:
    """Audit the lines as `eventonce audit` does, but without the fields that differ in suspicious drops."""
    rulebook = rulebook_of(rules)
    numbered = _with_order(frame, column, order)
    rows = numbered.mapInArrow(on_workers.make_facts(Recipe.of(rulebook), column), FACTS).persist()
    try:
        packed = rows.where("header IS NOT NULL").select("header").collect()
        headers = [msgspec.msgpack.decode(bytes(row.header), type=FactsHeader) for row in packed]
        count = AuditCount()
        for header in headers:
            header.add_to(count)
        count_facts(rows.where("header IS NULL").drop("header"), rulebook, count, ("place", "tie", "nth"))
    finally:
        rows.unpersist()
    archive = Archive([])
    archive.documents = sum(header.documents for header in headers)
    return conclude(archive, rulebook, count)


# --- columns ---


def _with_order(frame: "DataFrame", column: str, order: str | None) -> "DataFrame":
    """Add the place of each row, and a number that distinguishes rows of one place."""
    functions = need("pyspark.sql.functions", "spark")
    check_column(frame, column, [PLACE, TIE])
    if order is not None:
        check_column(frame, order, [])
    with_tie = frame.withColumn(TIE, functions.monotonically_increasing_id())
    return with_tie.withColumn(PLACE, functions.col(TIE) if order is None else functions.col(order).cast("long"))


def check_column(frame: "DataFrame", column: str, added: list[str]) -> None:
    """Raise `ConfigError` if the column is missing, or if one of those to be added exists."""
    if column not in frame.columns:
        raise ConfigError(f"the DataFrame has no column {column!r}; it has {', '.join(frame.columns)[:300]}")
    if existing := [name for name in added if name in frame.columns]:
        raise ConfigError(f"the DataFrame has a column {existing[0]!r} already, which is to be added; rename it")


def ddl(frame: "DataFrame") -> str:
    """Return the columns as a schema is written."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields)
