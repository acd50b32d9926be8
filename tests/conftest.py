"""The servers that tests talk to: each is started once, on first use, and stopped at the end."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest

from eventonce.testing.servers import Dynoxide, Ministack, Missing, Postgres, Redis, RedisCluster

_SERVERS = Path(__file__).parents[1] / ".servers" / "bin"
os.environ["PATH"] = f"{_SERVERS}{os.pathsep}{os.environ['PATH']}"
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")

Server = TypeVar("Server")


def running(make: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """A started server; where it is not installed, a skip on a laptop and a failure in CI."""
    try:
        server = make()
        entered = server.__enter__()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    yield entered
    server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def servers() -> Iterator[Path]:
    """Where servers keep their data. Everyone may look in, since PostgreSQL does not run as root."""
    with TemporaryDirectory(prefix="eventonce-servers-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def redis_server(servers: Path) -> Iterator[Redis]:
    yield from running(lambda: Redis(servers))


@pytest.fixture(scope="session")
def redis_cluster(servers: Path) -> Iterator[RedisCluster]:
    yield from running(lambda: RedisCluster(servers))


@pytest.fixture(scope="session")
def postgres_server(servers: Path) -> Iterator[Postgres]:
    yield from running(lambda: Postgres(servers))


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
