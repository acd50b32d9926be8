"""Short torture runs on real servers, and what the command says to wrong options. Longer ones: `make proof`."""

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
def readable_folder() -> Iterator[Path]:
    """Yield a folder that PostgreSQL can read, although it does not run as root.

    It is not one of pytest's: each session that starts on this machine closes their parent to all other users.
    """
    with TemporaryDirectory(prefix="eventonce-torture-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def _servers(store: str) -> None:
    """Skip on a laptop and fail in CI if a server is missing. The command starts servers of its own."""
    try:
        for program in ("ministack", PROGRAMS[store]):
            find(program)
    except Missing as error:
        missing(str(error))


@pytest.mark.long
@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", PROGRAMS)
def test_nothing_is_lost_and_nothing_doubled(store: str, readable_folder: Path) -> None:
    folder = readable_folder / "run"

    done = torture("--store", store, "--minutes", "0.15", "--rate", "40", "--json", "--folder", str(folder))

    report = json.loads(done.stdout)
    assert done.returncode == 0, report["violations"] + [done.stderr]
    assert report["events"] >= 50
    assert report["copies"] > report["events"]
    assert report["lost"] == 0
    assert report["faults"]
    assert report == json.loads((folder / "report.json").read_text())
    if store == "redis":
        assert report["doubled"] == len(report["explained"])
    else:
        assert (report["effects"], report["doubled"]) == (report["events"], 0)


@pytest.mark.long
@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", ["sqlite"])
def test_a_second_run_on_the_same_store_is_one_of_its_own(store: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = torture("--store", f"{store}:///{tmp_path}/claims.db?shared=true", "--minutes", "0.05", "--json")

        report = json.loads(done.stdout)
        assert done.returncode == 0, report["violations"] + [done.stderr]
        assert report["events"] == report["effects"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("_servers")
@pytest.mark.parametrize("store", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_running_or_mounted_after_an_interrupt(store: str, number: int, readable_folder: Path) -> None:
    # What a shell runs in the background has interrupts ignored, and that is inherited.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    torture = [sys.executable, "-m", "lab", "torture", "--store", store, "--folder", str(readable_folder / "run")]
    command = [sys.executable, "-c", heed, *torture]
    errors = readable_folder / "errors"
    with errors.open("w") as output, subprocess.Popen(command, stderr=output) as process:
        while not list(readable_folder.glob("run/worker-*.history")):
            assert process.poll() is None, errors.read_text()
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(240) != 0

    assert _about(readable_folder) == []


def _about(folder: Path) -> list[str]:
    """Return the processes with this folder in their command, and the mounts in it."""
    lines = []
    for file in [*Path("/proc").glob("[0-9]*/cmdline"), Path("/proc/mounts")]:
        with contextlib.suppress(OSError):  # a process that has just ended
            lines += [line for line in file.read_text(errors="replace").splitlines() if str(folder) in line]
    return lines


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("postgres", "neither a URL nor one of sqlite, redis, postgresql, dynamodb"),
        ("memory:", "are for one process; use sqlite or a URL"),
        ("journal:///claims.journal", "are for one process; use sqlite or a URL"),
        ("dynamodb://claims", "use an emulator"),
    ],
)
def test_a_store_that_cannot_be_tortured(store: str, message: str) -> None:
    done = torture("--store", store)

    assert done.returncode == 2
    assert message in done.stderr


def test_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    done = torture("--store", "sqlite", "--folder", str(tmp_path))

    assert done.returncode == 2
    assert "is not empty" in done.stderr
