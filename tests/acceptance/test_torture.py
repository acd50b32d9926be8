"""Short torture runs on real servers, and what the command says to wrong wishes. Longer ones: `make proof`."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.missing import missing
from tests.servers import Missing
from tests.servers.process import find

PROGRAMS = {"sqlite": "ministack", "redis": "redis-server", "postgresql": "pgrep", "dynamodb": "dynoxide"}


def torture(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lab", "torture", *options],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def look_in() -> Iterator[Path]:
    """A folder that PostgreSQL, which does not run as root, is able to look into.

    It is none of pytest's: each session that starts on this machine closes the folder above those to everyone else.
    """
    with TemporaryDirectory(prefix="eventonce-torture-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def _servers(store: str) -> None:
    """The command starts servers of its own; where one is missing, a skip on a laptop and a failure in CI."""
    try:
        for program in ("ministack", PROGRAMS[store]):
            find(program)
    except Missing as absent:
        missing(str(absent))


@pytest.mark.long
@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", PROGRAMS)
def test_nothing_is_lost_and_nothing_doubled(store: str, look_in: Path) -> None:
    folder = look_in / "run"

    done = torture("--store", store, "--minutes", "0.15", "--rate", "40", "--json", "--folder", str(folder))

    verdict = json.loads(done.stdout)
    assert done.returncode == 0, verdict["violations"] + [done.stderr]
    assert verdict["events"] >= 50
    assert verdict["copies"] > verdict["events"]
    assert verdict["lost"] == 0
    assert verdict["faults"]
    assert verdict == json.loads((folder / "verdict.json").read_text())
    if store == "redis":
        assert verdict["doubled"] == len(verdict["explained"])
    else:
        assert (verdict["effects"], verdict["doubled"]) == (verdict["events"], 0)


@pytest.mark.long
@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", ["sqlite"])
def test_a_second_run_on_the_same_store_is_one_of_its_own(store: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = torture("--store", f"{store}:///{tmp_path}/claims.db?shared=true", "--minutes", "0.05", "--json")

        verdict = json.loads(done.stdout)
        assert done.returncode == 0, verdict["violations"] + [done.stderr]
        assert verdict["events"] == verdict["effects"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", PROGRAMS)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_running_or_mounted_after_an_interrupt(store: str, how: int, look_in: Path) -> None:
    # What a shell runs in the background has interrupts ignored, and that is inherited.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    torture = [sys.executable, "-m", "lab", "torture", "--store", store, "--folder", str(look_in / "run")]
    command = [sys.executable, "-c", heed, *torture]
    said = look_in / "said"
    with said.open("w") as output, subprocess.Popen(command, stderr=output) as process:
        while not list(look_in.glob("run/worker-*.history")):
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        process.send_signal(how)
        assert process.wait(240) != 0

    assert _about(look_in) == []


def _about(folder: Path) -> list[str]:
    """What runs with this folder in its command, and what is mounted in it."""
    found = []
    for file in [*Path("/proc").glob("[0-9]*/cmdline"), Path("/proc/mounts")]:
        with contextlib.suppress(OSError):  # a process that has just ended
            found += [line for line in file.read_text(errors="replace").splitlines() if str(folder) in line]
    return found


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("postgres", "neither a URL nor one of sqlite, redis, postgresql, dynamodb"),
        ("memory:", "are for one process; use sqlite or a URL"),
        ("journal:///claims.journal", "are for one process; use sqlite or a URL"),
        ("dynamodb://claims", "name an emulator"),
    ],
)
def test_a_store_that_cannot_be_tortured(store: str, says: str) -> None:
    done = torture("--store", store)

    assert done.returncode == 2
    assert says in done.stderr


def test_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    done = torture("--store", "sqlite", "--folder", str(tmp_path))

    assert done.returncode == 2
    assert "is not empty" in done.stderr
