"""`eventonce package`: the zip of a Lambda function that runs a pipeline."""

import sys
from pathlib import Path

import click

from eventonce.aws_setup.package import ARCHITECTURES, HANDLER, write_function, write_layer
from eventonce.cli.options import complete_files, takes_pipeline
from eventonce.errors import ConfigError
from eventonce.lambda_function import check_outlives
from eventonce.settings import load_for_command

_MB = 1_000_000


@click.command()
@takes_pipeline(required=True)
@click.option("--layer", is_flag=True, help="Write a layer with the libraries alone.")
@click.option(
    "--arch",
    type=click.Choice(list(ARCHITECTURES)),
    default="x86_64",
    show_default=True,
    help="Architecture of the function.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    shell_complete=complete_files,
    help="The file to write.  [default: function.zip or layer.zip]",
)
@click.option(
    "--include",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    shell_complete=complete_files,
    help="A further file or folder that the function needs, such as a module. Repeatable.",
)
@click.option("--boto3", "sdk", is_flag=True, help="Include boto3, of which the runtime has a version of its own.")
def package(pipeline: str, *, layer: bool, arch: str, out: Path | None, include: tuple[Path, ...], sdk: bool) -> None:
    """Write the zip of a Lambda function that runs a pipeline, without any code of its own.

    It holds eventonce, the drivers that the pipeline needs, the pipeline file, the module of a python: sink, and what
    --include names. Set the function's handler to eventonce.lambda_function.handler. pip downloads the wheels, for the
    Python version that runs this command: use that of the function's runtime. Environment variables that the pipeline
    names must be set here too.

    \b
      eventonce package pipeline.toml
      eventonce package p.toml --arch arm64 --out p.zip --include shared.py
      eventonce package pipeline.toml --layer
    """
    if layer and include:
        raise ConfigError("--include: a layer has the libraries alone; put your files into the function's own zip")
    settings = load_for_command(pipeline)
    check_outlives(settings, pipeline)
    if layer:
        written = write_layer(settings, out or Path("layer.zip"), arch=arch, sdk=sdk)
    else:
        written = write_function(
            Path(pipeline), settings, out or Path("function.zip"), arch=arch, sdk=sdk, include=include
        )
    sizes = f"{written.size / _MB:.1f} MB, {written.unpacked / _MB:.1f} MB unpacked"
    runtime = f"python{sys.version_info.major}.{sys.version_info.minor} on {arch}"
    click.echo(f"{written.file}: {sizes}, for {runtime}; handler {HANDLER}")
