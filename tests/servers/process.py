"""A server's process: started on a free port, found ready, paused, killed and stopped by its pid."""

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

_PATIENCE = 120.0  # seconds: a database that was killed may have much to recover on a busy disk


class Missing(Exception):
    """The program of a server is not installed."""


def find(program: str, *folders: str) -> str:
    """Where a program is, on the path or in these folders."""
    found = shutil.which(program) or next((at for each in folders if (at := shutil.which(program, path=each))), None)
    if found is None:
        raise Missing(f"{program} is not installed; make servers installs it where it may")
    return found


class ServerProcess(ABC):
    """One server. `with Redis(folder) as server:` starts it, and stops it at the end."""

    hard = signal.SIGKILL  # how to end it as if by a power cut

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """How to start it."""

    def user(self) -> str | None:
        """Whom it runs as, where that is not ourselves."""
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
        give_up = time.monotonic() + _PATIENCE
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise RuntimeError(f"{self.command()[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def ready(self) -> bool:
        """Whether it answers."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
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
        """Let it stand still, with its connections open."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # an interrupt while it starts must not leave it behind
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
