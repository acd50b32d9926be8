"""Redis: one server, or three masters as a cluster; and Valkey, its successor."""

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
    """One Redis that keeps all it has said yes to."""

    brand = "redis"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options or DURABLE
        self.socket = folder / f"redis-{self.port}.sock"

    def command(self) -> list[str]:
        home = self.folder / f"redis-{self.port}"
        home.mkdir(exist_ok=True)
        fixed = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(home), "--unixsocket", str(self.socket)]
        return [find(f"{self.brand}-server"), *fixed, "--save", "", *self._options]

    def ready(self) -> bool:
        asked = self.cli("ping")
        return asked in ("PONG", "NOAUTH Authentication required.")

    def cli(self, *words: str) -> str:
        """What `redis-cli` answers."""
        ask = [find(f"{self.brand}-cli"), "-p", str(self.port), *words]
        return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0"


class Valkey(Redis):
    """One Valkey. What it does differently, Redis does too from 7.2 on."""

    brand = "valkey"


class RedisCluster:
    """Three masters that share the keys."""

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
        places = [f"127.0.0.1:{node.port}" for node in self.nodes]
        create = [find("redis-cli"), "--cluster", "create", *places, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True)
        self.settle()

    def settle(self) -> None:
        """Wait until every node knows that all is well."""
        for node in self.nodes:
            while "cluster_state:ok" not in node.cli("cluster", "info"):
                time.sleep(0.05)

    def announce(self, ports: Sequence[int]) -> None:
        """Let clients be told of these ports in place of the nodes' own; 0 is a node's own again."""
        for node, port in zip(self.nodes, ports, strict=True):
            node.cli("config", "set", "cluster-announce-port", str(port))
        told = [port or node.port for node, port in zip(self.nodes, ports, strict=True)]
        for node in self.nodes:
            while not all(f":{port}@" in node.cli("cluster", "nodes") for port in told):
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
        """Forget everything."""
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
    """One master of a cluster; its bus has a free port of its own, or ports beyond 65535 would be wanted."""

    def __init__(self, folder: Path) -> None:
        bus = free_port()
        super().__init__(folder, *DURABLE, "--cluster-enabled", "yes", "--cluster-port", str(bus))
