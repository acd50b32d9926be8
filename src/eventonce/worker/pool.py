"""The pool: threads that take messages from a queue, run them through one worker, and stop without losing any."""

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
_CANCEL_GRACE = 5000  # milliseconds for cancelled handlers to release their claims


class WorkerPool:
    """Threads that each poll, run what came, and settle it before they poll again."""

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
        self._in_progress = [0] * threads  # messages of each
        self._error: BaseException | None = None
        self.counts = self._worker.counts

    def stop(self) -> None:
        """Stop polling, and start nothing new. A signal handler may call this."""
        self._stopping.set()

    def run(self, grace: int) -> int:
        """Work until stopped. Return how many messages were not settled within the grace time (milliseconds)."""
        threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"eventonce-worker-{number}", daemon=True)
            for number in range(len(self._in_progress))
        ]
        for thread in threads:
            thread.start()
        try:
            while not self._stopping.is_set():
                threads[0].join(_TICK)
            if not self._wait(threads, grace) and self._worker.cancel():
                self._wait(threads, _CANCEL_GRACE)
        finally:
            self._stopping.set()
            self._worker.close()
        if self._error is not None:
            raise self._error
        return sum(self._in_progress)

    def _wait(self, threads: Sequence[threading.Thread], timeout: int) -> bool:
        deadline = self._clock.steady() + timeout
        for thread in threads:
            thread.join(max(0, deadline - self._clock.steady()) / 1000)
        return not any(thread.is_alive() for thread in threads)

    def _serve(self, number: int) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                failures = 0 if self._turn(number) else failures + 1
                if failures:
                    self._stopping.wait(backoff(failures) / 1000)
        except CancelledError:  # after the grace time: its messages were returned, and count as not settled
            pass
        except BaseException as error:
            self._error = self._error or error
            self.stop()

    def _turn(self, number: int) -> bool:
        """Receive, run and settle. Return whether queue and store answered."""
        try:
            # While the store does not answer, one message is enough to see whether it does again.
            received = self._source.receive(1 if self._store.lasts else self._batch)
        except SourceError as error:
            if not error.retryable:
                raise
            return False
        self._in_progress[number] = len(received)
        answered = self._return_messages(received) if self._stopping.is_set() else self._work(received)
        self._in_progress[number] = 0
        return answered

    def _work(self, received: Sequence[Delivery]) -> bool:
        if not received:
            return True
        try:
            outcomes = self._worker.work(received)
        except BaseException:
            self._return_messages(received)
            raise
        return self._answered(outcomes)

    def _answered(self, outcomes: Sequence[Outcome]) -> bool:
        unknown = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.UNKNOWN]
        for outcome in unknown[:1]:
            self._store.failed(outcome.error)
        if not unknown:
            self._store.worked()
        return len(unknown) < len(outcomes)

    def _return_messages(self, received: Sequence[Delivery]) -> bool:
        for delivery in received:
            self._source.retry(delivery, 0)
        return True
