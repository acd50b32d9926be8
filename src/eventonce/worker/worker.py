"""The loop of a worker: receive, run once, settle."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from eventonce.clock import Clock, SystemClock
from eventonce.engine import Once
from eventonce.errors import StoreUnusable
from eventonce.event import Delivery
from eventonce.outcome import Action, Kind, Outcome
from eventonce.ports import Sink, Source
from eventonce.sinks import DeadLetters
from eventonce.worker.apart import apart
from eventonce.worker.tally import Tally

if TYPE_CHECKING:
    from asyncio import Runner

_MOST_UNANSWERED = 8  # offers of an event
_FIRST_DELAY, _LONGEST_DELAY = 100, 30_000

Watcher = Callable[[Delivery, Outcome], None]


class Worker:
    """Runs a source through `Once`: acks what is done, retries what may succeed, keeps the rest as dead letters."""

    def __init__(
        self,
        once: Once,
        source: Source,
        handler: Sink | Callable[..., Any],
        dead_letters: DeadLetters,
        *,
        batch: int,
        watch: Watcher = lambda delivery, outcome: None,
        clock: Clock | None = None,
    ) -> None:
        self._once = once
        self._source = source
        self._handler = handler
        self._dead_letters = dead_letters
        self._batch = batch
        self._clock = clock or SystemClock()
        self._watch = watch
        self._loop: Runner | None = None
        self.tally = Tally()

    def run(self) -> None:
        """Work until the source ends."""
        try:
            while received := self._source.receive(self._batch):
                deliveries = [part for delivery in received for part in apart(delivery)]
                self._settle(deliveries, self._outcomes(deliveries))
        finally:
            if self._loop is not None:
                self._loop.close()

    def _outcomes(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        found = cast(Any, self._once.run(deliveries, self._handler))
        if isinstance(found, list):
            return found
        if self._loop is None:  # one loop for all batches, so that the handlers' own connections live on
            from asyncio import Runner

            self._loop = Runner()
        return cast(list[Outcome], self._loop.run(found))

    def _settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        self._stop_if_hopeless(outcomes)
        ended: list[tuple[Delivery, Outcome]] = []
        dead: list[tuple[Delivery, Outcome]] = []
        retries: list[tuple[Delivery, Outcome]] = []
        for pair in zip(deliveries, outcomes, strict=True):
            action = _action(*pair)
            (retries if action is Action.RETRY else ended).append(pair)
            if action is Action.DEAD_LETTER:
                dead.append(pair)
        self._dead_letters.write(dead, self._clock.utc())  # first: nothing is acked that is not kept
        self._source.ack([delivery for delivery, _ in ended])
        for delivery, outcome in retries:
            self._source.retry(delivery, self._delay(delivery, outcome))
        for delivery, outcome in ended:
            self.tally.add(outcome, dead=outcome.action is not Action.ACK)
            self._watch(delivery, outcome)

    @staticmethod
    def _stop_if_hopeless(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.kind is Kind.UNKNOWN and isinstance(outcome.error, StoreUnusable):
                raise outcome.error

    def _delay(self, delivery: Delivery, outcome: Outcome) -> int:
        if outcome.retry_at is not None:
            return max(_FIRST_DELAY, outcome.retry_at - self._clock.utc())
        longest = min(_FIRST_DELAY * 2 ** (delivery.offers - 1), _LONGEST_DELAY)
        return random.randint(longest // 2, longest)  # noqa: S311  # jitter, not a secret


def _action(delivery: Delivery, outcome: Outcome) -> Action:
    # A file cannot offer an event again tomorrow, so what the store never answers to is kept as a dead letter.
    if outcome.kind is Kind.UNKNOWN:
        delivery.unanswered += 1
        if delivery.unanswered >= _MOST_UNANSWERED:
            return Action.DEAD_LETTER
    return outcome.action
