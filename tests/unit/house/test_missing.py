"""Nothing important is skipped silently: what is missing fails in CI, and tests that may be skipped are listed."""

import re
from pathlib import Path

import pytest

from tests.missing import missing, need

TESTS = Path(__file__).parents[2]
ALLOWED = {  # where tests may be skipped in CI as well, and why nothing is lost by it
    "integration/aws_setup/test_package.py": "a package runs only on the machines that Lambda has",
    "integration/cli/test_cli_bad_input.py": "only Linux lets root drop what a file's rights do not stop",
    "unit/house/test_benchmarks.py": "only Linux counts in /proc what a process has computed",
    "unit/house/test_samples_beside.py": "tests/data has samples for the same",
}


def test_what_is_missing_is_a_skip_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        need("no-such-program")


def test_what_is_missing_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        need("no-such-program")
    with pytest.raises(pytest.fail.Exception, match="there is no server"):
        missing("there is no server")


def test_what_is_there_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    need("sh")


def test_every_other_skip_is_listed_here() -> None:
    skips = re.compile(r"\b(skip|skipif|importorskip)\(|mark\.skip\b|mark\.xfail|collect_ignore")
    ours = {Path(__file__), TESTS / "missing.py", TESTS / "spark" / "conftest.py"}  # Spark has a target of its own
    files = {str(file.relative_to(TESTS)) for file in TESTS.rglob("*.py") if skips.search(file.read_text())}
    assert files - {str(file.relative_to(TESTS)) for file in ours} == set(ALLOWED)
