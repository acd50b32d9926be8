"""One loop of a relay: take, publish, settle, and rest where there is nothing to do."""

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
from eventonce.errors import EventRejected, StoreError, StoreUnusable
from eventonce.observe.outage import Outage
from eventonce.outbox.decision import Answered, RefusedRow, RelayDecision, letter
from eventonce.outbox.feed import OutboxFeed
from eventonce.outbox.message import Message
from eventonce.outbox.publish_result import PublishKind, PublishResult
from eventonce.outbox.row import PendingRow
from eventonce.ports import DeadLetters, Relayed

LONGEST_PAUSE = 5000  # between two tries while nothing gets through
_TOLD_EVERY = 5000  # how much waits
_TIDIED_EVERY = 1000
_BEATS = 3  # within a lease
_log = logging.getLogger("eventonce")


class EventPublisher(Protocol):
    """What a relay publishes with. Internal: a `Publisher` with a `Carrier`, or a `PlainPublisher` with a `Sink`.

    Events of a group that are behind one that failed have failed too, unsent.
    """

    def send(self, events: Sequence[Message]) -> Sequence[PublishResult]: ...


class RelaySettings(NamedTuple):
    """How the loops of a relay work. Times are in milliseconds."""

    batch: int
    lease: int
    poll: int
    max_attempts: int


class SharedPublisher:
    """Publishes for all loops of a relay, counts what became of events, and writes dead letters."""

    def __init__(self, sender: EventPublisher, dead_letters: DeadLetters, outbox: str, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self.gets_through: bool | None = None  # whether anything did when last something was sent; None at first
        self._sender = sender
        self._dead_letters = dead_letters
        self._outbox = outbox
        self._clock = clock
        self._outage = Outage("what the relay publishes to", clock)
        self._lock = threading.Lock()

    def publish(self, rows: Sequence[PendingRow], max_attempts: int) -> RelayDecision:
        """Send these, and write dead letters of what will never be published."""
        outgoing: list[tuple[PendingRow, Message]] = []
        broken: list[RefusedRow] = []
        for row in rows:
            try:
                outgoing.append((row, Message(row.opened(), row.identity, row.group, row.failures)))
            except EventRejected as error:
                broken.append(RefusedRow(row, row.failures, error))
        answers = self._sender.send([each for _, each in outgoing]) if outgoing else []
        answered = [(row, answer) for (row, _), answer in zip(outgoing, answers, strict=True)]
        verdict = RelayDecision(answered, broken, max_attempts, blame=self._reaches(answered))
        if verdict.dead:  # before they leave the outbox
            with self._lock:
                self._dead_letters.write([letter(each, self._outbox) for each in verdict.dead], self._clock.utc())
        return verdict

    def count(self, counts: Counter[str]) -> None:
        """Add these to the counts of the relay."""
        with self._lock:
            self.counts += counts

    def _reaches(self, answered: Answered) -> bool:
        """Return whether anything gets through, now or the last time. A refusal has come from the receiver too."""
        if not answered:
            return False
        before = self.gets_through
        self.gets_through = any(answer.kind is not PublishKind.FAILED for _, answer in answered)
        if self.gets_through:
            self._outage.worked()
        else:
            self._outage.failed(answered[0][1].error)
        return self.gets_through or before is True


class Loop:
    """Publishes what a feed gives, for as long as it is told to."""

    def __init__(
        self,
        feed: OutboxFeed,
        publisher: SharedPublisher,
        settings: RelaySettings,
        clock: Clock,
        *,
        hooks: Hooks,
        outage: Outage,
        keeps_house: bool = True,
    ) -> None:
        self._feed = feed
        self._publisher = publisher
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._outage = outage  # of the outbox
        self._keeps_house = keeps_house  # tells how much waits, and removes what need not be kept
        self._told_at: int | None = None
        self._tidied_at: int | None = None
        self._moved = False  # in the last round
        self._tries = 0  # in a row that nothing got through
        self._rests: list[int] = []  # when groups may be tried again, the soonest first

    def exhaust(self, tries: int) -> None:
        """Publish all that there is, unless nothing gets through so many times in a row."""
        while self._tries < tries and self.step():
            pass

    def run(self, stop: threading.Event) -> None:
        """Go on until told to stop; what is in hand then is settled first."""
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
        moved = self.step()
        self._keep_house(moved=moved)
        if not moved:
            self._feed.wait(self._idle(), stop)
        elif self._tries:
            self._feed.wait(backoff(self._tries, 100, LONGEST_PAUSE), stop)

    def step(self) -> bool:
        """Publish what is next; whether there was anything."""
        feed, publisher = self._feed, self._publisher
        # One alone shows whether the receiver is back.
        rows = feed.take(1 if publisher.gets_through is False else self._settings.batch)
        if not rows:
            return False
        with self._holding():
            verdict = publisher.publish(rows, self._settings.max_attempts)
            if verdict.sent:
                self._tries = 0 if publisher.gets_through else self._tries + 1
            feed.settle(verdict.done, verdict.back)
        now = self._clock.steady()
        for each in verdict.back:
            heapq.heappush(self._rests, now + each.rest)
        publisher.count(verdict.counts)
        waited = [row.waited / 1000 for row in verdict.done]
        self._hooks.relayed(Relayed(feed.name, dict(verdict.counts), waited))
        return True

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold what was taken for as long as this lasts."""
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
                self._feed.hold()
            except StoreError as error:
                _log.warning("%s: what was taken could not be held on to: %s", self._feed.name, error)

    # --- now and then ---

    def _idle(self) -> int:
        """How long to wait for something new: until a group may be tried again, and no longer than is usual."""
        now = self._clock.steady()
        while self._rests and self._rests[0] <= now:
            heapq.heappop(self._rests)
        return min([self._settings.poll, *(at - now for at in self._rests[:1])])

    def _keep_house(self, *, moved: bool) -> None:
        ends, self._moved = self._moved and not moved, moved
        if self._keeps_house:
            if self._due(self._tidied_at, _TIDIED_EVERY):
                self.tidy()
            if ends or self._due(self._told_at, _TOLD_EVERY):
                self.tell()

    def _due(self, last: int | None, every: int) -> bool:
        return last is None or self._clock.steady() - last >= every

    def tidy(self) -> None:
        """Remove some of what need not be kept any longer."""
        more = self._feed.tidy()
        self._tidied_at = None if more else self._clock.steady()

    def tell(self) -> int:
        """Tell how much waits, and for how long."""
        backlog = self._feed.backlog()
        self._told_at = self._clock.steady()
        self._hooks.relayed(Relayed(self._feed.name, {}, [], backlog.pending, backlog.lag / 1000))
        return backlog.pending
