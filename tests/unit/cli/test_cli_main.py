"""The list of verbs: complete, in groups, and read without importing what they need."""

import subprocess
import sys
from pathlib import Path

import click
from click.testing import CliRunner

import eventonce.cli
from eventonce.cli.main import VERBS, cli

NAMES = [name for group in VERBS.values() for name in group]


def test_every_verb_is_listed_once_and_works() -> None:
    modules = {file.stem for file in Path(eventonce.cli.__file__).parent.glob("*.py")}
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in NAMES]

    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) <= modules
    assert [command.name for command in commands if command] == NAMES
    helpers = {"__init__", "archive_options", "log_filter", "main", "options", "progress", "signals", "stderr"}
    assert modules - set(NAMES) == helpers


def test_the_help_shows_every_line_whole() -> None:
    printed = CliRunner().invoke(cli, ["--help"]).output

    for heading, group in VERBS.items():
        assert f"\n{heading}:\n" in printed
        for name, line in group.items():
            assert any(each.split() == [name, *line.split()] for each in printed.splitlines())


def test_the_help_imports_no_verb() -> None:
    code = (
        "import sys; from eventonce.cli.main import cli; cli.main(['--help'], standalone_mode=False); "
        "print(sorted(name for name in sys.modules if name.startswith(('eventonce.cli.', 'eventonce.traffic'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "['eventonce.cli.main', 'eventonce.cli.stderr']"


def test_an_unknown_verb_is_named_with_the_nearest_right_one() -> None:
    done = CliRunner().invoke(cli, ["rnu"])

    assert done.exit_code == 2
    assert "No such command 'rnu'; did you mean 'run'?" in done.output
