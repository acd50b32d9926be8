"""The crew: threads that take messages from a queue, run them through one worker, and stop without losing any."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

from eventonce.backoff import backoff
from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.clock import Clock, SystemClock
from eventonce.engine import Once
from eventonce.errors import SourceError
from eventonce.event import Delivery
from eventonce.observe.outage import Outage
from eventonce.ports import DeadLetterSink, Sink, Source
from eventonce.worker.stop_guard import guard
from eventonce.worker.worker import Watcher, Worker

THREADS = 4
_TICK = 0.1  # seconds between looks at whether to stop
_PARTING = 5000  # milliseconds for cancelled handlers to give their claims back


class WorkerPool:
    """Each thread polls, runs what it got and settles it before it polls again: no more than that is ever in hand."""

    def __init__(
        self,
        once: Once,
        source: Source,
        handler: Sink | Callable[..., Any],
        dead_letters: DeadLetterSink,
        *,
        batch: int,
        threads: int = THREADS,
        watch: Watcher = lambda delivery, outcome: None,
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._batch = batch
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        guarded = guard(handler, self._stopping.is_set)
        self._worker = Worker(
            once, source, guarded, dead_letters, batch=batch, endless=True, watch=watch, clock=self._clock
        )
        self._store = Outage("the store", self._clock)
        # What keeps the lines of a file whole is a lock between processes, not between threads.
        self._in_hand = [0] * threads
        self._error: BaseException | None = None
        self.tally = self._worker.tally

    def stop(self) -> None:
        """Poll no more and begin nothing new. May be called by a signal handler."""
        self._stopping.set()

    def run(self, grace: int) -> int:
        """Work until told to stop; how many messages were not settled within the grace time (milliseconds)."""
        crew = [
            threading.Thread(target=self._serve, args=(number,), name=f"eventonce-worker-{number}", daemon=True)
            for number in range(len(self._in_hand))
        ]
        for each in crew:
            each.start()
        try:
            while not self._stopping.is_set():
                crew[0].join(_TICK)
            if not self._wait(crew, grace) and self._worker.cancel():
                self._wait(crew, _PARTING)
        finally:
            self._stopping.set()
            self._worker.close()
        if self._error is not None:
            raise self._error
        return sum(self._in_hand)

    def _wait(self, crew: Sequence[threading.Thread], patience: int) -> bool:
        give_up = self._clock.steady() + patience
        for each in crew:
            each.join(max(0, give_up - self._clock.steady()) / 1000)
        return not any(each.is_alive() for each in crew)

    def _serve(self, number: int) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                failures = 0 if self._turn(number) else failures + 1
                if failures:
                    self._stopping.wait(backoff(failures) / 1000)
        except CancelledError:  # after the grace time; what was in hand has been given back, and counts as left
            pass
        except BaseException as error:
            self._error = self._error or error
            self.stop()

    def _turn(self, number: int) -> bool:
        """Receive, run, settle; whether queue and store answered."""
        try:
            # While the store is out, one message is enough to see whether it is back.
            received = self._source.receive(1 if self._store.lasts else self._batch)
        except SourceError as error:
            if not error.retryable:
                raise
            return False
        self._in_hand[number] = len(received)
        answered = self._give_back(received) if self._stopping.is_set() else self._work(received)
        self._in_hand[number] = 0
        return answered

    def _work(self, received: Sequence[Delivery]) -> bool:
        if not received:
            return True
        try:
            outcomes = self._worker.work(received)
        except BaseException:
            self._give_back(received)
            raise
        return self._answered(outcomes)

    def _answered(self, outcomes: Sequence[Outcome]) -> bool:
        unknown = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.UNKNOWN]
        for outcome in unknown[:1]:
            self._store.failed(outcome.error)
        if not unknown:
            self._store.worked()
        return len(unknown) < len(outcomes)

    def _give_back(self, received: Sequence[Delivery]) -> bool:
        for delivery in received:
            self._source.retry(delivery, 0)
        return True
