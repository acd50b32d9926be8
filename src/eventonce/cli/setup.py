"""`eventonce setup`: create the AWS resources of a pipeline."""

import sys

import click

from eventonce.aws_setup.account import Account
from eventonce.aws_setup.apply import look
from eventonce.aws_setup.plan import make_plan
from eventonce.aws_setup.step import SetupStep
from eventonce.cli import stderr
from eventonce.cli.options import takes_pipeline
from eventonce.settings import load_for_command

_DONE = {"create": "created", "change": "changed"}


@click.command()
@takes_pipeline(required=True)
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option("--yes", is_flag=True, help="Apply the plan without asking.")
def setup(pipeline: str, *, dry_run: bool, yes: bool) -> None:
    """Create the missing AWS resources of a pipeline, in an account or an emulator.

    These are the queues with their dead-letter queues, the bus, rule and target that [aws] in the pipeline describes,
    the function of [function] with its role and what invokes it, the sink, and the table with its time to live. The
    plan is shown first. Nothing is ever deleted, existing resources keep more generous settings, and a dead-letter
    queue of your own stays in use. The command may be repeated, and continues where it was stopped. AWS_PROFILE,
    AWS_DEFAULT_REGION, AWS_ENDPOINT_URL and the like have their usual effect. Exit 0 on success, 1 if something failed
    or you declined, 2 if something must be fixed first.

    \b
      eventonce setup pipeline.toml --dry-run
      eventonce setup pipeline.toml
      AWS_ENDPOINT_URL=http://localhost:4566 eventonce setup pipeline.toml --yes
    """
    plan, account = make_plan(load_for_command(pipeline)), Account()
    try:
        steps = list(look(plan, account))
        for step in steps:
            click.echo(f"{step.verb:6}  {step.description}")
        pending = [step for step in steps if step.apply is not None]
        if not pending:
            click.echo("nothing to do" if plan.addresses else f"nothing to do: {pipeline} names no AWS resource")
        elif not dry_run:
            _confirm(yes=yes)
            _apply(pending)
    finally:
        account.close()


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("nothing was done, cannot ask without a terminal; add --yes, or --dry-run to look")
    if not click.confirm("Apply this plan?", err=True):
        stderr.result({}, "nothing was done")
        sys.exit(1)


def _apply(pending: list[SetupStep]) -> None:
    for step in pending:
        if step.apply is not None:
            step.apply()
            click.echo(f"{_DONE[step.verb]} {step.description.partition(':')[0]}")
