"""`eventonce run`: run events through a handler or into a sink."""

import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from eventonce.claims.outcome import Action, Outcome
from eventonce.cli import stderr
from eventonce.cli.log_filter import Repeats
from eventonce.cli.options import (
    allow_host_option,
    complete_files,
    display_url,
    pipeline_options,
    read_settings,
    takes_pipeline,
)
from eventonce.cli.progress import Progress
from eventonce.cli.signals import stopping
from eventonce.clock import duration
from eventonce.errors import EventOnceError, describe
from eventonce.event import Delivery
from eventonce.observe.monitoring import Monitoring
from eventonce.observe.outage import awaited
from eventonce.ports import Hook
from eventonce.settings import Settings, dead_letter_url
from eventonce.text import counted
from eventonce.urls import file_name
from eventonce.wire import Pipeline
from eventonce.worker import OutcomeCounts, Worker, WorkerPool, open_worker
from eventonce.worker.pool import THREADS

if TYPE_CHECKING:
    from eventonce.observe.health import Health
    from eventonce.worker.request_server import RequestServer

_MAX_WARNINGS = 20
_EVENT_LEVELS = ("debug", "info")  # at which the outcomes of events are logged
_log = logging.getLogger("eventonce")
_GRACE = "25s"  # within the 30 s that containers have


