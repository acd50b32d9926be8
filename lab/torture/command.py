"""`python -m lab torture`: real workers on a real store, harmed in every way, and a report."""

import sys
import tempfile
from pathlib import Path

import click
import msgspec

from eventonce.errors import ConfigError
from lab.torture import Torture, TortureReport, TortureSettings
from tests.servers import Missing

_STEP = 10  # of the progress bar in a second
_MAX_EXPLANATIONS = 10


@click.command()
@click.option(
    "--store",
    required=True,
    help="sqlite, redis, postgresql or dynamodb for a server of its own, which is harmed too; or the URL of one.",
)
@click.option(
    "--minutes", type=click.FloatRange(0.05, 10_000), default=1.0, show_default=True, help="Length of the run."
)
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Number of processes.")
@click.option("--rate", type=click.IntRange(1, 10_000), default=60, show_default=True, help="Events in a second.")
@click.option("--plain", is_flag=True, help="Effects outside the store, even if it has transactions.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for everything that happened.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
def torture(
    store: str, minutes: float, workers: int, rate: int, plain: bool, folder: Path | None, as_json: bool
) -> None:
    """Run real workers on a real store and queue while they are killed, frozen, cut off and given wrong clocks.

    Events come in one to three copies through SQS, which is emulated (ministack). Every claim, effect, commit and ack
    is written down. The report counts events, effects, lost, doubled and fenced. An event that took effect twice is
    explained by the promise, or is a violation. Exit 1 if there is any violation.

    \b
      python -m lab torture --store sqlite --minutes 5
      python -m lab torture --store postgresql --minutes 5 --json
      python -m lab torture --store redis://localhost:6379/9 --minutes 1
    """
    settings = TortureSettings(store, 60 * minutes, workers, rate, plain)
    run = Torture(settings)
    folder = _create(folder)
    length = round(settings.seconds * _STEP)
    with click.progressbar(length=length, label="torture", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        try:
            report = run.run(folder, lambda seconds: bar.update(round(seconds * _STEP) - bar.pos))
        except Missing as error:
            raise ConfigError(f"torture: {error}") from error
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    click.echo(msgspec.json.encode(report) if as_json else _text(report, folder))
    sys.exit(1 if report.violations else 0)


def _create(folder: Path | None) -> Path:
    if folder is None:
        temporary = Path(tempfile.mkdtemp(prefix="eventonce-torture-"))
        temporary.chmod(0o755)  # PostgreSQL runs as another user
        return temporary
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--folder: {folder} is not empty; use a new one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _text(report: TortureReport, folder: Path) -> str:
    fields = msgspec.to_builtins(report)
    rows = [(name.replace("_", " "), value) for name, value in fields.items() if not isinstance(value, list | dict)]
    rows.append(("faults", ", ".join(f"{count} x {name}" for name, count in report.faults.items())))
    rows += [("explained", each) for each in report.explained[:_MAX_EXPLANATIONS]]
    if (more := len(report.explained) - _MAX_EXPLANATIONS) > 0:
        rows.append(("", f"and {more} more"))
    rows += [("VIOLATION", each) for each in report.violations] + [("folder", folder)]
    return "\n".join(f"{name:<14} {value}" for name, value in rows)
