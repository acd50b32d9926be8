"""The webhook's throughput over real sockets, beside a bare application in the same run, since machines differ.

    python -m benchmarks.webhook [--quick]

The server has one core, the clients have another. The bare application reads the body and parses the JSON, and does
nothing else. The overload sends far more than a slow handler can do. Requests beyond the bound get 503 with
Retry-After, and the server does not grow.
"""

import asyncio
import multiprocessing
import os
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import uvicorn

from eventonce import Once
from eventonce.event import Event
from eventonce.webhook import Webhook, github
from eventonce.webhook.asgi import App, AsgiResponse, Receive, Scope, Send

SECONDS, ROUNDS = (1.0, 2) if "--quick" in sys.argv else (4.0, 3)
CONNECTIONS = 64
SECRET = "a-secret-for-the-benchmark"


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Read and parse, and nothing else."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    msgspec.json.decode(body)
    await AsgiResponse(200, [(b"content-type", b"application/json")], b'{"outcome":"processed"}').send(send)


def nothing(event: Event) -> None:
    """A handler without work, so that only the path around it is measured."""


async def nothing_async(event: Event) -> None:
    """The same, async."""


def slow(event: Event) -> None:
    """A handler that does 400 events a second with four threads."""
    time.sleep(0.01)


def webhook(handler: Callable[..., Any] = nothing, **settings: Any) -> App:
    """Return the webhook on a memory store."""
    return Webhook(Once("memory:"), handler, **settings)


CANDIDATES: dict[str, Callable[[], App]] = {
    "bare application": lambda: bare,
    "webhook": webhook,
    "webhook, async handler": lambda: webhook(nothing_async),
    "webhook, signature checked": lambda: webhook(auth=github(SECRET)),
}


def serve(make: Callable[[], App], listening: socket.socket, control: Any) -> None:
    """Run a server on one core until a message comes. Answer it with the server's peak size and CPU time."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    config = uvicorn.Config(
        make(), http="h11", loop="asyncio", lifespan="off", ws="none", log_level="error", access_log=False
    )
    server, start = uvicorn.Server(config), time.process_time()

    async def until_message() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.to_thread(control.recv)
        control.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, time.process_time() - start))
        server.should_exit = True
        await serving

    asyncio.run(until_message())


class Client(asyncio.Protocol):
    """A client that sends a request as soon as the one before is answered."""

    def __init__(self, requests: Any, statuses: Counter[bytes], end: float) -> None:
        self._requests, self._statuses, self._end = requests, statuses, end
        self._data = b""
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not data.endswith(b"}"):  # headers come first, and every body is an object
            return
        response, self._data = self._data, b""
        self._statuses[response[9:12] + (b" retry-after" if b"\r\nretry-after:" in response else b"")] += 1
        if time.perf_counter() < self._end:
            self._transport.write(next(self._requests))
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set_result(None)


def requests(sign: bool) -> Any:
    """Yield requests with different events, without end."""
    import hmac

    number = 0
    while True:
        number += 1
        body = (
            b'{"version":"0","id":"e-%d","detail-type":"Order Placed","source":"com.example.shop","account":"1",'
            b'"time":"2026-01-05T09:00:00Z","region":"eu-west-1","resources":[],"detail":{"orderId":%d,"note":"%s"}}'
            % (number, number, b"n" * 600)
        )
        signature = hmac.digest(SECRET.encode(), body, "sha256").hex().encode() if sign else b""
        yield (
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-hub-signature-256: sha256=%s\r\n"
            b"content-length: %d\r\n\r\n%s" % (signature, len(body), body)
        )


async def load(port: int, connections: int, *, sign: bool) -> tuple[float, Counter[bytes]]:
    """Return the seconds that it took, and how often each status came."""
    loop, statuses, source = asyncio.get_running_loop(), Counter[bytes](), requests(sign)
    start = time.perf_counter()
    clients = [
        (await loop.create_connection(lambda: Client(source, statuses, start + SECONDS), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.closed for client in clients))
    return time.perf_counter() - start, statuses


class Measured(NamedTuple):
    """The result of one candidate."""

    per_core: float  # requests per second that the server's core worked
    rate: float  # requests per second by the clock, which others on the machine lower
    size: int  # MiB at most
    statuses: Counter[bytes]


def measure(name: str, make: Callable[[], App], connections: int) -> Measured:
    """Run one candidate in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as `eventonce run` does
        process = context.Process(target=serve, args=(make, listening, theirs), daemon=True)
        process.start()
        seconds, statuses = asyncio.run(load(listening.getsockname()[1], connections, sign="signature" in name))
    ours.send("end")
    size, cpu_seconds = ours.recv()
    process.join()
    return Measured(statuses.total() / cpu_seconds, statuses.total() / seconds, size, statuses)


def main() -> None:
    """Print the rates, their ratio to the bare application, and the responses to an overload."""
    best: dict[str, Measured] = {}
    for _ in range(ROUNDS):
        for name, make in CANDIDATES.items():
            result = measure(name, make, CONNECTIONS)
            assert set(result.statuses) == {b"200"}, result.statuses
            best[name] = max(best.get(name, result), result, key=lambda each: each.per_core)
    for name, result in best.items():
        ratio = result.per_core / best["bare application"].per_core
        print(f"  {name:28} {result.per_core:7,.0f} requests per second of one core, {ratio:.2f} of bare;", end=" ")  # noqa: T201
        print(f"{result.rate:,.0f}/s on the clock, {result.size} MiB")  # noqa: T201
    over = measure("overload", lambda: webhook(slow, max_waiting=100), 1000)
    counts = ", ".join(f"{count:,} x {status.decode()}" for status, count in sorted(over.statuses.items()))
    print("\n  overload: 1,000 connections, a handler of 10 ms, 100 events may wait")  # noqa: T201
    print(f"  {over.rate:,.0f} answers/s, {over.size} MiB: {counts}")  # noqa: T201


if __name__ == "__main__":
    main()
