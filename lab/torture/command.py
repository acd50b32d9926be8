"""`python -m lab torture`: real workers on a real store, harmed in every way, and a verdict."""

import sys
import tempfile
from pathlib import Path

import click
import msgspec

from eventonce.errors import ConfigError
from lab.torture import Torture, TortureReport, TortureSettings
from tests.servers import Missing

_STEP = 10  # of the progress bar in a second
_MOST = 10  # explanations to show


@click.command()
@click.option(
    "--store",
    required=True,
    help="sqlite, redis, postgresql or dynamodb for a server of its own, which is harmed too; or the URL of one.",
)
@click.option("--minutes", type=click.FloatRange(0.05, 10_000), default=1.0, show_default=True, help="How long.")
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Processes.")
@click.option("--rate", type=click.IntRange(1, 10_000), default=60, show_default=True, help="Events in a second.")
@click.option("--plain", is_flag=True, help="Effects outside the store, also where it has transactions.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Where to keep all that happened.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as one line of JSON.")
def torture(
    store: str, minutes: float, workers: int, rate: int, plain: bool, folder: Path | None, as_json: bool
) -> None:
    """Run real workers on a real store and queue while they are killed, frozen, cut off and lied to.

    Events come in one to three copies through SQS, which an emulator (ministack) plays. Every claim, effect, commit
    and ack is written down. In the end: events in, effects, lost, doubled and fenced. An event that took effect
    twice is explained by the promise, or a violation; exit 1 if there is any.

    \b
      python -m lab torture --store sqlite --minutes 5
      python -m lab torture --store postgresql --minutes 5 --json
      python -m lab torture --store redis://localhost:6379/9 --minutes 1
    """
    plan = TortureSettings(store, 60 * minutes, workers, rate, plain)
    run = Torture(plan)
    place = _folder(folder)
    length = round(plan.seconds * _STEP)
    with click.progressbar(length=length, label="torture", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        try:
            verdict = run.run(place, lambda seconds: bar.update(round(seconds * _STEP) - bar.pos))
        except Missing as error:
            raise ConfigError(f"torture: {error}") from error
    (place / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    click.echo(msgspec.json.encode(verdict) if as_json else _text(verdict, place))
    sys.exit(1 if verdict.violations else 0)


def _folder(folder: Path | None) -> Path:
    if folder is None:
        made = Path(tempfile.mkdtemp(prefix="eventonce-torture-"))
        made.chmod(0o755)  # PostgreSQL runs as another user
        return made
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--folder: {folder} is not empty; name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _text(verdict: TortureReport, place: Path) -> str:
    told = msgspec.to_builtins(verdict)
    rows = [(name.replace("_", " "), value) for name, value in told.items() if not isinstance(value, list | dict)]
    rows.append(("faults", ", ".join(f"{count} x {name}" for name, count in verdict.faults.items())))
    rows += [("explained", each) for each in verdict.explained[:_MOST]]
    rows += [("", f"and {len(verdict.explained) - _MOST} more")] if len(verdict.explained) > _MOST else []
    rows += [("VIOLATION", each) for each in verdict.violations] + [("all of it", place)]
    return "\n".join(f"{name:<14} {value}" for name, value in rows)
