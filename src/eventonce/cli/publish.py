"""`eventonce publish`: send events to a bus, a topic, a queue or a stream, each under its identity."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import click
import msgspec

from eventonce.cli import stderr
from eventonce.cli.options import complete_files, for_option, takes_pipeline, traffic_paths
from eventonce.cli.progress import Progress
from eventonce.errors import ConfigError, describe
from eventonce.event import Event
from eventonce.outbox import Publisher, PublishKind, PublishResult
from eventonce.outbox.publisher import MAX_ATTEMPTS
from eventonce.settings import load
from eventonce.text import safe_json
from eventonce.traffic.archive import Archive, RecordedEvent

_BATCH = 500
_MAX_WARNINGS = 5


@click.command()
@takes_pipeline("events")
@click.argument("events", nargs=-1, shell_complete=complete_files)
@click.option("--to", "url", required=True, help="Target: events://BUS, sns://TOPIC, sqs://QUEUE or kinesis://STREAM.")
@click.option("--dead-letter", shell_complete=complete_files, help="Where to write refused events.")
@click.option(
    "--max-attempts", type=click.IntRange(1, 1000), default=MAX_ATTEMPTS, show_default=True, help="Attempts per event."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result of each event as a JSON line.")
def publish(
    events: tuple[str, ...],
    pipeline: str | None,
    url: str,
    dead_letter: str | None,
    max_attempts: int,
    *,
    as_json: bool,
) -> None:
    """Publish events, each under its identity. A second run uses the same identities, so consumers recognise copies.

    EVENTS is files, folders or - for stdin, with JSON lines or JSON documents in any carrier's shape. The rules of a
    pipeline make the identity. Without a pipeline it is the event's id, or its content if it has no id. To send copies
    on purpose, use `eventonce send`. Exit 1 if an event was refused or could not be sent.

    \b
      eventonce publish orders.jsonl --to events://orders
      eventonce publish pipeline.toml e.jsonl --to 'sqs://x.fifo?group=source'
      eventonce publish e.jsonl --to events://orders --json | grep '"failed"'
    """
    paths = traffic_paths(events)
    rules = load(pipeline).rule if pipeline else None
    counts: Counter[PublishKind] = Counter()
    with ExitStack() as stack:
        with for_option("--to", "sink", "publisher"):
            publisher = Publisher(url, rules=rules, dead_letter=dead_letter, max_attempts=max_attempts)
        stack.callback(publisher.close)
        recorded = Archive(paths, parquet=False)
        progress = stack.enter_context(Progress(recorded))
        stack.callback(_close, counts)
        stack.callback(progress.done)
        for batch in _batches(iter(recorded)):
            for event, result in zip(batch, publisher.send(map(_publishable, batch)), strict=True):
                counts[result.kind] += 1
                progress.step()
                _report(result, event, counts, as_json=as_json)
    for location, reason in recorded.unreadable.items():
        raise ConfigError(f"{location}: {reason}")
    sys.exit(1 if _unsent(counts) else 0)


def _batches(recorded: Iterator[RecordedEvent]) -> Iterator[list[RecordedEvent]]:
    while batch := list(islice(recorded, _BATCH)):
        yield batch


def _publishable(recorded: RecordedEvent) -> Event | bytes:
    """Return the event, or its bytes if it cannot be read, for the dead letter of the refusal."""
    return recorded.event if isinstance(recorded.event, Event) else recorded.delivery.body


def _report(result: PublishResult, recorded: RecordedEvent, counts: Counter[PublishKind], *, as_json: bool) -> None:
    error = None if result.error is None else describe(result.error)
    if as_json:
        fields = {name: getattr(result, name) for name in ("kind", "identity", "id", "attempts", "code")}
        encoded = msgspec.json.encode({**fields, "error": error, "place": recorded.location})
        click.echo(safe_json(encoded.decode()))
    elif not result.ok and _unsent(counts) <= _MAX_WARNINGS:
        stderr.line(f"{recorded.location}: {result.kind}: {describe(result.error)}")
    elif not result.ok and _unsent(counts) == _MAX_WARNINGS + 1:
        stderr.line("more of these are not shown")


def _unsent(counts: Counter[PublishKind]) -> int:
    return counts[PublishKind.REFUSED] + counts[PublishKind.FAILED]


def _close(counts: Counter[PublishKind]) -> None:
    summary = [f"{counts[kind]:,} {kind}" for kind in PublishKind if counts[kind] or kind is PublishKind.PUBLISHED]
    stderr.result({kind.value: counts[kind] for kind in PublishKind}, ", ".join(summary))
