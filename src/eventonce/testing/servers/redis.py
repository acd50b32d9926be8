"""Redis: one server, or three masters as a cluster."""

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from eventonce.testing.servers.process import Process, find, free_port


class Redis(Process):
    """One Redis that keeps all it has said yes to."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options or ("--appendonly", "yes", "--appendfsync", "always")
        self.socket = folder / f"redis-{self.port}.sock"

    def command(self) -> list[str]:
        home = self.folder / f"redis-{self.port}"
        home.mkdir(exist_ok=True)
        fixed = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(home), "--unixsocket", str(self.socket)]
        return [find("redis-server"), *fixed, "--save", "", *self._options]

    def ready(self) -> bool:
        asked = self.cli("ping")
        return asked in ("PONG", "NOAUTH Authentication required.")

    def cli(self, *words: str) -> str:
        """What `redis-cli` answers."""
        done = subprocess.run(
            [find("redis-cli"), "-p", str(self.port), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0"


class RedisCluster:
    """Three masters that share the keys."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [_Node(folder) for _ in range(3)]

    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}?cluster=true"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        places = [f"127.0.0.1:{node.port}" for node in self.nodes]
        create = [find("redis-cli"), "--cluster", "create", *places, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True)
        for node in self.nodes:
            while "cluster_state:ok" not in node.cli("cluster", "info"):
                time.sleep(0.05)

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
        super().__init__(folder, "--cluster-enabled", "yes", "--cluster-port", str(bus))
