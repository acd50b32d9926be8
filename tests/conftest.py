"""The servers of the tests. Each is started once, on first use, and stopped at the end."""

import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from tests.missing import missing
from tests.servers import Dynoxide, Ministack, Missing, Postgres, Redis, RedisCluster, Valkey

_SERVERS = Path(__file__).parents[1] / ".servers" / "bin"
os.environ["PATH"] = f"{_SERVERS}{os.pathsep}{os.environ['PATH']}"
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")

Server = TypeVar("Server")


def running(make: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """Yield a started server. If it is not installed, skip the test on a laptop and fail it in CI."""
    try:
        server = make()
        started = server.__enter__()
    except Missing as absent:
        missing(str(absent))
    yield started
    server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def servers() -> Iterator[Path]:
    """Create the folder for the data of servers. Everyone may read it, because PostgreSQL does not run as root."""
    with TemporaryDirectory(prefix="eventonce-servers-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def redis_server(servers: Path) -> Iterator[Redis]:
    yield from running(lambda: Redis(servers))


@pytest.fixture(scope="session")
def valkey_server(servers: Path) -> Iterator[Valkey]:
    yield from running(lambda: Valkey(servers))


@pytest.fixture(scope="session")
def redis_cluster(servers: Path) -> Iterator[RedisCluster]:
    yield from running(lambda: RedisCluster(servers))


@pytest.fixture(scope="session")
def postgres_server(servers: Path) -> Iterator[Postgres]:
    # Syncs matter if a machine crashes. The writes of a process survive if only the process is killed.
    yield from running(lambda: Postgres(servers, "fsync=off"))


@pytest.fixture(scope="session")
def dynoxide(servers: Path) -> Iterator[Dynoxide]:
    yield from running(lambda: Dynoxide(servers))


@pytest.fixture(scope="session")
def dynoxide_in_memory(servers: Path) -> Iterator[Dynoxide]:
    yield from running(lambda: Dynoxide(servers, durable=False))


@pytest.fixture(scope="session")
def ministack(servers: Path) -> Iterator[Ministack]:
    yield from running(lambda: Ministack(servers))


@pytest.fixture(scope="session")
def durable_ministack(servers: Path) -> Iterator[Ministack]:
    yield from running(lambda: Ministack(servers, durable=True))


def _line(rng: random.Random) -> str:
    """Return a random event, of which others may be copies in some way, or a line that is not an event."""
    number = rng.randrange(600)
    event: dict[str, Any] = {
        "id": f"{number}" if rng.random() < 0.9 else f"new-{rng.random()}",
        "source": f"s{number % 5}",
        "detail-type": f"t{number % 7}",
        "time": f"2026-01-0{rng.randrange(1, 9)}T00:00:{rng.randrange(60):02}Z",
        "detail": {"order": number, "version": rng.randrange(3), "word": rng.choice([1, 1.0, "ü"])},
    }
    if rng.random() < 0.02:
        del event["detail"]["order"]
    if rng.random() < 0.02:
        event["replay-name"] = "again"
    if rng.random() < 0.01:
        del event["time"]
    text = json.dumps(event)
    if rng.random() < 0.02:  # several in one document
        other = json.dumps({**event, "detail": {**event["detail"], "order": 0}})
        records = [
            {"messageId": f"m{index}", "eventSource": "aws:sqs", "body": body}
            for index, body in enumerate((text, other, text))
        ]
        text = json.dumps({"Records": records})
    return text[:-4] if rng.random() < 0.01 else text


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder of recorded traffic with typical files: compressed, truncated, empty, and with long documents."""
    folder, rng = tmp_path_factory.mktemp("recorded"), random.Random(7)
    for number in range(4):
        text = "".join(f"{_line(rng)}\n" for _ in range(700)).encode()
        subfolder = folder / f"day{number % 2}"
        subfolder.mkdir(exist_ok=True)
        if number % 2:
            (subfolder / f"{number}.jsonl.gz").write_bytes(gzip.compress(text))
        else:
            (subfolder / f"{number}.jsonl").write_bytes(text)
    (folder / "concatenated.json").write_bytes(b'{"id": "1"}{"id": "2"}\n{\n  "id": "3",\n  "n": 1\n}\n{"id": "1"}')
    (folder / "cut.gz").write_bytes(gzip.compress(b'{"id": "cut"}\n' * 500)[:-12])
    (folder / "empty.jsonl").write_bytes(b"")
    return folder
