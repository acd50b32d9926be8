"""The entry point: errors become one sentence on stderr and an exit code."""

import os
import signal
import sys
from importlib import import_module
from io import StringIO
from types import FrameType
from typing import Any, NoReturn

import click

import eventonce
from eventonce.cli import stderr
from eventonce.errors import EventOnceError

VERBS = {  # in groups. Each verb is a module of its own, imported when it is used.
    "Run": {
        "demo": "See it work: duplicates in, one effect each.",
        "run": "Run events through a handler or into a sink, each once.",
        "publish": "Send events with identities, so that a repeated sending is a copy.",
        "relay": "Publish the events that wait in an outbox.",
        "send": "Send test events, each with copies.",
    },
    "Look": {
        "top": "Show the activity of a running worker.",
        "explain": "Explain why an event was dropped, or what its outcome would be.",
        "peek": "Show the records of keys or events.",
        "key": "Show the key of events, and its parts.",
    },
    "Repair": {
        "redrive": "Run dead letters again.",
        "forget": "Forget keys or events, so that their next copy runs.",
        "sweep": "Remove expired records.",
    },
    "Measure": {
        "audit": "Show what a pipeline would do with recorded traffic.",
        "advise": "Propose rules from recorded traffic.",
        "dedupe": "Copy an archive without its duplicates.",
    },
    "Set up": {
        "check": "Check a pipeline for mistakes, and run its tests.",
        "presets": "List the presets, or show the rules of one.",
        "setup": "Create the AWS resources of a pipeline.",
        "template": "Print the AWS resources of a pipeline as a template.",
        "package": "Write the zip of a Lambda function that runs a pipeline.",
        "completion": "Print a script that completes commands in your shell.",
    },
}


_RELEASED = "stopped; unfinished events were released"
_STOPPED = {  # by verb. The others leave nothing that is worth a word.
    "run": _RELEASED,
    "relay": _RELEASED,
    "redrive": _RELEASED,
    "dedupe": "stopped; the same command resumes",
}


class Verbs(click.Group):
    """The verbs, in groups."""

    verb = ""  # the one that runs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for group in VERBS.values() for name in group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f"eventonce.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        verbs = self.list_commands(ctx)
        if args[0] not in verbs and (near := get_close_matches(args[0], verbs, 1)):
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]!r}?")
        name, command, remaining = super().resolve_command(ctx, args)
        self.verb = name or ""
        return name, command, remaining

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would write an empty line, also among lines of JSON
            if stderr.on_terminal():
                click.echo(err=True)
            raise click.Abort from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, group in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([*group.items()], col_max=12)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(eventonce.__version__, prog_name="eventonce")
def cli() -> None:
    """Every event takes effect once, whichever way it arrives and however often.

    Begin with `eventonce demo`. Exit codes: 0 success, 1 some work failed, 2 a wrong option or setting.
    """


def main() -> None:
    """Run the command line."""
    stderr.start(sys.argv[1:])
    signal.signal(signal.SIGTERM, _stop)
    try:
        _run()
    except EventOnceError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        if stderr.in_json():
            _fail(error.format_message(), error.exit_code)
        shown = StringIO()
        error.show(shown)
        stderr.result({}, *shown.getvalue().splitlines())
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail(_stopped(), 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # its buffer can no longer be written
        _fail(f"{error.filename or 'stdout'}: {error.strerror}; fix this and run again", 2)
    except Exception as error:
        stderr.fail("failed in an unforeseen way; please report it", error)
        sys.exit(1)


def _run() -> None:
    try:
        cli.main(standalone_mode=False)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # so that a full disk is reported like any other error


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop on SIGTERM as on an error, so that claims are released."""
    stderr.say(_stopped())
    sys.exit(128 + number)


def _stopped() -> str:
    """Return the last words of a command that a signal ends."""
    return _STOPPED.get(cli.verb, "stopped")


def _fail(message: str, code: int) -> NoReturn:
    stderr.fail(message)
    sys.exit(code)
