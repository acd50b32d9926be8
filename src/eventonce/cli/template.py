"""`eventonce template`: the AWS resources of a pipeline, as a template."""

import click
import msgspec

from eventonce.aws_setup.cloudformation import cloudformation, sam
from eventonce.aws_setup.plan import SetupPlan, make_plan
from eventonce.aws_setup.terraform import terraform
from eventonce.cli.options import takes_pipeline
from eventonce.errors import ConfigError
from eventonce.settings import FunctionSettings, load_for_command


@click.command()
@takes_pipeline(required=True)
@click.option(
    "--format",
    "language",
    type=click.Choice(["cloudformation", "sam", "terraform"]),
    default="cloudformation",
    show_default=True,
    help="Template language. All are written as JSON: name a Terraform file NAME.tf.json.",
)
@click.option(
    "--lambda", "function", is_flag=True, help="Print the role of a function, not of a worker. [function] implies it."
)
def template(pipeline: str, language: str, *, function: bool) -> None:
    """Print the AWS resources of a pipeline as a template: those that `eventonce setup` creates, and a role.

    The role allows the calls of a worker, on this queue, this table and this sink only. With --lambda it allows those
    of a function and of Lambda for it, and its log. With [function] in the pipeline, and always in a SAM template, the
    function is there too, with what feeds it: a queue, a stream, or the rule itself. Resources that the pipeline names
    by an ARN are used and not created.

    \b
      eventonce template pipeline.toml > stack.json
      eventonce template pipeline.toml --format sam > template.json
      eventonce template pipeline.toml --format terraform --lambda > eventonce.tf.json
    """
    settings = load_for_command(pipeline)
    if language == "sam" and settings.function is None:
        settings = msgspec.structs.replace(settings, function=FunctionSettings())
    plan = make_plan(settings, function=function)
    _check(pipeline, plan)
    if language == "sam":
        click.echo(sam(plan))
    else:
        click.echo((terraform if language == "terraform" else cloudformation)(plan, function=function))


def _check(pipeline: str, plan: SetupPlan) -> None:
    if not plan.addresses:
        raise ConfigError(f'{pipeline}: names no AWS resource; write a source such as "sqs://NAME"')
    regions = sorted({region for address in plan.addresses if (region := address.options.get("region"))})
    if len(regions) > 1:
        raise ConfigError(
            f"{pipeline}: names the regions {' and '.join(regions)}; use one region, as a template is for one"
        )
