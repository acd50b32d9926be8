"""The webhook under a server of its own, uvicorn, for `eventonce run`.

What a server must bear: clients that are slow, stuck or gone. Uvicorn bounds headers (with its h11 parser, which is
fast enough here) and idle connections after an answer; what has not yet sent a whole request, does not read its
answer, or sends without end is closed here.
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
from eventonce.webhook.asgi import answer_of
from eventonce.webhook.linger import Lingering

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as error:
    raise MissingDriver(
        f"source: http: needs the Python package {error.name}; install it with pip install 'eventonce[webhook]'"
    ) from error

_MOST_CONNECTIONS = 4096
_RESERVE = 256  # files and sockets that store, sink and handler may open
_HEADERS = 10.0  # seconds until a request has come so far that it is one
_CROWDED = 1.0  # the same, while more than half of the connections are taken
_SENDING = 10.0  # seconds to take an answer
_MAX_HEADERS = 32 * 1024
_AT_ONCE = 32 * 1024  # of what has arrived
_END_OF_HEADERS = re.compile(rb"\n\r?\n").search  # as h11 finds it
_FEW_CHUNKS = 1000
_BYTES_OF_A_CHUNK = 16  # at least, of the others
_TWO_LENGTHS = {b"content-length", b"transfer-encoding"}
_MOST_AHEAD = 512 * 1024  # that a client may send of requests behind the one that is being answered
_TICK = 0.1  # seconds, as uvicorn ticks
_FULL = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
).encode()
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_log = logging.getLogger("eventonce")


class WebhookServer:
    """Serves a webhook until it is told to stop."""

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
        place = read_url(url)
        wired: dict[str, Any] = {"dead_letters": dead_letters, "threads": threads, "batch": batch, "watch": watch}
        self._app = Webhook(once, handler, auth=place.auth, path=place.path, **wired, **place.settings)
        self._socket = _listen(place)
        self.place = place._replace(port=self._socket.getsockname()[1])
        if place.auth is None and place.host not in _LOOPBACK:
            _log.warning("%s takes events from anybody; add auth=, or see that something in front does", self.place)
        deadline = duration(place.settings.get("deadline", DEADLINE)) + duration(
            place.settings.get("patience", PATIENCE)
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
        """Take no more requests, and end when what is in hand is done. May be called by a signal handler."""
        self._stopped = time.monotonic()
        self._server.should_exit = True

    def run(self, grace: int) -> int:
        """Serve until told to stop; how many events were not done within the grace time (milliseconds)."""
        self._server.config.timeout_graceful_shutdown = max(1, grace // 1000)
        return asyncio.run(self._serve(grace / 1000))

    async def _serve(self, grace: float) -> int:
        await self._server.serve(sockets=[self._socket])
        while self._app.in_hand and time.monotonic() < self._stopped + grace:  # runs that outlived their requests
            await asyncio.sleep(_TICK)
        return self._app.in_hand


class _Requests(h11.Connection):
    """Refuses headers beyond the limit before it reads any of them, however they arrive, and bodies that are no bodies.

    By itself h11 looks at the size of headers only while they are not whole. Of two lengths it takes one, and a proxy
    in front may take the other: what is the end of a body to one is another request to the other then. A body in chunks
    of one byte takes it a hundred times as long as others.
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
    """Turned away at once where there are too many: the store and the sink need files and sockets too."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = _Requests(h11.SERVER, _MAX_HEADERS)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # A part of 256 KiB, as asyncio reads by itself, can hold 40,000 chunks, which take h11 a fifth of a second.
        cast(Any, transport).max_size = _AT_ONCE
        super().connection_made(cast(asyncio.Transport, Lingering(transport, self._still_sending)))
        if len(self.connections) > _most_connections():
            _log.warning("over %d connections are open: others are sent away with 503", _most_connections())
            transport.write(_FULL)
            transport.close()

    def _still_sending(self) -> bool:
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        """Uvicorn holds all that a client sends before it has its answer, however much that is."""
        super().data_received(data)
        answering = self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)
        if answering and len(self.conn.trailing_data[0]) > _MOST_AHEAD:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Uvicorn calls it while it handles the error, and leaves an application to wait for the rest of the body."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        error = sys.exc_info()[1]
        if not isinstance(error, h11.RemoteProtocolError) or error.error_status_hint != 431:
            super().send_400_response(msg)
            return
        why = f"the headers are larger than the limit of {_MAX_HEADERS:,} bytes"
        status, headers, body = answer_of(refused(RequestRefused(431, why, connection="close")))
        headers.append((b"content-length", b"%d" % len(body)))
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Uvicorn(uvicorn.Server):
    """Uvicorn that leaves signals to others and closes stuck connections."""

    def __init__(self, config: uvicorn.Config, longest: float) -> None:
        super().__init__(config)
        self._longest = longest  # seconds from the headers of a request to the end of its answer
        self._seen: dict[Any, tuple[object, bool, float]] = {}

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _sweep(self, now: float) -> None:
        """Close what has been in one and the same state for too long."""
        connections: list[Any] = list(self.server_state.connections)
        crowded = len(connections) > _most_connections() // 2
        seen: dict[Any, tuple[object, bool, float]] = {}
        for each in connections:
            cycle = each.cycle
            idle = cycle is None or cycle.response_complete
            before = self._seen.get(each)
            same = before is not None and before[:2] == (cycle, idle)
            seen[each] = before if same and before is not None else (cycle, idle, now)
            if now - seen[each][2] > ((_CROWDED if crowded else _HEADERS) if idle else self._longest):
                each.transport.abort()
        self._seen = seen


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(_MOST_CONNECTIONS, soft - _RESERVE), 16)


def _listen(place: ListenAddress) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        listening = socket.create_server((place.host, place.port), family=family, backlog=2048)
        # Uvicorn sends headers and body apart; the second would wait 40 ms for the client to say that it has the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise SourceError(f"source: cannot listen on {place}: {error.strerror or error}") from None
