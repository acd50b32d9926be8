"""An exchange: one request, and the answer of the application, which is held back until it is known to be kept."""

import asyncio
from typing import Any

from eventonce.event import Event
from eventonce.webhook.asgi import Answer, App, Message, Receive, Scope, Send

# What belongs to one connection or one client alone, and is not to be told to another.
_NOT_KEPT = frozenset((b"set-cookie", b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"))


class NotKept(Exception):
    """The application answered with an error, which the next request need not get again."""


class Exchange:
    """Runs the application on a request whose body has been read, and takes down what it answers.

    An answer longer than `max_answer` cannot be kept, and goes to the client as it comes.
    """

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send, body: bytes, max_answer: int) -> None:
        # Without extensions of answers: one that is sent as the name of a file, say, could not be remembered.
        extensions = {name: each for name, each in (scope.get("extensions") or {}).items() if name == "tls"}
        self._app, self._scope, self._receive, self.send = app, {**scope, "extensions": extensions}, receive, send
        self._body: bytes | None = body
        self._max_answer = max_answer
        self._start: Message | None = None
        self._held = bytearray()
        self._complete = asyncio.Event()
        self._running: asyncio.Future[None] | None = None
        self.answer: Answer | None = None  # as soon as it is whole
        self.passed_on = False

    async def run(self, event: Event) -> dict[str, Any]:
        """What is to be remembered of the answer, as soon as it is whole; raises `NotKept` where it is an error."""
        self._running = asyncio.ensure_future(self._app(self._scope, self._read, self._write))
        whole = asyncio.ensure_future(self._complete.wait())
        try:
            await asyncio.wait((self._running, whole), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._running.cancel()
            raise
        finally:
            whole.cancel()
        if not self._complete.is_set():
            self._running.result()
            raise RuntimeError("the application ended without an answer")
        return self._remembered()

    async def finish(self) -> None:
        """Wait for what the application does after its answer."""
        if self._running is not None:
            await self._running

    def _remembered(self) -> dict[str, Any]:
        status: int = self._start["status"] if self._start else 500
        if status >= 400:
            raise NotKept(f"answered with {status}")
        if self.answer is None:
            return {"too_long": True}
        kept = [[name, value] for name, value in self.answer.headers if name.lower() not in _NOT_KEPT]
        return {"status": status, "headers": kept, "body": self.answer.body}

    async def _read(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            await self._take(message.get("body", b""), more=bool(message.get("more_body")))

    async def _take(self, part: bytes, *, more: bool) -> None:
        self._held += part
        if self._start is not None and (self.passed_on or len(self._held) > self._max_answer):
            await self._pass_on(self._start, more=more)
        elif not more and self._start is not None:
            headers = [(name, value) for name, value in self._start.get("headers", ()) if name != b"content-length"]
            self.answer = Answer(self._start["status"], headers, bytes(self._held))
        if not more:
            self._complete.set()

    async def _pass_on(self, start: Message, *, more: bool) -> None:
        if not self.passed_on:
            self.passed_on = True
            await self.send(start)
        part, self._held = bytes(self._held), bytearray()
        await self.send({"type": "http.response.body", "body": part, "more_body": more})
