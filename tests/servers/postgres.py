"""PostgreSQL."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.servers.process import Missing, ServerProcess, find

_DEBIAN = "/usr/lib/postgresql"


class Postgres(ServerProcess):
    """One PostgreSQL with the user and the database `postgres`, and a password nobody asks for locally."""

    hard = signal.SIGQUIT  # which ends its children too, without a checkpoint: the next start recovers from the log

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
            *(word for each in (*fixed, *self._settings) for word in ("-c", each)),
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
            raise RuntimeError(f"initdb did not make {self._data}: {done.stderr.strip()}")

    def ready(self) -> bool:
        asked = [_find("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def freeze(self) -> None:
        """Let it stand still, with its connections open: first the postmaster, so that no new backend begins."""
        super().freeze()
        self._signal_backends(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_backends(signal.SIGCONT)
        super().thaw()

    def _signal_backends(self, number: int) -> None:
        if self.process is None:
            return
        found = subprocess.run(
            [find("pgrep"), "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(int(pid), number)

    def url(self, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/postgres"


def _find(program: str) -> str:
    """A program of the newest PostgreSQL here; Debian keeps most of them off the path."""
    versions = sorted(Path(_DEBIAN).glob("*/bin"), key=lambda at: float(at.parent.name), reverse=True)
    try:
        return find(program, *(str(at) for at in versions))
    except Missing:
        raise Missing("PostgreSQL is not installed; make servers installs it where it may") from None
