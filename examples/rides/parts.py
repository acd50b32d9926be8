"""The processes of the example: started in one folder, killed without warning, started again."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 180.0  # seconds
PYTHON = sys.executable
EVENTONCE = [PYTHON, "-m", "eventonce"]


class Parts:
    """Each part has a name, a command and a log. A part is a process group: a pipe in a shell dies as one."""

    def __init__(self, folder: Path, commands: dict[str, list[str]]) -> None:
        self._folder = folder
        self._commands = commands
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()  # one who closes while another starts something must see it
        self.names = list(commands)

    def start(self, name: str) -> None:
        with self._lock:
            self._running[name] = begin(self._folder, name, self._commands[name])

    def check(self) -> None:
        """Raise if a part has ended by itself, which none should."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended by itself; {self._folder / name}.log says why")

    def kill(self, name: str) -> None:
        """End it as a power cut would."""
        self.check()
        with self._lock:
            process = self._running.pop(name)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """End all of them; nothing is started after that."""
        with self._lock:
            self._commands = {}
            for process in self._running.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def begin(folder: Path, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE)},  # where consumers.py is
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(folder: Path, name: str, command: list[str]) -> None:
    """Run a command to its end, which has to be a good one."""
    process = begin(folder, name, command)
    if process.wait(PATIENCE):
        raise RuntimeError(f"{name} has failed; {folder / name}.log says why")


def until(so: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not so():
        if time.monotonic() > give_up:
            raise RuntimeError(f"{what} did not happen within {PATIENCE:.0f} s")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
