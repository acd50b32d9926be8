"""The sender: events at a steady rate, each in one to three copies that are spread and shuffled."""

import heapq
import json
import random
import threading
import time
from typing import Any

from lab.torture.history import History

_COPIES = (1, 1, 2, 3)  # each as likely
_SPREAD = 5.0  # seconds between the first and the last
_BATCH = 10


class TrafficSender:
    """A thread that sends events until it is stopped, and then the copies that are still due."""

    def __init__(self, sqs: Any, url: str, run: str, rate: int) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self._sqs = sqs
        self._url = url
        self._run = run
        self._rate = rate
        self._waiting: list[tuple[float, str]] = []  # a heap of times and names
        self._stopping = threading.Event()
        self._error: Exception | None = None

    def start(self, history: History) -> None:
        self._thread = threading.Thread(target=self._live, args=(history,), name="eventonce-sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until all is sent, and raise the error if there was one."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Invent no more events, and wait until all are sent."""
        self._stopping.set()
        self._thread.join()

    def _live(self, history: History) -> None:
        started_at = time.monotonic()
        try:
            while self._waiting or not self._stopping.is_set():
                now = time.monotonic()
                while not self._stopping.is_set() and len(self.events) < (now - started_at) * self._rate:
                    self._invent(now)
                if due := self._due(now):
                    self._send(due, history)
                else:
                    time.sleep(0.01)
        except Exception as error:
            self._error = error

    def _invent(self, now: float) -> None:
        name = f"{self._run}-{len(self.events) + 1}"
        self.events[name] = {"id": name, "source": "torture", "detail-type": "Harm", "detail": {}}
        for copy in range(random.choice(_COPIES)):
            heapq.heappush(self._waiting, (now + (random.uniform(0, _SPREAD) if copy else 0), name))

    def _due(self, now: float) -> list[str]:
        due: list[str] = []
        while self._waiting and len(due) < _BATCH and (self._waiting[0][0] <= now or self._stopping.is_set()):
            due.append(heapq.heappop(self._waiting)[1])
        return due

    def _send(self, names: list[str], history: History) -> None:
        entries = [{"Id": str(index), "MessageBody": json.dumps(self.events[name])} for index, name in enumerate(names)]
        response = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        history.write("sent", events=[names[int(each["Id"])] for each in response.get("Successful", ())])
