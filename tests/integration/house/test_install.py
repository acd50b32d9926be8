"""What make does before anything else: an environment that is complete, or one sentence that says what to do."""

import contextlib
import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = [sys.executable, str(ROOT / "tools" / "install.py")]
CLOSED = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "http://127.0.0.1:9/",
    "PIP_RETRIES": "0",
}


def install(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    own = {**os.environ, **environment}
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, env=own, check=False, timeout=200)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A package that needs no index."""
    path = tmp_path_factory.mktemp("wheel") / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny.py", "answer = 42\n")
        file.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        file.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tiny-1.dist-info/RECORD", "")
    return str(path)


def answer(folder: Path) -> str:
    if not (folder / "bin" / "python").exists():
        return ""
    command = [str(folder / "bin" / "python"), "-c", "import tiny; print(tiny.answer)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.long
def test_an_install_that_was_killed_is_begun_anew_and_a_second_one_does_nothing(tmp_path: Path, wheel: str) -> None:
    folder = tmp_path / "env"
    words = ("--into", str(folder), wheel)
    for _ in range(20):
        killed = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.DEVNULL, start_new_session=True)
        while not (folder / "pyvenv.cfg").exists() and killed.poll() is None:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(killed.pid, signal.SIGKILL)
        if killed.wait() == -signal.SIGKILL and answer(folder) == "":
            break
        shutil.rmtree(folder)  # it was quicker than the kill
    assert answer(folder) == ""
    (folder / "left-over").touch()

    done = install(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Installing {wheel} into {folder} ... done in ")
    assert answer(folder) == "42\n"
    assert not (folder / "left-over").exists()

    again = install(*words)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")

    away = install("--into", str(folder), "there-is-no-such-package", **CLOSED)
    assert away.returncode == 2
    assert "the package index does not answer; check the network" in away.stderr
    assert away.stderr.count("\n") == 2  # the end of the line that was begun, and the sentence


@pytest.mark.long
def test_an_environment_of_somebody_else_keeps_what_it_has(tmp_path: Path, wheel: str) -> None:
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (folder / "mine").touch()
    done = install("--into", str(folder), wheel)
    assert done.returncode == 0
    assert answer(folder) == "42\n"
    assert (folder / "mine").exists()


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/false", ""])
def test_without_a_python_that_is_new_enough_make_names_the_remedy(python: str) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "demo", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "eventonce needs Python 3.11 or newer; install it, or name one: make PYTHON=/path/to/python3" in done.stderr
    assert done.stdout == ""


@pytest.fixture
def reason() -> Any:
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reason


def test_each_way_to_fail_has_its_own_sentence(reason: Any, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    full = reason(f"ERROR: Could not install packages: {os.strerror(errno.ENOSPC)}\n", folder)
    assert full.startswith("no room is left on the disk (")
    assert full.endswith("; free some, and run the same again")
    printed = "The virtual environment was not created successfully because ensurepip is not available.\n"
    assert reason(printed, folder).endswith("install its venv module (Debian: python3-venv)")
    broken = reason("Collecting x\nERROR: x is not a supported wheel on this platform.\nnote: more\n", folder)
    assert (
        broken == f"pip failed: x is not a supported wheel on this platform.; {folder}/install.log has the full output"
    )
