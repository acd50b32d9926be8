"""The nemesis: harms workers and the store, one fault after another, and heals each."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from lab.torture.history import History
from lab.torture.targets import Fault

_SHORTEST, _LONGEST = 0.2, 1.5  # seconds between two faults


class Nemesis:
    """One thread of harm. Two of them, one for the workers and one for the store, meet in every way."""

    def __init__(self, faults: Mapping[str, Fault], history: History) -> None:
        self.done: Counter[str] = Counter()
        self._faults = dict(faults)
        self._history = history
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="eventonce-nemesis", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, and raise the error if there was one."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Start no more faults, and wait until the last one is healed."""
        self._stopping.set()
        self._thread.join()

    def _live(self) -> None:
        try:
            while self._faults and not self._stopping.wait(random.uniform(_SHORTEST, _LONGEST)):
                name = random.choice(list(self._faults))
                self._history.write("fault", name=name)
                self._faults[name]()
                self.done[name] += 1
        except BaseException as error:
            self._error = error


def worker_faults(workers: Callable[[], list[int]], history: History, lease: float) -> dict[str, Fault]:
    """Return the faults of workers, of which `workers` returns the process ids."""

    def kill() -> None:
        for pid in _one(workers()):
            history.write("killed", worker=pid)
            _signal(pid, signal.SIGKILL)

    def stop() -> None:
        for pid in _one(workers()):
            _signal(pid, signal.SIGSTOP)
            time.sleep(random.uniform(0.5, 2) * lease)
            _signal(pid, signal.SIGCONT)

    def jump() -> None:
        for pid in _one(workers()):
            _signal(pid, signal.SIGUSR1)

    return {"kill a worker": kill, "freeze a worker": stop, "set a worker's clock wrong": jump}


def _one(pids: list[int]) -> list[int]:
    return [random.choice(pids)] if pids else []


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
