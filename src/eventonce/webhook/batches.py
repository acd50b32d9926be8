"""Batches: requests that come while others run are run together, and no more of them wait than may."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from eventonce.claims.outcome import Outcome
from eventonce.errors import describe
from eventonce.event import Delivery
from eventonce.requests.refusal import RequestRefused

_log = logging.getLogger("eventonce")

Act = Callable[[Sequence[Delivery]], Awaitable[list[Outcome]]]


class _Ticket(NamedTuple):
    """The events of one request, and where their outcomes are awaited."""

    deliveries: Sequence[Delivery]
    outcomes: "asyncio.Future[list[Outcome]]"


class Batches:
    """Runs up to `lanes` batches at a time. What waits is shared out among the lanes that are free."""

    def __init__(self, act: Act, *, lanes: int, most_together: int, most_waiting: int) -> None:
        self._act = act
        self._free = lanes
        self._most_together = most_together
        self._most_waiting = self._left = most_waiting
        self._waiting: deque[_Ticket] = deque()
        self._called = False
        self._running: set[asyncio.Task[None]] = set()

    def put(self, deliveries: Sequence[Delivery]) -> "asyncio.Future[list[Outcome]]":
        """Have these run. Whoever awaits the outcomes may give up; the run goes on."""
        if len(deliveries) > self._left < self._most_waiting:  # when nothing waits, also what is larger than the bound
            raise RequestRefused(503, "too many events are waiting")
        self._left -= len(deliveries)
        loop = asyncio.get_running_loop()
        ticket = _Ticket(deliveries, loop.create_future())
        self._waiting.append(ticket)
        self._call(loop)
        return ticket.outcomes

    @property
    def in_hand(self) -> int:
        """How many events wait or run."""
        return self._most_waiting - self._left

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin when the loop has looked at everything that has arrived, so that it goes together."""
        if not self._called and self._free and self._waiting:
            self._called = True
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._called = False
        while self._free and self._waiting:
            share = min(-(-len(self._waiting) // self._free), self._most_together)
            tickets = [self._waiting.popleft() for _ in range(share)]
            self._free -= 1
            task = loop.create_task(self._run(tickets))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, tickets: list[_Ticket]) -> None:
        deliveries = [delivery for ticket in tickets for delivery in ticket.deliveries]
        try:
            outcomes = iter(await self._act(deliveries))
            for ticket in tickets:
                _tell(ticket, [next(outcomes) for _ in ticket.deliveries])
        except Exception as error:  # of the sink or the dead letters: nothing goes on until someone acts
            _log.error("%s", describe(error))
            for ticket in tickets:
                _tell(ticket, error)
        finally:
            self._free += 1
            self._left += len(deliveries)
            self._call(asyncio.get_running_loop())


def _tell(ticket: _Ticket, found: list[Outcome] | Exception) -> None:
    if ticket.outcomes.done():  # nobody waits any more
        return
    if isinstance(found, Exception):
        ticket.outcomes.set_exception(found)
        ticket.outcomes.exception()  # which may come too late for anybody to look at it
    else:
        ticket.outcomes.set_result(found)
