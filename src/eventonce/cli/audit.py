"""`eventonce audit`: what would have been dropped, missed, and why."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from eventonce.cli.archive_options import choose, engine_options
from eventonce.cli.options import read_settings
from eventonce.cli.progress import Progress
from eventonce.errors import ConfigError
from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit as audit_traffic
from eventonce.traffic.database_audit import audit as audit_on_duckdb
from eventonce.traffic.report import AuditReport
from eventonce.traffic.report_html import html
from eventonce.traffic.report_text import text
from eventonce.wire import rulebook


@click.command()
@click.argument("traffic", nargs=-1)
@click.option("-c", "--config", type=click.Path(dir_okay=False), help="A pipeline file (TOML).")
@click.option("--key", type=click.Choice(["id", "content"]), help="Without rules: what two copies share.")
@engine_options
@click.option(
    "--work",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="A folder for what is larger than memory; on a cluster, one that all workers see.",
)
@click.option("--html", "page", type=click.Path(dir_okay=False), help="Write a page with plots, in one file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of the table.")
def audit(
    traffic: tuple[str, ...],
    config: str | None,
    key: str | None,
    engine: str | None,
    column: str | None,
    work: str | None,
    page: str | None,
    *,
    as_json: bool,
) -> None:
    """Show what a pipeline would have done with recorded traffic: dropped, missed, and why.

    TRAFFIC is files, folders or - for stdin: JSON lines or JSON documents one behind the other, gzip or not, in any
    carrier's shape. Nothing is run and no store is touched. Without a pipeline, events are told apart by their id.

    For each source and type: what is dropped as a duplicate; what only the id or only the content would have found;
    what is dropped with another content, and the fields that differ; what is rejected; how long after the first the
    copies came, and the window that would have caught 99, 99.9 and 100 % of them. Exit 1 when something could not be
    read or was rejected.

    Traffic of more than 1 GB is counted by DuckDB where that is installed, in bounded memory; --engine chooses another
    engine. All of them tell the same. Parquet files are read where pyarrow is installed.

    \b
      eventonce audit -c pipeline.toml traffic.jsonl
      eventonce audit -c pipeline.toml archive/ --html audit.html
      zcat traffic.gz | eventonce audit --key content --json
    """
    book = rulebook(read_settings(config, key=key))
    recorded = Archive(_paths(traffic), column)
    if page is not None:
        _check_page(page, traffic)
    with Progress(recorded) as progress:
        report = _audit(recorded, book, progress, engine, work)
    click.echo(msgspec.json.encode(report) if as_json else text(report).rstrip("\n"))
    if page is not None:
        _write(page, report)
    sys.exit(0 if report.good else 1)


def _audit(recorded: Archive, book: Rulebook, progress: Progress, engine: str | None, work: str | None) -> AuditReport:
    chosen = choose(engine, recorded)
    if chosen == "memory":
        return audit_traffic(recorded, book, progress.step)
    if chosen == "duckdb":
        return audit_on_duckdb(recorded, book, progress.step, work=work)
    from eventonce.traffic.spark.audit import audit_archive
    from eventonce.traffic.spark.session import session

    with session(chosen) as spark:
        return audit_archive(spark, recorded, book, work)


def _paths(traffic: Sequence[str]) -> Sequence[str]:
    paths = traffic or ("-",)
    if "-" in paths and (sys.stdin is None or (not traffic and sys.stdin.isatty())):
        raise click.UsageError("name files or folders of traffic, or give it on stdin")
    if not any(path == "-" or os.path.lexists(path) for path in paths):
        raise click.UsageError(f"{', '.join(paths)}: no such file or folder; name files or folders of traffic")
    return paths


def _check_page(page: str, traffic: Sequence[str]) -> None:
    """Before hours of reading, not after."""
    folder = Path(page).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--html: {page}: {folder} is no folder that can be written to")
    if any(Path(each).exists() and Path(page).exists() and Path(page).samefile(each) for each in traffic):
        raise ConfigError(f"--html: {page} is the traffic itself; name another file")


def _write(page: str, report: AuditReport) -> None:
    try:
        Path(page).write_text(html(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html: {page}: cannot be written: {error.strerror}") from None
