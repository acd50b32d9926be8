"""The commands of the lab: `python -m lab simulate` and `python -m lab torture`."""

import signal
import sys
from types import FrameType

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
    signal.signal(signal.SIGTERM, _stop)
    try:
        lab(prog_name="python -m lab")
    except EventOnceError as error:
        click.echo(f"lab: {error}", err=True)
        sys.exit(error.exit_code)


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop on SIGTERM as on an error, so that servers and workers of a run are stopped too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
