"""`eventonce send`: send test events with copies."""

import random
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import click
import msgspec

from eventonce.cli import stderr
from eventonce.cli.options import complete_files, for_option, traffic_paths
from eventonce.cli.progress import Progress
from eventonce.clock import duration
from eventonce.errors import ConfigError, EventRejected, describe
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.ports import Sink
from eventonce.sinks import open_sink
from eventonce.traffic.archive import Archive

_BATCH = 100
_MAX_WARNINGS = 5
_NAP = 0.1  # seconds: the bar moves and signals are handled in between


@click.command()
@click.argument("events", nargs=-1, shell_complete=complete_files)
@click.option(
    "--to",
    "url",
    required=True,
    shell_complete=complete_files,
    help="Destination: events://BUS, sqs://QUEUE, sns://TOPIC, https://..., a file or -.",
)
@click.option(
    "--copies", type=click.IntRange(1, 1000), default=1, help="How often each event is sent, in all.  [default: 1]"
)
@click.option("--spread", metavar="DURATION", default="0s", help="Time within which all but the first copies are sent.")
@click.option("--new-ids", is_flag=True, help="Give all but the first copies an id of their own, as a producer may.")
@click.option("--seed", type=int, help="Random seed: it fixes the times and the new ids.")
def send(events: tuple[str, ...], url: str, copies: int, spread: str, seed: int | None, *, new_ids: bool) -> None:
    """Send test events, each with copies: the same bytes again, or under new ids.

    EVENTS is files, folders or - for stdin: JSON lines or JSON documents in any carrier's shape. The first copy of each
    event is sent at once, and the others within the time of --spread. Each sending has its own idempotency key, so that
    no queue or receiver drops a copy. EventBridge itself gives every event a new id. Exit 1 if an event was not sent.

    \b
      eventonce send events.jsonl --to sqs://orders --copies 2 --spread 30s
      eventonce send events.jsonl --to events://default --copies 2 --new-ids
      eventonce send e.jsonl --to - --copies 3 --new-ids --seed 7 > copies.jsonl
    """
    rng = random.Random(seed)  # noqa: S311  # for times and test ids
    seconds = duration(spread, "--spread") / 1000
    if copies == 1 and (seconds or new_ids):
        raise click.UsageError("--spread and --new-ids are for further copies; add --copies 2 or more")
    with ExitStack() as stack:
        sink = _open(url)
        stack.callback(sink.close)
        sending = _Sending(_schedule(_read(events), copies, seconds, rng, new_ids=new_ids))
        progress = stack.enter_context(Progress(sending))
        try:
            sending.run(sink, progress)
        finally:
            progress.done()
            _close(sending)
    sys.exit(1 if sending.refused or sending.not_sent else 0)


def _open(url: str) -> Sink:
    with for_option("--to", "sink"):
        sink = open_sink(url)
    if not isinstance(sink, Sink):
        raise ConfigError(f"--to: {url}: a function is for eventonce run; use a file, - or another URL")
    return sink


def _read(paths: Sequence[str]) -> list[Event]:
    recorded, read = Archive(traffic_paths(paths), parquet=False), []
    for item in recorded:
        if not isinstance(item.event, Event):
            raise ConfigError(f"{item.location}: {describe(item.event)}")
        read.append(item.event)
    for path, reason in recorded.unreadable.items():
        raise ConfigError(f"{path}: {reason}")
    return read


class _Due(NamedTuple):
    """An event to send, and the seconds after the start at which it is due."""

    after: float
    number: int  # orders those that are due at the same time
    event: Event


def _schedule(events: Sequence[Event], copies: int, seconds: float, rng: random.Random, *, new_ids: bool) -> list[_Due]:
    due: list[_Due] = []
    for event in events:
        due.append(_Due(0, len(due), event))
        for _ in range(copies - 1):
            copy = _renamed(event, rng) if new_ids else event
            due.append(_Due(rng.uniform(0, seconds), len(due), copy))
    return sorted(due, key=lambda each: each[:2])


def _renamed(event: Event, rng: random.Random) -> Event:
    """Return the event under a new id."""
    document = msgspec.json.decode(event.line())
    return read_event(msgspec.json.encode({**document, "id": str(uuid.UUID(int=rng.getrandbits(128), version=4))}))


class _Sending:
    """Sends each event when it is due."""

    def __init__(self, schedule: list[_Due]) -> None:
        self._schedule = schedule
        self._run = uuid.uuid4().hex  # without it a queue would drop a second run as copies of the first
        self.position = 0
        self.refused = 0
        self.not_sent = 0  # the receiver did not answer, or cannot be used

    @property
    def size(self) -> int:
        return len(self._schedule)

    def run(self, sink: Sink, progress: Progress) -> None:
        """Send all events."""
        for batch in self._batches():
            keys = [f"{self._run}-{due.number}" for due in batch]
            results = sink.send([due.event for due in batch], keys)
            self.position += len(batch)
            for error in results:
                progress.step()
                if error is not None:
                    self._report(error)

    def _batches(self) -> Iterator[list[_Due]]:
        started_at = time.monotonic()
        while self.position < self.size:
            now = time.monotonic() - started_at
            batch = [due for due in self._schedule[self.position : self.position + _BATCH] if due.after <= now]
            if batch:
                yield batch
            else:
                time.sleep(min(_NAP, self._schedule[self.position].after - now))

    def _report(self, error: Exception) -> None:
        rejected = isinstance(error, EventRejected)
        self.refused += rejected
        self.not_sent += not rejected
        if self.refused + self.not_sent <= _MAX_WARNINGS:
            stderr.line(f"{'refused' if rejected else 'not sent'}: {describe(error)}")
        elif self.refused + self.not_sent == _MAX_WARNINGS + 1:
            stderr.line("more of these are not shown")


def _close(sending: _Sending) -> None:
    sent = sending.position - sending.refused - sending.not_sent
    failures = [(sending.refused, "refused"), (sending.not_sent, "not sent")]
    counts = "".join(f", {count:,} {kind}" for count, kind in failures if count)
    stderr.result({}, f"{sent:,} of {sending.size:,} sent{counts}")
