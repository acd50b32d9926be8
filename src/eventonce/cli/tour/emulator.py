"""An emulator of AWS: ministack, as a process on a free port of this machine."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from eventonce.errors import ConfigError

_PATIENCE = 120.0  # seconds: a busy machine may take long to start a process
_ACCOUNT = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_DEFAULT_REGION": "us-east-1"}


class Emulator:
    """Starts ministack, and stops it at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        program = shutil.which("ministack")
        if program is None:
            raise ConfigError(
                "--aws: ministack, the AWS emulator, is not on the path; install it with pip install 'eventonce[demo]'"
            )
        self._program = program
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and direct this process and its children to it."""
        environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(self._port)}
        with (self._folder / "ministack.log").open("ab") as log:
            self._process = subprocess.Popen([self._program], cwd=self._folder, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise ConfigError(f"ministack did not start; see {self._folder / 'ministack.log'}")
            time.sleep(0.05)
        os.environ.update(_ACCOUNT, AWS_ENDPOINT_URL=self.endpoint)

    def stop(self) -> None:
        """Stop it. It keeps no data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False
