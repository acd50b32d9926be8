"""The webhook under a server of its own, uvicorn, for `eventonce run`.

A server must cope with clients that are slow, stuck or gone. Uvicorn bounds headers (with its h11 parser, which is fast
enough here) and idle connections after a response. A connection that has not sent a whole request, does not read its
response, or sends without end is closed here.
"""

import asyncio
import logging
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from eventonce.clock import duration
from eventonce.engine import Once
from eventonce.errors import MissingDriver, SourceError
from eventonce.ports import DeadLetters, Sink
from eventonce.requests.refusal import RETRY_AFTER, RequestRefused
from eventonce.requests.response import refused
from eventonce.webhook.address import ListenAddress, read_url
from eventonce.webhook.app import BATCH, DEADLINE, PATIENCE, THREADS, Watcher, Webhook
from eventonce.webhook.asgi import to_asgi
from eventonce.webhook.linger import Lingering

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as error:
    raise MissingDriver(
        f"source: http: needs the Python package {error.name}; install it with pip install 'eventonce[webhook]'"
    ) from error

_MAX_CONNECTIONS = 4096
_RESERVE = 256  # files and sockets that store, sink and handler may open
_HEADERS = 10.0  # seconds until the headers of a request are complete
_CROWDED = 1.0  # the same, while more than half of the connections are in use
_SENDING = 10.0  # seconds to read a response
_MAX_HEADERS = 32 * 1024
_AT_ONCE = 32 * 1024  # bytes of what has arrived
_END_OF_HEADERS = re.compile(rb"\n\r?\n").search  # as h11 finds it
_FEW_CHUNKS = 1000
_BYTES_OF_A_CHUNK = 16  # at least, of the others
_TWO_LENGTHS = {b"content-length", b"transfer-encoding"}
_MAX_PIPELINED = 512 * 1024  # bytes of further requests that a client may send before its response
_TICK = 0.1  # seconds, as uvicorn ticks
_FULL = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
).encode()
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_log = logging.getLogger("eventonce")


