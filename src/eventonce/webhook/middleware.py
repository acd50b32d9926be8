"""An ASGI middleware that makes endpoints idempotent: a repeated request gets the response of the first.

The status codes are those of draft-ietf-httpapi-idempotency-key-header: 400 if a required key is missing, 409 while the
first request is in progress, 422 for a key that came before with another request.
"""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.clock import Duration
from eventonce.engine import Once
from eventonce.errors import ConfigError, LeaseLost, ResultUnavailable
from eventonce.event import Event
from eventonce.ports import Store
from eventonce.requests.refusal import RETRY_AFTER, RequestRefused
from eventonce.rules.rule import Rule
from eventonce.webhook.app import MAX_BODY
from eventonce.webhook.asgi import App, AsgiResponse, Receive, Scope, Send, headers_of
from eventonce.webhook.body import Bodies, Gone
from eventonce.webhook.exchange import ErrorResponse, Exchange
from eventonce.webhook.idempotency_key import idempotency_key
from eventonce.webhook.sender import sender

_PATIENCE = 30.0  # seconds for a body
_UNLIMITED = 2**31 - 1
MAX_ANSWER = 64 * 1024


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once, and gives every copy the same response.

    The first response is remembered in `store` for `window` if it is a success (2xx or 3xx) of at most `max_answer`
    bytes. After any other, the same request may be tried again. Requests of other methods pass through, as do those
    without a key unless one is `required`.

    Each caller has its own keys. `caller` returns who that is, from the request's scope. By default a caller is known
    by the host, credentials, cookies, the user that a proxy names and the client's certificate. A request that is
    repeated with another value of one of these runs again.
    """

    def __init__(
        self,
        app: App,
        store: str | Store,
        *,
        consumer: str = "http",
        window: Duration = "24h",
        lease: Duration = "60s",
        methods: Sequence[str] = ("POST", "PATCH"),
        required: bool = False,
        caller: Callable[[Scope], str] | None = None,
        max_body: int = MAX_BODY,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        self._app = app
        # The client may retry every failure, and decides when to stop.
        self._once = Once(
            store,
            consumer=consumer,
            rules=Rule(name="requests", key=["source", "id"], remember="result", window=window),
            lease=lease,
            max_attempts=_UNLIMITED,
            max_result=2 * max_answer + 64 * 1024,  # as it is stored, with its headers
        )
        self._methods = frozenset(methods)
        self._required = required
        self._caller = caller
        self._bodies = Bodies(max_body, _PATIENCE)
        self._max_answer = max_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                self._once.close()
        elif scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._bodies.open() as body:
            try:
                key = self._key(scope)
                if key is None:
                    await self._app(scope, receive, send)
                    return
                raw = await self._bodies.read(body, _header(scope, b"content-length"), receive)
                exchange = Exchange(self._app, scope, receive, send, raw, self._max_answer)
                await self._run_once(self._event(scope, key, raw), exchange)
            except RequestRefused as refusal:
                await self._bodies.drain(body, headers_of(scope), receive)
                await _problem(refusal).send(send)
            except Gone:
                return

    def _key(self, scope: Scope) -> str | None:
        key = idempotency_key(scope)
        if key is None and self._required:
            raise RequestRefused(400, "Idempotency-Key is missing")
        return key

    def _event(self, scope: Scope, key: str, body: bytes) -> Event:
        """Return the request as an event. Its id is the key, and its data is what copies must share."""
        content = {
            "method": scope["method"],
            "path": scope["path"],
            "query": scope.get("query_string", b"").decode("latin-1"),
            "media": _header(scope, b"content-type"),
            "body": hashlib.sha256(body).hexdigest(),
        }
        return Event(id=key, source=self._source(scope), type="http.request", data=content)

    def _source(self, scope: Scope) -> str:
        """Return what separates the keys of one caller from those of others."""
        if self._caller is None:
            return f"sender {sender(scope)}"
        caller = self._caller(scope)
        if not isinstance(caller, str) or not caller.strip():  # or all callers without a name would share their keys
            raise ConfigError(
                f"caller: {caller!r:.60} is not a non-empty string; return a name for every request with a key, or let "
                "your own authentication refuse the request first"
            )
        return f"caller {caller}"

    async def _run_once(self, event: Event, exchange: Exchange) -> None:
        outcome = (await self._once.arun([event], exchange.run))[0]
        if not exchange.streamed:
            await _response(outcome, exchange.response).send(exchange.send)
        await exchange.finish()


def _response(outcome: Outcome, own: AsgiResponse | None) -> AsgiResponse:
    if outcome.kind is OutcomeKind.DUPLICATE:
        return _remembered(outcome)
    if outcome.kind is OutcomeKind.BUSY:
        raise RequestRefused(409, "A request with this Idempotency-Key is in progress", retry_after=RETRY_AFTER)
    if own is not None and (outcome.kind is OutcomeKind.PROCESSED or isinstance(outcome.error, ErrorResponse)):
        return _with_outcome(own, outcome.kind)
    if outcome.kind is OutcomeKind.FAILED and outcome.error is not None and not isinstance(outcome.error, LeaseLost):
        raise outcome.error  # the application's own
    raise RequestRefused(503, "It is unknown whether this was done")


def _remembered(outcome: Outcome) -> AsgiResponse:
    if outcome.first is not None and outcome.first.differs:
        raise RequestRefused(422, "This Idempotency-Key came before with another request")
    stored = outcome.result
    if isinstance(outcome.error, ResultUnavailable) or "status" not in stored:
        raise RequestRefused(409, "This was done before, but its response was too long to be stored")
    headers = [(name, value) for name, value in stored["headers"]]
    return _with_outcome(AsgiResponse(stored["status"], headers, stored["body"]), outcome.kind)


def _with_outcome(response: AsgiResponse, kind: OutcomeKind) -> AsgiResponse:
    return response._replace(headers=[*response.headers, (b"eventonce-outcome", kind.encode())])


def _problem(refusal: RequestRefused) -> AsgiResponse:
    """Return a refusal as RFC 9457 describes problems, which the draft requires."""
    headers = {"content-type": "application/problem+json", **refusal.headers}
    body = msgspec.json.encode({"title": str(refusal), "status": refusal.status})
    return AsgiResponse(refusal.status, [(name.encode(), value.encode()) for name, value in headers.items()], body)


def _header(scope: Scope, header: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == header), "")
