"""Batches: requests that arrive while others run are run together. The number that waits is bounded."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from eventonce.claims.outcome import Outcome
from eventonce.errors import describe
from eventonce.event import Delivery
from eventonce.requests.refusal import RequestRefused
from eventonce.text import one_line

_log = logging.getLogger("eventonce")

RunBatch = Callable[[Sequence[Delivery]], Awaitable[list[Outcome]]]


class _Ticket(NamedTuple):
    """The events of one request, and the future of their outcomes."""

    deliveries: Sequence[Delivery]
    outcomes: "asyncio.Future[list[Outcome]]"


class Batches:
    """Runs up to `slots` batches at a time. The requests that wait are divided among the free slots."""

    def __init__(self, run_batch: RunBatch, *, slots: int, max_requests: int, max_events: int) -> None:
        self._run_batch = run_batch
        self._free_slots = slots
        self._max_requests = max_requests  # of one batch
        self._max_events = self._room = max_events  # that wait or run
        self._waiting: deque[_Ticket] = deque()
        self._scheduled = False
        self._running: set[asyncio.Task[None]] = set()

    def put(self, deliveries: Sequence[Delivery]) -> "asyncio.Future[list[Outcome]]":
        """Return the outcomes of these events when they have run. A caller that stops waiting does not stop the run."""
        if len(deliveries) > self._room < self._max_events:  # if nothing waits, a request above the bound may run
            raise RequestRefused(503, "too many events are waiting")
        self._room -= len(deliveries)
        loop = asyncio.get_running_loop()
        ticket = _Ticket(deliveries, loop.create_future())
        self._waiting.append(ticket)
        self._schedule(loop)
        return ticket.outcomes

    @property
    def in_progress(self) -> int:
        """The number of events that wait or run."""
        return self._max_events - self._room

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start batches when the loop has read everything that has arrived, so that it runs together."""
        if not self._scheduled and self._free_slots and self._waiting:
            self._scheduled = True
            loop.call_soon(self._start, loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        while self._free_slots and self._waiting:
            share = min(-(-len(self._waiting) // self._free_slots), self._max_requests)
            tickets = [self._waiting.popleft() for _ in range(share)]
            self._free_slots -= 1
            task = loop.create_task(self._run(tickets))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, tickets: list[_Ticket]) -> None:
        deliveries = [delivery for ticket in tickets for delivery in ticket.deliveries]
        try:
            outcomes = iter(await self._run_batch(deliveries))
            for ticket in tickets:
                _resolve(ticket, [next(outcomes) for _ in ticket.deliveries])
        except Exception as error:  # of the sink or the dead letters, until someone acts
            _log.error("%s", one_line(describe(error)))
            for ticket in tickets:
                _resolve(ticket, error)
        finally:
            self._free_slots += 1
            self._room += len(deliveries)
            self._schedule(asyncio.get_running_loop())


def _resolve(ticket: _Ticket, result: list[Outcome] | Exception) -> None:
    if ticket.outcomes.done():  # the caller no longer waits
        return
    if isinstance(result, Exception):
        ticket.outcomes.set_exception(result)
        ticket.outcomes.exception()  # mark it as read: the caller may never read it
    else:
        ticket.outcomes.set_result(result)
