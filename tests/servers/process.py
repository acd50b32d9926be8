"""The process of a server, which can be started on a free port, paused, killed and stopped."""

import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from eventonce.testing.proxy import free_port

_START_TIMEOUT = 120.0  # seconds: a database that was killed may have much to recover on a busy disk


class Missing(Exception):
    """The program of a server is not installed."""


def find(program: str, *folders: str) -> str:
    """Return the path of a program, from the PATH or one of these folders."""
    path = shutil.which(program) or next(filter(None, (shutil.which(program, path=folder) for folder in folders)), None)
    if path is None:
        raise Missing(f"{program} is not installed; run make servers")
    return path


class ServerProcess(ABC):
    """A server. `with Redis(folder) as server:` starts it, and stops it at the end."""

    hard = signal.SIGKILL  # ends it as if by a power cut

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts it."""

    def user(self) -> str | None:
        """Return the user under which it runs, or None for the current one."""
        return None

    def environment(self) -> dict[str, str] | None:
        return None

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = self.folder / f"{type(self).__name__.lower()}-{self.port}.log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(), stdout=output, stderr=output, cwd=self.folder, user=self.user(), env=self.environment()
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.command()[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def ready(self) -> bool:
        """Return whether it answers."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Terminate it, and kill it if it does not end in time."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it as if by a power cut."""
        if self.process is not None:
            self.process.send_signal(self.hard)
            self.process.wait()

    def restart(self) -> None:
        """Kill it and start it again on the same port and the same data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Pause it, with its connections open."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # an interrupt during the start must not leave it running
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
