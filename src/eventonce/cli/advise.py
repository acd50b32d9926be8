"""`eventonce advise`: rules for recorded traffic."""

import json
import sys
from collections.abc import Iterable

import click

from eventonce.cli import stderr
from eventonce.cli.options import complete_files, traffic_paths
from eventonce.cli.progress import Progress
from eventonce.clock import duration
from eventonce.errors import ConfigError, EventRejected, describe
from eventonce.traffic.advise import advise_on
from eventonce.traffic.archive import Archive, RecordedEvent
from eventonce.traffic.proposal import Totals, to_json, toml
from eventonce.traffic.sample import Sample

_MOST_COMPLAINTS = 5
_FROM_SQS = b"eceiptHandle"  # with a small or a capital R, as the recorder wrote it


@click.command()
@click.argument("traffic", nargs=-1, shell_complete=complete_files)
@click.option("--horizon", metavar="DURATION", help="How late a copy can be, if you know it: 14d behind SQS.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of the rule file.")
def advise(traffic: tuple[str, ...], horizon: str | None, *, as_json: bool) -> None:
    """Propose rules from recorded traffic: what identifies an event, what to ignore, and the window.

    TRAFFIC is files, folders or - for stdin: JSON lines or concatenated JSON documents, gzip or not, in any
    carrier's shape. The proposal is a rule file with the evidence in comments: how sure each rule is, what it was
    tried on, and what to ask the producer.

    Events with one id are copies. So are events that are equal but for a time of sending or a token that no other
    event has, if they share an id, are rare and come soon. Values count, and names do not. If there is too little
    traffic or a doubt is left, the key is the safe one, the event's id, and the rule gives the reason. Exit 1 if there
    was no event to learn from.

    \b
      eventonce advise traffic.jsonl > pipeline.toml
      eventonce advise archive/ --horizon 14d
      zcat traffic.gz | eventonce advise --json
    """
    if horizon is not None:
        duration(horizon, "--horizon")
    archive = Archive(traffic_paths(traffic), parquet=False)
    with Progress(archive) as progress:
        sampler = _Sampler(progress)
        sampler.read(archive)
    unread = [f"{path}: {reason}" for path, reason in archive.unreadable.items()]
    if unread and not sampler.events:
        raise ConfigError("; ".join(unread))
    for reason in unread:
        stderr.warn(reason)
    advices = advise_on(sampler.sample, horizon)
    if not advices:
        stderr.fail("there is no event to learn from")
        sys.exit(1)
    totals = Totals(sampler.events, sampler.rejected, sampler.sample.unsampled)
    click.echo(json.dumps(to_json(advices, totals)) if as_json else toml(advices, totals), nl=as_json)


class _Sampler:
    """Takes the sample, and reports what could not be read."""

    def __init__(self, progress: Progress) -> None:
        self.sample = Sample()
        self.events = 0
        self.rejected = 0
        self._progress = progress

    def read(self, archive: Iterable[RecordedEvent]) -> None:
        """Read everything."""
        latest, queued = None, False
        for recorded in archive:
            if recorded.delivery is not latest:  # one document may hold many events
                latest, queued = recorded.delivery, _FROM_SQS in recorded.delivery.body
            self._add(recorded, queued=queued)
            self._progress.step()

    def _add(self, recorded: RecordedEvent, *, queued: bool) -> None:
        try:
            if isinstance(recorded.event, EventRejected):
                raise recorded.event
            self.sample.add(recorded.event, queued=queued)
            self.events += 1
        except EventRejected as error:
            self.rejected += 1
            self._complain(f"{recorded.location}: rejected: {describe(error)}")

    def _complain(self, line: str) -> None:
        if self.rejected <= _MOST_COMPLAINTS:
            stderr.line(line)
        elif self.rejected == _MOST_COMPLAINTS + 1:
            stderr.line("more of these are not shown")
