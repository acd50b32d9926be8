"""The history of a torture run: a line for each thing that a process did, written before anything follows from it."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def now() -> int:
    """Return microseconds on a clock that all processes of a machine share and that cannot be set."""
    return time.monotonic_ns() // 1000


class History:
    """One file of a process. A line is one write to the system, so it outlives the process that is killed after it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.history", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **more: Any) -> None:
        line = {"what": what, "pid": os.getpid(), "at": now(), **more}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Return every line of every process, in order of time."""
    lines = [json.loads(line) for file in sorted(folder.glob("*.history")) for line in file.read_bytes().splitlines()]
    return iter(sorted(lines, key=lambda line: int(line["at"])))
