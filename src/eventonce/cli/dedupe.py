"""`eventonce dedupe`: an archive without its duplicates."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import click
import msgspec

from eventonce.cli.archive_options import engine_options
from eventonce.cli.options import complete_files, read_settings, takes_pipeline
from eventonce.cli.progress import Progress
from eventonce.settings import rulebook
from eventonce.text import counted, printable, safe_json
from eventonce.traffic.archive import Archive
from eventonce.traffic.dedupe import Dedupe, DedupeEngine, DedupeResult, OneMachine
from eventonce.traffic.dedupe_plan import DedupePlan, Format


@click.command()
@takes_pipeline("archive")
@click.argument("archive", nargs=-1, metavar="ARCHIVE...", shell_complete=complete_files)
@click.argument("out", type=click.Path(readable=False))
@click.option("--key", type=click.Choice(["id", "content"]), help="Key for events when no rules are given.")
@click.option(
    "--format", "form", type=click.Choice(get_args(Format)), default="same", help="Output format.  [default: same]"
)
@engine_options
@click.option("--overwrite", is_flag=True, help="Replace an output folder that exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of the sentence.")
def dedupe(
    archive: tuple[str, ...],
    out: str,
    pipeline: str | None,
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
    each file is written under its name in OUT/events, and what could not be read or keyed in OUT/rejected, with the
    reason. Of several copies the first is kept. A copy whose window has expired is kept, too. `eventonce audit` counts
    them beforehand.

    OUT exists only when it is complete. A run that was stopped leaves OUT.partial, and the same command resumes there.
    Exit 1 if something could not be read or was rejected.

    \b
      eventonce dedupe pipeline.toml archive/ clean/
      eventonce dedupe --key content --format parquet 2026/01/ 2026/02/ clean/
    """
    rules = rulebook(read_settings(pipeline, key=key))
    _check(archive)
    plan = DedupePlan(Archive(archive, column), archive, out, form, rules)
    plan.check(overwrite=overwrite)
    with _engine(engine) as chosen:
        running = Dedupe(plan, chosen)
        with Progress(running) as progress:
            result = running.run(progress.step)
    click.echo(safe_json(msgspec.json.encode(result).decode()) if as_json else _text(result, out))
    sys.exit(0 if result.complete else 1)


@contextmanager
def _engine(engine: str | None) -> Iterator[DedupeEngine]:
    if engine in (None, "duckdb"):
        yield OneMachine()
    elif engine == "memory":
        raise click.UsageError("--engine: duplicates are dropped by duckdb or by Spark; leave it out for duckdb")
    else:
        from eventonce.traffic.spark.engine import Cluster
        from eventonce.traffic.spark.session import session

        with session(str(engine)) as spark:
            yield Cluster(spark)


def _check(archive: tuple[str, ...]) -> None:
    if not archive:
        raise click.UsageError("name files or folders to copy, and after them the new folder OUT")
    if "-" in archive:
        raise click.UsageError("-: files are read twice, and stdin cannot be; name files or folders")
    if missing := [path for path in archive if not os.path.lexists(path)]:
        raise click.UsageError(f"{', '.join(missing)}: no such file or folder; check the name")


def _text(result: DedupeResult, out: str) -> str:
    dropped = result.duplicates + result.stale
    documents, files = counted(result.documents, "document"), counted(result.files, "file")
    read = f"{counted(result.events, 'event')} in {documents} of {files}"
    lines = [f"{read}: {result.kept:,} kept, {dropped:,} dropped, {result.rejected:,} rejected."]
    if result.rejected:
        lines.append(f"what was rejected, and why: {os.path.join(out, 'rejected')}")  # noqa: PTH118  # as it was given
    lines += [f"empty: {printable(path)}" for path in result.empty]
    lines += [f"not read: {printable(file.path)}: {printable(file.reason)}" for file in result.unreadable]
    return "\n".join(lines)
