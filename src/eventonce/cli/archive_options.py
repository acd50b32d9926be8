"""Which engine reads an archive: this process, DuckDB on this machine, or a cluster."""

from importlib.util import find_spec
from typing import Any

import click

from eventonce.cli.options import Command
from eventonce.errors import ConfigError
from eventonce.traffic.archive import Archive

LARGE = 1 << 30  # bytes of traffic beyond which DuckDB counts, where it is installed
_SPARK = ("spark://", "local[", "sc://", "yarn", "k8s://")


def engine_options(command: Command) -> Command:
    """What reads the archive, and where in a Parquet file the events are."""
    column = click.option("--column", help="Of Parquet files: the column that holds the events as JSON.")
    engine = click.option(
        "--engine",
        metavar="ENGINE",
        callback=_known,
        help="memory, duckdb, or Spark: spark://HOST:PORT, local[*], or sc://HOST of Spark Connect.",
    )
    return engine(column(command))


def _known(context: click.Context, option: click.Parameter, value: Any) -> Any:
    if value is None or value in ("memory", "duckdb") or value.startswith(_SPARK):
        return value
    raise click.BadParameter(f"{value!r} is none; use memory, duckdb, spark://HOST:PORT, local[*] or sc://HOST")


def choose(engine: str | None, archive: Archive) -> str:
    """The engine that was named, or the one that suits the archive."""
    if engine not in (None, "memory") and not archive.lasting:
        raise ConfigError(f"--engine: {engine} reads files, and a pipe is none; write it to a file first")
    if engine is not None:
        return engine
    large = (archive.size or 0) > LARGE
    return "duckdb" if large and find_spec("duckdb") and find_spec("pyarrow") else "memory"
