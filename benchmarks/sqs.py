"""Measure the cost of the SQS worker, its heartbeats and its memory.

    python -m benchmarks.sqs [--quick]                    all parts, exit 1 if a bound does not hold
    python -m benchmarks.sqs ratio|in-hand|memory ...     some parts

ratio: CPU time per message against a bare boto3 loop that receives and deletes, with ministack. Only this process
counts, not the server's. Rounds are interleaved, and the best of each counts. Bound: twice the bare loop.
in-hand: a thousand messages in progress at once, with handlers that wait and with handlers that compute. It measures
the longest time that a message and a claim went without a heartbeat. Bound: the visibility timeout and the lease, and
no message is redelivered.
memory: the memory of the process at every tenth of a million messages, with a queue inside the client. Bound: a tenth
more at the end than after the first tenth.
"""

import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eventonce import Once
from eventonce.clients.aws import client
from eventonce.dead_letters.file import DeadFile
from eventonce.event import Delivery
from eventonce.ports import Hook, StoreCallDetails
from eventonce.sources.sqs import SqsSource
from eventonce.sources.visibility import VisibilityChange
from eventonce.worker import WorkerPool
from tests.servers import Ministack

QUICK = "--quick" in sys.argv
MESSAGES, ROUNDS = (300, 2) if QUICK else (2000, 7)
BATCH = 10
IN_PROGRESS, VISIBILITY = (1000, 10) if QUICK else (1000, 30)  # messages, seconds
MANY = 20_000 if QUICK else 1_000_000
_SERVERS = Path(__file__).parents[1] / ".servers" / "bin"
os.environ["PATH"] = f"{_SERVERS}{os.pathsep}{os.environ['PATH']}"
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")  # noqa: S106  # the emulator takes any
_numbers = itertools.count()


def body() -> str:
    """Return a new event of EventBridge."""
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
    started_at, remaining = time.process_time(), MESSAGES
    while remaining:
        response = queue.receive_message(QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1)
        messages = response.get("Messages", [])
        entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
        queue.delete_message_batch(QueueUrl=url, Entries=entries)
        remaining -= len(messages)
    costs["bare boto3 loop"].append((time.process_time() - started_at) / MESSAGES * 1e6)


def worker(server: Ministack, name: str, threads: int, store: str) -> None:
    """Run a worker whose handler does nothing."""
    source = SqsSource(f"sqs://{name}?region=us-east-1&endpoint={server.endpoint()}&wait=1s")
    done = itertools.count(1)

    def handle(event: object) -> None:
        if next(done) == MESSAGES:
            threading.Timer(0.2, pool.stop).start()  # when the last are settled

    with tempfile.TemporaryDirectory() as folder, Once(store.format(folder)) as once:
        pool = WorkerPool(once, source, handle, DeadFile(f"{folder}/dead.jsonl"), batch=BATCH, threads=threads)
        started_at = time.process_time()
        pool.run(10_000)
        costs[f"worker, {threads} thread{'s' * (threads > 1)}, {store.partition(':')[0]}"].append(
            (time.process_time() - started_at) / MESSAGES * 1e6
        )
    source.close()


class Costs(dict[str, list[float]]):
    """Microseconds per message of each round."""

    def __missing__(self, name: str) -> list[float]:
        self[name] = []
        return self[name]


costs = Costs()


def ratio() -> bool:
    """Print a table. Return whether the worker is within the bound. SQLite is left out, as its syncs dominate."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        queue: Any = client("sqs", endpoint=server.endpoint())
        for _ in range(ROUNDS):
            for settings in (None, (1, "memory:"), (4, "memory:"), (1, "sqlite:///{}/store.db")):
                name = f"bench-{next(_numbers)}"
                url = make_queue(queue, name, MESSAGES)
                bare(server, url) if settings is None else worker(server, name, *settings)
    best = {name: min(rounds) for name, rounds in costs.items()}
    for name, micros in best.items():
        say(f"{name:28} {micros:8.1f} us CPU per message  {micros / best['bare boto3 loop']:5.2f} x")
    return all(micros <= 2 * best["bare boto3 loop"] for name, micros in best.items() if "sqlite" not in name)


def make_queue(queue: Any, name: str, messages: int, **attributes: str) -> str:
    """Create a queue with some messages, and return its URL."""
    url: str = queue.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    for _ in range(messages // BATCH):
        queue.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": body()} for n in range(BATCH)])
    return url


# --- a thousand in progress ---


class Heartbeats:
    """The longest time that anything went without a heartbeat."""

    def __init__(self) -> None:
        self.last: dict[object, float] = {}
        self.longest = 0.0

    def start(self, names: Sequence[object], now: float) -> None:
        self.last.update(dict.fromkeys(names, now))

    def beat(self, names: Sequence[object], now: float) -> None:
        self.longest = max([self.longest, *(now - self.last[name] for name in names)])
        self.start(names, now)


class BeatingSource(SqsSource):
    """A source that notes the heartbeats of its messages."""

    beats: Heartbeats

    def _poll(self, limit: int, wait: int) -> list[Delivery]:
        now, deliveries = time.monotonic(), super()._poll(limit, wait)
        self.beats.start([delivery.handle for delivery in deliveries], now)
        return deliveries

    def _change(self, changes: Sequence[VisibilityChange]) -> set[str]:
        invalid = super()._change(changes)
        self.beats.beat([change.handle for change in changes], time.monotonic())
        return invalid


class BeatingClaims(Hook):
    """A hook that notes the heartbeats of claims, all of which are extended in one call."""

    def __init__(self) -> None:
        self.beats = Heartbeats()

    def after_store_call(self, call: StoreCallDetails) -> None:
        if call.verb == "claim":
            self.beats.last.setdefault("claims", time.monotonic() - call.seconds)
        elif call.verb == "extend" and "claims" in self.beats.last:
            self.beats.beat(["claims"], time.monotonic())


def in_progress() -> bool:
    """Print a line for handlers that wait and one for handlers that compute. Return whether both are within bounds."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        results = [_in_progress(server, folder, computes=computes) for computes in (False, True)]
        return all(results)


