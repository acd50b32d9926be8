"""The bodies of requests: bounded in size, in time, and in what all of them hold together."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from eventonce.requests.refusal import RequestRefused
from eventonce.webhook.asgi import Receive

_SMALL = 64 * 1024  # of a body; servers hold as much for each connection anyway
_MOST_LARGE = 64 * 1024 * 1024  # of what is beyond that, of all bodies together
_MOST_DRAINED = 16 * 1024 * 1024  # of one that is refused
_PAUSE = 1.0  # seconds in which a sender in full flow sends something


class Gone(Exception):
    """The client went away before its body was whole: nobody is there to be told."""


class Bodies:
    """Reads bodies, bounded in size, in time, and in what all of them hold together.

    Small bodies need no room, so that large and slow ones, however many, do not keep them out.
    """

    def __init__(self, max_body: int, patience: float, room: int = _MOST_LARGE) -> None:
        self._max_body = max_body
        self._patience = patience  # seconds
        self._room = self._most = room

    def open(self) -> "Body":
        return Body(self)

    async def read(self, body: "Body", length: str, receive: Receive) -> bytes:
        """All of it, or `RequestRefused`."""
        if length.isdecimal() and int(length[:20]) > self._max_body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._patience):
                while await self._more(body, receive):
                    pass
        except TimeoutError:
            body.over = True
            raise RequestRefused(
                408, f"the body did not arrive within {self._patience:g} s", connection="close"
            ) from None
        whole = bytes(body.held)
        body.held.clear()  # its room is for one of it
        return whole

    async def _more(self, body: "Body", receive: Receive) -> bool:
        body.held += await body.part(receive)
        if len(body.held) > self._max_body:
            raise self._too_large()
        self.make_room(body, len(body.held))
        return not body.over

    async def drain(self, body: "Body", headers: Mapping[str, str], receive: Receive) -> None:
        """Take the rest of a body that is refused, within bounds of size and time, and throw it away.

        A server that answers and closes while there is more to read resets the connection, and many senders never see
        the answer then. One that pauses is answered; and one that waits to be told to go on (`Expect: 100-continue`)
        sends nothing before that.
        """
        body.held.clear()
        self.give_back(body)
        length = headers.get("content-length", "")
        waits = headers.get("expect", "").lower() == "100-continue" and not body.begun
        if waits or (length.isdecimal() and int(length[:20]) > _MOST_DRAINED):
            return
        drained = 0
        with suppress(TimeoutError, Gone):
            async with asyncio.timeout(self._patience):
                while not body.over and drained < _MOST_DRAINED:
                    drained += len(await asyncio.wait_for(body.part(receive), _PAUSE))

    def make_room(self, body: "Body", size: int) -> None:
        """Make room for so many bytes, or raise `RequestRefused`. A body larger than all the room is let in alone."""
        more = min(size - _SMALL, self._most) - body.room
        if more <= 0:
            return
        if more > self._room:
            raise RequestRefused(503, "too many large bodies at a time", connection="close")
        self._room -= more
        body.room += more

    def give_back(self, body: "Body") -> None:
        self._room += body.room
        body.room = 0

    def _too_large(self) -> RequestRefused:
        return RequestRefused(413, f"the body is larger than the limit of {self._max_body:,} bytes", connection="close")


class Body:
    """One body and the room it takes, until it is closed; or until something else ends, which needs it longer."""

    __slots__ = ("_bodies", "_lent", "begun", "held", "over", "room")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._lent = False
        self.held = bytearray()
        self.room = 0
        self.begun = self.over = False

    async def part(self, receive: Receive) -> bytes:
        """The next part of it; raises `Gone`."""
        self.begun = True
        message = await receive()
        if message["type"] != "http.request":
            self.over = True
            raise Gone
        self.over = not message.get("more_body")
        part: bytes = message.get("body", b"")
        return part

    def lend(self, until: "asyncio.Future[Any]") -> None:
        """Take the room until this ends."""
        if self.room:
            self._lent = True
            until.add_done_callback(lambda _: self._bodies.give_back(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._lent:
            self._bodies.give_back(self)
