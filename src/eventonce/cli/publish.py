"""`eventonce publish`: events onto a bus, a topic or a queue, each under its identity."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import click
import msgspec

from eventonce.cli.progress import Progress
from eventonce.errors import ConfigError, describe
from eventonce.event import Event
from eventonce.outbox import Publisher, PublishKind, PublishResult
from eventonce.outbox.publisher import MAX_ATTEMPTS
from eventonce.traffic.archive import Archive, RecordedEvent
from eventonce.wire import load

_BATCH = 500
_MOST_COMPLAINTS = 5


@click.command()
@click.argument("events", default="-")
@click.option(
    "--to", "url", required=True, help="Where to: events://BUS, sns://TOPIC, sqs://QUEUE or kinesis://STREAM."
)
@click.option("-c", "--config", type=click.Path(dir_okay=False), help="A pipeline file (TOML), for its rules.")
@click.option("--dead-letter", help="Where to keep what is refused, beside the events' own file.")
@click.option(
    "--max-attempts", type=click.IntRange(1, 1000), default=MAX_ATTEMPTS, show_default=True, help="For each event."
)
@click.option("--json", "as_json", is_flag=True, help="Print what became of each event, a JSON line each.")
def publish(
    events: str, url: str, config: str | None, dead_letter: str | None, max_attempts: int, *, as_json: bool
) -> None:
    """Publish events, each once: a second run sends them under the same identity, and consumers know them by it.

    EVENTS is a file or folder, or - for stdin: JSON lines or JSON documents in any carrier's shape. The rules of a
    pipeline make the identity; without one it is the event's id, or its content where it has none. For copies on
    purpose, there is `eventonce send`. Exit 1 when something was refused or could not be sent.

    \b
      eventonce publish orders.jsonl --to events://orders
      eventonce publish orders.jsonl --to 'sqs://orders.fifo?group=detail.customer' -c pipeline.toml
      eventonce publish orders.jsonl --to events://orders --json | jq -c 'select(.kind == "failed")'
    """
    if events == "-" and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("name a file of events, or give them on stdin")
    rules = load(config).rule if config else None
    counts: Counter[PublishKind] = Counter()
    with ExitStack() as stack:
        publisher = Publisher(url, rules=rules, dead_letter=dead_letter, max_attempts=max_attempts)
        stack.callback(publisher.close)
        recorded = Archive([events], parquet=False)
        progress = stack.enter_context(Progress(recorded))
        stack.callback(_close, counts)
        stack.callback(progress.done)
        for batch in _batches(iter(recorded)):
            for seen, found in zip(batch, publisher.send(map(_item, batch)), strict=True):
                counts[found.kind] += 1
                progress.step()
                _tell(found, seen, counts, progress, as_json=as_json)
    for place, reason in recorded.unreadable.items():
        raise ConfigError(f"{place}: {reason}")
    sys.exit(1 if _not_sent(counts) else 0)


def _batches(recorded: Iterator[RecordedEvent]) -> Iterator[list[RecordedEvent]]:
    while batch := list(islice(recorded, _BATCH)):
        yield batch


def _item(seen: RecordedEvent) -> Event | bytes:
    """What to publish; what cannot be read is refused, and kept as it is."""
    return seen.event if isinstance(seen.event, Event) else seen.delivery.body


def _tell(
    found: PublishResult, seen: RecordedEvent, counts: Counter[PublishKind], progress: Progress, *, as_json: bool
) -> None:
    if as_json:
        told = {name: getattr(found, name) for name in ("kind", "identity", "id", "attempts", "code")}
        click.echo(
            msgspec.json.encode({**told, "error": found.error and describe(found.error), "place": seen.location})
        )
    elif not found.ok and _not_sent(counts) <= _MOST_COMPLAINTS:
        progress.say(f"{seen.location}: {found.kind}: {describe(found.error)}")
    elif not found.ok and _not_sent(counts) == _MOST_COMPLAINTS + 1:
        progress.say("more of these are not shown")


def _not_sent(counts: Counter[PublishKind]) -> int:
    return counts[PublishKind.REFUSED] + counts[PublishKind.FAILED]


def _close(counts: Counter[PublishKind]) -> None:
    told = [f"{counts[kind]:,} {kind}" for kind in PublishKind if counts[kind] or kind is PublishKind.PUBLISHED]
    click.echo(", ".join(told), err=True)
