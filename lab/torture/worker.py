"""A worker under torture: the real pool on the real queue and store, with a history and a clock that jumps."""

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eventonce.clock import SystemClock
from eventonce.dead_letters import open_dead_letters
from eventonce.engine import Once
from eventonce.engine.context import Context
from eventonce.event import Delivery, Event
from eventonce.ports import Source
from eventonce.sources import open_source
from eventonce.stores import open_store
from eventonce.worker import WorkerPool
from lab.torture.effects import effect_of
from lab.torture.history import History
from lab.torture.recorded import recorded
from lab.torture.targets import effects_at

CONSUMER = "torture"
ATTEMPTS = 50  # a worker that is killed in the middle has used one up
_JUMP = 30_000  # milliseconds
_WORK = 0.02  # seconds, at most, before and after an effect
_FAILS = 0.01  # of the handlers' runs


class JumpyClock(SystemClock):
    """The machine's clock, until a signal sets it wrong by up to half a minute either way."""

    def __init__(self) -> None:
        self._wrong = 0

    def utc(self) -> int:
        return super().utc() + self._wrong

    def jump(self, *_: Any) -> None:
        self._wrong = random.randint(-_JUMP, _JUMP)


class _RecordedSource:
    """A source with a history of what is acked."""

    def __init__(self, source: Source, history: History) -> None:
        self._source = source
        self._history = history
        self.receive, self.retry, self.close = source.receive, source.retry, source.close

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._history.write("ack", events=[delivery.event.id for delivery in deliveries if delivery.event is not None])
        self._source.ack(deliveries)


def main(folder: Path) -> None:
    """Work until SIGTERM."""
    config = json.loads((folder / "torture.json").read_text())
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s", level=logging.WARNING)
    history, clock = History(folder, f"worker-{os.getpid()}"), JumpyClock()
    signal.signal(signal.SIGUSR1, clock.jump)
    effects = effects_at(config, folder)

    def handle(event: Event, ctx: Context) -> None:
        time.sleep(random.random() * _WORK)
        if random.random() < _FAILS:
            raise RuntimeError("a handler fails now and then")
        effects.write(effect_of(event.id, ctx), ctx)
        time.sleep(random.random() * _WORK)

    store = recorded(open_store(config["store"], clock), history)
    once = Once(store, consumer=CONSUMER, lease=f"{config['lease']}s", max_attempts=ATTEMPTS, clock=clock)
    source = _RecordedSource(open_source(config["queue"]), history)
    pool = WorkerPool(
        once, source, handle, open_dead_letters(str(folder / "dead.jsonl")), batch=10, threads=2, clock=clock
    )
    signal.signal(signal.SIGTERM, lambda *_: pool.stop())
    history.write("began")
    pool.run(grace=20_000)
    source.close()
    once.close()
    store.close()
    history.write("ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