@click.command()
@takes_pipeline()
@click.option(
    "--source",
    shell_complete=complete_files,
    help="A file of events, - for stdin, sqs://QUEUE or another URL.  [env: EVENTONCE_SOURCE; default: -]",
)
@click.option(
    "--sink",
    shell_complete=complete_files,
    help="- for stdout, a file, python:package.module:function or a URL.  [env: EVENTONCE_SINK; default: -]",
)
@click.option(
    "--dead-letter",
    shell_complete=complete_files,
    help="Where to write dead letters.  [env: EVENTONCE_DEAD_LETTER; default: eventonce-dead.jsonl]",
)
@click.option(
    "--batch", type=click.IntRange(1, 10_000), help="Number of events claimed together.  [default: 100, 10 of a queue]"
)
@click.option("--threads", type=click.IntRange(1, 256), help=f"Number of threads on a queue.  [default: {THREADS}]")
@click.option("--grace", default=_GRACE, show_default=True, help="How long to wait for events in progress.")
@click.option("--listen", help="HOST:PORT for health, numbers and metrics. A port alone is on this machine.")
@allow_host_option
@click.option(
    "--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True, help="Format of the log."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Lowest level to log.",
)
@click.option(
    "--opentelemetry", is_flag=True, help="Create an OpenTelemetry span for each run, linked to the event's own."
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as a JSON line on stderr, after the log.")
@pipeline_options
def run(
    pipeline: str | None,
    *,
    as_json: bool,
    grace: str,
    listen: str | None,
    allow_host: tuple[str, ...],
    opentelemetry: bool,
    **options: Any,
) -> None:
    """Run events through a handler or into a sink, each once.

    PIPELINE is a TOML file, and options override it. What neither sets may come from environment variables, such as
    EVENTONCE_STORE and EVENTONCE_LEASE. Events are JSON lines or concatenated JSON documents, also as gzip. A run of a
    file ends with its input: exit 0 if every event was processed or a duplicate, 1 if any was
    dead-lettered, failed or unknown.

    On a queue, a stream or for requests it runs until SIGTERM or Ctrl-C. It then starts nothing new, and exits 0 if all
    events in progress are settled within --grace, else 1: the others are redelivered. A second signal stops at once. If
    the source or the store does not answer at the start, the command reports it and waits. A wrong name or permission
    ends it with exit 2. A run of a file does not wait: exit 1 if the store does not answer, and nothing was read.

    \b
      eventonce run pipeline.toml
      eventonce run --source sqs://orders --sink python:app:f --store redis://db
      eventonce run --key content --source events.jsonl --sink once.jsonl
      eventonce run pipeline.toml --listen 9090 --log-format json --log-level info
      opentelemetry-instrument eventonce run pipeline.toml --opentelemetry
      zcat e.gz | eventonce run --sink python:app:f --store sqlite:///x.db
    """
    grace_time = duration(grace, "--grace")
    log_as_json, level = options.pop("log_format") == "json", options.pop("log_level")
    settings = read_settings(pipeline, **options)
    serves = "://" in settings.source
    stderr.setup(level, json=as_json or log_as_json, timed=serves)
    logging.getLogger("eventonce").addFilter(Repeats())
    for name in ("eventonce.outage", "eventonce.patience"):  # outages are always logged
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("eventonce.patience").addFilter(Repeats())  # each thread has its own
    with ExitStack() as stack:
        listening = listen is not None
        log_events = as_json or log_as_json or level in _EVENT_LEVELS
        monitoring = Monitoring(
            settings.consumer, settings.store, listening=listening, log_events=log_events, tracing=opentelemetry
        )
        health = None if listen is None else stack.enter_context(monitoring.health(listen, allow_host))
        _introduce(settings, serves=serves, health=health)
        parts = _open(settings, monitoring.hooks)
        if parts is None:
            _close(OutcomeCounts(), settings.dead_letter)
            return
        stack.callback(parts.close)
        monitoring.start(parts.once.peek)
        stack.callback(monitoring.stop)
        if opentelemetry:
            _warn_if_spans_go_nowhere()
        progress = stack.enter_context(Progress(parts.source))
        worker = open_worker(
            parts.once,
            parts.source,
            parts.handler,
            parts.dead_letters,
            batch=settings.batch,
            threads=settings.threads,
            watch=_Watcher(progress, quiet=log_events),
        )
        complete = False
        try:
            succeeded = _run(worker) if isinstance(worker, Worker) else _serve(worker, grace_time)
            complete = True
        finally:
            progress.done()
            _close(worker.counts, parts.dead_letters.name, complete=complete)
    sys.exit(0 if succeeded else 1)


def _introduce(settings: Settings, *, serves: bool, health: "Health | None") -> None:
    """Write what the worker is connected to, if it serves or somebody may look on."""
    if serves or stderr.on_terminal():
        places = {name: display_url(getattr(settings, name)) for name in ("source", "store", "sink")}
        letters = {"dead_letters": display_url(dead_letter_url(settings))}
        served = {} if health is None else {"health": health.url}
        stderr.banner({"consumer": settings.consumer} | places | letters | served)
    if settings.source == "-" and sys.stdin is not None and sys.stdin.isatty():
        stderr.say("reading events from standard input: type JSON, end with Ctrl-D; or name a source with --source")


def _open(settings: Settings, hooks: Sequence[Hook]) -> Pipeline | None:
    """Return the pipeline, or None if a signal came first.

    Unless the run is of a file, wait for a source, sink or store that does not answer.
    """
    try:
        return Pipeline(settings, hooks)
    except EventOnceError as error:
        if not error.retryable or file_name(settings.source) is not None:
            raise
        failed = error
    stop = threading.Event()
    with stopping(stop.set):
        parts = awaited(lambda: Pipeline(settings, hooks), stop, failed)
    if parts is not None and stop.is_set():
        parts.close()
        return None
    return parts


def _warn_if_spans_go_nowhere() -> None:
    """Warn of a missing provider. The handler's module, which may set one up, is loaded by now."""
    from eventonce.observe.opentelemetry import goes_nowhere

    if goes_nowhere():
        _log.warning("--opentelemetry: no provider is set up, so spans go nowhere; start with opentelemetry-instrument")


def _run(worker: Worker) -> bool:
    worker.run()
    return worker.counts.good


def _serve(worker: "WorkerPool | RequestServer", grace: int) -> bool:
    with stopping(worker.stop):
        if not isinstance(worker, WorkerPool):
            stderr.say(f"listening on {worker.address}")
        unfinished = worker.run(grace)
    if unfinished:
        stderr.warn(f"not finished in time, and will be redelivered: {counted(unfinished, 'event')}")
    return not unfinished


class _Watcher:
    """Reports failures, up to a limit."""

    def __init__(self, progress: Progress, *, quiet: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._warnings = 0

    def __call__(self, delivery: Delivery, outcome: Outcome) -> None:
        self._progress.step()
        if outcome.action is Action.ACK or self._quiet:
            return
        self._warnings += 1
        if self._warnings <= _MAX_WARNINGS:
            stderr.line(f"{delivery.location}: {outcome.kind}{_names(outcome)}: {describe(outcome.error)}")
        elif self._warnings == _MAX_WARNINGS + 1:
            stderr.line("further failures are not shown (all of them are in the dead letters)")


def _names(outcome: Outcome) -> str:
    """Return the rule and the key of an event in brackets, if it has them."""
    key = f", key {outcome.key.hex()}" if outcome.key else ""
    return f" (rule {outcome.rule}{key})" if outcome.rule else ""


def _close(counts: OutcomeCounts, dead_letters: str, *, complete: bool = True) -> None:
    """Write the counts. They are not `complete` if the run ended before the batch in progress was settled."""
    fields = counts.as_dict()
    where = [f"dead letters are in {dead_letters}"] if fields["dead_lettered"] else []
    suffix = "" if complete else " (without the batch in progress)"
    stderr.result(fields | ({} if complete else {"complete": False}), f"{counts}{suffix}", *where)
