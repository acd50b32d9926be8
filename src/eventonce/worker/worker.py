"""The work on what a source gives: run once, settle."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from eventonce.backoff import backoff
from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.clock import Clock, SystemClock
from eventonce.dead_letters import write_dead_letters
from eventonce.engine import Once
from eventonce.errors import SinkDown, StoreUnusable
from eventonce.event import Delivery
from eventonce.event.reading import split_events
from eventonce.ports import DeadLetters, Sink, Source
from eventonce.worker.counts import OutcomeCounts

if TYPE_CHECKING:
    from asyncio import Runner

    from eventonce.worker.loop import LoopThread

_MOST_UNANSWERED = 8  # offers of an event
_SOONEST = 100  # milliseconds
# A queue counts each time that it offers a message, so one that the store did not answer to is left there for longer.
_FIRST_REST, _LONGEST_REST = 10_000, 900_000

Watcher = Callable[[Delivery, Outcome], None]
Pair = tuple[Delivery, Outcome]


class Worker:
    """Runs a source through `Once`: acks what is done, retries what may succeed, keeps the rest as dead letters.

    `endless` says that the source is a queue, which several threads may work on and which offers again tomorrow what
    was not done today.
    """

    def __init__(
        self,
        once: Once,
        source: Source,
        handler: Sink | Callable[..., Any],
        dead_letters: DeadLetters,
        *,
        batch: int,
        endless: bool = False,
        watch: Watcher = lambda delivery, outcome: None,
        clock: Clock | None = None,
    ) -> None:
        self._once = once
        self._source = source
        self._handler = once.prepare(handler)
        self._dead_letters = dead_letters
        self._batch = batch
        self._endless = endless
        self._clock = clock or SystemClock()
        self._watch = watch
        self._loop: Runner | LoopThread | None = None
        self._lock = threading.Lock()  # for dead letters, the tally and who watches
        self.tally = OutcomeCounts()

    def run(self) -> None:
        """Work until the source ends."""
        try:
            while received := self._source.receive(self._batch):
                self.work(received)
        finally:
            self.close()

    def work(self, received: Sequence[Delivery]) -> list[Outcome]:
        """Run these once and settle them."""
        deliveries = [part for delivery in received for part in split_events(delivery)]
        outcomes = self._outcomes(deliveries)
        self._settle(list(zip(deliveries, outcomes, strict=True)))
        return outcomes

    def cancel(self) -> bool:
        """Cancel the async handlers that run in a loop of their own; whether there is one."""
        if self._loop is not None and self._endless:
            cast("LoopThread", self._loop).cancel()
            return True
        return False

    def close(self) -> None:
        """End the loop of async handlers."""
        if self._loop is not None:
            self._loop.close()

    def _outcomes(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        if self._handler.is_async:
            return self._one_loop().run(self._once.arun(deliveries, self._handler))
        return self._once.run(deliveries, self._handler)

    def _one_loop(self) -> "Runner | LoopThread":
        """One loop for all batches, so that the handlers' own connections live on."""
        with self._lock:
            if self._loop is None and self._endless:
                from eventonce.worker.loop import LoopThread

                self._loop = LoopThread()
            elif self._loop is None:
                from asyncio import Runner

                self._loop = Runner()
            return self._loop

    def _settle(self, pairs: Sequence[Pair]) -> None:
        self._stop_if_hopeless(pairs)
        messages: list[list[Pair]] = []
        retries: list[tuple[Delivery, int]] = []
        for message in _messages(pairs):
            again = [pair for pair in message if self._action(*pair) is Action.RETRY]
            if again:  # the parts of a message that are done are duplicates then
                retries.append((again[0][0], max(self._delay(*pair) for pair in again)))
            else:
                messages.append(message)
        unkept = self._unkept([pair for message in messages for pair in message])
        ended: list[Pair] = []
        for message in messages:
            first = message[0][0]
            if unkept.isdisjoint(id(delivery) for delivery, _ in message):
                ended += message
            else:
                retries.append((first, backoff(first.receive_count, _FIRST_REST, _LONGEST_REST)))
        self._source.ack([delivery for delivery, _ in ended])
        for delivery, delay in retries:
            self._source.retry(delivery, delay)
        with self._lock:
            for delivery, outcome in ended:
                self.tally.add(outcome, dead=outcome.action is not Action.ACK)
                self._watch(delivery, outcome)

    def _unkept(self, ended: Sequence[Pair]) -> set[int]:
        """Keep the dead among these; which deliveries (by `id`) must not be acked, as they could not be kept."""
        with self._lock:
            dead = [pair for pair in ended if pair[1].action is not Action.ACK]
            if self._endless:
                return {id(delivery) for delivery, _ in write_dead_letters(self._dead_letters, dead, self._clock.utc())}
            self._dead_letters.write(dead, self._clock.utc())  # a file offers nothing again
            return set()

    @staticmethod
    def _stop_if_hopeless(pairs: Sequence[Pair]) -> None:
        for _, outcome in pairs:
            if outcome.kind is OutcomeKind.UNKNOWN and isinstance(outcome.error, StoreUnusable):
                raise outcome.error

    def _action(self, delivery: Delivery, outcome: Outcome) -> Action:
        # A file cannot offer an event again tomorrow, so what the store never answers to is kept as a dead letter.
        if outcome.kind is OutcomeKind.UNKNOWN and not self._endless:
            delivery.store_failures += 1
            if delivery.store_failures >= _MOST_UNANSWERED:
                return Action.DEAD_LETTER
        return outcome.action

    def _delay(self, delivery: Delivery, outcome: Outcome) -> int:
        if outcome.retry_at is not None:
            return max(_SOONEST, outcome.retry_at - self._clock.utc())
        if outcome.kind is OutcomeKind.BUSY:
            return 0  # it waits for one of its group, behind which the queue withholds it
        if self._endless and (outcome.kind is OutcomeKind.UNKNOWN or isinstance(outcome.error, SinkDown)):
            return backoff(delivery.receive_count, _FIRST_REST, _LONGEST_REST)
        return backoff(delivery.receive_count)


def _messages(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The parts of each message together: they have one handle."""
    found: dict[object, list[Pair]] = {}
    for number, pair in enumerate(pairs):
        found.setdefault(number if pair[0].handle is None else pair[0].handle, []).append(pair)
    return list(found.values())
