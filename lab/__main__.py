"""The commands of the lab: `python -m lab simulate` and `python -m lab torture`."""

import sys

import click

from eventonce.errors import EventOnceError
from lab.simulate import simulate
from lab.torture.command import torture


@click.group()
def lab() -> None:
    """Break eventonce on purpose, and see what comes of it."""


lab.add_command(simulate)
lab.add_command(torture)


def main() -> None:
    """Run a command. An error is one sentence on stderr and an exit code."""
    try:
        lab(prog_name="python -m lab")
    except EventOnceError as error:
        click.echo(f"lab: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
