"""`eventonce setup`: make what a pipeline needs of AWS."""

import sys

import click

from eventonce.aws_setup.account import Account
from eventonce.aws_setup.apply import SetupStep, look
from eventonce.aws_setup.plan import make_plan
from eventonce.wire import load

_DONE = {"create": "created", "change": "changed"}


@click.command()
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
def setup(pipeline: str, *, dry_run: bool, yes: bool) -> None:
    """Make what a pipeline needs of AWS and is not there yet, in an account or an emulator.

    Queues with their dead-letter queues, the bus, the rule and its target as [aws] in the pipeline says, the sink, and
    the table with its time to live. The plan is shown first. Nothing is ever deleted, what is there keeps settings that
    are more generous, and nothing is pointed away from a dead-letter queue of your own. It may be repeated, and goes on
    where it was stopped. AWS_PROFILE, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL and the like count as everywhere. Exit 0 if
    all is well, 1 when something failed or you said no, 2 when something is to be mended first.

    \b
      eventonce setup pipeline.toml --dry-run
      eventonce setup pipeline.toml
      AWS_ENDPOINT_URL=http://localhost:4566 eventonce setup pipeline.toml --yes
    """
    plan, account = make_plan(load(pipeline)), Account()
    try:
        steps = list(look(plan, account))
        for step in steps:
            click.echo(f"{step.verb:6}  {step.description}")
        wanted = [step for step in steps if step.apply is not None]
        if not wanted:
            click.echo("nothing to do")
        elif not dry_run:
            _confirm(yes=yes)
            _apply(wanted)
    finally:
        account.close()


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("nothing was done, as there is nobody to ask; add --yes to do it, or --dry-run")
    if not click.confirm("Do it?", err=True):
        click.echo("nothing was done", err=True)
        sys.exit(1)


def _apply(wanted: list[SetupStep]) -> None:
    for step in wanted:
        if step.apply is not None:
            step.apply()
            click.echo(f"{_DONE[step.verb]} {step.description.partition(':')[0]}")
