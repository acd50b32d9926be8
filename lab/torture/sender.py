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
    """A thread that sends until it is stopped, and then the copies that are still to come."""

    def __init__(self, sqs: Any, url: str, run: str, rate: int) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self._sqs = sqs
        self._url = url
        self._run = run
        self._rate = rate
        self._waiting: list[tuple[float, str]] = []  # a heap of when, and what
        self._stopping = threading.Event()
        self._error: Exception | None = None

    def start(self, history: History) -> None:
        self._thread = threading.Thread(target=self._live, args=(history,), name="eventonce-sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until all is sent, and raise what went wrong in it."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Invent nothing more, and wait until all is sent."""
        self._stopping.set()
        self._thread.join()

    def _live(self, history: History) -> None:
        began = time.monotonic()
        try:
            while self._waiting or not self._stopping.is_set():
                now = time.monotonic()
                while not self._stopping.is_set() and len(self.events) < (now - began) * self._rate:
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
        found: list[str] = []
        while self._waiting and len(found) < _BATCH and (self._waiting[0][0] <= now or self._stopping.is_set()):
            found.append(heapq.heappop(self._waiting)[1])
        return found

    def _send(self, names: list[str], history: History) -> None:
        entries = [{"Id": str(at), "MessageBody": json.dumps(self.events[name])} for at, name in enumerate(names)]
        answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        history.tell("sent", events=[names[int(each["Id"])] for each in answer.get("Successful", ())])
