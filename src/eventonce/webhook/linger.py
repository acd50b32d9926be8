"""A connection that is closed gently: a sender who is still sending sees its answer, and no reset.

A socket that is closed with something unread in it resets the connection, and takes the answer along. So the sending
half is closed first, and what still comes is thrown away, for a while and up to a bound.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

_LONGEST = 5.0  # seconds
_MOST = 256 * 1024 * 1024  # bytes


class Lingering:
    """A transport whose `close` lingers where the peer may still be sending. A second `close` is at once."""

    def __init__(self, transport: asyncio.Transport, still_sending: Callable[[], bool]) -> None:
        self._transport = transport
        self._still_sending = still_sending
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def close(self) -> None:
        """Send what is written, and close."""
        if self.is_closing() or not self._still_sending():
            self._transport.close()
        else:
            self._closed = True
            self._transport.write_eof()
            protocol = cast(asyncio.Protocol, self._transport.get_protocol())
            self._transport.set_protocol(_Discard(self._transport, protocol))
            self._transport.resume_reading()


class _Discard(asyncio.Protocol):
    """Throws away what comes; in place of a protocol, which hears of the end."""

    def __init__(self, transport: asyncio.Transport, before: asyncio.Protocol) -> None:
        self._transport = transport
        self._before = before
        self._left = _MOST
        self._timer = asyncio.get_running_loop().call_later(_LONGEST, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._before.connection_lost(error)

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()
