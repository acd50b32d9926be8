"""A substitute for bus, topic and queues on files: the bus is a file, and each consumer follows it."""

import shlex
from pathlib import Path

from parts import EVENTONCE, HERE, PYTHON, finish

CONSUMERS = ("billing", "readmodel")


class Embedded:
    """`relay -> bus.jsonl -> carrier.py -> consumer`, twice."""

    bus = "bus.jsonl"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.copies = 0  # the carrier makes them

    def prepare(self) -> None:
        """Do nothing: files need no preparation."""

    def commands(self) -> dict[str, list[str]]:
        return {name: self._consumer(name) for name in CONSUMERS}

    def repeat(self) -> None:
        """Do nothing: the carrier repeats every third event, and all of them at each start."""

    def settle(self) -> None:
        """Run each consumer once more over the whole file."""
        for name in CONSUMERS:
            finish(self._folder, name, self._consumer(name, "--once"))

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _consumer(self, name: str, *options: str) -> list[str]:
        carrier = [PYTHON, str(HERE / "carrier.py"), self.bus, *options]
        worker = [*EVENTONCE, "run", str(HERE / f"{name}.toml"), "--source", "-"]
        return ["sh", "-c", f"{shlex.join(carrier)} | {shlex.join(worker)}"]
