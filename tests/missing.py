"""What tests need and do not bring along: where it is missing, a skip with its reason on a laptop, a failure in CI."""

import os
import shutil
from typing import NoReturn

import pytest


def missing(why: str) -> NoReturn:
    """Say that a test cannot run here."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)


def need(program: str) -> None:
    """Need a program that is not part of the repository or its environment."""
    if shutil.which(program) is None:
        missing(f"{program} is not installed")
