"""What tests need beyond the repository: if it is missing, they are skipped on a laptop and fail in CI."""

import os
import shutil
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip a test that cannot run here. In CI, fail it."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def need(program: str) -> None:
    """Require a program that is not part of the repository or its environment."""
    if shutil.which(program) is None:
        missing(f"{program} is not installed")
