"""Write docs/cli.md from the help of the command line. A test fails while that page is stale."""

import inspect
from pathlib import Path

import click

from eventonce.cli.main import cli

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# Command line

Written by `make docs` from the commands' own help; change it there. Every command also takes `--help`.

Exit codes: 0 success, 1 some work failed, 2 a wrong option or setting, 130 and 143 stopped by a signal.
"""


def page() -> str:
    """Return the page: each verb with its arguments and options."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in sorted(cli.list_commands(context))}
    return "\n".join([HEAD, *(_verb(name, command) for name, command in commands.items() if command)])


def _verb(name: str, command: click.Command) -> str:
    arguments = " ".join(_argument(each) for each in command.params if isinstance(each, click.Argument))
    options = [_option(each) for each in command.params if isinstance(each, click.Option)]
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    table = "\n".join(["| option | meaning |", "|---|---|", *options]) + "\n" if options else ""
    return f"## eventonce {name} {arguments}".rstrip() + f"\n\n```text\n{text}\n```\n\n{table}"


def _argument(argument: click.Argument) -> str:
    if argument.metavar:
        return argument.metavar
    name = argument.human_readable_name
    text = "|".join(argument.type.choices) if isinstance(argument.type, click.Choice) else name
    text = f"{text}..." if argument.nargs == -1 else text
    return text if argument.required else f"[{text}]"


def _option(option: click.Option) -> str:
    return f"| `{', '.join(option.opts)}` | {option.help} |"


if __name__ == "__main__":
    PAGE.write_text(page())
