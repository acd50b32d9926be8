"""The part of ASGI that is used here. It is too little for a package."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from eventonce.requests.response import Response

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiResponse(NamedTuple):
    """A response as ASGI sends it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    async def send(self, send: Send) -> None:
        bodiless = self.status in (204, 304)
        headers = self.headers if bodiless else [*self.headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def to_asgi(response: Response) -> AsgiResponse:
    """Return a response as ASGI sends it."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    return AsgiResponse(response.status, headers, response.body)


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request. Names are in lower case, and the last of several values counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