class WebhookServer:
    """Serves a webhook until it is stopped."""

    def __init__(
        self,
        once: Once,
        handler: Sink | Callable[..., Any],
        url: str,
        dead_letters: DeadLetters,
        *,
        threads: int = THREADS,
        batch: int = BATCH,
        watch: Watcher = lambda delivery, outcome: None,
    ) -> None:
        address = read_url(url)
        wired: dict[str, Any] = {"dead_letters": dead_letters, "threads": threads, "batch": batch, "watch": watch}
        self._app = Webhook(once, handler, auth=address.auth, path=address.path, **wired, **address.settings)
        self._socket = _listen(address)
        self.address = address._replace(port=self._socket.getsockname()[1])
        if address.auth is None and address.host not in _LOOPBACK:
            _log.warning("%s accepts unauthenticated events; add auth= or an authenticating proxy", self.address)
        deadline = duration(address.settings.get("deadline", DEADLINE)) + duration(
            address.settings.get("patience", PATIENCE)
        )
        config = uvicorn.Config(
            self._app,
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_MAX_HEADERS,
        )
        self._stopped = 0.0
        self._server = _Uvicorn(config, deadline / 1000 + _SENDING)

    def stop(self) -> None:
        """Take no more requests, and finish those in progress. May be called by a signal handler."""
        self._stopped = time.monotonic()
        self._server.should_exit = True

    def run(self, grace: int) -> int:
        """Serve until stopped. Return how many events did not finish within the grace time (milliseconds)."""
        self._server.config.timeout_graceful_shutdown = max(1, grace // 1000)
        return asyncio.run(self._serve(grace / 1000))

    async def _serve(self, grace: float) -> int:
        await self._server.serve(sockets=[self._socket])
        while self._app.in_progress and time.monotonic() < self._stopped + grace:  # runs that outlived their requests
            await asyncio.sleep(_TICK)
        return self._app.in_progress


class _Requests(h11.Connection):
    """Refuses headers above the limit before it reads any of them, and bodies with two lengths or tiny chunks.

    By itself h11 checks the size of headers only while they are incomplete. Of two lengths it takes one, and a proxy in
    front may take the other: the end of a body to one is then another request to the other. A body in chunks of one
    byte takes h11 a hundred times as long as others.
    """

    _chunks = _of_body = 0

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            arrived, _ = self.trailing_data
            if len(arrived) > _MAX_HEADERS and not _END_OF_HEADERS(arrived, 0, _MAX_HEADERS):
                raise h11.RemoteProtocolError("the headers are too large", error_status_hint=431)
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._of_body += len(event.data)
            if self._chunks > _FEW_CHUNKS + self._of_body // _BYTES_OF_A_CHUNK:
                raise h11.RemoteProtocolError("the chunks are too small")
        elif isinstance(event, h11.Request):
            self._chunks = self._of_body = 0
            if {name for name, _ in event.headers} >= _TWO_LENGTHS:
                raise h11.RemoteProtocolError("there are two lengths of a body")
        return event


class _Connection(H11Protocol):
    """A connection that is refused at once if there are too many: the store and the sink need sockets too."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = _Requests(h11.SERVER, _MAX_HEADERS)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # By default asyncio reads 256 KiB, which can hold 40,000 chunks and take h11 a fifth of a second.
        cast(Any, transport).max_size = _AT_ONCE
        super().connection_made(cast(asyncio.Transport, Lingering(transport, self._still_sending)))
        if len(self.connections) > _max_connections():
            _log.warning("over %d connections are open: others get a 503", _max_connections())
            transport.write(_FULL)
            transport.close()

    def _still_sending(self) -> bool:
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        """Abort a client that sends too much before its response: uvicorn would buffer all of it."""
        super().data_received(data)
        responding = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        if responding and len(self.conn.trailing_data[0]) > _MAX_PIPELINED:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """End the application's wait for the rest of the body, as uvicorn does not, and name the limit of headers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        error = sys.exc_info()[1]
        if not isinstance(error, h11.RemoteProtocolError) or error.error_status_hint != 431:
            super().send_400_response(msg)
            return
        reason = f"the headers are larger than the limit of {_MAX_HEADERS:,} bytes"
        status, headers, body = to_asgi(refused(RequestRefused(431, reason, connection="close")))
        headers.append((b"content-length", b"%d" % len(body)))
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Uvicorn(uvicorn.Server):
    """Uvicorn that handles no signals and closes stuck connections."""

    def __init__(self, config: uvicorn.Config, max_seconds: float) -> None:
        super().__init__(config)
        self._max_seconds = max_seconds  # from the headers of a request to the end of its response
        self._states: dict[Any, tuple[object, bool, float]] = {}  # request, idle, since when

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _sweep(self, now: float) -> None:
        """Close connections that have been in the same state for too long."""
        connections: list[Any] = list(self.server_state.connections)
        crowded = len(connections) > _max_connections() // 2
        states: dict[Any, tuple[object, bool, float]] = {}
        for connection in connections:
            cycle = connection.cycle
            idle = cycle is None or cycle.response_complete
            before = self._states.get(connection)
            same = before is not None and before[:2] == (cycle, idle)
            states[connection] = before if same and before is not None else (cycle, idle, now)
            if now - states[connection][2] > ((_CROWDED if crowded else _HEADERS) if idle else self._max_seconds):
                connection.transport.abort()
        self._states = states


def _max_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(_MAX_CONNECTIONS, soft - _RESERVE), 16)


def _listen(address: ListenAddress) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listening = socket.create_server((address.host, address.port), family=family, backlog=2048)
        # Uvicorn sends headers and body separately. The body would wait 40 ms for the acknowledgement of the headers.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise SourceError(f"source: cannot listen on {address}: {error.strerror or error}") from None
