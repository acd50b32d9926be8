"""`eventonce audit`: what a pipeline would have dropped and missed, and why."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from eventonce.cli.archive_options import choose_engine, engine_options
from eventonce.cli.options import complete_files, read_settings, takes_pipeline, traffic_paths
from eventonce.cli.progress import Progress
from eventonce.clock import SystemClock, to_datetime
from eventonce.errors import ConfigError
from eventonce.rules import Rulebook
from eventonce.settings import rulebook
from eventonce.text import safe_json
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit as audit_traffic
from eventonce.traffic.database_audit import audit as audit_on_duckdb
from eventonce.traffic.report import AuditReport
from eventonce.traffic.report_html import html
from eventonce.traffic.report_text import text


@click.command()
@takes_pipeline("traffic")
@click.argument("traffic", nargs=-1, shell_complete=complete_files)
@click.option("--key", type=click.Choice(["id", "content"]), help="Key for events when no rules are given.")
@engine_options
@click.option(
    "--work",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="Folder for what is larger than memory. On a cluster, one that all workers see.",
)
@click.option("--html", "page", type=click.Path(dir_okay=False), help="Write a page with plots, in one file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of the table.")
def audit(
    traffic: tuple[str, ...],
    pipeline: str | None,
    key: str | None,
    engine: str | None,
    column: str | None,
    work: str | None,
    page: str | None,
    *,
    as_json: bool,
) -> None:
    """Show what a pipeline would have done with recorded traffic: dropped, missed, and why.

    TRAFFIC is files, folders or - for stdin: JSON lines or concatenated JSON documents, gzip or not, in any carrier's
    shape. Nothing is run and no store is touched. Without a pipeline, the key of an event is its id.

    For each source and type the report has what is dropped as a duplicate, what only the id or only the content would
    have found, what is dropped with another content and the fields that differ, what is rejected, how long after the
    first the copies came, and the window that would have caught 99, 99.9 and 100 % of them. Exit 1 if something could
    not be read or was rejected.

    Traffic of more than 1 GB is counted by DuckDB in bounded memory, if that is installed. --engine chooses another
    engine. All engines give the same result. Parquet files are read if pyarrow is installed.

    \b
      eventonce audit pipeline.toml traffic.jsonl
      eventonce audit pipeline.toml archive/ --html audit.html
      zcat traffic.gz | eventonce audit --key content --json
    """
    rules = rulebook(read_settings(pipeline, key=key))
    archive = Archive(_paths(traffic), column)
    if page is not None:
        _check_page(page, traffic)
    with Progress(archive) as progress:
        report = _audit(archive, rules, progress, engine, work)
    click.echo(safe_json(msgspec.json.encode(report).decode()) if as_json else text(report).rstrip("\n"))
    if page is not None:
        _write(page, html(report, pipeline or f"none, the key is the {key or 'id'}", to_datetime(SystemClock().utc())))
    sys.exit(0 if report.complete else 1)


def _audit(archive: Archive, rules: Rulebook, progress: Progress, engine: str | None, work: str | None) -> AuditReport:
    chosen = choose_engine(engine, archive)
    if chosen == "memory":
        return audit_traffic(archive, rules, progress.step)
    if chosen == "duckdb":
        return audit_on_duckdb(archive, rules, progress.step, work=work)
    from eventonce.traffic.spark.audit import audit_archive
    from eventonce.traffic.spark.session import session

    with session(chosen) as spark:
        return audit_archive(spark, archive, rules, work)


def _paths(traffic: Sequence[str]) -> Sequence[str]:
    paths = traffic_paths(traffic)
    if not any(path == "-" or os.path.lexists(path) for path in paths):
        raise click.UsageError(f"{', '.join(paths)}: no such file or folder; name files or folders of traffic")
    return paths


def _check_page(page: str, traffic: Sequence[str]) -> None:
    """Raise `ConfigError` before hours of reading, not after."""
    folder = Path(page).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--html: {page}: cannot write to {folder}; name a folder that you may write to")
    if any(Path(path).exists() and Path(page).exists() and Path(page).samefile(path) for path in traffic):
        raise ConfigError(f"--html: {page} is the traffic itself; name another file")


def _write(page: str, text: str) -> None:
    try:
        Path(page).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html: {page}: cannot be written: {error.strerror}") from None
