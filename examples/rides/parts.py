"""The processes of the example: started in one folder, killed without warning, and restarted."""

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
TIMEOUT = 180.0  # seconds
PYTHON = sys.executable
EVENTONCE = [PYTHON, "-m", "eventonce"]


class Parts:
    """Each part has a name, a command and a log. A part is a process group: a pipe in a shell dies as one."""

    def __init__(self, folder: Path, commands: dict[str, list[str]]) -> None:
        self._folder = folder
        self._commands = commands
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()  # close must see what another thread is starting
        self.names = list(commands)

    def start(self, name: str) -> None:
        with self._lock:
            self._running[name] = spawn(self._folder, name, self._commands[name])

    def check(self) -> None:
        """Raise if a part has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended by itself; see {self._folder / name}.log")

    def kill(self, name: str) -> None:
        """Kill a part, as a power cut would."""
        self.check()
        with self._lock:
            process = self._running.pop(name)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Kill all parts. None can be started afterwards."""
        with self._lock:
            self._commands = {}
            for process in self._running.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def spawn(folder: Path, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE)},  # the folder of consumers.py
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(folder: Path, name: str, command: list[str]) -> None:
    """Run a command to its end. Raise if it fails."""
    process = spawn(folder, name, command)
    if process.wait(TIMEOUT):
        raise RuntimeError(f"{name} has failed; see {folder / name}.log")


def wait_until(condition: Callable[[], bool], description: str) -> None:
    """Wait until a condition holds. Raise if it does not in time."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{description} did not happen within {TIMEOUT:.0f} s")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
