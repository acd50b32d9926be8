"""`eventonce redrive`: run dead letters through the pipeline again, plan first."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.cli.options import parse_key, pipeline_options, read_settings
from eventonce.cli.progress import Progress
from eventonce.clock import SystemClock, duration, moment
from eventonce.errors import describe
from eventonce.observe.text import one_line
from eventonce.ports import Sink
from eventonce.redrive import (
    DONE,
    DeadLetter,
    DeadLetterBox,
    LetterFilter,
    Redrive,
    RedrivePlan,
    groups,
    open_box,
    plan,
    redrive_settings,
)
from eventonce.sinks import open_sink
from eventonce.wire import Settings, dead_letter_url, open_once

_MOST_GROUPS = 20
_MOST_COMPLAINTS = 20


@click.command()
@click.argument("pipeline", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--from", "place", help="Where the dead letters are: a file, sqs://QUEUE, or a database.  [default: dead_letter]"
)
@click.option("--sink", help="Where events go, if not as the pipeline says.")
@click.option("--reason", help="Only letters whose reason has this text in it.")
@click.option("--rule", help="Only letters of this rule.")
@click.option("--since", help="Only letters that were written within this time, such as 2h.")
@click.option("--with-key", help="Only letters with this key, in hex.")
@click.option("--limit", type=click.IntRange(1), help="Redrive no more than so many, the oldest first.")
@click.option(
    "--reprocess", is_flag=True, help="Run also what was done meanwhile: under a mark of its own, once a letter."
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; with --json, the letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Say what became of each as JSON lines on stderr.")
@pipeline_options
def redrive(
    pipeline: str | None,
    config: str | None,
    *,
    place: str | None,
    limit: int | None,
    reprocess: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run dead letters through the pipeline again: one more attempt each, whatever number was used up.

    The plan comes first: how many letters match, by rule and reason. What is done is taken out, what fails again
    stays with its new reason. An event of which another copy got through meanwhile is a duplicate and does not run.
    A redrive that was killed is simply run again. Letters of EventBridge and messages that SQS itself set aside are
    understood too. Exit 1 when a letter is left that was to be redriven.

    \b
      eventonce redrive pipeline.toml --dry-run
      eventonce redrive pipeline.toml --rule orders --since 2h --reason "no route to host"
      eventonce redrive pipeline.toml --from sqs://billing-undelivered --yes
    """
    if pipeline and config:
        raise click.UsageError("name the pipeline once, as PIPELINE or with --config")
    logging.basicConfig(format="eventonce: %(message)s", level=logging.ERROR if as_json else logging.WARNING)
    choice = _choice(given)
    settings = read_settings(pipeline or config, **given)
    with ExitStack() as stack:
        box = open_box(place or dead_letter_url(settings))
        stack.callback(box.close)
        found = plan(box.letters(), choice, limit)
        if dry_run and as_json:
            _list(found.chosen)
        elif not as_json:
            _show(box, found, aside=not dry_run)
        if dry_run or not found.letters or not (yes or _agreed(len(found.letters))):
            return
        settings = redrive_settings(settings, reprocess=reprocess)
        good = _redrive(stack, settings, box, found.letters, reprocess=reprocess, as_json=as_json)
    sys.exit(0 if good else 1)


def _choice(given: dict[str, Any]) -> LetterFilter:
    since, key = given.pop("since"), given.pop("with_key")
    return LetterFilter(
        reason=given.pop("reason"),
        rule=given.pop("rule"),
        key=None if key is None else parse_key(key).hex(),
        since=None if since is None else moment(SystemClock().utc() - duration(since, "--since")),
    )


def _agreed(count: int) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("nobody is here to be asked; add --yes to redrive, or --dry-run to look")
    return click.confirm(f"redrive {count:,}?", err=True)


# --- the plan ---


