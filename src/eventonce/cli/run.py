"""`eventonce run`: the worker."""

import json
import logging
import sys
from contextlib import ExitStack
from typing import Any

import click

from eventonce.cli.options import pipeline_options, read_settings
from eventonce.cli.progress import Progress
from eventonce.errors import describe
from eventonce.event import Delivery
from eventonce.outcome import Action, Outcome
from eventonce.pipeline import Pipeline
from eventonce.worker import Tally, Worker

_MOST_COMPLAINTS = 20


@click.command()
@click.argument("pipeline", required=False, type=click.Path(dir_okay=False))
@click.option("--source", help="A file of events, or - for stdin.  [default: -]")
@click.option("--sink", help="- for stdout, a file, or python:package.module:function.  [default: -]")
@click.option("--dead-letter", help="A file for what cannot be processed.  [default: eventonce-dead.jsonl]")
@click.option("--batch", type=click.IntRange(1, 10_000), help="Events that are claimed together.  [default: 100]")
@click.option("--json", "as_json", is_flag=True, help="Close with one JSON line on stderr.")
@pipeline_options
def run(pipeline: str | None, config: str | None, *, as_json: bool, **given: Any) -> None:
    """Run events through a handler or into a sink, each once.

    PIPELINE is a TOML file; options say the same and count more. Events are JSON lines, or JSON documents one
    behind the other; gzip is recognised. The run ends with its input: exit 0 when every event was processed or
    a duplicate, 1 when any was dead-lettered, failed or unknown.

    \b
      eventonce run pipeline.toml
      eventonce run --key content --source events.jsonl --sink once.jsonl
      cat events.jsonl | eventonce run --sink python:billing:charge --store sqlite:///billing.db
    """
    if pipeline and config:
        raise click.UsageError("name the pipeline once, as PIPELINE or with --config")
    logging.basicConfig(format="eventonce: %(message)s", level=logging.ERROR if as_json else logging.WARNING)
    with ExitStack() as stack:
        settings = read_settings(pipeline or config, **given)
        parts = Pipeline(settings)
        stack.callback(parts.close)
        progress = stack.enter_context(Progress(parts.source))
        watch = _Watcher(progress, quiet=as_json)
        worker = Worker(
            parts.once,
            parts.source,
            parts.handler,
            parts.dead_letters,
            batch=settings.batch,
            watch=watch,
        )
        try:
            worker.run()
        finally:
            progress.done()
            _close(worker.tally, parts.dead_letters.name, as_json=as_json)
    sys.exit(0 if worker.tally.good else 1)


class _Watcher:
    """Says what went wrong, but not a thousand times."""

    def __init__(self, progress: Progress, *, quiet: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._complaints = 0

    def __call__(self, delivery: Delivery, outcome: Outcome) -> None:
        self._progress.step()
        if outcome.action is Action.ACK or self._quiet:
            return
        self._complaints += 1
        if self._complaints <= _MOST_COMPLAINTS:
            self._progress.say(f"{delivery.place}: {outcome.kind}: {describe(outcome.error)}")
        elif self._complaints == _MOST_COMPLAINTS + 1:
            self._progress.say("more of these are not shown; the dead letters have them all")


def _close(tally: Tally, dead_letters: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(tally.counts()), err=True)
        return
    click.echo(str(tally), err=True)
    if tally.counts()["dead_lettered"]:
        click.echo(f"dead letters are in {dead_letters}", err=True)
