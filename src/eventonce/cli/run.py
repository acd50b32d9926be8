"""`eventonce run`: the worker."""

import json
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from eventonce.claims.outcome import Action, Outcome
from eventonce.cli.log_filter import Repeats
from eventonce.cli.options import pipeline_options, read_settings
from eventonce.cli.progress import Progress
from eventonce.cli.signals import Say, stopping
from eventonce.clock import duration
from eventonce.errors import EventOnceError, describe
from eventonce.event import Delivery
from eventonce.observe import log
from eventonce.observe.monitoring import Monitoring
from eventonce.observe.outage import awaited
from eventonce.ports import Hook
from eventonce.wire import Pipeline, Settings
from eventonce.worker import OutcomeCounts, Worker, WorkerPool, open_worker
from eventonce.worker.pool import THREADS

if TYPE_CHECKING:
    from eventonce.worker.request_server import RequestServer

_MOST_COMPLAINTS = 20
_OF_EVENTS = ("debug", "info")  # levels at which what became of events is logged
_log = logging.getLogger("eventonce")
_GRACE = "25s"  # within the 30 that containers are given


@click.command()
@click.argument("pipeline", required=False, type=click.Path(dir_okay=False))
@click.option("--source", help="A file of events, - for stdin, sqs://QUEUE or another URL.  [default: -]")
@click.option("--sink", help="- for stdout, a file, python:package.module:function or a URL.  [default: -]")
@click.option("--dead-letter", help="Where to keep what cannot be processed.  [default: eventonce-dead.jsonl]")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), help="Events that are claimed together.  [default: 100, 10 of a queue]"
)
@click.option("--threads", type=click.IntRange(1, 256), help=f"Threads that work on a queue.  [default: {THREADS}]")
@click.option(
    "--grace", default=_GRACE, show_default=True, help="How long a queue's messages in hand may take to stop."
)
@click.option("--listen", help="HOST:PORT for health, numbers and metrics; a port alone is for this machine.")
@click.option(
    "--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True, help="How to log."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What to log.",
)
@click.option("--opentelemetry", is_flag=True, help="A span of OpenTelemetry for each run, in the event's own trace.")
@click.option("--json", "as_json", is_flag=True, help="Close with one JSON line on stderr.")
@pipeline_options
def run(
    pipeline: str | None,
    config: str | None,
    *,
    as_json: bool,
    grace: str,
    listen: str | None,
    opentelemetry: bool,
    **given: Any,
) -> None:
    """Run events through a handler or into a sink, each once.

    PIPELINE is a TOML file; options say the same and count more. Events are JSON lines, or JSON documents one
    behind the other; gzip is recognised. The run ends with its input: exit 0 when every event was processed or
    a duplicate, 1 when any was dead-lettered, failed or unknown.

    On a queue, a stream or for requests it runs until SIGTERM or Ctrl-C: it then begins nothing new, and exits 0 when
    what was in hand is settled within --grace, else 1; what was not comes again. A second signal stops at once. If the
    source or the store does not answer when it starts, it says so and waits; a wrong name or right ends it with exit 2.
    A run of a file waits for nothing: exit 1 when the store does not answer, and nothing was read.

    \b
      eventonce run pipeline.toml
      eventonce run --source sqs://orders --sink python:billing:charge --store redis://localhost
      eventonce run --key content --source events.jsonl --sink once.jsonl
      eventonce run pipeline.toml --listen 9090 --log-format json --log-level info
      opentelemetry-instrument eventonce run pipeline.toml --opentelemetry
      cat events.jsonl | eventonce run --sink python:billing:charge --store sqlite:///billing.db
    """
    if pipeline and config:
        raise click.UsageError("name the pipeline once, as PIPELINE or with --config")
    patience = duration(grace, "--grace")
    in_json, level = given.pop("log_format") == "json", given.pop("log_level")
    log.setup("error" if as_json else level, json=in_json)
    logging.getLogger("eventonce").addFilter(Repeats())
    for name in ("eventonce.outage", "eventonce.patience"):  # nobody should have to guess at an outage
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("eventonce.patience").addFilter(Repeats())  # each thread has its own
    with ExitStack() as stack:
        settings = read_settings(pipeline or config, **given)
        telling = in_json or (level in _OF_EVENTS and not as_json)
        say = _log_it if in_json else _print_it
        monitoring = Monitoring(
            settings.consumer, settings.store, listening=listen is not None, logging=telling, tracing=opentelemetry
        )
        if listen is not None:
            stack.enter_context(monitoring.health(listen))
        parts = _open(settings, monitoring.hooks, say)
        if parts is None:
            _close(OutcomeCounts(), settings.dead_letter, as_json=as_json or in_json)
            return
        stack.callback(parts.close)
        monitoring.start(parts.once.peek)
        stack.callback(monitoring.stop)
        if opentelemetry:
            _warn_if_spans_go_nowhere()
        progress = stack.enter_context(Progress(parts.source))
        worker = open_worker(parts, settings, _Watcher(progress, quiet=as_json or telling))
        try:
            good = _run(worker) if isinstance(worker, Worker) else _serve(worker, patience, say)
        finally:
            progress.done()
            _close(worker.tally, parts.dead_letters.name, as_json=as_json or in_json)
    sys.exit(0 if good else 1)


def _open(settings: Settings, hooks: Sequence[Hook], say: Say) -> Pipeline | None:
    """The pipeline. What is away is waited for, unless a signal comes, or the run is of a file and ends with it."""
    try:
        return Pipeline(settings, hooks)
    except EventOnceError as error:
        if not error.retryable or "://" not in settings.source:
            raise
        failed = error
    stop = threading.Event()
    with stopping(stop.set, say):
        parts = awaited(lambda: Pipeline(settings, hooks), stop, failed)
    if parts is not None and stop.is_set():
        parts.close()
        return None
    return parts


def _print_it(text: str) -> None:
    click.echo(f"eventonce: {text}", err=True)


def _log_it(text: str) -> None:
    _log.info(text)  # as a line of JSON, like all that a log collector reads here


def _warn_if_spans_go_nowhere() -> None:
    """Warn of a missing provider. The handler's module, which may set one up, is loaded by now."""
    from eventonce.observe.opentelemetry import goes_nowhere

    if goes_nowhere():
        _log.warning("--opentelemetry: no provider is set up, so spans go nowhere; start with opentelemetry-instrument")


def _run(worker: Worker) -> bool:
    worker.run()
    return worker.tally.good


def _serve(worker: "WorkerPool | RequestServer", grace: int, say: Say) -> bool:
    if not isinstance(worker, WorkerPool):
        say(f"listening on {worker.address}")
    with stopping(worker.stop, say):
        left = worker.run(grace)
    if left:
        say(f"not finished in time, and will come again: {left} events")
    return not left


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
            self._progress.say(f"{delivery.location}: {outcome.kind}: {describe(outcome.error)}")
        elif self._complaints == _MOST_COMPLAINTS + 1:
            self._progress.say("more of these are not shown; the dead letters have them all")


def _close(tally: OutcomeCounts, dead_letters: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(tally.counts()), err=True)
        return
    click.echo(str(tally), err=True)
    if tally.counts()["dead_lettered"]:
        click.echo(f"dead letters are in {dead_letters}", err=True)
