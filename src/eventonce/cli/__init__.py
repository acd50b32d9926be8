"""The command line: one file per verb."""

from eventonce.cli.main import main

__all__ = ["main"]
