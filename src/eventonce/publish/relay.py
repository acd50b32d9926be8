"""Relay: publishes what waits in an outbox, and removes it from there when it is out."""

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eventonce.backoff import backoff
from eventonce.clock import Clock, SystemClock, duration
from eventonce.errors import (
    ConfigError,
    EventOnceError,
    EventRejected,
    SinkDown,
    StoreError,
    StoreUnusable,
    TooManyAttempts,
    describe,
)
from eventonce.event import Delivery
from eventonce.observe.hooks import Hooks
from eventonce.outcome import Kind as Ending
from eventonce.outcome import Outcome
from eventonce.ports import Hook, Relayed
from eventonce.publish.feed import Back, Feed
from eventonce.publish.outbox import Outbox
from eventonce.publish.outgoing import Outgoing
from eventonce.publish.published import Kind, Published
from eventonce.publish.row import Pending
from eventonce.sinks import DeadLetters, open_dead_letters
from eventonce.sources.outage import Outage
from eventonce.stamp import stamped

if TYPE_CHECKING:
    from eventonce.publish.stream import Streamed

BATCH = 100
_FIRST_REST, _LONGEST_REST = 500, 300_000  # of a group, after a failure
_LONGEST_PAUSE = 5000  # between two tries while nothing gets through
_TOLD_EVERY = 5000  # how much waits
_BEATS = 3  # within a lease
_log = logging.getLogger("eventonce")


class Sender(Protocol):
    """What a relay publishes with; a `Publisher` is one.

    What it says of events that are not out: those of a group behind one that failed have failed too, unsent.
    """

    def send(self, events: Sequence[Outgoing]) -> Sequence[Published]: ...


class Verdict(NamedTuple):
    """What is to become of a batch."""

    done: list[Pending]
    back: list[Back]
    dead: list[tuple[Pending, int, EventOnceError]]  # of those that are done: attempts, and why
    counts: Counter[str]