def _list(letters: Sequence[DeadLetter]) -> None:
    for letter in letters:
        told = {
            "letter": letter.id,
            "outcome": letter.outcome,
            "reason": letter.reason,
            "attempts": letter.attempts,
            "rule": letter.rule,
            "key": letter.key,
            "time": None if letter.time is None else letter.time.isoformat(),
            "place": letter.place,
            "trouble": letter.trouble,
        }
        click.echo(json.dumps({name: value for name, value in told.items() if value is not None}))


def _show(box: DeadLetterBox, found: RedrivePlan, *, aside: bool) -> None:
    """Show the plan; aside on stderr, where events may go to stdout."""
    letters = f"{found.total:,} dead letter{'s' if found.total != 1 else ''} in {box.name}"
    lines = [f"{letters}; {found.matching:,} match, {len(found.letters):,} to redrive"]
    if hidden := box.hidden():
        lines.append(f"{hidden:>8,}  more, in other hands or left by a redrive that was killed: look again later")
    grouped = groups(found.chosen)
    for group in grouped[:_MOST_GROUPS]:
        lines.append(f"{group.size:>8,}  {group.rule or '-'}  {group.outcome}: {one_line(group.reason)}")
        if group.trouble is not None:
            lines.append(f"{'':>8}  cannot be redriven: {one_line(group.trouble)}")
    if len(grouped) > _MOST_GROUPS:
        lines.append(f"{'':>8}  and {len(grouped) - _MOST_GROUPS:,} more reasons")
    click.echo("\n".join(lines), err=aside)


# --- the redrive ---


def _redrive(
    stack: ExitStack,
    settings: Settings,
    box: DeadLetterBox,
    letters: Sequence[DeadLetter],
    *,
    reprocess: bool,
    as_json: bool,
) -> bool:
    handler = open_sink(settings.sink)
    if isinstance(handler, Sink):
        stack.callback(handler.close)
    once = stack.enter_context(open_once(settings))
    once.check()
    watch = _Watcher(len(letters), as_json=as_json)
    with watch.progress:
        try:
            return Redrive(once, handler, box, reprocess=reprocess, watch=watch).run(letters)
        finally:
            watch.progress.done()
            watch.close()


class _Watcher:
    """Says what became of each letter; for people, only of those that are left, and not of a thousand."""

    def __init__(self, size: int, *, as_json: bool) -> None:
        self.size = size
        self.position = 0
        self.progress = Progress(self)
        self._as_json = as_json
        self._kinds: Counter[OutcomeKind] = Counter()
        self._complaints = 0

    def __call__(self, letter: DeadLetter, outcome: Outcome) -> None:
        self.position += 1
        self._kinds[outcome.kind] += 1
        self.progress.step()
        if self._as_json:
            told = {"letter": letter.id, "place": letter.place, "outcome": outcome.kind, "rule": outcome.rule}
            self.progress.say(json.dumps(told | ({} if outcome.error is None else {"reason": describe(outcome.error)})))
        elif outcome.kind not in (OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE):
            self._complain(letter, outcome)

    def close(self) -> None:
        """The count of each outcome."""
        if self._as_json:
            counts = {kind.value: self._kinds[kind] for kind in OutcomeKind}
            click.echo(json.dumps({"letters": self.position, **counts}), err=True)
            return
        told = ", ".join(f"{count:,} {kind}" for kind, count in self._kinds.items())
        left = self.size - sum(self._kinds[kind] for kind in DONE)
        rest = f"; {left:,} letter{'s are' if left != 1 else ' is'} left" if left else ""
        click.echo(f"{self.position:,} of {self.size:,} tried{': ' if told else ''}{told}{rest}", err=True)

    def _complain(self, letter: DeadLetter, outcome: Outcome) -> None:
        self._complaints += 1
        if self._complaints <= _MOST_COMPLAINTS:
            self.progress.say(f"{letter.place}: {outcome.kind}: {one_line(describe(outcome.error))}")
        elif self._complaints == _MOST_COMPLAINTS + 1:
            self.progress.say("more of these are not shown; the letters that are left have them all")
