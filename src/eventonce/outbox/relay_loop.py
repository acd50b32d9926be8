"""One loop of a relay: take rows, publish them, settle them, and wait for more."""

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from eventonce.backoff import backoff
from eventonce.clock import Clock
from eventonce.engine.hooks import Hooks
from eventonce.errors import EventRejected, StoreError, StoreUnusable, describe
from eventonce.observe.outage import Outage
from eventonce.outbox.decision import PublishedRows, RefusedRow, RelayDecision, dead_event
from eventonce.outbox.feed import OutboxFeed
from eventonce.outbox.message import Message, PublishKind, PublishResult
from eventonce.outbox.rows import PendingRow
from eventonce.ports import DeadLetterSink, RelayDetails
from eventonce.text import one_line

LONGEST_PAUSE = 5000  # milliseconds between two batches while nothing gets through
_REPORT_EVERY = 5000
_SWEEP_EVERY = 1000
_BEATS = 3  # per lease
_log = logging.getLogger("eventonce")


class EventPublisher(Protocol):
    """A publisher for a relay. Internal: a `Publisher` with a `Carrier`, or a `PlainPublisher` with a `Sink`.

    After an event that failed, the later ones of its group fail too, unsent.
    """

    def send(self, events: Sequence[Message]) -> Sequence[PublishResult]: ...


class RelaySettings(NamedTuple):
    """The settings of a relay's loops. Times are in milliseconds."""

    batch: int
    lease: int
    poll: int
    max_attempts: int


class SharedPublisher:
    """Publishes for all loops of a relay, counts the results, and writes dead letters."""

    def __init__(self, publisher: EventPublisher, dead_letters: DeadLetterSink, outbox: str, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self.gets_through: bool | None = None  # whether any event of the last batch did; None before the first
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._outbox = outbox
        self._clock = clock
        self._outage = Outage("the target of the relay", clock)
        self._lock = threading.Lock()

    def publish(self, rows: Sequence[PendingRow], max_attempts: int) -> RelayDecision:
        """Publish rows, and write dead letters of those that will never be published."""
        messages: list[tuple[PendingRow, Message]] = []
        unreadable: list[RefusedRow] = []
        for row in rows:
            try:
                messages.append((row, Message(row.decode(), row.identity, row.group, row.failures)))
            except EventRejected as error:
                unreadable.append(RefusedRow(row, row.failures, error))
        results = self._publisher.send([message for _, message in messages]) if messages else []
        published = [(row, result) for (row, _), result in zip(messages, results, strict=True)]
        decision = RelayDecision(published, unreadable, max_attempts, blame=self._reaches(published))
        if decision.dead:  # before they leave the outbox
            dead = [dead_event(refused, self._outbox) for refused in decision.dead]
            with self._lock:
                self._dead_letters.write(dead, self._clock.utc())
        return decision

    def count(self, counts: Counter[str]) -> None:
        """Add these to the counts of the relay."""
        with self._lock:
            self.counts += counts

    def _reaches(self, published: PublishedRows) -> bool:
        """Return whether anything gets through, now or the last time. A refusal comes from the receiver too."""
        if not published:
            return False
        before = self.gets_through
        self.gets_through = any(result.kind is not PublishKind.FAILED for _, result in published)
        if self.gets_through:
            self._outage.worked()
        else:
            self._outage.failed(published[0][1].error)
        return self.gets_through or before is True


class Loop:
    """Publishes the rows of a feed."""

    def __init__(
        self,
        feed: OutboxFeed,
        publisher: SharedPublisher,
        settings: RelaySettings,
        clock: Clock,
        *,
        hooks: Hooks,
        outage: Outage,
        maintains: bool = True,
    ) -> None:
        self._feed = feed
        self._publisher = publisher
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._outage = outage  # of the outbox
        self._maintains = maintains  # reports the backlog, and sweeps
        self._reported_at: int | None = None
        self._swept_at: int | None = None
        self._was_busy = False  # in the last round
        self._failed_steps = 0  # in a row
        self._retry_times: list[int] = []  # a heap of the times at which groups may be retried

    def drain(self, max_failed_steps: int) -> None:
        """Publish all rows, unless nothing gets through in so many steps in a row."""
        while self._failed_steps < max_failed_steps and self.step():
            pass

    def run(self, stop: threading.Event) -> None:
        """Publish until `stop` is set. A batch in progress is settled first."""
        while not stop.is_set():
            try:
                self._round(stop)
                self._outage.worked()
            except StoreUnusable:
                raise
            except StoreError as error:
                self._outage.failed(error)
                stop.wait(backoff(1, 1000) / 1000)

    def _round(self, stop: threading.Event) -> None:
        busy = self.step()
        self._maintain(busy=busy)
        if not busy:
            self._feed.wait(self._idle_time(), stop)
        elif self._failed_steps:
            self._feed.wait(backoff(self._failed_steps, 100, LONGEST_PAUSE), stop)

    def step(self) -> bool:
        """Publish the next rows. Return whether there were any."""
        feed, publisher = self._feed, self._publisher
        # One row is enough to see whether the receiver is back.
        rows = feed.take(1 if publisher.gets_through is False else self._settings.batch)
        if not rows:
            return False
        with self._extending():
            decision = publisher.publish(rows, self._settings.max_attempts)
            if decision.sent:
                self._failed_steps = 0 if publisher.gets_through else self._failed_steps + 1
            feed.settle(decision.done, decision.released)
        now = self._clock.steady()
        for released in decision.released:
            heapq.heappush(self._retry_times, now + released.delay)
        publisher.count(decision.counts)
        waited = [row.waited / 1000 for row in decision.done]
        self._hooks.after_relay(RelayDetails(feed.name, dict(decision.counts), waited))
        return True

    @contextmanager
    def _extending(self) -> Iterator[None]:
        """Extend the lease of the rows that were taken, until the block ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), name="eventonce-relay", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self._settings.lease / _BEATS / 1000):
            try:
                self._feed.extend()
            except StoreError as error:
                _log.warning("%s: could not extend the lease on rows: %s", self._feed.name, one_line(describe(error)))

    # --- maintenance ---

    def _idle_time(self) -> int:
        """Return how long to wait for new rows: until a group may be retried, at most the poll interval."""
        now = self._clock.steady()
        while self._retry_times and self._retry_times[0] <= now:
            heapq.heappop(self._retry_times)
        return min([self._settings.poll, *(time - now for time in self._retry_times[:1])])

    def _maintain(self, *, busy: bool) -> None:
        became_idle, self._was_busy = self._was_busy and not busy, busy
        if self._maintains:
            if self._is_due(self._swept_at, _SWEEP_EVERY):
                self.sweep()
            if became_idle or self._is_due(self._reported_at, _REPORT_EVERY):
                self.report()

    def _is_due(self, last: int | None, interval: int) -> bool:
        return last is None or self._clock.steady() - last >= interval

    def sweep(self) -> None:
        """Delete some of the copies that have expired."""
        more = self._feed.sweep()
        self._swept_at = None if more else self._clock.steady()

    def report(self) -> int:
        """Report the backlog to the hooks. Return the number of events that wait."""
        backlog = self._feed.backlog()
        self._reported_at = self._clock.steady()
        self._hooks.after_relay(RelayDetails(self._feed.name, {}, [], backlog.pending, backlog.lag / 1000))
        return backlog.pending
