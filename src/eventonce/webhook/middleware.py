"""An ASGI middleware that makes endpoints idempotent: a request that comes again gets the first one's answer.

The words are those of draft-ietf-httpapi-idempotency-key-header: 400 without a key where one is required, 409 while
the first request is under way, 422 for a key that came before with something else.
"""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.engine import Once
from eventonce.errors import ConfigError, LeaseLost, ResultUnavailable
from eventonce.event import Event
from eventonce.ports import Store
from eventonce.requests.refusal import RETRY_AFTER, RequestRefused
from eventonce.rules.rule import Rule
from eventonce.webhook.app import MAX_BODY
from eventonce.webhook.asgi import Answer, App, Receive, Scope, Send, headers_of
from eventonce.webhook.body import Bodies, Gone
from eventonce.webhook.exchange import Exchange, NotKept
from eventonce.webhook.idempotency_key import idempotency_key
from eventonce.webhook.sender import sender

_PATIENCE = 30.0  # seconds for a body
_EVER = 2**31 - 1
MAX_ANSWER = 64 * 1024


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once, and answers every copy as it was answered.

    The first request's answer is remembered in `store` for `window`, if it is a success (2xx or 3xx) of at most
    `max_answer` bytes; after any other the same request may be tried again. Requests of other methods pass through,
    as do those without a key unless one is `required`.

    Each caller has keys of their own. `caller` says who that is, from the request's scope. Without it, a caller is
    whatever the request shows of its sender: the host, credentials, cookies, the user whom a proxy names and the
    client's certificate. A request that comes again with another one of these runs again.
    """

    def __init__(
        self,
        app: App,
        store: str | Store,
        *,
        consumer: str = "http",
        window: str | float = "24h",
        lease: str | float = "60s",
        methods: Sequence[str] = ("POST", "PATCH"),
        required: bool = False,
        caller: Callable[[Scope], str] | None = None,
        max_body: int = MAX_BODY,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        self._app = app
        # Every failure may be tried again by the client, who decides when it was often enough.
        self._once = Once(
            store,
            consumer=consumer,
            rules=Rule(name="requests", key=["source", "id"], remember="result", window=window),
            lease=lease,
            max_attempts=_EVER,
            max_result=2 * max_answer + 64 * 1024,  # as it is written down, with its headers
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
                await self._once_only(self._event(scope, key, raw), exchange)
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
        """The request as an event: its identity is the key, its content what must not differ."""
        said = {
            "method": scope["method"],
            "path": scope["path"],
            "query": scope.get("query_string", b"").decode("latin-1"),
            "media": _header(scope, b"content-type"),
            "body": hashlib.sha256(body).hexdigest(),
        }
        return Event(id=key, source=self._whose(scope), type="http.request", data=said)

    def _whose(self, scope: Scope) -> str:
        if self._caller is None:
            return f"sender {sender(scope)}"
        caller = self._caller(scope)
        if not isinstance(caller, str) or not caller.strip():  # or all who have no name would share their keys
            raise ConfigError(
                f"caller: {caller!r:.60} is not a non-empty string; return a name for every request with a key, or let "
                "your own authentication refuse the request first"
            )
        return f"caller {caller}"

    async def _once_only(self, event: Event, exchange: Exchange) -> None:
        outcome = (await self._once.arun([event], exchange.run))[0]
        if not exchange.passed_on:
            await _answer(outcome, exchange.answer).send(exchange.send)
        await exchange.finish()


def _answer(outcome: Outcome, own: Answer | None) -> Answer:
    if outcome.kind is OutcomeKind.DUPLICATE:
        return _remembered(outcome)
    if outcome.kind is OutcomeKind.BUSY:
        raise RequestRefused(409, "A request with this Idempotency-Key is under way", retry_after=RETRY_AFTER)
    if own is not None and (outcome.kind is OutcomeKind.PROCESSED or isinstance(outcome.error, NotKept)):
        return _marked(own, outcome.kind)
    if outcome.kind is OutcomeKind.FAILED and outcome.error is not None and not isinstance(outcome.error, LeaseLost):
        raise outcome.error  # the application's own
    raise RequestRefused(503, "Whether this was done is not known now")


def _remembered(outcome: Outcome) -> Answer:
    if outcome.first is not None and outcome.first.differs:
        raise RequestRefused(422, "This Idempotency-Key came before with another request")
    kept = outcome.result
    if isinstance(outcome.error, ResultUnavailable) or "status" not in kept:
        raise RequestRefused(409, "This was done before, but its answer was too long to be kept")
    headers = [(name, value) for name, value in kept["headers"]]
    return _marked(Answer(kept["status"], headers, kept["body"]), outcome.kind)


def _marked(answer: Answer, kind: OutcomeKind) -> Answer:
    return answer._replace(headers=[*answer.headers, (b"eventonce-outcome", kind.encode())])


def _problem(refusal: RequestRefused) -> Answer:
    """A refusal in the form of RFC 9457, as the draft has it."""
    headers = {"content-type": "application/problem+json", **refusal.headers}
    body = msgspec.json.encode({"title": str(refusal), "status": refusal.status})
    return Answer(refusal.status, [(name.encode(), value.encode()) for name, value in headers.items()], body)


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")
