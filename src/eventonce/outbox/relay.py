"""Relay: publishes the events in an outbox, and removes each when it is published."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eventonce.clock import Clock, Duration, SystemClock, duration
from eventonce.dead_letters import open_dead_letters
from eventonce.engine.hooks import Hooks
from eventonce.engine.options import at_least_one
from eventonce.errors import ConfigError
from eventonce.observe.outage import Outage, awaited
from eventonce.outbox.feed import OutboxFeed
from eventonce.outbox.outbox import Outbox
from eventonce.outbox.relay_loop import EventPublisher, Loop, RelaySettings, SharedPublisher
from eventonce.outbox.table_feed import TableFeed
from eventonce.ports import DeadLetterSink, Hook

if TYPE_CHECKING:
    from eventonce.outbox.stream import StreamFeeds

BATCH, THREADS = 100, 2
# How many groups are tried in a row while nothing gets through. A Lambda function has little time.
_DRAIN_TRIES, _LAMBDA_TRIES = 10, 3


class Relay:
    """`Relay(outbox, publisher).run(stop)` publishes until `stop` is set, and `drain()` publishes what it can now.

    Several relays may work on one outbox, and so may the `threads` of one: while one waits for the receiver, another
    waits for the database. `lease` is how long the rows of a dead relay stay locked. `keep` is how long the database
    keeps a copy of a published event. `poll` is how often to query without a notification. Events that are refused, or
    fail `max_attempts` times while others get through, go to `dead_letter`. Relays of a DynamoDB stream share its
    shards through the `store`. With the default store there may be only one relay.
    """

    def __init__(
        self,
        outbox: Outbox,
        publisher: EventPublisher,
        *,
        dead_letter: str | DeadLetterSink = "eventonce-dead.jsonl",
        batch: int = BATCH,
        threads: int = THREADS,
        lease: Duration = "30s",
        keep: Duration = "0s",
        poll: Duration = "5s",
        max_attempts: int = 10,
        store: str = "memory:",
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("batch", batch), ("threads", threads), ("max_attempts", max_attempts)):
            at_least_one(f"relay: {name}", value)
        self._outbox = outbox
        self._threads = threads
        self._settings = RelaySettings(batch, _above_0(lease, "lease"), _above_0(poll, "poll"), max_attempts)
        self._keep = duration(keep, "relay: keep")
        self._store = store
        self._hooks = Hooks(hooks)
        self._clock = clock or SystemClock()
        self._dead_letters = open_dead_letters(dead_letter) if isinstance(dead_letter, str) else dead_letter
        self._publisher = SharedPublisher(publisher, self._dead_letters, outbox.table.name, self._clock)
        self._outage = Outage(outbox.table.name, self._clock)

    @property
    def counts(self) -> Counter[str]:
        """The events so far, by their result."""
        return self._publisher.counts

    def run(self, stop: threading.Event) -> None:
        """Publish until `stop` is set. A batch in progress is finished first.

        It waits for an outbox that is away, at the start and later.
        """
        awaited(self._outbox.table.check, stop)
        if stop.is_set():
            return

        def work(loop: Loop) -> None:
            try:
                loop.run(stop)
            finally:
                stop.set()  # if one loop ends, all do

        with self._loops(ends=False) as loops:
            _run_all(work, loops)

    def drain(self) -> int:
        """Publish all events that can be published now. Return the number that remain."""
        self._outbox.table.check()

        with self._loops(ends=True) as loops:
            _run_all(lambda loop: loop.drain(_DRAIN_TRIES), loops)
            loops[0].sweep()
            return loops[0].report()

    def aws_lambda(self) -> Callable[[Any, Any], dict[str, Any]]:
        """Return a handler for AWS Lambda on the stream of an outbox in DynamoDB."""

        return self._stream_feeds().handler(lambda feed: self._loop(feed).drain(_LAMBDA_TRIES))

    def close(self) -> None:
        """Close the dead-letter sink. The outbox and the publisher are the caller's."""
        self._dead_letters.close()

    @contextmanager
    def _loops(self, *, ends: bool) -> Iterator[list[Loop]]:
        feeds = self._feeds(ends=ends)
        try:
            yield [self._loop(feed, maintains=number == 0) for number, feed in enumerate(feeds)]
        finally:
            for feed in feeds:
                feed.close()

    def _loop(self, feed: OutboxFeed, *, maintains: bool = True) -> Loop:
        return Loop(
            feed,
            self._publisher,
            self._settings,
            self._clock,
            hooks=self._hooks,
            outage=self._outage,
            maintains=maintains,
        )

    def _feeds(self, *, ends: bool) -> list[OutboxFeed]:
        if self._outbox.table.streamed:  # one feed, as a stream is read in order
            feeds = self._stream_feeds()
            return [feeds.leftovers() if ends else feeds.stream(self._store, self._clock)]
        return [
            TableFeed(self._outbox.table, lease=self._settings.lease, keep=self._keep) for _ in range(self._threads)
        ]

    def _stream_feeds(self) -> "StreamFeeds":
        if not self._outbox.table.streamed:
            raise ConfigError(f"relay: {self._outbox.table.name} has no stream; use run or drain")
        from eventonce.outbox.stream import StreamFeeds

        return StreamFeeds(self._outbox.table, self._settings.lease)


def _run_all(work: Callable[[Loop], None], loops: Sequence[Loop]) -> None:
    """Run each loop on a thread, the first one on this thread, which gets the interrupts."""
    with ThreadPoolExecutor(max(1, len(loops) - 1), "eventonce-relay") as threads:
        futures = [threads.submit(work, loop) for loop in loops[1:]]
        work(loops[0])
        for future in futures:
            future.result()


def _above_0(value: Duration, setting: str) -> int:
    milliseconds = duration(value, f"relay: {setting}")
    if not milliseconds:
        raise ConfigError(f"relay: {setting}: 0 is too short")
    return milliseconds
