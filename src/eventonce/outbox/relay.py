"""Relay: publishes what waits in an outbox, and removes it from there when it is out."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eventonce.clock import Clock, SystemClock, duration
from eventonce.dead_letters import open_dead_letters
from eventonce.engine.hooks import Hooks
from eventonce.errors import ConfigError
from eventonce.observe.outage import Outage, awaited
from eventonce.outbox.feed import OutboxFeed
from eventonce.outbox.outbox import Outbox
from eventonce.outbox.relay_loop import EventPublisher, Loop, RelaySettings, SharedPublisher
from eventonce.outbox.table_feed import TableFeed
from eventonce.ports import DeadLetters, Hook

if TYPE_CHECKING:
    from eventonce.outbox.stream import Streamed

BATCH, THREADS = 100, 2
# How many groups are tried in a row where nothing gets through; a function has little time.
_DRAIN_TRIES, _LAMBDA_TRIES = 10, 3


class Relay:
    """`Relay(outbox, publisher).run(stop)` publishes until it is to stop, `drain()` what can go out now.

    Several may work on one outbox, and so may the `threads` of one: while one waits for the receiver, another waits for
    the database. `lease` is how long others leave alone what a relay has taken and does not come back to; `keep` how
    long a copy of what was published is kept in the database; `poll` how often to look without being told. What is
    refused, or fails `max_attempts` times while other events get through, goes to `dead_letter`. `store` is where
    relays of a DynamoDB stream share its shards; without one, there may be one relay.
    """

    def __init__(
        self,
        outbox: Outbox,
        publisher: EventPublisher,
        *,
        dead_letter: str | DeadLetters = "eventonce-dead.jsonl",
        batch: int = BATCH,
        threads: int = THREADS,
        lease: str | float = "30s",
        keep: str | float = 0,
        poll: str | float = "5s",
        max_attempts: int = 10,
        store: str = "memory:",
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("batch", batch), ("threads", threads), ("max_attempts", max_attempts)):
            if value < 1:
                raise ConfigError(f"relay: {name}: {value} is below 1")
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
        """Events so far, by what became of them."""
        return self._publisher.counts

    def run(self, stop: threading.Event) -> None:
        """Publish until told to stop; what is in hand then is published and settled first.

        An outbox that is away when this begins is waited for, as it is later.
        """
        awaited(self._outbox.table.check, stop)
        if stop.is_set():
            return

        def work(loop: Loop) -> None:
            try:
                loop.run(stop)
            finally:
                stop.set()  # where one cannot go on, none does

        with self._loops(ends=False) as loops:
            _together(work, loops)

    def drain(self) -> int:
        """Publish all that can go out now; how many events are left waiting."""
        self._outbox.table.check()

        with self._loops(ends=True) as loops:
            _together(lambda loop: loop.exhaust(_DRAIN_TRIES), loops)
            loops[0].tidy()
            return loops[0].tell()

    def aws_lambda(self) -> Callable[[Any, Any], dict[str, Any]]:
        """A handler for AWS Lambda on the stream of an outbox in DynamoDB."""

        return self._streamed().handler(lambda feed: self._loop(feed).exhaust(_LAMBDA_TRIES))

    def close(self) -> None:
        """Close the place for dead letters. The outbox and the publisher are the caller's."""
        self._dead_letters.close()

    @contextmanager
    def _loops(self, *, ends: bool) -> Iterator[list[Loop]]:
        feeds = self._feeds(ends=ends)
        try:
            yield [self._loop(feed, keeps_house=number == 0) for number, feed in enumerate(feeds)]
        finally:
            for feed in feeds:
                feed.close()

    def _loop(self, feed: OutboxFeed, *, keeps_house: bool = True) -> Loop:
        return Loop(
            feed,
            self._publisher,
            self._settings,
            self._clock,
            hooks=self._hooks,
            outage=self._outage,
            keeps_house=keeps_house,
        )

    def _feeds(self, *, ends: bool) -> list[OutboxFeed]:
        if self._outbox.table.streamed:  # which is read in order
            streamed = self._streamed()
            return [streamed.leftovers() if ends else streamed.stream(self._store, self._clock)]
        return [
            TableFeed(self._outbox.table, lease=self._settings.lease, keep=self._keep) for _ in range(self._threads)
        ]

    def _streamed(self) -> "Streamed":
        if not self._outbox.table.streamed:
            raise ConfigError(f"relay: {self._outbox.table.name} has no stream; use run or drain")
        from eventonce.outbox.stream import Streamed

        return Streamed(self._outbox.table, self._settings.lease)


def _together(work: Callable[[Loop], None], loops: Sequence[Loop]) -> None:
    """Each loop on a thread; the first is this one, so that an interrupt is heard."""
    with ThreadPoolExecutor(max(1, len(loops) - 1), "eventonce-relay") as threads:
        futures = [threads.submit(work, loop) for loop in loops[1:]]
        work(loops[0])
        for future in futures:
            future.result()


def _above_0(value: str | float, what: str) -> int:
    millis = duration(value, f"relay: {what}")
    if not millis:
        raise ConfigError(f"relay: {what}: 0 is too short")
    return millis