def _in_progress(server: Ministack, folder: str, *, computes: bool) -> bool:
    name, release, starts = f"bench-{next(_numbers)}", threading.Event(), itertools.count(1)
    queue = client("sqs", endpoint=server.endpoint())
    make_queue(queue, name, IN_PROGRESS, VisibilityTimeout=str(VISIBILITY))

    def handle(event: object) -> None:
        next(starts)
        while computes and not release.is_set():
            sum(range(1000))
        release.wait()

    hook, BeatingSource.beats = BeatingClaims(), Heartbeats()
    source = BeatingSource(f"sqs://{name}?region=us-east-1&endpoint={server.endpoint()}&wait=1s")
    with Once("memory:", lease=f"{VISIBILITY}s", hooks=[hook]) as once:
        pool = WorkerPool(once, source, handle, DeadFile(f"{folder}/dead.jsonl"), batch=IN_PROGRESS // 10, threads=10)
        thread = threading.Thread(target=pool.run, args=(60_000,))
        thread.start()
        while len(source.beats.last) < IN_PROGRESS:
            time.sleep(0.1)
        time.sleep(2.5 * VISIBILITY)
        release.set()
        while pool.counts.events < IN_PROGRESS:
            time.sleep(0.1)
        pool.stop()
        thread.join()
    source.close()
    repeats = next(starts) - 1 - IN_PROGRESS + len(source.beats.last) - IN_PROGRESS
    say(
        f"{IN_PROGRESS:,} in progress, handlers that {'compute' if computes else 'wait':7}  longest without a "
        f"heartbeat: messages {source.beats.longest:4.1f} s, claims {hook.beats.longest:4.1f} s, of {VISIBILITY} s; "
        f"{repeats} redelivered"
    )
    return not repeats and max(source.beats.longest, hook.beats.longest) < VISIBILITY


# --- memory ---


class Inside:
    """A queue inside the client: boto3 does all of its work except for the network."""

    def __init__(self, messages: int) -> None:
        self.remaining = messages

    def respond(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        target = request.headers["X-Amz-Target"].decode().rpartition(".")[2]
        arguments = json.loads(request.body)
        document = json.dumps(getattr(self, f"_{target}")(arguments)).encode()
        headers: Any = {"content-type": "application/x-amz-json-1.0", "content-length": str(len(document))}
        return AWSResponse(request.url, 200, headers, _Raw(document))

    def _ReceiveMessage(self, arguments: Any) -> Any:  # noqa: N802
        count = min(self.remaining, arguments["MaxNumberOfMessages"])
        self.remaining -= count
        return {"Messages": [self._message() for _ in range(count)]}

    def _message(self) -> dict[str, Any]:
        number = next(_numbers)
        return {"MessageId": f"m-{number}", "ReceiptHandle": f"h-{number}" * 20, "Body": body(), "Attributes": {}}

    def _DeleteMessageBatch(self, arguments: Any) -> Any:  # noqa: N802
        return {"Successful": [{"Id": entry["Id"]} for entry in arguments["Entries"]], "Failed": []}

    _ChangeMessageVisibilityBatch = _DeleteMessageBatch

    def _GetQueueUrl(self, arguments: Any) -> Any:  # noqa: N802
        return {"QueueUrl": "https://sqs.us-east-1.amazonaws.com/1/q"}


class _Raw:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._data


class InsideSource(SqsSource):
    """A source whose clients make no network calls."""

    queue: Inside

    def _connect(self) -> None:
        super()._connect()
        for sqs in (self._polls, self._calls):
            sqs.meta.events.register("before-send.sqs.*", self.queue.respond)


def memory() -> bool:
    """Print the memory after every tenth of the messages. Return whether it stays flat."""
    InsideSource.queue = Inside(MANY)
    done, sizes = itertools.count(1), list[float]()

    def handle(event: object) -> None:
        number = next(done)
        if number % (MANY // 10) == 0:
            sizes.append(resident())
            say(f"{number:10,} messages  {sizes[-1]:8.1f} MB")
        if number == MANY:
            threading.Timer(1, pool.stop).start()

    with tempfile.TemporaryDirectory() as folder, Once(f"sqlite:///{folder}/store.db") as once:
        source = InsideSource("sqs://q?region=us-east-1&visibility=30s")
        pool = WorkerPool(once, source, handle, DeadFile(f"{folder}/dead.jsonl"), batch=100, threads=4)
        pool.run(10_000)
        source.close()
    return sizes[-1] < 1.1 * sizes[0]


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


PARTS: dict[str, Callable[[], bool]] = {"ratio": ratio, "in-hand": in_progress, "memory": memory}

if __name__ == "__main__":
    chosen = [name for name in PARTS if name in sys.argv] or list(PARTS)
    exceeded = [name for name in chosen if not PARTS[name]()]
    if exceeded and not QUICK:  # a quick round proves nothing
        sys.exit(f"beyond the bound: {', '.join(exceeded)}")
