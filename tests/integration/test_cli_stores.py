"""The command line on stores that have a server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.testing.servers import Redis
from eventonce.testing.servers.process import free_port

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]
EVENTS = "".join(json.dumps({"id": each}) + "\n" for each in ("a", "b", "a"))


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    def run(*args: str, given: str = EVENTS, code: str = "pass") -> Finished:
        start = f"{code}; import sys; from eventonce.cli import main; sys.argv[0] = 'eventonce'; main()"
        return subprocess.run(
            [sys.executable, "-c", start, *args],
            check=False,
            cwd=tmp_path,
            input=given,
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
    told: dict[str, int] = json.loads(done.stderr.splitlines()[-1])
    return {kind: number for kind, number in told.items() if number}


def test_a_run_remembers_in_its_server(cli: Command, server: Redis) -> None:
    first = cli("run", "--store", server.url(), "--json")
    assert (first.returncode, counts(first)) == (0, {"events": 3, "processed": 2, "duplicate": 1})
    second = cli("run", "--store", server.url(), "--json")
    assert (second.returncode, counts(second)) == (0, {"events": 3, "duplicate": 3})


def test_peek_forget_and_sweep(cli: Command, server: Redis) -> None:
    cli("run", "--store", server.url())
    seen = [json.loads(line) for line in cli("peek", "--store", server.url()).stdout.splitlines()]
    assert [each["state"] for each in seen] == ["done"] * 3
    assert '"forgotten": true' in cli("forget", "--store", server.url(), seen[0]["key"]).stdout
    assert '"unknown"' in cli("peek", "--store", server.url(), seen[0]["key"]).stdout
    assert json.loads(cli("sweep", "--store", server.url()).stdout) == {"removed": 0}


@pytest.mark.parametrize("verb", ["run", "peek", "forget", "sweep"])
def test_a_server_that_is_not_there(cli: Command, verb: str) -> None:
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


def test_check_warns_of_a_server_that_is_not_there(cli: Command, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f'store = "redis://127.0.0.1:{free_port()}"\n')
    done = cli("check", str(file))
    assert done.returncode == 0
    assert "store: could not be asked" in done.stdout


def test_check_finds_a_wrong_option_of_a_store(cli: Command, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('store = "redis://127.0.0.1?clusters=true"\n')
    done = cli("check", str(file))
    assert done.returncode == 2
    assert "option 'clusters' is not known" in done.stdout


def test_events_run_without_a_store_where_the_pipeline_says_so(cli: Command, tmp_path: Path) -> None:
    place = f"redis://127.0.0.1:{free_port()}"
    (tmp_path / "pipeline.toml").write_text(f'store = "{place}"\nstore_trouble = "process"\nlease = "0.2s"\n')
    done = cli("run", "pipeline.toml")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2  # the third is a copy in the same batch
    assert "Connection refused" in done.stderr
