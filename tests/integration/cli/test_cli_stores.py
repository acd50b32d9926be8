"""The command line on stores that have a server."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.testing.proxy import free_port
from tests.servers import Dynoxide, Redis

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]
EVENTS = "".join(json.dumps({"id": each}) + "\n" for each in ("a", "b", "a"))


pytestmark = pytest.mark.long  # a process or several for each case


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    def run(*args: str, stdin: str = EVENTS, code: str = "pass") -> Finished:
        start = f"{code}; import sys; from eventonce.cli import main; sys.argv[0] = 'eventonce'; main()"
        return subprocess.run(
            [sys.executable, "-c", start, *args],
            check=False,
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )

    return run


@pytest.fixture
def server(redis_server: Redis) -> Redis:
    redis_server.cli("flushall")
    return redis_server


def counts(done: Finished) -> dict[str, int]:
    counts: dict[str, int] = json.loads(done.stderr.splitlines()[-1])
    return {kind: number for kind, number in counts.items() if number}


def test_a_run_remembers_in_its_server(cli: Command, server: Redis) -> None:
    first = cli("run", "--store", server.url(), "--json")
    assert (first.returncode, counts(first)) == (0, {"events": 3, "processed": 2, "duplicate": 1})
    second = cli("run", "--store", server.url(), "--json")
    assert (second.returncode, counts(second)) == (0, {"events": 3, "duplicate": 3})


@pytest.mark.parametrize("verb", ["peek", "explain", "forget", "sweep"])
def test_only_workers_warn_that_a_server_may_forget(cli: Command, server: Redis, verb: str) -> None:
    server.cli("config", "set", "appendonly", "no")
    try:
        worker, looking = (cli(name, "--store", server.url()) for name in ("run", verb))
    finally:
        server.cli("config", "set", "appendonly", "yes")

    assert "eventonce: warning: redis://" in worker.stderr
    assert looking.stderr == ""


def test_peek_forget_and_sweep(cli: Command, server: Redis) -> None:
    cli("run", "--store", server.url())
    seen = [json.loads(line) for line in cli("peek", "--store", server.url()).stdout.splitlines()]
    assert [each["state"] for each in seen] == ["done"] * 3
    assert '"forgotten": true' in cli("forget", "--store", server.url(), seen[0]["key"]).stdout
    assert '"unknown"' in cli("peek", "--store", server.url(), seen[0]["key"]).stdout
    assert json.loads(cli("sweep", "--store", server.url()).stdout) == {"removed": 0}


@pytest.mark.parametrize("verb", ["run", "peek", "forget", "sweep"])
def test_a_server_that_does_not_exist(cli: Command, verb: str) -> None:
    done = cli(verb, "--store", f"redis://:hunter2@127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("redis://localhost", "redis", "redis"),
        ("rediss://localhost", "redis", "redis"),
        ("dynamodb://claims", "boto3", "dynamodb"),
        ("postgresql://localhost", "psycopg", "postgres"),
    ],
)
def test_a_missing_driver_names_the_extra(cli: Command, url: str, module: str, extra: str) -> None:
    done = cli("run", "--store", url, code=f"import sys; sys.modules.update({{'{module}': None}})")
    assert done.returncode == 2
    assert f"pip install 'eventonce[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_asks_the_server(cli: Command, tmp_path: Path, server: Redis) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f'consumer = "c"\nstore = "{server.url()}"\n')
    server.cli("config", "set", "maxmemory-policy", "allkeys-lru")
    server.cli("config", "set", "maxmemory", "1gb")
    try:
        done = cli("check", str(file))
    finally:
        server.cli("config", "set", "maxmemory-policy", "noeviction")
        server.cli("config", "set", "maxmemory", "0")
    assert done.returncode == 0
    assert "pipeline.toml:2: warning: store: " in done.stdout
    assert "maxmemory-policy is allkeys-lru" in done.stdout
    assert "maxmemory" not in cli("check", str(file)).stdout


def test_check_warns_of_a_server_that_does_not_answer(cli: Command, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f'store = "redis://127.0.0.1:{free_port()}"\n')
    done = cli("check", str(file))
    assert done.returncode == 0
    assert "store: cannot be checked" in done.stdout


def test_check_reports_what_must_be_fixed(cli: Command, tmp_path: Path, dynoxide_in_memory: Dynoxide) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f'store = "{dynoxide_in_memory.url("absent")}"\n')
    done = cli("check", str(file))
    assert "warning: store: DynamoDB table 'absent'" in done.stdout
    assert "or create it: aws dynamodb create-table" in done.stdout
    assert cli("run", str(file)).returncode == 2


# --- secrets ---


def secret(kind: str, redis_server: Redis) -> str:
    """A URL with a password that is wrong, or cannot be read, or leads nowhere."""
    return {
        "redis": f"redis://ghost:hunter2@127.0.0.1:{redis_server.port}",
        "postgres encoded": f"postgresql://me:hunter2%zz@127.0.0.1:{free_port()}/db",
        "cluster": f"redis://:hunter2@127.0.0.1:{free_port()}?cluster=true",
        "sentinel": f"redis://:hunter2@127.0.0.1:{free_port()}?sentinel=main",
        "postgres": f"postgresql://me:hunter2@127.0.0.1:{free_port()}/db",
        "postgres option": f"postgresql://127.0.0.1:{free_port()}/db?user=me&password=hunter2",
    }[kind]


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        *itertools.product(["run", "peek", "forget", "sweep", "explain"], ["redis", "postgres encoded"]),
        *itertools.product(["run"], ["cluster", "sentinel", "postgres", "postgres option"]),
    ],
)
def test_no_command_shows_a_secret(cli: Command, verb: str, kind: str, server: Redis) -> None:
    done = cli(verb, "--store", secret(kind, server))
    assert done.returncode in (1, 2)
    assert "Usage" not in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["redis", "postgres encoded", "sentinel", "postgres option"])
def test_check_shows_no_secret(cli: Command, tmp_path: Path, kind: str, server: Redis) -> None:
    (tmp_path / "pipeline.toml").write_text(f'store = "{secret(kind, server)}"\n')
    done = cli("check", "pipeline.toml", "--json")
    assert "store" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("password", ["hunter2", "hunter2%zz", "hunter2?", "a@hunter2", "hunter2#", "1/hunter2"])
def test_dead_letters_hold_no_secret(cli: Command, password: str) -> None:
    place = f"postgresql://me:{password}@127.0.0.1:{free_port()}/db"
    for args in (("run", "--dead-letter", place), ("redrive", "--from", place, "--dry-run")):
        done = cli(*args, stdin='{"id": 1}\nno event\n')
        assert done.returncode in (1, 2)
        assert "dead_letter" in done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_worker_waits_for_room_in_a_full_server(cli: Command, server: Redis, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(f'store = "{server.url()}"\nlease = "1s"\n')
    server.cli("config", "set", "maxmemory", "1")
    room = threading.Timer(2, server.cli, ["config", "set", "maxmemory", "0"])
    room.start()
    try:
        done = cli("run", "pipeline.toml", "--json")
    finally:
        room.join()
    assert (done.returncode, counts(done)) == (0, {"events": 3, "processed": 2, "duplicate": 1})


def test_check_finds_a_wrong_option_of_a_store(cli: Command, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('store = "redis://127.0.0.1?clusters=true"\n')
    done = cli("check", str(file))
    assert done.returncode == 2
    assert "unknown option 'clusters'" in done.stdout


def test_events_run_without_a_store_if_the_pipeline_allows_it(cli: Command, tmp_path: Path) -> None:
    place = f"redis://127.0.0.1:{free_port()}"
    (tmp_path / "pipeline.toml").write_text(f'store = "{place}"\non_store_error = "process"\nlease = "0.2s"\n')
    done = cli("run", "pipeline.toml")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2  # the third is a copy in the same batch
    assert "Connection refused" in done.stderr
