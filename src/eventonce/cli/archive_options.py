"""Which engine reads an archive: this process, DuckDB on this machine, or a cluster."""

from importlib.util import find_spec
from typing import Any

import click

from eventonce.cli.options import Command
from eventonce.errors import ConfigError
from eventonce.traffic.archive import Archive

LARGE = 1 << 30  # bytes of traffic beyond which DuckDB counts, if it is installed
_SPARK = ("spark://", "local[", "sc://", "yarn", "k8s://")


def engine_options(command: Command) -> Command:
    """Add the options for the engine, and for the column of a Parquet file."""
    column = click.option("--column", help="Parquet column with the events as JSON.")
    engine = click.option(
        "--engine",
        metavar="ENGINE",
        callback=_valid,
        help="memory, duckdb, or Spark: spark://HOST:PORT, local[*], or sc://HOST of Spark Connect.",
    )
    return engine(column(command))


def _valid(context: click.Context, option: click.Parameter, value: Any) -> Any:
    if value is None or value in ("memory", "duckdb") or value.startswith(_SPARK):
        return value
    raise click.BadParameter(f"unknown engine {value!r}; use memory, duckdb, spark://HOST:PORT, local[*] or sc://HOST")


def choose_engine(engine: str | None, archive: Archive) -> str:
    """Return the engine that was named, or the one that suits the archive."""
    if engine not in (None, "memory") and not archive.repeatable:
        raise ConfigError(f"--engine: {engine} cannot read a pipe; write it to a file first")
    if engine is not None:
        return engine
    large = (archive.size or 0) > LARGE
    return "duckdb" if large and find_spec("duckdb") and find_spec("pyarrow") else "memory"
