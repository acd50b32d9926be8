"""The work on the deliveries of a source: run each once, and settle it."""

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
from eventonce.ports import DeadLetterSink, Sink, Source
from eventonce.worker.counts import OutcomeCounts

if TYPE_CHECKING:
    from asyncio import Runner

    from eventonce.worker.loop import LoopThread

_MAX_STORE_FAILURES = 8  # of an event of a file
_MIN_DELAY = 100  # milliseconds
# A queue counts each delivery of a message, so one for which the store did not answer is left there for longer.
_FIRST_DELAY, _LONGEST_DELAY = 10_000, 900_000

Watcher = Callable[[Delivery, Outcome], None]
Pair = tuple[Delivery, Outcome]


class Worker:
    """Runs a source through `Once`: acks what is done, retries what may succeed, keeps the rest as dead letters.

    `endless` says that the source is a queue: several threads may work on it, and it redelivers what was not done.
    """

    def __init__(
        self,
        once: Once,
        source: Source,
        handler: Sink | Callable[..., Any],
        dead_letters: DeadLetterSink,
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
        self._lock = threading.Lock()  # for dead letters, counts and the watcher
        self.counts = OutcomeCounts()

    def run(self) -> None:
        """Work until the source ends."""
        try:
            while received := self._source.receive(self._batch):
                self.work(received)
            self._once.report_unused()
        finally:
            self.close()

    def work(self, received: Sequence[Delivery]) -> list[Outcome]:
        """Run these once and settle them."""
        deliveries = [part for delivery in received for part in split_events(delivery)]
        outcomes = self._outcomes(deliveries)
        self._settle(list(zip(deliveries, outcomes, strict=True)))
        return outcomes

    def cancel(self) -> bool:
        """Cancel the async handlers that run in a loop of their own. Return whether there is one."""
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
        """Return the one loop of all batches: connections of the handlers stay open in it."""
        with self._lock:
            if self._loop is None and self._endless:
                from eventonce.worker.loop import LoopThread

                self._loop = LoopThread()
            elif self._loop is None:
                from asyncio import Runner

                self._loop = Runner()
            return self._loop

    def _settle(self, pairs: Sequence[Pair]) -> None:
        self._raise_if_unusable(pairs)
        messages: list[list[Pair]] = []
        retries: list[tuple[Delivery, int]] = []
        for message in _messages(pairs):
            unfinished = [pair for pair in message if self._action(*pair) is Action.RETRY]
            if unfinished:  # the parts of the message that are done will be duplicates
                retries.append((unfinished[0][0], max(self._delay(*pair) for pair in unfinished)))
            else:
                messages.append(message)
        unwritten = self._write_dead([pair for message in messages for pair in message])
        ended: list[Pair] = []
        for message in messages:
            first = message[0][0]
            if unwritten.isdisjoint(id(delivery) for delivery, _ in message):
                ended += message
            else:
                retries.append((first, backoff(first.receive_count, _FIRST_DELAY, _LONGEST_DELAY)))
        self._source.ack([delivery for delivery, _ in ended])
        for delivery, delay in retries:
            self._source.retry(delivery, delay)
        with self._lock:
            for delivery, outcome in ended:
                self.counts.add(outcome, dead=outcome.action is not Action.ACK)
                self._watch(delivery, outcome)

    def _write_dead(self, ended: Sequence[Pair]) -> set[int]:
        """Write the dead letters among these. Return the deliveries (by `id`) without one, which must not be acked."""
        with self._lock:
            dead = [pair for pair in ended if pair[1].action is not Action.ACK]
            if self._endless:
                return {id(delivery) for delivery, _ in write_dead_letters(self._dead_letters, dead, self._clock.utc())}
            self._dead_letters.write(dead, self._clock.utc())  # a file redelivers nothing
            return set()

    @staticmethod
    def _raise_if_unusable(pairs: Sequence[Pair]) -> None:
        for _, outcome in pairs:
            if outcome.kind is OutcomeKind.UNKNOWN and isinstance(outcome.error, StoreUnusable):
                raise outcome.error

    def _action(self, delivery: Delivery, outcome: Outcome) -> Action:
        # A file redelivers nothing, so an event for which the store never answers becomes a dead letter.
        if outcome.kind is OutcomeKind.UNKNOWN and not self._endless:
            delivery.store_failures += 1
            if delivery.store_failures >= _MAX_STORE_FAILURES:
                return Action.DEAD_LETTER
        return outcome.action

    def _delay(self, delivery: Delivery, outcome: Outcome) -> int:
        if outcome.retry_at is not None:
            return max(_MIN_DELAY, outcome.retry_at - self._clock.utc())
        if outcome.kind is OutcomeKind.BUSY:
            return 0  # it waits for an earlier one of its group, and the queue withholds it until then
        if self._endless and (outcome.kind is OutcomeKind.UNKNOWN or isinstance(outcome.error, SinkDown)):
            return backoff(delivery.receive_count, _FIRST_DELAY, _LONGEST_DELAY)
        return backoff(delivery.receive_count)


def _messages(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the parts of each message together. They share a handle."""
    messages: dict[object, list[Pair]] = {}
    for index, pair in enumerate(pairs):
        messages.setdefault(index if pair[0].handle is None else pair[0].handle, []).append(pair)
    return list(messages.values())
