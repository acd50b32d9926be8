"""The car-ride example: it ends well while everything is killed, and it would notice if it did not."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers import Ministack

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rides"
WELL = "Every completed ride was charged once, and the read model shows every ride as it is."


def ride(*options: str, example: Path = EXAMPLE) -> tuple[int, str]:
    """Run the example. It is terminated and never killed, so that it can stop its own processes."""
    command = [sys.executable, str(example / "run.py"), "--rides", "12", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    return process.returncode, printed


def killed(printed: str) -> set[tuple[str, str]]:
    return set(re.findall(r"'(\w+)': (\d)", printed))


@pytest.fixture(scope="module")
def ridden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the example has run on files, and what it said."""
    folder = tmp_path_factory.mktemp("rides") / "run"
    code, printed = ride("--embedded", "--keep", str(folder))
    assert code == 0, printed
    return folder, printed


def test_on_files(ridden: tuple[Path, str]) -> None:
    _, printed = ridden
    assert WELL in printed
    assert killed(printed) == {(name, "2") for name in ("api", "relay", "billing", "readmodel")}


@pytest.mark.long
def test_on_the_emulator(ministack: Ministack) -> None:
    # It starts a server of its own; the fixture sees to it that the program is here.
    code, printed = ride()
    assert code == 0, printed
    assert WELL in printed
    assert killed(printed) == {(name, "2") for name in ("api", "relay", "fanout", "billing", "readmodel")}
    assert int(re.findall(r"(\d+) copies sent", printed)[0]) >= 20


@pytest.mark.parametrize("pipeline", ["billing", "readmodel", "fanout"])
def test_its_pipelines_are_good_examples(pipeline: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "eventonce", "check", str(EXAMPLE / f"{pipeline}.toml")]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- it can fail ---


def sql(file: str, statement: str) -> Callable[[Path], object]:
    def execute(folder: Path) -> None:
        with closing(sqlite3.connect(folder / file)) as connection, connection:
            assert connection.execute(statement).rowcount != 0

    return execute


A_CHARGE = "(SELECT min(rowid) FROM charges)"
A_RIDE = "(SELECT min(id) FROM rides)"
WRONG = {
    "a ride that was not charged": (sql("billing.db", f"DELETE FROM charges WHERE rowid = {A_CHARGE}"), "0 charges of"),
    "a ride that was charged twice": (
        sql("billing.db", f"INSERT INTO charges SELECT * FROM charges WHERE rowid = {A_CHARGE}"),
        "2 charges of",
    ),
    "a wrong fare": (
        sql("billing.db", f"UPDATE charges SET cents = 1 WHERE rowid = {A_CHARGE}"),
        "1 charges of 1 cents",
    ),
    "a charge for no ride": (sql("billing.db", "INSERT INTO charges VALUES ('r-0', 1)"), "r-0: 1 charges"),
    "an old state": (
        sql("readmodel.db", f"UPDATE rides SET version = 1, status = 'requested' WHERE id = {A_RIDE}"),
        "the read model has",
    ),
    "a state that is missing": (
        sql("readmodel.db", f"DELETE FROM rides WHERE id = {A_RIDE}"),
        "the read model has None",
    ),
    "a state of no ride": (sql("readmodel.db", "INSERT INTO rides VALUES ('r-0', '', '', 0, 1)"), "the service None"),
    "a ride that the service lost": (sql("rides.db", f"DELETE FROM rides WHERE id = {A_RIDE}"), "the client received"),
    "an event that is not out": (
        sql("rides.db", "INSERT INTO eventonce_outbox (added, grp, identity, event) VALUES (1, '-a', 'a', '{}')"),
        "1 events wait in the outbox",
    ),
    "a dead letter": (lambda folder: (folder / "dead.jsonl").write_text("{}\n"), "dead letters in dead.jsonl"),
    "no rides at all": (sql("rides.db", "DELETE FROM rides"), "nothing can be checked"),
}


def check(folder: Path) -> tuple[int, str]:
    command = [sys.executable, str(EXAMPLE / "check.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("wrong", WRONG)
def test_the_check_notices(wrong: str, ridden: tuple[Path, str], tmp_path: Path) -> None:
    folder = shutil.copytree(ridden[0], tmp_path / "run")
    assert check(folder)[0] == 0
    spoil_results, problem = WRONG[wrong]
    spoil_results(folder)
    code, printed = check(folder)
    assert code == 1
    assert problem in printed


def test_a_careless_consumer_is_found_out(tmp_path: Path) -> None:
    """A charge outside of the transaction, kept apart from the memory of it."""
    careless = shutil.copytree(EXAMPLE, tmp_path / "example")
    replace(careless / "billing.toml", '"sqlite:///billing.db"', '"memory:"')
    replace(careless / "consumers.py", "    ctx.tx.execute(CHARGES)\n    ctx.tx.execute(", CARELESS)
    code, printed = ride("--embedded", example=careless)
    assert code == 1, printed
    assert re.search(r"r-\d+: [2-9] charges of \d+ cents", printed)


CARELESS = """    import sqlite3

    db = sqlite3.connect("billing.db", timeout=30, isolation_level=None)
    db.execute(CHARGES)
    db.execute("""


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_existing_folder_is_refused() -> None:
    code, printed = ride("--embedded", "--keep", os.curdir)
    assert code == 2
    assert "already exists" in printed
