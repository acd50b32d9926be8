"""One loop of a relay: take, publish, settle, and rest where there is nothing to do."""

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from eventonce.backoff import backoff
from eventonce.clock import Clock
from eventonce.dead_letters import DeadLetters
from eventonce.errors import EventRejected, StoreError, StoreUnusable
from eventonce.observe.hooks import Hooks
from eventonce.observe.outage import Outage
from eventonce.outbox.decision import Answered, RefusedRow, RelayDecision, letter
from eventonce.outbox.feed import OutboxFeed
from eventonce.outbox.message import Message
from eventonce.outbox.publish_result import PublishKind, PublishResult
from eventonce.outbox.row import PendingRow
from eventonce.ports import Relayed

LONGEST_PAUSE = 5000  # between two tries while nothing gets through
_TOLD_EVERY = 5000  # how much waits
_TIDIED_EVERY = 1000
_BEATS = 3  # within a lease
_log = logging.getLogger("eventonce")


class EventPublisher(Protocol):
    """What a relay publishes with; a `Publisher` is one.

    Events of a group that are behind one that failed have failed too, unsent.
    """

    def send(self, events: Sequence[Message]) -> Sequence[PublishResult]: ...


class Desk:
    """What the loops of a relay share."""

    def __init__(
        self,
        publisher: EventPublisher,
        dead_letters: DeadLetters,
        hooks: Hooks,
        clock: Clock,
        *,
        batch: int,
        lease: int,
        poll: int,
        max_attempts: int,
        outbox: str,
    ) -> None:
        self.publisher = publisher
        self.hooks = hooks
        self.clock = clock
        self.batch = batch
        self.lease = lease
        self.poll = poll
        self.max_attempts = max_attempts
        self.outage = Outage(outbox, clock)
        self.receiver = Outage("what the relay publishes to", clock)
        self.counts: Counter[str] = Counter()
        self.through: bool | None = None  # whether anything got through when last something was sent; None at first
        self._outbox = outbox
        self._dead_letters = dead_letters
        self._lock = threading.Lock()

    def bury(self, dead: Sequence[RefusedRow]) -> None:
        """Keep what will never be published."""
        if dead:
            with self._lock:
                self._dead_letters.write([letter(each, self._outbox) for each in dead], self.clock.utc())

    def count(self, counts: Counter[str]) -> None:
        with self._lock:
            self.counts += counts


class Loop:
    """Publishes what a feed gives, for as long as it is told to."""

    def __init__(self, desk: Desk, feed: OutboxFeed, *, keeps_house: bool = True) -> None:
        self._desk = desk
        self._feed = feed
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
                self._desk.outage.worked()
            except StoreUnusable:
                raise
            except StoreError as error:
                self._desk.outage.failed(error)
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
        desk, feed = self._desk, self._feed
        rows = feed.take(1 if desk.through is False else desk.batch)  # one alone shows whether the receiver is back
        if not rows:
            return False
        with self._holding():
            verdict = self._send(rows)
            desk.bury(verdict.dead)  # first: nothing leaves the outbox that is not kept elsewhere
            feed.settle(verdict.done, verdict.back)
        now = desk.clock.steady()
        for each in verdict.back:
            heapq.heappush(self._rests, now + each.rest)
        desk.count(verdict.counts)
        waited = [row.waited / 1000 for row in verdict.done]
        desk.hooks.relayed(Relayed(feed.name, dict(verdict.counts), waited))
        return True

    def _send(self, rows: Sequence[PendingRow]) -> RelayDecision:
        outgoing: list[tuple[PendingRow, Message]] = []
        broken: list[RefusedRow] = []
        for row in rows:
            try:
                outgoing.append((row, Message(row.opened(), row.identity, row.group, row.failures)))
            except EventRejected as error:
                broken.append(RefusedRow(row, row.failures, error))
        answers = self._desk.publisher.send([each for _, each in outgoing]) if outgoing else []
        answered = [(row, answer) for (row, _), answer in zip(outgoing, answers, strict=True)]
        return RelayDecision(answered, broken, self._desk.max_attempts, blame=self._gets_through(answered))

    def _gets_through(self, answered: Answered) -> bool:
        """Whether anything does, now or the last time; what the receiver refused has reached it too."""
        desk, before = self._desk, self._desk.through
        if not answered:
            return False
        desk.through = any(answer.kind is not PublishKind.FAILED for _, answer in answered)
        self._tries = 0 if desk.through else self._tries + 1
        if desk.through:
            desk.receiver.worked()
        else:
            desk.receiver.failed(answered[0][1].error)
        return desk.through or before is True

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
        while not ended.wait(self._desk.lease / _BEATS / 1000):
            try:
                self._feed.hold()
            except StoreError as error:
                _log.warning("%s: what was taken could not be held on to: %s", self._feed.name, error)

    # --- now and then ---

    def _idle(self) -> int:
        """How long to wait for something new: until a group may be tried again, and no longer than is usual."""
        now = self._desk.clock.steady()
        while self._rests and self._rests[0] <= now:
            heapq.heappop(self._rests)
        return min([self._desk.poll, *(at - now for at in self._rests[:1])])

    def _keep_house(self, *, moved: bool) -> None:
        ends, self._moved = self._moved and not moved, moved
        if self._keeps_house:
            if self._due(self._tidied_at, _TIDIED_EVERY):
                self.tidy()
            if ends or self._due(self._told_at, _TOLD_EVERY):
                self.tell()

    def _due(self, last: int | None, every: int) -> bool:
        return last is None or self._desk.clock.steady() - last >= every

    def tidy(self) -> None:
        """Remove some of what need not be kept any longer."""
        more = self._feed.tidy()
        self._tidied_at = None if more else self._desk.clock.steady()

    def tell(self) -> int:
        """Tell how much waits, and for how long."""
        backlog = self._feed.backlog()
        self._told_at = self._desk.clock.steady()
        self._desk.hooks.relayed(Relayed(self._feed.name, {}, [], backlog.pending, backlog.lag / 1000))
        return backlog.pending
