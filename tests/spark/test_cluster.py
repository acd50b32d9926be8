"""A standalone cluster: a master and two workers as processes. One is killed in the middle of a deduplication."""

import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from tests.copied_traffic import copy

HOME = Path(pyspark.__file__).parent
EVENTONCE = [sys.executable, "-W", "ignore", "-m", "eventonce"]
FILES, LINES = 40, 1500


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


class Cluster:
    """A master, and workers that can be killed with all that they have started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str, *args: str) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{kind}-{len(self._running)}.log", "wb")  # noqa: SIM115  # as long as it runs
        more = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        started = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *args],
            stdout=log, stderr=log, env={**os.environ, **more}, start_new_session=True,
        )  # fmt: skip
        log.close()
        self._running.append(started)
        return started

    def worker(self) -> subprocess.Popen[bytes]:
        work_folder = str(self.folder / f"work-{len(self._running)}")
        args = ("--cores", "1", "--memory", "1g", "--work-dir", work_folder, "--webui-port", "0", self.url)
        return self.start("Worker", *args)

    def wait_for_workers(self, count: int) -> None:
        log = self.folder / "Master-0.log"
        deadline = time.monotonic() + 120
        while log.read_text().count("Registering worker") < count:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    def close(self) -> None:
        for each in self._running:
            kill(each)


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    host, port = made.url.removeprefix("spark://").split(":")
    made.start("Master", "--host", host, "--port", port, "--webui-port", "0")
    yield made
    made.close()


def record(folder: Path) -> None:
    """Write files whose events overlap, so that copies are in other files than their firsts, and some broken lines."""
    folder.mkdir()
    for number in range(FILES):
        own = range(number * 1000, number * 1000 + LINES)
        text = b"".join(b'{"id": "%d", "pad": "%s"}\n' % (each, b"x" * 200) for each in own) + b"{broken\n"
        if number % 2:
            (folder / f"{number:02}.jsonl.gz").write_bytes(gzip.compress(text, 1))
        else:
            (folder / f"{number:02}.jsonl").write_bytes(text)


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def test_a_worker_is_killed_and_the_output_is_the_same_to_the_byte(cluster: Cluster, tmp_path: Path) -> None:
    record(tmp_path / "in")
    here = subprocess.run(
        [*EVENTONCE, "dedupe", "--json", "in", "here"], check=False, cwd=tmp_path, capture_output=True
    )
    cluster.worker()
    doomed = cluster.worker()
    cluster.wait_for_workers(2)

    command = [*EVENTONCE, "dedupe", "--json", "--engine", cluster.url, "in", "there"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as running:
        keys = tmp_path / "there.partial" / "keys"
        deadline = time.monotonic() + 200
        while len(list(keys.glob("*.json"))) < 3 and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        done = len(list(keys.glob("*.json")))
        kill(doomed)
        stdout, stderr = running.communicate(timeout=280)

    assert 3 <= done < FILES, "it was killed in the middle"
    assert running.returncode == here.returncode == 1, stderr  # the broken lines
    assert json.loads(stdout) == json.loads(here.stdout)
    assert json.loads(stdout)["kept"] == 1000 * (FILES - 1) + LINES
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_an_audit_is_the_same_as_on_one_machine(tmp_path: Path) -> None:
    record(tmp_path / "in")
    here = subprocess.run([*EVENTONCE, "audit", "--json", "in"], check=False, cwd=tmp_path, capture_output=True)
    command = [*EVENTONCE, "audit", "--json", "--engine", "local[2]", "in"]
    there = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True)

    assert there.stdout == here.stdout, there.stderr.decode()
    assert json.loads(there.stdout)["totals"]["duplicates"] == 500 * (FILES - 1)


def test_an_audit_decides_on_all_copies_as_one_machine_does(tmp_path: Path) -> None:
    chance = random.Random(5)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(copy(chance) for _ in range(1000)))
    (tmp_path / "pipeline.toml").write_text(
        '[[rule]]\nname = "v"\nmatch = { source = ["s1"] }\nkey = ["detail.order"]\nversion = "detail.version"\n'
        '[[rule]]\nname = "short"\nmatch = { source = ["s2"] }\nkey = ["detail.order"]\nwindow = "1h"\n'
        '[[rule]]\nname = "s"\nmatch = { source = ["s3"] }\nkey = ["detail.order"]\nwindow = "1h"\nrefresh = true\n'
        '[[rule]]\nname = "ever"\nkey = ["detail.order"]\nwindow = "36500d"\n'
    )
    outputs = [
        subprocess.run(
            [*EVENTONCE, "audit", "pipeline.toml", "--json", "--engine", engine, "a.jsonl", "b.jsonl", "c.jsonl"],
            check=False, cwd=tmp_path, capture_output=True, env=environment(),
        )
        for engine in ("memory", "local[2]")
    ]  # fmt: skip

    assert outputs[1].stdout == outputs[0].stdout, outputs[1].stderr.decode()
    totals = json.loads(outputs[1].stdout)["totals"]
    assert min(totals[each] for each in ("duplicates", "stale", "late", "suspicious", "replayed")) > 20


@pytest.mark.parametrize("without", ["eventonce", "pyarrow"])
def test_workers_with_another_python_are_refused_in_one_sentence(tmp_path: Path, without: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "1"}\n')
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    (theirs,) = other.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not package.name.startswith(without) and not (theirs / package.name).exists():
            (theirs / package.name).symlink_to(package)
    command = [*EVENTONCE, "audit", "--json", "--engine", "local[1]", "in.jsonl"]
    environment = {**os.environ, "PYSPARK_PYTHON": str(other / "bin" / "python")}

    refused = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=environment)

    assert (refused.returncode, refused.stdout) == (2, "")
    message = refused.stderr.splitlines()[-1]
    assert "the Python of the workers is not that of the driver and cannot make keys" in message
    assert f"No module named '{without}" in message
    assert "PYSPARK_PYTHON" in message
