"""`eventonce dedupe`: an archive without its duplicates."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import click
import msgspec

from eventonce.cli.archive_options import engine_options
from eventonce.cli.options import read_settings
from eventonce.cli.progress import Progress
from eventonce.traffic.archive import Archive
from eventonce.traffic.dedupe import Copy, DedupeResult, Engine, OneMachine
from eventonce.traffic.dedupe_plan import DedupePlan, Format
from eventonce.wire import rulebook


@click.command()
@click.argument("archive", nargs=-1, required=True)
@click.argument("out")
@click.option("-c", "--config", type=click.Path(dir_okay=False), help="A pipeline file (TOML).")
@click.option("--key", type=click.Choice(["id", "content"]), help="Without rules: what two copies share.")
@click.option(
    "--format", "form", type=click.Choice(get_args(Format)), default="same", help="Of the output.  [default: same]"
)
@engine_options
@click.option("--overwrite", is_flag=True, help="Put the copy in the place of an output folder that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of the sentence.")
def dedupe(
    archive: tuple[str, ...],
    out: str,
    config: str | None,
    key: str | None,
    form: Format,
    engine: str | None,
    column: str | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Copy an archive without its duplicates: what a pipeline would have run, of recorded traffic.

    ARCHIVE is files and folders of JSON lines, gzip or not, or of Parquet with a column of JSON. OUT is a new folder:
    each file comes out under its name in OUT/events, and what could not be read or keyed in OUT/rejected, with the
    reason. Of several copies the first is kept, unless its window was over; `eventonce audit` counts them beforehand.

    OUT is there when all of it is. A run that was stopped leaves OUT.partial, and the same command goes on from there.
    Exit 1 when something could not be read or was rejected.

    \b
      eventonce dedupe -c pipeline.toml archive/ clean/
      eventonce dedupe --key content --format parquet 2026/01/ 2026/02/ clean/
    """
    book = rulebook(read_settings(config, key=key))
    _check(archive)
    plan = DedupePlan(Archive(archive, column), archive, out, form, book)
    plan.check(overwrite=overwrite)
    with _engine(engine) as chosen:
        copying = Copy(plan, chosen)
        with Progress(copying) as progress:
            copied = copying.run(progress.step)
    click.echo(msgspec.json.encode(copied) if as_json else _text(copied, out))
    sys.exit(0 if copied.good else 1)


@contextmanager
def _engine(engine: str | None) -> Iterator[Engine]:
    if engine in (None, "duckdb"):
        yield OneMachine()
    elif engine == "memory":
        raise click.UsageError("--engine: a copy is made by duckdb or by Spark; leave it out for duckdb")
    else:
        from eventonce.traffic.spark.engine import Cluster
        from eventonce.traffic.spark.session import session

        with session(str(engine)) as spark:
            yield Cluster(spark)


def _check(archive: tuple[str, ...]) -> None:
    if "-" in archive:
        raise click.UsageError("-: a copy reads files twice, and stdin cannot be; name files or folders")
    if missing := [path for path in archive if not os.path.lexists(path)]:
        raise click.UsageError(f"{', '.join(missing)}: no such file or folder")


def _text(copied: DedupeResult, out: str) -> str:
    dropped = copied.duplicates + copied.stale
    read = f"{copied.events:,} events in {copied.documents:,} documents of {copied.files:,} files"
    told = [f"{read}: {copied.kept:,} kept, {dropped:,} dropped, {copied.rejected:,} rejected."]
    if copied.rejected:
        told.append(f"what was rejected, and why: {os.path.join(out, 'rejected')}")  # noqa: PTH118  # as it was given
    told += [f"empty: {path}" for path in copied.empty]
    told += [f"not read: {each.path}: {each.reason}" for each in copied.unreadable]
    return "\n".join(told)
