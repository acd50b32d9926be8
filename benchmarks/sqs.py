"""What the SQS worker costs, and what it holds.

    python -m benchmarks.sqs [--quick]                    all of it; exit 1 where a bound does not hold, unless quick
    python -m benchmarks.sqs ratio|in-hand|memory ...     some of it

ratio: CPU time per message against a bare boto3 loop that receives and deletes, against ministack. Only this process
counts, not the server's; rounds are interleaved, and the best of each counts. Bound: twice the bare loop.
in-hand: a thousand messages in hand at once, with handlers that wait and with handlers that compute: how long a message
and a claim went without a heartbeat at most. Bound: the visibility timeout and the lease, and no message comes twice.
memory: what the process takes at every tenth of a million messages, with a queue inside the client. Bound: a tenth more
at the end than after the first tenth.
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
from eventonce.ports import Called, Hook
from eventonce.sources.sqs import SqsSource
from eventonce.sources.visibility import VisibilityChange
from eventonce.worker import WorkerPool
from tests.servers import Ministack

QUICK = "--quick" in sys.argv
MESSAGES, ROUNDS = (300, 2) if QUICK else (2000, 7)
BATCH = 10
IN_HAND, HIDDEN = (1000, 10) if QUICK else (1000, 30)  # messages; seconds
MANY = 20_000 if QUICK else 1_000_000
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
        crew = WorkerPool(once, source, handle, DeadFile(f"{folder}/dead.jsonl"), batch=BATCH, threads=threads)
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


def ratio() -> bool:
    """Print one table; whether the worker itself stays within the bound. SQLite's syncs are its own."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        queue: Any = client("sqs", endpoint=server.endpoint())
        for _ in range(ROUNDS):
            for each in (bare, (1, "memory:"), (4, "memory:"), (1, "sqlite:///{}/store.db")):
                name = f"bench-{next(_numbers)}"
                url = filled(queue, name, MESSAGES)
                bare(server, url) if callable(each) else worker(server, name, *each)
    best = {name: min(rounds) for name, rounds in spent.items()}
    for name, micros in best.items():
        say(f"{name:28} {micros:8.1f} us CPU per message  {micros / best['bare boto3 loop']:5.2f} x")
    return all(micros <= 2 * best["bare boto3 loop"] for name, micros in best.items() if "sqlite" not in name)


def filled(queue: Any, name: str, messages: int, **attributes: str) -> str:
    """A queue with so many messages in it."""
    url: str = queue.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    for _ in range(messages // BATCH):
        queue.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": body()} for n in range(BATCH)])
    return url


# --- a thousand in hand ---


class Beats:
    """How long each thing went without a heartbeat at most."""

    def __init__(self) -> None:
        self.last: dict[object, float] = {}
        self.longest = 0.0

    def begin(self, names: Sequence[object], at: float) -> None:
        self.last.update(dict.fromkeys(names, at))

    def beat(self, names: Sequence[object], at: float) -> None:
        self.longest = max([self.longest, *(at - self.last[name] for name in names)])
        self.begin(names, at)


class BeatingSource(SqsSource):
    """A source that notes how it keeps its messages hidden."""

    beats: Beats

    def _poll(self, limit: int, wait: int) -> list[Delivery]:
        at, found = time.monotonic(), super()._poll(limit, wait)
        self.beats.begin([each.handle for each in found], at)
        return found

    def _change(self, changes: Sequence[VisibilityChange]) -> set[str]:
        gone = super()._change(changes)
        self.beats.beat([each.handle for each in changes], time.monotonic())
        return gone


class BeatingClaims(Hook):
    """The same for claims: all are extended in one call."""

    def __init__(self) -> None:
        self.beats = Beats()

    def called(self, call: Called) -> None:
        if call.verb == "claim":
            self.beats.last.setdefault("claims", time.monotonic() - call.seconds)
        elif call.verb == "extend" and "claims" in self.beats.last:
            self.beats.beat(["claims"], time.monotonic())


def in_hand() -> bool:
    """Print a line for handlers that wait and one for handlers that compute; whether all was kept."""
    with tempfile.TemporaryDirectory() as folder, Ministack(Path(folder)) as server:
        kept = [_in_hand(server, folder, computes=computes) for computes in (False, True)]
        return all(kept)


def _in_hand(server: Ministack, folder: str, *, computes: bool) -> bool:
    name, release, begun = f"bench-{next(_numbers)}", threading.Event(), itertools.count(1)
    queue = client("sqs", endpoint=server.endpoint())
    filled(queue, name, IN_HAND, VisibilityTimeout=str(HIDDEN))

    def handle(event: object) -> None:
        next(begun)
        while computes and not release.is_set():
            sum(range(1000))
        release.wait()

    hook, BeatingSource.beats = BeatingClaims(), Beats()
    source = BeatingSource(f"sqs://{name}?region=us-east-1&endpoint={server.endpoint()}&wait=1s")
    with Once("memory:", lease=HIDDEN, hooks=[hook]) as once:
        crew = WorkerPool(once, source, handle, DeadFile(f"{folder}/dead.jsonl"), batch=IN_HAND // 10, threads=10)
        working = threading.Thread(target=crew.run, args=(60_000,))
        working.start()
        while len(source.beats.last) < IN_HAND:
            time.sleep(0.1)
        time.sleep(2.5 * HIDDEN)
        release.set()
        while crew.tally.events < IN_HAND:
            time.sleep(0.1)
        crew.stop()
        working.join()
    source.close()
    twice = next(begun) - 1 - IN_HAND + len(source.beats.last) - IN_HAND
    say(
        f"{IN_HAND:,} in hand, handlers that {'compute' if computes else 'wait':7}  longest without a heartbeat: "
        f"messages {source.beats.longest:4.1f} s, claims {hook.beats.longest:4.1f} s, of {HIDDEN} s; {twice} came twice"
    )
    return not twice and max(source.beats.longest, hook.beats.longest) < HIDDEN


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
        headers: Any = {"content-type": "application/x-amz-json-1.0", "content-length": str(len(document))}
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


def memory() -> bool:
    """Print the memory at every tenth of the way; whether it stays flat."""
    InsideSource.queue = Inside(MANY)
    done, taken = itertools.count(1), list[float]()

    def handle(event: object) -> None:
        number = next(done)
        if number % (MANY // 10) == 0:
            taken.append(resident())
            say(f"{number:10,} messages  {taken[-1]:8.1f} MB")
        if number == MANY:
            threading.Timer(1, crew.stop).start()

    with tempfile.TemporaryDirectory() as folder, Once(f"sqlite:///{folder}/store.db") as once:
        source = InsideSource("sqs://q?region=us-east-1&visibility=30s")
        crew = WorkerPool(once, source, handle, DeadFile(f"{folder}/dead.jsonl"), batch=100, threads=4)
        crew.run(10_000)
        source.close()
    return taken[-1] < 1.1 * taken[0]


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


PARTS: dict[str, Callable[[], bool]] = {"ratio": ratio, "in-hand": in_hand, "memory": memory}

if __name__ == "__main__":
    chosen = [name for name in PARTS if name in sys.argv] or list(PARTS)
    broken = [name for name in chosen if not PARTS[name]()]
    if broken and not QUICK:  # a quick round proves nothing
        sys.exit(f"beyond its bound: {', '.join(broken)}")
