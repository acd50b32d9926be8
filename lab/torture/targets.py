"""The target of a torture run: a store, perhaps on a server of its own, and the faults that can be put into it."""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from eventonce.errors import ConfigError
from eventonce.stores.url import without
from eventonce.testing.proxy import FaultProxy
from lab.torture.effects import (
    DynamoEffects,
    Effects,
    FileEffects,
    PostgresEffects,
    SqliteEffects,
)
from tests.servers import Dynoxide, Postgres, Redis, ServerProcess

Fault = Callable[[], None]  # starts, lasts and heals
_DISK = 64  # megabytes of a disk that may be filled
STORES = ("sqlite", "redis", "postgresql", "dynamodb")


class TortureTarget:
    """A store by its URL, which is not ours: only our own workers are harmed."""

    own = False

    def __init__(self, store: str) -> None:
        self.store = store
        self.direct = store  # past the proxy, to count effects in the end
        self.faults: dict[str, Fault] = {}

    def open(self, folder: Path, stack: ExitStack, lease: float) -> None:
        """Start the server, if there is one."""


class SqliteTarget(TortureTarget):
    """A file on a disk of its own, which can be filled if we may mount one."""

    def __init__(self) -> None:
        super().__init__("sqlite:///")

    def open(self, folder: Path, stack: ExitStack, lease: float) -> None:
        disk = folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}m", "none", str(disk)]
        with contextlib.suppress(FileNotFoundError):
            if os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0:
                stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False)
                self.faults["fill the disk"] = lambda: _fill(disk / "ballast", lease)
        self.store = self.direct = f"sqlite:///{disk / 'claims.db'}?shared=true"


class ServerTarget(TortureTarget):
    """A server of our own behind a proxy of our own."""

    own = True

    def __init__(self, kind: Callable[[Path], ServerProcess], url: Callable[[Any, int | None], str]) -> None:
        super().__init__("")
        self._kind = kind
        self._url = url

    def open(self, folder: Path, stack: ExitStack, lease: float) -> None:
        server = self._kind(folder)
        stack.enter_context(server)
        proxy = stack.enter_context(FaultProxy(server.port))
        self.store, self.direct = self._url(server, proxy.port), self._url(server, None)
        self.faults = {
            "kill and restart the server": server.restart,
            "freeze the server": lambda: _lasting(server.freeze, server.thaw, 1.5 * lease),
            "cut connections": proxy.cut_all,
            "lose answers": lambda: proxy.cut_answers(random.randint(1, 6)),
            "delay answers": lambda: _lasting(
                lambda: setattr(proxy, "delay", 400), lambda: setattr(proxy, "delay", 0), lease
            ),
            "refuse connections": lambda: _lasting(
                lambda: _refuse(proxy, True), lambda: _refuse(proxy, False), lease / 2
            ),
        }
        if isinstance(server, Redis):
            self.faults["fill the server's memory"] = lambda: _lasting(
                lambda: server.cli("config", "set", "maxmemory", "1mb"),
                lambda: server.cli("config", "set", "maxmemory", "0"),
                lease / 2,
            )


def target_of(store: str) -> TortureTarget:
    """Return the target for a store, by the name of a kind of server or by a URL."""
    if store == "sqlite":
        return SqliteTarget()
    if store == "redis":
        return ServerTarget(Redis, Redis.url)
    if store == "postgresql":
        return ServerTarget(Postgres, Postgres.url)
    if store == "dynamodb":
        return ServerTarget(Dynoxide, lambda server, port: server.url("torture_claims", port))
    if ":" not in store:
        raise ConfigError(f"--store: {store!r} is neither a URL nor one of {', '.join(STORES)}")
    if store.startswith(("memory:", "journal:")):
        raise ConfigError(
            "--store: memory: and journal: are for one process; use sqlite or a URL that workers can share"
        )
    if store.startswith("dynamodb:") and not _option(store, "endpoint"):
        raise ConfigError(
            "--store: a real account must not be tortured; use an emulator, dynamodb://TABLE?endpoint=URL"
        )
    return TortureTarget(store)


def _option(url: str, name: str) -> str:
    return parse_qs(urlsplit(url).query).get(name, [""])[0]


def effects_at(config: Mapping[str, Any], folder: Path) -> Effects:
    """Return the effects: in the store's own database if it has transactions and they are wanted, else in a file."""
    parts = urlsplit(config["direct"])
    if config["plain"] or parts.scheme not in ("sqlite", "postgresql", "dynamodb"):
        return FileEffects(folder / "effects")
    if parts.scheme == "sqlite":
        return SqliteEffects(Path(parts.path))
    if parts.scheme == "postgresql":
        return PostgresEffects(without(config["direct"], "timeout", "prepare"))  # libpq does not have these options
    return DynamoEffects(_option(config["direct"], "endpoint"))


def _lasting(start: Callable[[], object], end: Callable[[], object], seconds: float) -> None:
    start()
    try:
        time.sleep(seconds)
    finally:
        end()


def _refuse(proxy: FaultProxy, refusing: bool) -> None:
    proxy.refusing = refusing
    proxy.cut_all()


def _fill(file: Path, seconds: float) -> None:
    try:
        with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(65_536))
        time.sleep(seconds)
    finally:
        file.unlink(missing_ok=True)
