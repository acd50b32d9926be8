"""`eventonce send`: test events, with copies."""

import random
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import click
import msgspec

from eventonce.cli.progress import Progress
from eventonce.clock import duration
from eventonce.errors import ConfigError, describe
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.ports import Sink
from eventonce.sinks import open_sink
from eventonce.traffic.archive import Archive

_BATCH = 100
_MOST_COMPLAINTS = 5
_NAP = 0.1  # seconds; so that the bar moves and a signal is heard


@click.command()
@click.argument("events", default="-")
@click.option(
    "--to", "url", required=True, help="Where to: events://BUS, sqs://QUEUE, sns://TOPIC, https://..., a file or -."
)
@click.option("--copies", type=click.IntRange(0, 1000), default=0, help="How many copies of each follow it.")
@click.option("--spread", metavar="DURATION", default="0s", help="The copies come at any time within this one.")
@click.option("--new-ids", is_flag=True, help="Each copy gets an id of its own, as if the producer had sent it again.")
@click.option("--seed", type=int, help="The same times and the same new ids as in another run with this number.")
def send(events: str, url: str, copies: int, spread: str, seed: int | None, *, new_ids: bool) -> None:
    """Send test events, each with copies: the same bytes again, or under new ids.

    EVENTS is a file or folder, or - for stdin: JSON lines or JSON documents in any carrier's shape. All are sent at
    once, and their copies then, spread over the time given. Each sending has an idempotency key of its own, so that no
    queue or receiver takes a copy for one and drops it. EventBridge gives every event a new id itself. Exit 1 when
    something was refused.

    \b
      eventonce send events.jsonl --to sqs://orders --copies 2 --spread 30s
      eventonce send events.jsonl --to events://default --copies 1 --new-ids
      eventonce send events.jsonl --to - --copies 3 --new-ids --seed 7 > copies.jsonl
    """
    chance = random.Random(seed)  # noqa: S311  # for times and test ids
    within = duration(spread, "--spread") / 1000
    with ExitStack() as stack:
        sink = _open(url)
        stack.callback(sink.close)
        sending = _Sending(_schedule(_read(events), copies, within, chance, new_ids=new_ids))
        progress = stack.enter_context(Progress(sending))
        try:
            sending.run(sink, progress)
        finally:
            progress.done()
            _close(sending)
    sys.exit(1 if sending.refused else 0)


def _open(url: str) -> Sink:
    sink = open_sink(url)
    if not isinstance(sink, Sink):
        raise ConfigError(f"--to: {url}: a function is for eventonce run; name a place to send to")
    return sink


def _read(events: str) -> list[Event]:
    if events == "-" and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("name a file of events, or give them on stdin")
    recorded, found = Archive([events], parquet=False), []
    for seen in recorded:
        if not isinstance(seen.event, Event):
            raise ConfigError(f"{seen.location}: {describe(seen.event)}")
        found.append(seen.event)
    for place, reason in recorded.unreadable.items():
        raise ConfigError(f"{place}: {reason}")
    return found


class _Due(NamedTuple):
    """What is to be sent, and how many seconds after the beginning."""

    after: float
    number: int  # decides between those that are due together
    event: Event


def _schedule(
    events: Sequence[Event], copies: int, within: float, chance: random.Random, *, new_ids: bool
) -> list[_Due]:
    due: list[_Due] = []
    for event in events:
        due.append(_Due(0, len(due), event))
        for _ in range(copies):
            copy = _renamed(event, chance) if new_ids else event
            due.append(_Due(chance.uniform(0, within), len(due), copy))
    return sorted(due, key=lambda each: each[:2])


def _renamed(event: Event, chance: random.Random) -> Event:
    """The event under another id."""
    document = msgspec.json.decode(event.line())
    return read_event(msgspec.json.encode({**document, "id": str(uuid.UUID(int=chance.getrandbits(128), version=4))}))


class _Sending:
    """Sends what is due, when it is due."""

    def __init__(self, schedule: list[_Due]) -> None:
        self._schedule = schedule
        self._run = uuid.uuid4().hex  # or a queue would take a second run for a copy of the first
        self.position = 0
        self.refused = 0

    @property
    def size(self) -> int:
        return len(self._schedule)

    def run(self, sink: Sink, progress: Progress) -> None:
        """Send all of it."""
        for batch in self._batches():
            keys = [f"{self._run}-{due.number}" for due in batch]
            answers = sink.send([due.event for due in batch], keys)
            self.position += len(batch)
            for answer in answers:
                progress.step()
                if answer is not None:
                    self._complain(answer, progress)

    def _batches(self) -> Iterator[list[_Due]]:
        begun = time.monotonic()
        while self.position < self.size:
            now = time.monotonic() - begun
            batch = [due for due in self._schedule[self.position : self.position + _BATCH] if due.after <= now]
            if batch:
                yield batch
            else:
                time.sleep(min(_NAP, self._schedule[self.position].after - now))

    def _complain(self, error: Exception, progress: Progress) -> None:
        self.refused += 1
        if self.refused <= _MOST_COMPLAINTS:
            progress.say(f"refused: {describe(error)}")
        elif self.refused == _MOST_COMPLAINTS + 1:
            progress.say("more of these are not shown")


def _close(sending: _Sending) -> None:
    told = f"{sending.position - sending.refused:,} of {sending.size:,} sent"
    click.echo(told + (f", {sending.refused:,} refused" if sending.refused else ""), err=True)
