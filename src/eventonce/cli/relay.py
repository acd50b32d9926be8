"""`eventonce relay`: publish the events that wait in an outbox."""

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from eventonce.cli import stderr
from eventonce.cli.log_filter import Repeats
from eventonce.cli.options import allow_host_option, complete_files, display_url, for_option
from eventonce.cli.signals import stopping
from eventonce.errors import ConfigError, MissingDriver
from eventonce.observe.health import Health, listen_address
from eventonce.observe.outage import awaited
from eventonce.observe.status import Status
from eventonce.outbox import Outbox, Publisher, Relay
from eventonce.outbox.plain import PlainPublisher
from eventonce.outbox.relay import BATCH, THREADS
from eventonce.ports import Sink
from eventonce.sinks import open_sink

if TYPE_CHECKING:
    from eventonce.observe.prometheus import PrometheusHook

_CARRIERS = ("events://", "sns://", "sqs://", "kinesis://")
_MAX_ATTEMPTS = 3  # of the publisher; the relay itself retries later, and serves other groups meanwhile


@click.command()
@click.option(
    "--outbox", "outbox_url", required=True, help="postgresql://HOST/DATABASE, sqlite:///FILE or dynamodb://TABLE."
)
@click.option(
    "--to",
    "url",
    required=True,
    shell_complete=complete_files,
    help="events://BUS, sns://TOPIC, sqs://QUEUE, https://..., a file or -.",
)
@click.option(
    "--dead-letter",
    default="eventonce-dead.jsonl",
    show_default=True,
    shell_complete=complete_files,
    help="Where to write refused events.",
)
@click.option("--create", is_flag=True, help="Create or upgrade the tables of the outbox first.")
@click.option("--drain", is_flag=True, help="Publish what waits now, and end.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=BATCH, show_default=True, help="Events per batch.")
@click.option(
    "--threads", type=click.IntRange(1, 64), default=THREADS, show_default=True, help="Number of publishing threads."
)
@click.option("--lease", default="30s", show_default=True, help="How long rows of a dead relay stay locked.")
@click.option("--keep", default="0s", show_default=True, help="How long to keep copies of published events.")
@click.option("--poll", default="5s", show_default=True, help="How often to poll without a notification.")
@click.option(
    "--max-attempts",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Attempts before an event is dead-lettered.",
)
@click.option(
    "--store",
    default="memory:",
    show_default=True,
    help="Store through which relays share the stream of a dynamodb: outbox.",
)
@click.option("--listen", help="HOST:PORT for health and metrics. A port alone is on localhost.")
@allow_host_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as a JSON line on stderr.")
def relay(  # one for each option
    outbox_url: str,
    url: str,
    dead_letter: str,
    batch: int,
    threads: int,
    lease: str,
    keep: str,
    poll: str,
    max_attempts: int,
    store: str,
    listen: str | None,
    allow_host: tuple[str, ...],
    *,
    create: bool,
    drain: bool,
    as_json: bool,
) -> None:
    """Publish the events in an outbox, each at least once under its identity, and those of a group in order.

    Several relays may work on one outbox. An event that cannot be sent is retried while other groups continue. It is
    dead-lettered if it is refused, or if it keeps failing while others get through. The relay runs until SIGTERM or
    Ctrl-C, finishes the events in progress, and exits 0. With --drain it ends by itself: exit 1 if events remain or
    were refused.

    \b
      eventonce relay --outbox postgresql://db/shop --to events://orders --create
      eventonce relay --outbox sqlite:///shop.db --to sqs://x.fifo --listen 9090
      eventonce relay --outbox sqlite:///shop.db --to - --drain
    """
    stderr.setup(json=as_json, timed=not drain)
    logging.getLogger("eventonce").addFilter(Repeats())
    with ExitStack() as stack:
        outbox = stack.enter_context(Outbox(outbox_url))
        publisher = _publisher(url)
        stack.callback(publisher.close)
        metrics = None if listen is None else _metrics()
        outbox_relay = Relay(
            outbox,
            publisher,
            dead_letter=dead_letter,
            batch=batch,
            threads=threads,
            lease=lease,
            keep=keep,
            poll=poll,
            max_attempts=max_attempts,
            store=store,
            hooks=[] if metrics is None else [metrics],
        )
        stack.callback(outbox_relay.close)
        if create and drain:
            outbox.create()
        health = None if listen is None else stack.enter_context(_health(listen, allow_host, outbox, metrics))
        if not drain:
            places = {"outbox": outbox_url, "to": url, "dead_letters": dead_letter}
            fields = {name: display_url(place) for name, place in places.items()}
            stderr.banner(fields | ({} if health is None else {"health": health.url}))
        succeeded = _drain(outbox_relay) if drain else _run(outbox_relay, outbox.create if create else None)
    sys.exit(0 if succeeded else 1)


def _publisher(url: str) -> Publisher | PlainPublisher:
    with for_option("--to", "sink", "publisher"):
        if url.startswith(_CARRIERS):
            return Publisher(url, max_attempts=_MAX_ATTEMPTS)
        sink = open_sink(url)
    if not isinstance(sink, Sink):
        raise ConfigError(
            f"--to: unsupported URL {url}; use events://, sns://, sqs://, kinesis://, https://, a file or -"
        )
    return PlainPublisher(sink)


def _health(listen: str, names: Sequence[str], outbox: Outbox, metrics: "PrometheusHook | None") -> Health:
    host, port = listen_address(listen)
    render = None if metrics is None else metrics.render
    return Health(Status("relay"), outbox.table.backlog, host=host, port=port, metrics=render, allowed=names)


def _metrics() -> "PrometheusHook | None":
    try:
        from eventonce.observe.prometheus import PrometheusHook
    except MissingDriver:
        return None
    return PrometheusHook()


def _drain(outbox_relay: Relay) -> bool:
    remaining = outbox_relay.drain()
    _print_summary(outbox_relay, remaining)
    return not remaining and not outbox_relay.counts["refused"]


def _run(outbox_relay: Relay, create: Callable[[], None] | None) -> bool:
    stop = threading.Event()
    with stopping(stop.set):
        if create is not None:
            awaited(create, stop, service="the outbox")
        outbox_relay.run(stop)
    _print_summary(outbox_relay, None)
    return True


def _print_summary(outbox_relay: Relay, remaining: int | None) -> None:
    counts = {name: outbox_relay.counts[name] for name in ("published", "deduplicated", "refused", "failed")}
    counts |= {} if remaining is None else {"left": remaining}
    summary = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name == "published")
    stderr.result(counts, f"eventonce: {summary}")
