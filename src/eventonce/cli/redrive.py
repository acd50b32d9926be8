"""`eventonce redrive`: show a plan, and run dead letters through the pipeline again."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.cli import stderr
from eventonce.cli.options import complete_files, parse_key, pipeline_options, read_settings, takes_pipeline
from eventonce.cli.progress import Progress
from eventonce.clock import SystemClock, duration, to_datetime
from eventonce.errors import describe
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
from eventonce.settings import Settings, dead_letter_url
from eventonce.sinks import open_sink
from eventonce.text import counted, one_line, printable
from eventonce.wire import open_once

_MAX_GROUPS = 20
_MAX_WARNINGS = 20


@click.command()
@takes_pipeline()
@click.option(
    "--from",
    "box_url",
    shell_complete=complete_files,
    help="Location of the dead letters: a file, sqs://QUEUE, or a database.  [default: dead_letter]",
)
@click.option("--sink", shell_complete=complete_files, help="Sink to use instead of the pipeline's.")
@click.option("--reason", help="Only letters whose reason contains this text.")
@click.option("--rule", help="Only letters of this rule.")
@click.option("--since", help="Only letters written within this time, such as 2h.")
@click.option("--with-key", help="Only letters with this key, in hex.")
@click.option("--limit", type=click.IntRange(1), help="Redrive at most this many, the oldest first.")
@click.option("--reprocess", is_flag=True, help="Run also events already done, once per letter.")
@click.option("--dry-run", is_flag=True, help="Only show the plan, or with --json the letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print each outcome as a JSON line on stderr.")
@pipeline_options
def redrive(
    pipeline: str | None,
    *,
    box_url: str | None,
    limit: int | None,
    reprocess: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run dead letters through the pipeline again: one more attempt each, however many were used up.

    The plan is shown first: the number of letters that match, by rule and reason. Letters that succeed are removed, and
    those that fail again stay with the new reason. If another copy of an event was processed meanwhile, its letter is a
    duplicate and does not run. A redrive that was killed can be repeated. Dead letters of EventBridge and of SQS itself
    can be redriven too. Exit 1 if a letter in the plan remains.

    \b
      eventonce redrive pipeline.toml --dry-run
      eventonce redrive pipeline.toml --rule orders --since 2h --reason "no route"
      eventonce redrive pipeline.toml --from sqs://billing-undelivered --yes
    """
    stderr.setup(json=as_json)
    letter_filter = _letter_filter(options)
    settings = read_settings(pipeline, **options)
    with ExitStack() as stack:
        box = open_box(box_url or dead_letter_url(settings))
        stack.callback(box.close)
        selection = plan(box.letters(), letter_filter, limit)
        if dry_run and as_json:
            _list(selection.chosen)
        elif not as_json:
            _show(box, selection, on_stderr=not dry_run)
        remaining = any(letter.unreadable is not None for letter in selection.chosen)
        if dry_run:
            return
        if not selection.letters:
            sys.exit(1 if remaining else 0)
        if not (yes or _confirmed(len(selection.letters), as_json=as_json)):
            return
        settings = redrive_settings(settings, reprocess=reprocess)
        succeeded = _redrive(stack, settings, box, selection.letters, reprocess=reprocess, as_json=as_json)
    sys.exit(0 if succeeded and not remaining else 1)


def _letter_filter(options: dict[str, Any]) -> LetterFilter:
    since, key = options.pop("since"), options.pop("with_key")
    return LetterFilter(
        reason=options.pop("reason"),
        rule=options.pop("rule"),
        key=None if key is None else parse_key(key).hex(),
        since=None if since is None else to_datetime(SystemClock().utc() - duration(since, "--since")),
    )


def _confirmed(count: int, *, as_json: bool) -> bool:
    if as_json:
        raise click.UsageError("cannot ask with --json; add --yes to redrive, or --dry-run to look")
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("cannot ask without a terminal; add --yes to redrive, or --dry-run to look")
    try:
        return click.confirm(f"redrive {count:,}?", err=True)
    except click.Abort:
        click.echo(err=True)
        stderr.say("stopped; nothing was redriven")
        sys.exit(130)


# --- the plan ---


def _list(letters: Sequence[DeadLetter]) -> None:
    for letter in letters:
        fields = {
            "letter": letter.id,
            "outcome": letter.outcome,
            "reason": letter.reason,
            "attempts": letter.attempts,
            "rule": letter.rule,
            "key": letter.key,
            "time": None if letter.time is None else letter.time.isoformat(),
            "place": letter.location,
            "unreadable": letter.unreadable,
        }
        click.echo(json.dumps({name: value for name, value in fields.items() if value is not None}))


def _show(box: DeadLetterBox, selection: RedrivePlan, *, on_stderr: bool) -> None:
    """Show the plan, on stderr if events may go to stdout."""
    letters = f"{counted(selection.total, 'dead letter')} in {box.name}"
    lines = [f"{letters}; {selection.matching:,} match, {len(selection.letters):,} to redrive"]
    if hidden := box.hidden():
        lines.append(f"{hidden:>8,}  more, hidden by another process or by a redrive that was killed: look again later")
    grouped = groups(selection.chosen)
    for group in grouped[:_MAX_GROUPS]:
        lines.append(f"{group.size:>8,}  {group.rule or '-'}  {group.outcome}: {one_line(group.reason)}")
        if group.unreadable is not None:
            lines.append(f"{'':>8}  cannot be redriven: {one_line(group.unreadable)}")
    if len(grouped) > _MAX_GROUPS:
        lines.append(f"{'':>8}  and {counted(len(grouped) - _MAX_GROUPS, 'more reason')}")
    click.echo("\n".join(map(printable, lines)), err=on_stderr)


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
    """Reports the outcome of each letter. For people it reports only failures, up to a limit."""

    def __init__(self, size: int, *, as_json: bool) -> None:
        self.size = size
        self.position = 0
        self.progress = Progress(self)
        self._as_json = as_json
        self._kinds: Counter[OutcomeKind] = Counter()
        self._warnings = 0

    def __call__(self, letter: DeadLetter, outcome: Outcome) -> None:
        self.position += 1
        self._kinds[outcome.kind] += 1
        self.progress.step()
        if self._as_json:
            fields = {"letter": letter.id, "place": letter.location, "outcome": outcome.kind, "rule": outcome.rule}
            stderr.result(fields | ({} if outcome.error is None else {"reason": describe(outcome.error)}))
        elif outcome.kind not in (OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE):
            self._warn(letter, outcome)

    def close(self) -> None:
        """Print the count of each outcome."""
        counts = {kind.value: self._kinds[kind] for kind in OutcomeKind}
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._kinds.items())
        remaining = self.size - sum(self._kinds[kind] for kind in DONE)
        suffix = f"; {counted(remaining, 'letter remains', 'letters remain')}" if remaining else ""
        tried = f"{self.position:,} of {self.size:,} tried{': ' if kinds else ''}{kinds}{suffix}"
        stderr.result({"letters": self.position, **counts}, tried)

    def _warn(self, letter: DeadLetter, outcome: Outcome) -> None:
        self._warnings += 1
        if self._warnings <= _MAX_WARNINGS:
            stderr.line(f"{letter.location}: {outcome.kind}: {one_line(describe(outcome.error))}")
        elif self._warnings == _MAX_WARNINGS + 1:
            stderr.line("further failures are not shown (all of them are in the remaining letters)")
