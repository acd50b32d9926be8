"""Redis and Valkey servers, alone or as a cluster of three masters."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from eventonce.testing.proxy import free_port
from tests.servers.process import ServerProcess, find

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Redis(ServerProcess):
    """A Redis that loses nothing it has confirmed."""

    brand = "redis"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options or DURABLE
        self.socket = folder / f"redis-{self.port}.sock"

    def command(self) -> list[str]:
        data_folder = self.folder / f"redis-{self.port}"
        data_folder.mkdir(exist_ok=True)
        fixed = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--dir",
            str(data_folder),
            "--unixsocket",
            str(self.socket),
        ]
        return [find(f"{self.brand}-server"), *fixed, "--save", "", *self._options]

    def ready(self) -> bool:
        response = self.cli("ping")
        return response in ("PONG", "NOAUTH Authentication required.")

    def cli(self, *words: str) -> str:
        """Return the response to a command of `redis-cli`."""
        command = [find(f"{self.brand}-cli"), "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0"


class Valkey(Redis):
    """A Valkey. Where it differs from Redis 6, Redis does the same from 7.2 on."""

    brand = "valkey"


class RedisCluster:
    """A cluster of three masters."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [_Node(folder) for _ in range(3)]

    @property
    def port(self) -> int:
        return self.nodes[0].port

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}?cluster=true"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        create = [find("redis-cli"), "--cluster", "create", *addresses, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True)
        self.settle()

    def settle(self) -> None:
        """Wait until every node reports that the cluster is ok."""
        for node in self.nodes:
            while "cluster_state:ok" not in node.cli("cluster", "info"):
                time.sleep(0.05)

    def announce(self, ports: Sequence[int]) -> None:
        """Make the nodes announce these ports to clients instead of their own. Port 0 stands for the node's own."""
        for node, port in zip(self.nodes, ports, strict=True):
            node.cli("config", "set", "cluster-announce-port", str(port))
        announced = [port or node.port for node, port in zip(self.nodes, ports, strict=True)]
        for node in self.nodes:
            while not all(f":{port}@" in node.cli("cluster", "nodes") for port in announced):
                time.sleep(0.05)

    def restart(self) -> None:
        """Kill one of the masters and start it again."""
        self.nodes[1].restart()

    def freeze(self) -> None:
        for node in self.nodes:
            node.freeze()

    def thaw(self) -> None:
        for node in self.nodes:
            node.thaw()

    def flush(self) -> None:
        """Delete all data."""
        for node in self.nodes:
            node.cli("flushall")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Node(Redis):
    """A master of a cluster. Its bus has a free port of its own, because the default could be above 65535."""

    def __init__(self, folder: Path) -> None:
        bus = free_port()
        super().__init__(folder, *DURABLE, "--cluster-enabled", "yes", "--cluster-port", str(bus))