class Relay:
    """`Relay(outbox, publisher).run(stop)` publishes until it is to stop, `drain()` what can go out now.

    Several may work on one outbox. `lease` is how long others leave alone what a relay has taken and does not come back
    to; `keep` how long a copy of what was published is kept in the database; `poll` how often to look without being
    told. What is refused, or fails `max_attempts` times while other events get through, goes to `dead_letter`.
    `store` is where relays of a DynamoDB stream share its shards; without one, there may be one relay.
    """

    def __init__(
        self,
        outbox: Outbox,
        publisher: Sender,
        *,
        dead_letter: str | DeadLetters = "eventonce-dead.jsonl",
        batch: int = BATCH,
        lease: str | float = "30s",
        keep: str | float = 0,
        poll: str | float = "5s",
        max_attempts: int = 10,
        store: str = "memory:",
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("batch", batch), ("max_attempts", max_attempts)):
            if value < 1:
                raise ConfigError(f"relay: {name}: {value} is below 1")
        self._outbox = outbox
        self._publisher = publisher
        self._dead_letters = open_dead_letters(dead_letter) if isinstance(dead_letter, str) else dead_letter
        self._batch = batch
        self._lease = _above_0(lease, "lease")
        self._keep = duration(keep, "relay: keep")
        self._poll = _above_0(poll, "poll")
        self._max_attempts = max_attempts
        self._store = store
        self._hooks = Hooks(hooks)
        self._clock = clock or SystemClock()
        self._outage = Outage(outbox.table.name, self._clock)
        self._receiver = Outage("what the relay publishes to", self._clock)
        self._up = True  # whether something got through when last something was sent
        self._moved = False  # in the last round
        self._rests: list[int] = []  # when groups may be tried again, the soonest first
        self._told_at: int | None = None
        self._tidied_at: int | None = None
        self.counts: Counter[str] = Counter()  # of everything so far, by what became of it

    # --- ways to run ---

    def run(self, stop: threading.Event) -> None:
        """Publish until told to stop; what is in hand then is published and settled first."""
        self._outbox.table.check()
        feed = self._feed(ends=False)
        tries = 0
        try:
            while not stop.is_set():
                try:
                    tries = self._go_on(feed, stop, tries)
                except StoreUnusable:
                    raise
                except StoreError as error:
                    self._outage.failed(error)
                    stop.wait(backoff(1, 1000) / 1000)
        finally:
            feed.close()

    def drain(self) -> int:
        """Publish all that can go out now; how many events are left waiting."""
        self._outbox.table.check()
        feed = self._feed(ends=True)
        try:
            while self.step(feed):
                pass
            self._tidy(feed)
            return self._tell(feed)
        finally:
            feed.close()

    def aws_lambda(self) -> Callable[[Any, Any], dict[str, Any]]:
        """A handler for AWS Lambda on the stream of an outbox in DynamoDB."""

        def publish(feed: Feed) -> None:
            self._up = True  # each time anew: who is brought one batch over and over must not know it by one event only
            while self.step(feed) and self._up:
                pass

        return self._streamed().handler(publish)

    def close(self) -> None:
        """Close the place for dead letters. The outbox and the publisher are the caller's."""
        self._dead_letters.close()

    def _feed(self, *, ends: bool) -> Feed:
        from eventonce.publish.table_feed import TableFeed

        if self._outbox.table.streamed:
            streamed = self._streamed()
            return streamed.leftovers() if ends else streamed.stream(self._store, self._clock)
        return TableFeed(self._outbox.table, lease=self._lease, keep=self._keep)

    def _streamed(self) -> "Streamed":
        if not self._outbox.table.streamed:
            raise ConfigError(f"relay: {self._outbox.table.name} has no stream; use run or drain")
        from eventonce.publish.stream import Streamed

        return Streamed(self._outbox.table, self._lease)

    # --- one round ---

    def _go_on(self, feed: Feed, stop: threading.Event, tries: int) -> int:
        """One round, and a rest where there is nothing to do or nothing gets through; gives how often nothing did."""
        moved = self.step(feed)
        self._outage.worked()
        self._tidy(feed)
        if self._due(self._told_at, _TOLD_EVERY) or (self._moved and not moved):
            self._tell(feed)
        self._moved = moved
        if self._up and not moved:
            feed.wait(self._idle(), stop)
        if self._up:
            return 0
        feed.wait(backoff(tries + 1, 100, _LONGEST_PAUSE), stop)
        return tries + 1

    def _idle(self) -> int:
        """How long to wait for something new: until a group may be tried again, and no longer than is usual."""
        now = self._clock.steady()
        while self._rests and self._rests[0] <= now:
            heapq.heappop(self._rests)
        return min([self._poll, *(at - now for at in self._rests[:1])])

    def step(self, feed: Feed) -> bool:
        """Publish what is next; whether there was anything."""
        rows = feed.take(self._batch if self._up else 1)  # one alone shows whether the receiver is back
        if not rows:
            return False
        with self._holding(feed):
            verdict = self._send(rows)
            self._bury(verdict)  # first: nothing leaves the outbox that is not kept elsewhere
            feed.settle(verdict.done, verdict.back)
        self.counts += verdict.counts
        waited = [row.waited / 1000 for row in verdict.done]
        self._hooks.relayed(Relayed(feed.name, dict(verdict.counts), waited))
        return True

    def _send(self, rows: Sequence[Pending]) -> Verdict:
        outgoing: list[tuple[Pending, Outgoing]] = []
        broken: list[tuple[Pending, int, EventOnceError]] = []
        for row in rows:
            try:
                outgoing.append((row, Outgoing(row.opened(), row.identity, row.group, row.failures)))
            except EventRejected as error:
                broken.append((row, row.failures, error))
        answers = self._publisher.send([each for _, each in outgoing]) if outgoing else []
        return self._judge([(row, answer) for (row, _), answer in zip(outgoing, answers, strict=True)], broken)

    def _judge(
        self, answered: Sequence[tuple[Pending, Published]], broken: list[tuple[Pending, int, EventOnceError]]
    ) -> Verdict:
        verdict = Verdict([row for row, *_ in broken], [], broken, Counter({"refused": len(broken)} if broken else {}))
        through = any(answer.kind is not Kind.FAILED for _, answer in answered) or not answered
        blame = through or self._up  # else it is the receiver that fails, whatever it is sent
        self._up = through
        self._receiver.worked() if through else self._receiver.failed(answered[0][1].error)
        stuck: set[str] = set()
        for row, answer in answered:
            if row.grp in stuck:  # behind one that failed, and unsent
                verdict.back.append(Back(row, 0))
                continue
            kind = self._end(row, answer, verdict, blame=blame)
            verdict.counts[kind] += 1
            if answer.kind is Kind.FAILED:
                stuck.add(row.grp)
        return verdict

    def _end(self, row: Pending, answer: Published, verdict: Verdict, *, blame: bool) -> str:
        """What is to become of one row that was sent."""
        blame = blame and not isinstance(answer.error, SinkDown)
        failures = row.failures + blame
        if answer.kind is Kind.FAILED and failures < self._max_attempts:
            rest = backoff(failures or 1, _FIRST_REST, _LONGEST_REST)
            heapq.heappush(self._rests, self._clock.steady() + rest)
            verdict.back.append(Back(row, rest, blame))
            return "failed"
        verdict.done.append(row)
        if answer.kind is Kind.FAILED:
            why = f"could not be published {failures} times; the last time: {_said(answer)}"
            verdict.dead.append((row, failures, TooManyAttempts(why)))
            return "refused"
        if answer.kind is Kind.REFUSED:
            verdict.dead.append((row, failures + 1, EventRejected(_said(answer))))
        return answer.kind.value

    def _bury(self, verdict: Verdict) -> None:
        if verdict.dead:
            self._dead_letters.write(
                [_letter(*each, self._outbox.table.name) for each in verdict.dead], self._clock.utc()
            )

    @contextmanager
    def _holding(self, feed: Feed) -> Iterator[None]:
        """Hold what was taken for as long as this lasts."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(feed, ended), name="eventonce-relay", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat(self, feed: Feed, ended: threading.Event) -> None:
        while not ended.wait(self._lease / _BEATS / 1000):
            try:
                feed.hold()
            except StoreError as error:
                _log.warning("%s: what was taken could not be held on to: %s", feed.name, error)

    # --- now and then ---

    def _due(self, last: int | None, every: int) -> bool:
        return last is None or self._clock.steady() - last >= every

    def _tidy(self, feed: Feed) -> None:
        if self._due(self._tidied_at, 1000):
            more = feed.tidy()
            self._tidied_at = None if more else self._clock.steady()

    def _tell(self, feed: Feed) -> int:
        """Tell how much waits, and for how long."""
        backlog = feed.backlog()
        self._told_at = self._clock.steady()
        self._hooks.relayed(Relayed(feed.name, {}, [], backlog.pending, backlog.lag / 1000))
        return backlog.pending


def _above_0(value: str | float, what: str) -> int:
    millis = duration(value, f"relay: {what}")
    if not millis:
        raise ConfigError(f"relay: {what}: 0 is too short")
    return millis


def _said(answer: Published) -> str:
    return describe(answer.error) if answer.error is not None else answer.code or "for a reason that is not known"


def _letter(row: Pending, attempts: int, why: EventOnceError, outbox: str) -> tuple[Delivery, Outcome]:
    where = {"source": "outbox", "outbox": outbox, "identity": row.identity, "group": row.group}
    try:
        body = stamped(row.opened(), row.identity, max(attempts, 1)).line()  # so that it comes back under its identity
    except EventRejected:
        body = row.event
    kind = Ending.REJECTED if isinstance(why, EventRejected) else Ending.FAILED
    return Delivery(body, where), Outcome(kind=kind, error=why, attempt=attempts, final=True)
