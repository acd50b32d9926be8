"""The bodies of requests: bounded in size, in time, and in what all of them hold together."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from eventonce.requests.refusal import RequestRefused
from eventonce.webhook.asgi import Receive

_SMALL = 64 * 1024  # of a body: servers buffer as much for each connection
_LARGE_ROOM = 64 * 1024 * 1024  # for what exceeds that, of all bodies together
_MAX_DRAINED = 16 * 1024 * 1024  # of one that is refused
_PAUSE = 1.0  # seconds: a sender that pauses for longer is waiting for its response


class Gone(Exception):
    """The client disconnected before its body was complete, so there is nobody to respond to."""


class Bodies:
    """Reads bodies, bounded in size, in time, and in what all of them hold together.

    Small bodies need no room, so large and slow ones never keep them out.
    """

    def __init__(self, max_body: int, patience: float, room: int = _LARGE_ROOM) -> None:
        self._max_body = max_body
        self._patience = patience  # seconds
        self._room = self._max_room = room

    def open(self) -> "Body":
        """Return an empty body, to be used as a context manager."""
        return Body(self)

    async def read(self, body: "Body", length: str, receive: Receive) -> bytes:
        """Return the whole body. Raise `RequestRefused` if it is too large or too slow."""
        if length.isdecimal() and int(length[:20]) > self._max_body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._patience):
                while await self._more(body, receive):
                    pass
        except TimeoutError:
            body.ended = True
            raise RequestRefused(
                408, f"the body did not arrive within {self._patience:g} s", connection="close"
            ) from None
        content = bytes(body.buffer)
        body.buffer.clear()  # its room is for one copy
        return content

    async def _more(self, body: "Body", receive: Receive) -> bool:
        body.buffer += await body.part(receive)
        if len(body.buffer) > self._max_body:
            raise self._too_large()
        self.make_room(body, len(body.buffer))
        return not body.ended

    async def drain(self, body: "Body", headers: Mapping[str, str], receive: Receive) -> None:
        """Read and discard the rest of a refused body, within bounds of size and time.

        A server that responds and closes while there is more to read resets the connection, and many senders then never
        see the response. Reading stops at a pause. A sender that waits for permission (`Expect: 100-continue`) sends
        nothing before it.
        """
        body.buffer.clear()
        self.release(body)
        length = headers.get("content-length", "")
        withheld = headers.get("expect", "").lower() == "100-continue" and not body.started
        if withheld or (length.isdecimal() and int(length[:20]) > _MAX_DRAINED):
            return
        drained = 0
        with suppress(TimeoutError, Gone):
            async with asyncio.timeout(self._patience):
                while not body.ended and drained < _MAX_DRAINED:
                    drained += len(await asyncio.wait_for(body.part(receive), _PAUSE))

    def make_room(self, body: "Body", size: int) -> None:
        """Reserve room for this size, or raise `RequestRefused`. A body above the whole room is admitted alone."""
        missing = min(size - _SMALL, self._max_room) - body.room
        if missing <= 0:
            return
        if missing > self._room:
            raise RequestRefused(503, "too many large bodies at a time", connection="close")
        self._room -= missing
        body.room += missing

    def release(self, body: "Body") -> None:
        """Release the room of a body."""
        self._room += body.room
        body.room = 0

    def _too_large(self) -> RequestRefused:
        return RequestRefused(413, f"the body is larger than the limit of {self._max_body:,} bytes", connection="close")


class Body:
    """One body and the room it takes. The room is released on closing, or at the end of the future it is lent to."""

    __slots__ = ("_bodies", "_lent", "buffer", "ended", "room", "started")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._lent = False
        self.buffer = bytearray()
        self.room = 0
        self.started = self.ended = False

    async def part(self, receive: Receive) -> bytes:
        """Return the next part. Raise `Gone` if the client has disconnected."""
        self.started = True
        message = await receive()
        if message["type"] != "http.request":
            self.ended = True
            raise Gone
        self.ended = not message.get("more_body")
        part: bytes = message.get("body", b"")
        return part

    def lend(self, future: "asyncio.Future[Any]") -> None:
        """Keep the room until this future is done."""
        if self.room:
            self._lent = True
            future.add_done_callback(lambda _: self._bodies.release(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._lent:
            self._bodies.release(self)
