"""ASGI: what a server hands to an application, as far as it is used here. There is no package for so little."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from eventonce.requests.response import Response

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Answer(NamedTuple):
    """What a client is told."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    async def send(self, send: Send) -> None:
        bodiless = self.status in (204, 304)
        headers = self.headers if bodiless else [*self.headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def answer_of(response: Response) -> Answer:
    """The answer that says this."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    return Answer(response.status, headers, response.body)


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request, names in small letters; of one that is there twice the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
