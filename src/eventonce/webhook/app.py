"""The webhook: an ASGI application that takes events over HTTP and runs each once."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from eventonce.auth import Auth, cautions
from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.clock import Duration, SystemClock, duration
from eventonce.dead_letters import write_dead_letters
from eventonce.engine import Once
from eventonce.engine.options import at_least_one
from eventonce.errors import SinkError, describe
from eventonce.event import Delivery
from eventonce.event.formats.headers import IDEMPOTENCY_KEY, from_api_destination
from eventonce.event.formats.text import GZIP
from eventonce.ports import Admitted, DeadLetterSink, Sink
from eventonce.requests.reading import deliveries, size
from eventonce.requests.refusal import Refusals, RequestRefused
from eventonce.requests.response import Response, noted, refused, respond, unfinished
from eventonce.sinks.file import FileSink
from eventonce.text import one_line
from eventonce.webhook.asgi import Receive, Scope, Send, headers_of, to_asgi
from eventonce.webhook.batches import Batches
from eventonce.webhook.body import Bodies, Body, Gone
from eventonce.webhook.idempotency_key import idempotency_key
from eventonce.webhook.threads import LazyThreadPool

MAX_BODY = 1024 * 1024  # the limit of EventBridge, SQS and SNS
MAX_WAITING = 1000  # events
_LARGE = 16 * 1024  # bytes that may take longer to read than to pass to a thread
THREADS = 4
BATCH = 100
DEADLINE = "25s"
PATIENCE = "10s"
_API_DESTINATION_DEADLINE = 4000  # milliseconds: they time out after 5 s, and a response can say when to retry
_log = logging.getLogger("eventonce")

Watcher = Callable[[Delivery, Outcome], None]


class Webhook:
    """Takes events over HTTP and runs each once, under any ASGI server.

    `auth` decides who may send, and `path` is where to. Without them anybody may send, to any path. A body has at most
    `max_body` bytes and must arrive within `patience`. At most `max_waiting` events wait or run, and more get a 503.
    A run that takes longer than `deadline` goes on, but its sender gets a 503: the redelivered event is a duplicate.
    What can never be processed is written to `dead_letters`, if there are any.
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
        deadline: Duration = DEADLINE,
        patience: Duration = PATIENCE,
        threads: int = THREADS,
        batch: int = BATCH,
        dead_letters: DeadLetterSink | None = None,
        watch: Watcher = lambda delivery, outcome: None,
    ) -> None:
        bounds = {"max_body": max_body, "max_waiting": max_waiting, "threads": threads, "batch": batch}
        for name, value in bounds.items():
            at_least_one(name, value)
        self._once = once
        self._handler = once.prepare(handler)
        self._auth = auth
        for caution in cautions(auth, once.rules):
            _log.warning("http: %s", caution)
        self._path = path
        self._max_body = max_body  # compressed and decompressed
        self._deadline = duration(deadline, "deadline")
        self._bodies = Bodies(max_body, duration(patience, "patience") / 1000)
        self._dead_letters = dead_letters
        self._watch = watch
        self._clock = SystemClock()
        self._refusals = Refusals(self._clock)
        self._lock = threading.Lock()  # for the dead letters and the watcher
        # The lock that keeps the lines of a file whole is between processes, not between threads.
        slots = 1 if isinstance(handler, FileSink) else threads
        self._threads = LazyThreadPool(slots)
        self._batches = Batches(self._run_batch, slots=slots, max_requests=batch, max_events=max_waiting)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    def close(self) -> None:
        """End each thread after its present batch."""
        self._threads.close()

    @property
    def in_progress(self) -> int:
        """The number of events that wait or run."""
        return self._batches.in_progress

    async def _lifespan(self, receive: Receive, send: Send) -> None:
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
                response = await self._take(headers, raw, body)
            except RequestRefused as refusal:
                self._refusals.add(refusal)
                response = refused(refusal)
                await self._bodies.drain(body, headers_of(scope), receive)
            except Gone:
                return
        await to_asgi(response).send(send)

    def _check(self, scope: Scope) -> None:
        if self._path is not None and scope["path"] != self._path:
            raise RequestRefused(404, "there is nothing here", connection="close")
        if scope["method"] != "POST":
            raise RequestRefused(405, "events are sent with POST", allow="POST", connection="close")
        idempotency_key(scope)  # raises if it is not valid

    async def _take(self, headers: Mapping[str, str], raw: bytes, body: Body) -> Response:
        from_eventbridge = from_api_destination(headers)
        if self._auth is not None:
            admitted = await self._auth.admit(headers, raw)
            if isinstance(admitted, str):
                return noted(admitted)
        else:
            admitted = Admitted(headers, raw)
        keyed = IDEMPOTENCY_KEY in admitted.headers and not from_eventbridge
        events = await self._read(admitted)
        self._bodies.make_room(body, size(events))
        outcomes = self._batches.put(events)
        body.lend(outcomes)
        deadline = min(self._deadline, _API_DESTINATION_DEADLINE) if from_eventbridge else self._deadline
        await asyncio.wait((outcomes,), timeout=deadline / 1000)
        if not outcomes.done():
            return unfinished()
        if outcomes.exception() is not None:
            raise RequestRefused(503, "events cannot be processed now")
        return respond(outcomes.result(), keyed=keyed, dead_lettered=self._dead_letters is not None)

    async def _read(self, request: Admitted) -> list[Delivery]:
        """Return the events of a request. A large body is read on a thread, so that others are served meanwhile."""
        read = partial(deliveries, request.headers, request.body, self._max_body, "http", request.name)
        large = len(request.body) > _LARGE or request.body[:2] == GZIP
        return await asyncio.to_thread(read) if large else read()

    # --- a batch ---

    async def _run_batch(self, batch: Sequence[Delivery]) -> list[Outcome]:
        if not self._handler.is_async:
            return await self._threads.run(partial(self._run, batch))
        outcomes = await self._once.arun(batch, self._handler)
        if any(outcome.action is not Action.ACK for outcome in outcomes):
            return await self._threads.run(partial(self._settle, batch, outcomes))
        return self._settle(batch, outcomes)

    def _run(self, batch: Sequence[Delivery]) -> list[Outcome]:
        return self._settle(batch, self._once.run(batch, self._handler))

    def _settle(self, batch: Sequence[Delivery], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the dead letters and log. Return the outcomes for the senders."""
        pairs = list(zip(batch, outcomes, strict=True))
        with self._lock:  # first: no sender may drop what is not yet written
            if self._dead_letters is not None:
                pairs = self._write_dead(pairs, self._dead_letters)
            for delivery, outcome in pairs:
                if outcome.action is not Action.RETRY:
                    self._watch(delivery, outcome)
        for _, outcome in pairs:
            if outcome.action is Action.RETRY:
                _log.warning("http: %s: %s", outcome.kind, one_line(describe(outcome.error)))
        return [outcome for _, outcome in pairs]

    def _write_dead(
        self, pairs: Sequence[tuple[Delivery, Outcome]], sink: DeadLetterSink
    ) -> list[tuple[Delivery, Outcome]]:
        """Write the dead letters among these. One that cannot be written is unknown: its sender still has it."""
        dead = [pair for pair in pairs if pair[1].action is Action.DEAD_LETTER]
        unwritten = {id(delivery) for delivery, _ in write_dead_letters(sink, dead, self._clock.utc())}
        unknown = Outcome(kind=OutcomeKind.UNKNOWN, error=SinkError("its dead letter could not be kept"))
        return [(delivery, unknown if id(delivery) in unwritten else outcome) for delivery, outcome in pairs]
