"""A decorated task of Celery, in workers that are killed, with Redis as broker and store."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tests.servers import Redis
from tests.until import until

VISIBLE_AFTER = 1  # second
MODULE = """
import os, signal
from pathlib import Path
from celery import Celery
from celery.signals import task_success
from eventonce import EventBusy, Once, StoreError

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {"visibility_timeout": int(os.environ["VISIBLE_AFTER"])}
once = Once(os.environ["STORE"], consumer="celery")

def write(name, line):
    with open(name, "a") as file:
        print(line, file=file)

@app.task(acks_late=True, autoretry_for=(EventBusy, StoreError))
@once(key="order", remember="result", lease="1s")
def charge(order, retries=3):
    if Path("die-before").exists():
        os.rename("die-before", "died-before")
        os.kill(os.getpid(), signal.SIGKILL)
    write("effects", order)
    return f"charged {order}"

@task_success.connect  # the call has returned, and the message is not acknowledged yet
def ended(result, **_):
    write("results", result)
    if Path("die-after").exists():
        os.rename("die-after", "died-after")
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Shop:
    """A broker with tasks, and the workers that run them."""

    def __init__(self, folder: Path, server: Redis) -> None:
        self.folder = folder
        url = f"redis://127.0.0.1:{server.port}/7"
        self.broker: Any = redis.Redis.from_url(url)
        self.app = Celery(broker=url, set_as_current=False)
        self._environment = {"BROKER": url, "STORE": server.url(), "VISIBLE_AFTER": str(VISIBLE_AFTER)}
        self._worker: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> "subprocess.Popen[bytes]":
        options = ("--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat")
        command = [sys.executable, "-m", "celery", "--app", "shop", "worker", *options]
        with (self.folder / "log").open("ab") as log:
            self._worker = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **self._environment}, stdout=log, stderr=log
            )
        return self._worker

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def unacknowledged(self) -> int:
        """Return how many messages the broker has, for workers or with them."""
        return int(self.broker.llen("celery") + self.broker.hlen("unacked"))

    def is_restorable(self) -> bool:
        """Return whether a worker that starts now brings back what a lost one had. It looks then, and seldom later."""
        return bool(self.broker.zcount("unacked_index", 0, time.time() - VISIBLE_AFTER))

    def close(self) -> None:
        self.app.close()
        self.broker.close()
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()


@pytest.fixture
def shop(tmp_path: Path, redis_server: Redis) -> Iterator[Shop]:
    (tmp_path / "shop.py").write_text(MODULE)
    shop = Shop(tmp_path, redis_server)
    yield shop
    shop.close()


@pytest.mark.parametrize("death", ["die-before", "die-after"])
def test_a_redelivered_task_takes_effect_once(shop: Shop, death: str) -> None:
    (shop.folder / death).touch()
    shop.app.send_task("shop.charge", [death])
    assert shop.start_worker().wait(120) == -signal.SIGKILL
    assert shop.unacknowledged() == 1
    results = shop.lines("results")
    until(shop.is_restorable)
    shop.start_worker()
    until(lambda: len(shop.lines("results")) > len(results) and not shop.unacknowledged())
    assert set(shop.lines("results")) == {f"charged {death}"}
    assert shop.lines("effects") == [death]
