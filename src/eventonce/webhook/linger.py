"""Closing a connection gently: a client that is still sending sees its response, and no reset.

A socket that is closed with unread data in it resets the connection, and the response is lost. So the sending half is
closed first, and what still arrives is discarded, for a while and up to a bound.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

_MAX_SECONDS = 5.0
_MAX_BYTES = 256 * 1024 * 1024


class Lingering:
    """A transport whose `close` lingers if the peer may still be sending. A second `close` does not."""

    def __init__(self, transport: asyncio.Transport, still_sending: Callable[[], bool]) -> None:
        self._transport = transport
        self._still_sending = still_sending
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def close(self) -> None:
        """Send what has been written, and close."""
        if self.is_closing() or not self._still_sending():
            self._transport.close()
        else:
            self._closed = True
            self._transport.write_eof()
            protocol = cast(asyncio.Protocol, self._transport.get_protocol())
            self._transport.set_protocol(_Discard(self._transport, protocol))
            self._transport.resume_reading()


class _Discard(asyncio.Protocol):
    """Discards what arrives, in place of a protocol that is notified of the end."""

    def __init__(self, transport: asyncio.Transport, replaced: asyncio.Protocol) -> None:
        self._transport = transport
        self._replaced = replaced
        self._remaining = _MAX_BYTES
        self._timer = asyncio.get_running_loop().call_later(_MAX_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._remaining -= len(data)
        if self._remaining < 0:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._replaced.connection_lost(error)

    def pause_writing(self) -> None:
        self._replaced.pause_writing()

    def resume_writing(self) -> None:
        self._replaced.resume_writing()
