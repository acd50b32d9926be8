"""Short torture runs on real servers, and what the command says to wrong wishes. Longer ones: `make proof`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventonce.testing.servers import Missing
from eventonce.testing.servers.process import find

PROGRAMS = {"sqlite": "ministack", "redis": "redis-server", "postgresql": "pgrep", "dynamodb": "dynoxide"}


def torture(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "eventonce", "torture", *options],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def _servers(store: str) -> None:
    """The command starts servers of its own; where one is missing, a skip on a laptop and a failure in CI."""
    try:
        for program in ("ministack", PROGRAMS[store]):
            find(program)
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", PROGRAMS)
def test_nothing_is_lost_and_nothing_doubled(store: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for each in tmp_path.parents:  # PostgreSQL does not run as root, and must be able to look in
        if each.stat().st_uid == os.geteuid() and "pytest" in str(each):
            each.chmod(0o755)
    tmp_path.chmod(0o755)

    done = torture("--store", store, "--minutes", "0.15", "--rate", "40", "--json", "--folder", str(folder))

    verdict = json.loads(done.stdout)
    assert done.returncode == 0, verdict["violations"] + [done.stderr]
    assert verdict["events"] >= 200
    assert verdict["copies"] > verdict["events"]
    assert verdict["lost"] == 0
    assert verdict["faults"]
    assert verdict == json.loads((folder / "verdict.json").read_text())
    if store == "redis":
        assert verdict["doubled"] == len(verdict["explained"])
    else:
        assert (verdict["effects"], verdict["doubled"]) == (verdict["events"], 0)


def test_a_store_that_is_none() -> None:
    done = torture("--store", "postgres")

    assert done.returncode == 2
    assert "neither a URL nor one of sqlite, redis, postgresql, dynamodb" in done.stderr


def test_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    done = torture("--store", "sqlite", "--folder", str(tmp_path))

    assert done.returncode == 2
    assert "is not empty" in done.stderr
