"""PostgreSQL servers."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.servers.process import Missing, ServerProcess, find

_DEBIAN = "/usr/lib/postgresql"


class Postgres(ServerProcess):
    """A PostgreSQL with the user and the database `postgres`. Local connections need no password."""

    hard = (
        signal.SIGQUIT
    )  # which also ends its children without a checkpoint, so that the next start recovers from the log

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder)
        self._settings = settings
        self._data = folder / f"postgres-{self.port}"

    def user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None  # it refuses to run as root

    def command(self) -> list[str]:
        if not self._data.exists():
            self._create()
        fixed = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._data}"]
        return [
            _find("postgres"),
            "-D",
            str(self._data),
            *(word for setting in (*fixed, *self._settings) for word in ("-c", setting)),
        ]

    def _create(self) -> None:
        self._data.mkdir(mode=0o700)
        if user := self.user():
            shutil.chown(self._data, user, user)
        init = [_find("initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]
        done = subprocess.run(
            [*init, "--locale=C"], check=False, capture_output=True, text=True, user=self.user(), cwd="/"
        )
        if done.returncode:
            raise RuntimeError(f"initdb did not create {self._data}: {done.stderr.strip()}")

    def ready(self) -> bool:
        command = [_find("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def freeze(self) -> None:
        """Pause it with its connections open. The postmaster is first, so that no new backend starts."""
        super().freeze()
        self._signal_backends(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_backends(signal.SIGCONT)
        super().thaw()

    def _signal_backends(self, number: int) -> None:
        if self.process is None:
            return
        children = subprocess.run(
            [find("pgrep"), "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        for pid in children.stdout.split():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(int(pid), number)

    def url(self, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/postgres"


def _find(program: str) -> str:
    """Return the path of a program of the newest PostgreSQL. Debian keeps most of them off the PATH."""
    versions = sorted(Path(_DEBIAN).glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    try:
        return find(program, *(str(folder) for folder in versions))
    except Missing:
        raise Missing("PostgreSQL is not installed; run make servers") from None
