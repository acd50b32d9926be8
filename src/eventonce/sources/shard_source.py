"""Records of a stream, shard by shard, which several workers share."""

import logging
import threading
from collections.abc import Sequence

from eventonce.clock import Clock, SystemClock
from eventonce.errors import StoreError
from eventonce.event import Delivery
from eventonce.observe.outage import Outage
from eventonce.ports import Store
from eventonce.sources.shard_leases import ShardLeases
from eventonce.sources.shard_reader import SHARD_END, ShardReader
from eventonce.sources.stream import Shard, Stream, StreamAway

_BEATS = 6  # within a lease
_LISTED_FOR = 30_000  # milliseconds, unless a shard ends
_SOON = 200  # a shard can be read five times a second
_PATIENCE = 10.0  # seconds for a call that is under way when we stop
_log = logging.getLogger("eventonce")


class ShardSource:
    """A stream, as a way in. It never ends: an empty receive says that nothing came.

    One thread takes shards, gives them back and saves how far each is done; the threads that receive read them. Each
    receive is of one shard, and the next one of that shard waits until all of it is settled. What is received again
    after a handover is a duplicate.
    """

    def __init__(
        self, stream: Stream, store: Store, consumer: str, *, wait: int, lease: int, clock: Clock | None = None
    ) -> None:
        self._stream = stream
        self._wait = wait
        self._tick = lease / _BEATS / 1000
        self._clock = clock or SystemClock()
        self._store = store
        self._leases = ShardLeases(store, consumer, stream.identity, lease, self._clock)
        self._outage = Outage("the store of checkpoints", self._clock)
        self._start: int | None = None
        self._shards: dict[str, Shard] = {}
        self._list_at = 0
        self._ended: set[str] = set()  # all of these is done, and known to be
        self._readers: dict[str, ShardReader] = {}
        self._changed = threading.Condition()
        self._needed = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: StoreError | None = None

    # --- the source ---

    def receive(self, limit: int) -> Sequence[Delivery]:
        """What is next in one shard that this worker holds; perhaps nothing."""
        reader = self._next()
        if reader is None:
            return []
        if reader.wants:
            self._fetch(reader)
        with self._changed:
            found = reader.take(limit)
            reader.fetching = False
        if reader.ended:
            self._needed.set()  # its children can be read now
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These are done."""
        for delivery in deliveries:
            self._settle(delivery, None)

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Have it offered again after the delay; what is behind it in its shard waits."""
        self._settle(delivery, delay)

    def close(self) -> None:
        """Save how far each shard is done, and leave all of them to other workers."""
        self._stopped.set()
        self._needed.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        with self._changed:  # a batch that is being settled just now may look as if its shard had ended
            positions = self._positions()
        try:
            self._leases.close(positions)
        except StoreError as error:  # they are free when their leases are over
            _log.warning("%s: its shards could not be given back: %s", self._stream.name, error)
        self._store.close()
        self._stream.close()

    # --- reading ---

    def _next(self) -> ShardReader | None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_on, name="eventonce-shards", daemon=True)
                self._thread.start()
            reader = self._ready()
            if reader is None:
                self._changed.wait(self._pause())
                reader = self._ready()
            if self._error is not None:
                raise self._error
            if reader is not None:
                reader.fetching = True
            return reader

    def _idle(self) -> list[ShardReader]:
        return [each for each in self._readers.values() if not (each.busy or each.leaving or each.ended)]

    def _ready(self) -> ShardReader | None:
        now = self._clock.steady()
        found = [each for each in self._idle() if each.due <= now and self._leases.holds(each.shard)]
        return min(found, key=lambda each: each.due, default=None)

    def _pause(self) -> float:
        """Seconds until a shard may have something, at most as long as an idle one rests."""
        first = min((each.due - self._clock.steady() for each in self._idle()), default=self._wait)
        return min(max(first, 1), self._wait) / 1000

    def _fetch(self, reader: ShardReader) -> None:
        rest = self._wait
        try:
            if reader.fetch():
                rest = _SOON
        except StreamAway:  # it has been told
            pass
        except BaseException:
            reader.fetching = False
            raise
        reader.next_read = self._clock.steady() + rest

    def _settle(self, delivery: Delivery, delay: int | None) -> None:
        reader, number, _ = delivery.handle
        with self._changed:
            reader.settle(number, delay, self._clock.steady())
            self._changed.notify_all()
        if reader.ended:
            self._needed.set()

    # --- holding shards ---

    def beat(self) -> None:
        """Save how far each shard is done, hold them, and take or leave some."""
        self._keep()
        shards = self._open()
        if self._stream.start is not None and self._start is None:
            self._start = self._leases.start(self._stream.start)
        if self._stream.start is None or self._start is not None:
            self._even_out(shards)

    def _keep(self) -> None:
        with self._changed:
            positions = self._positions()
            leaving = {shard for shard, each in self._readers.items() if each.leaving and not each.busy}
            done = {shard for shard, position in positions.items() if position == SHARD_END}
        ours = self._leases.keep(positions, leaving | done)
        with self._changed:
            for shard in self._readers.keys() - ours:
                del self._readers[shard]

    def _positions(self) -> dict[str, str | None]:
        return {shard: each.position for shard, each in self._readers.items()}

    def _list(self) -> None:
        now = self._clock.steady()
        if now < self._list_at:
            return
        try:
            self._shards = {shard.id: shard for shard in self._stream.shards()}
        except StreamAway:  # it has been told
            return
        self._list_at = now + _LISTED_FOR

    def _open(self) -> list[str]:
        """The shards that can be read: they are not done, and all before them is."""
        self._list()
        done = self._leases.look([shard for shard in self._shards if shard not in self._ended])
        ended = {shard for shard, position in done.items() if position == SHARD_END}
        if ended:  # here or by another worker; the shards that follow may be new
            self._ended |= ended
            self._list_at = 0
            return self._open()
        before = self._shards.keys() - self._ended
        return [shard.id for shard in self._shards.values() if shard.id in before and before.isdisjoint(shard.parents)]

    def _even_out(self, shards: Sequence[str]) -> None:
        """Come to an equal share of the shards."""
        share = self._leases.share(len(shards))
        with self._changed:
            for shard in self._readers.keys() - set(shards):  # a stream drops a shard when its last record is too old
                self._readers[shard].leaving = True
            staying = [each for each in self._readers.values() if not each.leaving]
            for reader in sorted(staying, key=lambda each: each.busy)[: max(0, len(staying) - share)]:
                reader.leaving = True
        won = self._leases.take(shards, share - len(staying))
        with self._changed:
            for shard, position in won.items():
                self._readers[shard] = ShardReader(self._stream, shard, position, self._start)
            self._changed.notify_all()

    def _keep_on(self) -> None:
        while not self._stopped.is_set():
            try:
                self.beat()
                self._outage.worked()
            except StoreError as error:
                self._outage.failed(error)
                if not error.retryable:
                    self._error = error
            except Exception:  # a mistake of ours must not let go of every shard
                _log.exception("%s: its shards could not be held", self._stream.name)
            self._needed.wait(self._tick)
            self._needed.clear()
