"""The entry point: errors become one sentence on stderr and an exit code."""

import os
import signal
import sys
from types import FrameType

import click

import eventonce
from eventonce.cli.advise import advise
from eventonce.cli.audit import audit
from eventonce.cli.check import check
from eventonce.cli.completion import completion
from eventonce.cli.copy import copy
from eventonce.cli.demo import demo
from eventonce.cli.explain import explain
from eventonce.cli.forget import forget
from eventonce.cli.key import key
from eventonce.cli.peek import peek
from eventonce.cli.presets import presets
from eventonce.cli.publish import publish
from eventonce.cli.redrive import redrive
from eventonce.cli.relay import relay
from eventonce.cli.run import run
from eventonce.cli.send import send
from eventonce.cli.setup import setup
from eventonce.cli.simulate import simulate
from eventonce.cli.sweep import sweep
from eventonce.cli.template import template
from eventonce.cli.top import top
from eventonce.cli.torture import torture
from eventonce.errors import EventOnceError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(eventonce.__version__, prog_name="eventonce")
def cli() -> None:
    """Every event takes effect once, whichever way it arrives and however often.

    Begin with `eventonce demo`. Exit codes: 0 done, 1 some work failed, 2 a wrong option or setting.
    """


for command in (
    demo, run, top, check, key, presets, audit, copy, advise, explain, peek, forget, sweep, redrive, setup, template,
    send, publish, relay, simulate, torture, completion,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        _run()
    except EventOnceError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped; what was not finished has been given back", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # what is left in it can no longer be written
        _fail(f"{error.filename or 'stdout'}: {error.strerror}; mend that and run again", 2)


def _run() -> None:
    try:
        cli.main(standalone_mode=False)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # so that a full disk is told as any other error


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop on SIGTERM as on an error, so that claims are given back."""
    click.echo("eventonce: stopped; what was not finished has been given back", err=True)
    sys.exit(128 + number)


def _fail(message: str, code: int) -> None:
    click.echo(f"eventonce: {message}", err=True)
    sys.exit(code)
