"""What the SQS worker costs: CPU time per message against a bare boto3 loop, side by side in one run.

    python benchmarks/sqs.py [--quick]     the ratio, against ministack
    python benchmarks/sqs.py --memory [N]  the memory over N messages (a million), with a queue inside the client

Only the CPU time of this process counts, not the server's. Rounds are interleaved, and the best of each counts.
"""

import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eventonce import Once
from eventonce.aws import client
from eventonce.sinks import open_dead_letters
from eventonce.sources.sqs import SqsSource
from eventonce.testing.servers import Ministack
from eventonce.worker import Crew

MESSAGES, ROUNDS = (300, 2) if "--quick" in sys.argv else (2000, 7)
BATCH = 10
_SERVERS = Path(__file__).parents[1] / ".servers" / "bin"
os.environ["PATH"] = f"{_SERVERS}{os.pathsep}{os.environ['PATH']}"
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")  # noqa: S106  # the emulator takes any
_numbers = itertools.count()


def body() -> str:
    """An event of EventBridge, new each time."""
    number = next(_numbers)
    return json.dumps(
        {
            "version": "0",
            "id": f"{number:08}-0000-4000-8000-000000000000",
            "detail-type": "Order Placed",
            "source": "com.example.shop",
            "account": "111122223333",
            "time": "2026-01-05T09:00:00Z",
            "region": "eu-west-1",
            "resources": [],
            "detail": {"orderId": f"o-{number}", "items": [{"sku": f"sku-{n}", "quantity": 3} for n in range(10)]},
        }
    )


def bare(server: Ministack, url: str) -> None:
    """Receive and delete, and nothing else."""
    queue = client("sqs", endpoint=server.endpoint())
    begin, left = time.process_time(), MESSAGES
    while left:
        answer = queue.receive_message(QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1)
        messages = answer.get("Messages", [])
        entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
        queue.delete_message_batch(QueueUrl=url, Entries=entries)
        left -= len(messages)
    spent["bare boto3 loop"].append((time.process_time() - begin) / MESSAGES * 1e6)


def worker(server: Ministack, name: str, threads: int, store: str) -> None:
    """The same with everything that the worker does, and a handler that does nothing."""
    source = SqsSource(f"sqs://{name}?region=us-east-1&endpoint={server.endpoint()}&wait=1s")
    done = itertools.count(1)

    def handle(event: object) -> None:
        if next(done) == MESSAGES:
            threading.Timer(0.2, crew.stop).start()  # when the last are settled

    with tempfile.TemporaryDirectory() as folder, Once(store.format(folder)) as once:
        crew = Crew(once, source, handle, open_dead_letters(f"{folder}/dead.jsonl"), batch=BATCH, threads=threads)
        begin = time.process_time()
        crew.run(10_000)
        spent[f"worker, {threads} thread{'s' * (threads > 1)}, {store.partition(':')[0]}"].append(
            (time.process_time() - begin) / MESSAGES * 1e6
        )
    source.close()


class Spent(dict[str, list[float]]):
    """Microseconds per message of each round."""

    def __missing__(self, name: str) -> list[float]:
        self[name] = []
        return self[name]


spent = Spent()


def ratio() -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        queue: Any = client("sqs", endpoint=server.endpoint())
        for number in range(ROUNDS):
            for each in (bare, (1, "memory:"), (4, "memory:"), (1, "sqlite:///{}/store.db")):
                name = f"bench-{number}-{each}".translate(str.maketrans(dict.fromkeys("()<>',:/{} .", "-")))[:70]
                url = queue.create_queue(QueueName=name)["QueueUrl"]
                for _ in range(MESSAGES // 10):
                    entries = [{"Id": str(n), "MessageBody": body()} for n in range(10)]
                    queue.send_message_batch(QueueUrl=url, Entries=entries)
                bare(server, url) if callable(each) else worker(server, name, *each)
    best = {name: min(rounds) for name, rounds in spent.items()}
    for name, micros in best.items():
        print(f"{name:28} {micros:8.1f} us CPU per message  {micros / best['bare boto3 loop']:5.2f} x")  # noqa: T201


# --- memory ---


class Inside:
    """A queue inside the client: boto3 does all of its work but for the network."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    def answer(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        target = request.headers["X-Amz-Target"].decode().rpartition(".")[2]
        asked = json.loads(request.body)
        document = json.dumps(getattr(self, f"_{target}")(asked)).encode()
        headers = {"content-type": "application/x-amz-json-1.0", "content-length": str(len(document))}
        return AWSResponse(request.url, 200, headers, _Raw(document))

    def _ReceiveMessage(self, asked: Any) -> Any:  # noqa: N802
        count = min(self.left, asked["MaxNumberOfMessages"])
        self.left -= count
        return {"Messages": [self._message() for _ in range(count)]}

    def _message(self) -> dict[str, Any]:
        number = next(_numbers)
        return {"MessageId": f"m-{number}", "ReceiptHandle": f"h-{number}" * 20, "Body": body(), "Attributes": {}}

    def _DeleteMessageBatch(self, asked: Any) -> Any:  # noqa: N802
        return {"Successful": [{"Id": each["Id"]} for each in asked["Entries"]], "Failed": []}

    _ChangeMessageVisibilityBatch = _DeleteMessageBatch

    def _GetQueueUrl(self, asked: Any) -> Any:  # noqa: N802
        return {"QueueUrl": "https://sqs.us-east-1.amazonaws.com/1/q"}


class _Raw:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._data


class InsideSource(SqsSource):
    """A source whose clients never leave the process."""

    queue: Inside

    def _connect(self) -> None:
        super()._connect()
        for each in (self._polls, self._calls):
            each.meta.events.register("before-send.sqs.*", self.queue.answer)


def memory(messages: int) -> None:
    """Print the memory at every tenth of the way."""
    InsideSource.queue = Inside(messages)
    done = itertools.count(1)

    def handle(event: object) -> None:
        number = next(done)
        if number % (messages // 10) == 0:
            print(f"{number:10,} messages  {resident():8.1f} MB")  # noqa: T201
        if number == messages:
            threading.Timer(1, crew.stop).start()

    with tempfile.TemporaryDirectory() as folder, Once(f"sqlite:///{folder}/store.db") as once:
        source = InsideSource("sqs://q?region=us-east-1&visibility=30s")
        crew = Crew(once, source, handle, open_dead_letters(f"{folder}/dead.jsonl"), batch=100, threads=4)
        crew.run(10_000)
        source.close()


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    chosen: Callable[[], None] = ratio
    if "--memory" in sys.argv:
        count = [int(each) for each in sys.argv[1:] if each.isdigit()]
        chosen = lambda: memory(count[0] if count else 1_000_000)  # noqa: E731
    chosen()
