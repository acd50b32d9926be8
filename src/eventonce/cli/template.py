"""`eventonce template`: what a pipeline needs of AWS, as a template."""

import click

from eventonce.aws_setup.cloudformation import cloudformation, sam
from eventonce.aws_setup.plan import SetupPlan, make_plan
from eventonce.aws_setup.terraform import terraform
from eventonce.errors import ConfigError
from eventonce.wire import load


@click.command()
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["cloudformation", "sam", "terraform"]),
    default="cloudformation",
    show_default=True,
    help="What to print: CloudFormation and SAM are JSON, which both read.",
)
@click.option("--lambda", "function", is_flag=True, help="The role of a function, in place of a worker's; SAM always.")
def template(pipeline: str, form: str, *, function: bool) -> None:
    """Print what a pipeline needs of AWS as a template: what `eventonce setup` makes, and a role.

    The role allows what a worker does, on this queue, this table and this sink only; with --lambda also the
    function's own log. The SAM template has the function too, fed by the queue, with ReportBatchItemFailures. What the
    pipeline names by an ARN is used and not made.

    \b
      eventonce template pipeline.toml > stack.json
      eventonce template pipeline.toml --format sam > template.json
      eventonce template pipeline.toml --format terraform --lambda > eventonce.tf
    """
    function = function or form == "sam"
    plan = make_plan(load(pipeline), function=function)
    _check(pipeline, plan)
    if form == "sam":
        _check_feed(pipeline, plan)
        click.echo(sam(plan))
    else:
        click.echo((terraform if form == "terraform" else cloudformation)(plan, function=function))


def _check_feed(pipeline: str, plan: SetupPlan) -> None:
    if plan.stream is not None:
        raise ConfigError(
            f"{pipeline}: --format sam feeds a function from a queue, and the source is a stream; take the role from "
            "--format cloudformation --lambda, and give your mapping FunctionResponseTypes: [ReportBatchItemFailures]"
        )


def _check(pipeline: str, plan: SetupPlan) -> None:
    if not plan.addresses:
        raise ConfigError(f'{pipeline}: names nothing of AWS; write a source such as "sqs://NAME"')
    regions = sorted({region for address in plan.addresses if (region := address.options.get("region"))})
    if len(regions) > 1:
        raise ConfigError(
            f"{pipeline}: names the regions {' and '.join(regions)}, and a template is for one; write one"
        )
