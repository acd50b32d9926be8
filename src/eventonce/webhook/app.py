"""The webhook: an ASGI application that takes events over HTTP and runs each once."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from eventonce.auth import Auth, cautions
from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.clock import SystemClock, duration
from eventonce.context import is_async
from eventonce.dead_letters import write_dead_letters
from eventonce.engine import Once
from eventonce.errors import ConfigError, SinkError, describe
from eventonce.event import Delivery
from eventonce.event.formats.headers import IDEMPOTENCY_KEY, from_api_destination
from eventonce.event.formats.text import GZIP
from eventonce.ports import Admitted, DeadLetters, Sink
from eventonce.requests.reading import deliveries, size
from eventonce.requests.refusal import Refusals, RequestRefused
from eventonce.requests.response import Response, noted, refused, respond, unfinished
from eventonce.sinks.file import FileSink
from eventonce.webhook.asgi import Receive, Scope, Send, answer_of, headers_of
from eventonce.webhook.batches import Batches
from eventonce.webhook.body import Bodies, Body, Gone
from eventonce.webhook.idempotency_key import idempotency_key
from eventonce.webhook.threads import LazyThreadPool

MAX_BODY = 1024 * 1024  # what EventBridge, SQS and SNS carry at most
MAX_WAITING = 1000  # events
_LARGE = 16 * 1024  # bytes that may take longer than to hand them to a thread
THREADS = 4
BATCH = 100
DEADLINE = "25s"
PATIENCE = "10s"
_ITS_DEADLINE = 4000  # milliseconds; API destinations give up after 5 s, and an answer before that can say when to come
_log = logging.getLogger("eventonce")

Watcher = Callable[[Delivery, Outcome], None]


class Webhook:
    """Takes events over HTTP and runs each once, under any ASGI server.

    `auth` decides who may send, and `path` where to; without them anybody may, and anywhere. A body has at most
    `max_body` bytes and `patience` to arrive. At most `max_waiting` events wait or run; more are sent away with 503.
    When a run is not over after `deadline` the sender is sent away too, and the run goes on: when the event comes
    again it is a duplicate. What can never be processed is kept in `dead_letters`, where there are some.
    """

    def __init__(
        self,
        once: Once,
        handler: Sink | Callable[..., Any],
        *,
        auth: Auth | None = None,
        path: str | None = None,
        max_body: int = MAX_BODY,
        max_waiting: int = MAX_WAITING,
        deadline: str | float = DEADLINE,
        patience: str | float = PATIENCE,
        threads: int = THREADS,
        batch: int = BATCH,
        dead_letters: DeadLetters | None = None,
        watch: Watcher = lambda delivery, outcome: None,
    ) -> None:
        bounds = {"max_body": max_body, "max_waiting": max_waiting, "threads": threads, "batch": batch}
        for name, value in bounds.items():
            if value < 1:
                raise ConfigError(f"{name}: {value!r} is below 1")
        self._once = once
        self._handler = handler
        self._auth = auth
        for caution in cautions(auth, once.rules):
            _log.warning("http: %s", caution)
        self._path = path
        self._max_body = max_body  # packed and unpacked
        self._deadline = duration(deadline, "deadline")
        self._bodies = Bodies(max_body, duration(patience, "patience") / 1000)
        self._dead_letters = dead_letters
        self._watch = watch
        self._clock = SystemClock()
        self._refusals = Refusals(self._clock)
        self._lock = threading.Lock()  # for dead letters and who watches
        self._is_async = callable(handler) and is_async(getattr(handler, "eventonce_handler", handler))
        # What keeps the lines of a file whole is a lock between processes, not between threads.
        lanes = 1 if isinstance(handler, FileSink) else threads
        self._lanes = LazyThreadPool(lanes)
        self._batches = Batches(self._act, lanes=lanes, most_together=batch, most_waiting=max_waiting)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    def close(self) -> None:
        """End the threads, each when what it runs is done."""
        self._lanes.close()

    @property
    def in_hand(self) -> int:
        """How many events wait or run."""
        return self._batches.in_hand

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    # --- one request ---

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._bodies.open() as body:
            try:
                self._check(scope)
                headers = headers_of(scope)
                raw = await self._bodies.read(body, headers.get("content-length", ""), receive)
                told = await self._take(headers, raw, body)
            except RequestRefused as refusal:
                self._refusals.add(refusal)
                told = refused(refusal)
                await self._bodies.drain(body, headers_of(scope), receive)
            except Gone:
                return
        await answer_of(told).send(send)

    def _check(self, scope: Scope) -> None:
        if self._path is not None and scope["path"] != self._path:
            raise RequestRefused(404, "there is nothing here", connection="close")
        if scope["method"] != "POST":
            raise RequestRefused(405, "events are sent with POST", allow="POST", connection="close")
        idempotency_key(scope)  # refused where it is none

    async def _take(self, headers: Mapping[str, str], raw: bytes, body: Body) -> Response:
        impatient = from_api_destination(headers)
        if self._auth is not None:
            admitted = await self._auth.admit(headers, raw)
            if isinstance(admitted, str):
                return noted(admitted)
        else:
            admitted = Admitted(headers, raw)
        keyed = IDEMPOTENCY_KEY in admitted.headers and not impatient
        found = await self._read(admitted)
        self._bodies.make_room(body, size(found))
        waiting = self._batches.put(found)
        body.lend(waiting)
        deadline = min(self._deadline, _ITS_DEADLINE) if impatient else self._deadline
        await asyncio.wait((waiting,), timeout=deadline / 1000)
        if not waiting.done():
            return unfinished()
        if waiting.exception() is not None:
            raise RequestRefused(503, "events cannot be processed now")
        return respond(waiting.result(), keyed=keyed, kept=self._dead_letters is not None)

    async def _read(self, request: Admitted) -> list[Delivery]:
        """Its events; a large body is read on a thread, and the others are answered meanwhile."""
        read = partial(deliveries, request.headers, request.body, self._max_body, "http", request.name)
        large = len(request.body) > _LARGE or request.body[:2] == GZIP
        return await asyncio.to_thread(read) if large else read()

    # --- a batch ---

    async def _act(self, batch: Sequence[Delivery]) -> list[Outcome]:
        if not self._is_async:
            return await self._lanes.run(partial(self._run, batch))
        outcomes: list[Outcome] = await cast(Any, self._once.run(batch, self._handler))
        if any(outcome.action is not Action.ACK for outcome in outcomes):
            return await self._lanes.run(partial(self._settle, batch, outcomes))
        return self._settle(batch, outcomes)

    def _run(self, batch: Sequence[Delivery]) -> list[Outcome]:
        return self._settle(batch, self._once.run(batch, self._handler))

    def _settle(self, batch: Sequence[Delivery], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Keep and log what has to be; what each sender is told."""
        pairs = list(zip(batch, outcomes, strict=True))
        with self._lock:  # first: nothing is told to be done with that is not kept
            if self._dead_letters is not None:
                pairs = self._kept(pairs, self._dead_letters)
            for delivery, outcome in pairs:
                if outcome.action is not Action.RETRY:
                    self._watch(delivery, outcome)
        for _, outcome in pairs:
            if outcome.action is Action.RETRY:
                _log.warning("http: %s: %s", outcome.kind, describe(outcome.error))
        return [outcome for _, outcome in pairs]

    def _kept(self, pairs: Sequence[tuple[Delivery, Outcome]], place: DeadLetters) -> list[tuple[Delivery, Outcome]]:
        """Keep the dead among these. What became of one that cannot be kept stays unknown: its sender still has it."""
        dead = [pair for pair in pairs if pair[1].action is Action.DEAD_LETTER]
        unkept = {id(delivery) for delivery, _ in write_dead_letters(place, dead, self._clock.utc())}
        unknown = Outcome(kind=OutcomeKind.UNKNOWN, error=SinkError("its dead letter could not be kept"))
        return [(delivery, unknown if id(delivery) in unkept else outcome) for delivery, outcome in pairs]
