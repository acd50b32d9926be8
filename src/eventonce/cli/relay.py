"""`eventonce relay`: publish what waits in an outbox."""

import json
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from eventonce.cli.log_filter import Repeats
from eventonce.cli.signals import stopping
from eventonce.errors import ConfigError, MissingDriver
from eventonce.observe import log
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
_TRIES = 3  # in one go; the relay itself tries again, and lets other groups go on meanwhile


@click.command()
@click.option(
    "--outbox", "outbox_url", required=True, help="postgresql://HOST/DATABASE, sqlite:///FILE or dynamodb://TABLE."
)
@click.option("--to", "url", required=True, help="events://BUS, sns://TOPIC, sqs://QUEUE, https://..., a file or -.")
@click.option("--dead-letter", default="eventonce-dead.jsonl", show_default=True, help="Where refused events are kept.")
@click.option("--create", is_flag=True, help="Make the outbox's tables first, where they are not there.")
@click.option("--drain", is_flag=True, help="Publish what waits now, and end.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=BATCH, show_default=True, help="Events that are sent together."
)
@click.option("--threads", type=click.IntRange(1, 64), default=THREADS, show_default=True, help="That publish.")
@click.option("--lease", default="30s", show_default=True, help="After which others take over from a relay that died.")
@click.option("--keep", default="0s", show_default=True, help="How long to keep a copy of what was published.")
@click.option(
    "--poll", default="5s", show_default=True, help="How often to look without being told that there is more."
)
@click.option("--max-attempts", type=click.IntRange(1), default=10, show_default=True, help="Then it is a dead letter.")
@click.option(
    "--store", default="memory:", show_default=True, help="By which relays share the stream of a dynamodb: outbox."
)
@click.option("--listen", help="HOST:PORT for health and metrics; a port alone is for this machine.")
@click.option("--json", "as_json", is_flag=True, help="Close with one JSON line on stderr.")
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
    *,
    create: bool,
    drain: bool,
    as_json: bool,
) -> None:
    """Publish what waits in an outbox, each event at least once under its identity, those of a group in order.

    Several relays may work on one outbox. What cannot be sent is tried again while other groups go on, and becomes a
    dead letter when it is refused, or fails time and again while others get through. It runs until SIGTERM or Ctrl-C,
    and then exits 0 when what was in hand is settled. With --drain it ends by itself: exit 1 when something is left, or
    was refused.

    \b
      eventonce relay --outbox postgresql://localhost/shop --to events://orders --create
      eventonce relay --outbox sqlite:///shop.db --to sqs://orders.fifo --listen 9090
      eventonce relay --outbox sqlite:///shop.db --to - --drain
    """
    log.setup("error" if as_json else "warning")
    logging.getLogger("eventonce").addFilter(Repeats())
    with ExitStack() as stack:
        outbox = stack.enter_context(Outbox(outbox_url))
        publisher = _publisher(url)
        stack.callback(publisher.close)
        metrics = None if listen is None else _metrics()
        made = Relay(
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
        stack.callback(made.close)
        if create and drain:
            outbox.create()
        if listen is not None:
            host, port = listen_address(listen)
            render = None if metrics is None else metrics.render
            stack.enter_context(Health(Status("relay"), outbox.table.backlog, host=host, port=port, metrics=render))
        if drain:
            good = _drain(made, as_json=as_json)
        else:
            good = _run(made, outbox.create if create else None, as_json=as_json)
    sys.exit(0 if good else 1)


def _publisher(url: str) -> Publisher | PlainPublisher:
    if url.startswith(_CARRIERS):
        return Publisher(url, max_attempts=_TRIES)
    sink = open_sink(url)
    if not isinstance(sink, Sink):
        raise ConfigError(
            f"--to: {url} is no place to publish to; use events://, sns://, sqs://, https://, a file or -"
        )
    return PlainPublisher(sink)


def _metrics() -> "PrometheusHook | None":
    try:
        from eventonce.observe.prometheus import PrometheusHook
    except MissingDriver:
        return None
    return PrometheusHook()


def _drain(made: Relay, *, as_json: bool) -> bool:
    left = made.drain()
    _close(made, left, as_json=as_json)
    return not left and not made.counts["refused"]


def _run(made: Relay, create: Callable[[], None] | None, *, as_json: bool) -> bool:
    stop = threading.Event()
    with stopping(stop.set):
        if create is not None:
            awaited(create, stop)
        made.run(stop)
    _close(made, None, as_json=as_json)
    return True


def _close(made: Relay, left: int | None, *, as_json: bool) -> None:
    counts = {name: made.counts[name] for name in ("published", "deduplicated", "refused", "failed")}
    counts |= {} if left is None else {"left": left}
    if as_json:
        click.echo(json.dumps(counts), err=True)
        return
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name == "published")
    click.echo(f"eventonce: {told}", err=True)
