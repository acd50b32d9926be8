"""An exchange: one request and the response of the application, withheld until it is stored."""

import asyncio
from typing import Any

from eventonce.event import Event
from eventonce.webhook.asgi import App, AsgiResponse, Message, Receive, Scope, Send

# Headers that belong to one connection or one client, and must not reach another.
_NOT_STORED = frozenset((b"set-cookie", b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"))


class ErrorResponse(Exception):
    """The application responded with an error, which the next request need not get again."""


class Exchange:
    """Runs the application on a request whose body has been read, and records its response.

    A response longer than `max_response` is not stored. It goes to the client as it arrives.
    """

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send, body: bytes, max_response: int) -> None:
        # Without the extensions for responses: one that is sent as a file name, say, could not be stored.
        extensions = {name: value for name, value in (scope.get("extensions") or {}).items() if name == "tls"}
        self._app, self._scope, self._receive, self.send = app, {**scope, "extensions": extensions}, receive, send
        self._body: bytes | None = body
        self._max_response = max_response
        self._start: Message | None = None
        self._buffer = bytearray()
        self._complete = asyncio.Event()
        self._running: asyncio.Future[None] | None = None
        self.response: AsgiResponse | None = None  # when it is complete
        self.streamed = False

    async def run(self, event: Event) -> dict[str, Any]:
        """Return what to remember of the response, once it is complete. Raise `ErrorResponse` if it is an error."""
        self._running = asyncio.ensure_future(self._app(self._scope, self._read, self._write))
        complete = asyncio.ensure_future(self._complete.wait())
        try:
            await asyncio.wait((self._running, complete), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._running.cancel()
            raise
        finally:
            complete.cancel()
        if not self._complete.is_set():
            self._running.result()
            raise RuntimeError("the application ended without an answer")
        return self._remembered()

    async def finish(self) -> None:
        """Wait for what the application does after its response."""
        if self._running is not None:
            await self._running

    def _remembered(self) -> dict[str, Any]:
        status: int = self._start["status"] if self._start else 500
        if status >= 400:
            raise ErrorResponse(f"answered with {status}")
        if self.response is None:
            return {"too_long": True}
        headers = [[name, value] for name, value in self.response.headers if name.lower() not in _NOT_STORED]
        return {"status": status, "headers": headers, "body": self.response.body}

    async def _read(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            await self._collect(message.get("body", b""), more=bool(message.get("more_body")))

    async def _collect(self, part: bytes, *, more: bool) -> None:
        self._buffer += part
        if self._start is not None and (self.streamed or len(self._buffer) > self._max_response):
            await self._stream(self._start, more=more)
        elif not more and self._start is not None:
            headers = [(name, value) for name, value in self._start.get("headers", ()) if name != b"content-length"]
            self.response = AsgiResponse(self._start["status"], headers, bytes(self._buffer))
        if not more:
            self._complete.set()

    async def _stream(self, start: Message, *, more: bool) -> None:
        if not self.streamed:
            self.streamed = True
            await self.send(start)
        part, self._buffer = bytes(self._buffer), bytearray()
        await self.send({"type": "http.response.body", "body": part, "more_body": more})
