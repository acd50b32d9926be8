"""A source that reads a stream shard by shard, and shares the shards with other workers."""

import logging
import threading
from collections.abc import Sequence

from eventonce.clock import Clock, SystemClock
from eventonce.errors import StoreError, describe
from eventonce.event import Delivery
from eventonce.observe.outage import Outage
from eventonce.ports import Store
from eventonce.sources.shard_leases import ShardLeases
from eventonce.sources.shard_reader import SHARD_END, ShardReader
from eventonce.sources.stream import Shard, Stream, StreamAway
from eventonce.text import one_line

_BEATS = 6  # per lease
_LIST_EVERY = 30_000  # milliseconds, and whenever a shard ends
_SOON = 200  # milliseconds: a shard can be read five times a second
_STOP_TIMEOUT = 10.0  # seconds for a call that is running at the stop
_log = logging.getLogger("eventonce")


class ShardSource:
    """Reads a stream. It never ends: an empty receive means that nothing came.

    One thread takes and releases shards, and saves how far each is done. The threads that receive read them. A receive
    has records of one shard, and the next one of that shard waits until all of them are settled. A done event that is
    redelivered after a handover is a duplicate.
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
        self._ended: set[str] = set()  # shards that are certainly done
        self._readers: dict[str, ShardReader] = {}
        self._changed = threading.Condition()
        self._needed = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: StoreError | None = None

    # --- the source ---

    def receive(self, limit: int) -> Sequence[Delivery]:
        """Return the next deliveries of one shard that this worker holds, or none."""
        reader = self._next()
        if reader is None:
            return []
        if reader.wants:
            self._fetch(reader)
        with self._changed:
            deliveries = reader.take(limit)
            reader.fetching = False
        if reader.ended:
            self._needed.set()  # its children can be read now
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as done."""
        for delivery in deliveries:
            self._settle(delivery, None)

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Redeliver after the delay. The later records of its shard wait."""
        self._settle(delivery, delay)

    def close(self) -> None:
        """Save how far each shard is done, and release all of them."""
        self._stopped.set()
        self._needed.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT)
        with self._changed:  # while a batch is being settled, its shard may look done
            positions = self._positions()
        try:
            self._leases.close(positions)
        except StoreError as error:  # they are free once their leases expire
            _log.warning("%s: could not release its shards: %s", self._stream.name, one_line(describe(error)))
        self._store.close()
        self._stream.close()

    # --- reading ---

    def _next(self) -> ShardReader | None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat_until_stopped, name="eventonce-shards", daemon=True)
                self._thread.start()
            reader = self._find_ready()
            if reader is None:
                self._changed.wait(self._pause())
                reader = self._find_ready()
            if self._error is not None:
                raise self._error
            if reader is not None:
                reader.fetching = True
            return reader

    def _idle(self) -> list[ShardReader]:
        return [reader for reader in self._readers.values() if not (reader.busy or reader.leaving or reader.ended)]

    def _find_ready(self) -> ShardReader | None:
        now = self._clock.steady()
        ready = [reader for reader in self._idle() if reader.due <= now and self._leases.holds(reader.shard)]
        return min(ready, key=lambda reader: reader.due, default=None)

    def _pause(self) -> float:
        """Return the seconds until a shard may have a record, at most the wait between two reads."""
        first = min((reader.due - self._clock.steady() for reader in self._idle()), default=self._wait)
        return min(max(first, 1), self._wait) / 1000

    def _fetch(self, reader: ShardReader) -> None:
        delay = self._wait
        try:
            if reader.fetch():
                delay = _SOON
        except StreamAway:  # the stream has logged it
            pass
        except BaseException:
            reader.fetching = False
            raise
        reader.next_read = self._clock.steady() + delay

    def _settle(self, delivery: Delivery, delay: int | None) -> None:
        reader, number, _ = delivery.handle
        with self._changed:
            reader.settle(number, delay, self._clock.steady())
            self._changed.notify_all()
        if reader.ended:
            self._needed.set()

    # --- holding shards ---

    def beat(self) -> None:
        """Save how far each shard is done, extend their leases, and take or release some."""
        self._keep()
        shards = self._open()
        if self._stream.start is not None and self._start is None:
            self._start = self._leases.start(self._stream.start)
        if self._stream.start is None or self._start is not None:
            self._even_out(shards)

    def _keep(self) -> None:
        with self._changed:
            positions = self._positions()
            leaving = {shard for shard, reader in self._readers.items() if reader.leaving and not reader.busy}
            done = {shard for shard, position in positions.items() if position == SHARD_END}
        owned = self._leases.keep(positions, leaving | done)
        with self._changed:
            for shard in self._readers.keys() - owned:
                del self._readers[shard]

    def _positions(self) -> dict[str, str | None]:
        return {shard: reader.position for shard, reader in self._readers.items()}

    def _list(self) -> None:
        now = self._clock.steady()
        if now < self._list_at:
            return
        try:
            self._shards = {shard.id: shard for shard in self._stream.shards()}
        except StreamAway:  # the stream has logged it
            return
        self._list_at = now + _LIST_EVERY

    def _open(self) -> list[str]:
        """Return the shards that can be read: they are not done, and their parents are."""
        self._list()
        done = self._leases.look([shard for shard in self._shards if shard not in self._ended])
        ended = {shard for shard, position in done.items() if position == SHARD_END}
        if ended:  # here or at another worker; their children may be new
            self._ended |= ended
            self._list_at = 0
            return self._open()
        undone = self._shards.keys() - self._ended
        return [shard.id for shard in self._shards.values() if shard.id in undone and undone.isdisjoint(shard.parents)]

    def _even_out(self, shards: Sequence[str]) -> None:
        """Take or release shards, up to an equal share."""
        share = self._leases.share(len(shards))
        with self._changed:
            for shard in self._readers.keys() - set(shards):  # a stream drops a shard when its last record is too old
                self._readers[shard].leaving = True
            staying = [reader for reader in self._readers.values() if not reader.leaving]
            for reader in sorted(staying, key=lambda reader: reader.busy)[: max(0, len(staying) - share)]:
                reader.leaving = True
        won = self._leases.take(shards, share - len(staying))
        with self._changed:
            for shard, position in won.items():
                self._readers[shard] = ShardReader(self._stream, shard, position, self._start)
            self._changed.notify_all()

    def _beat_until_stopped(self) -> None:
        while not self._stopped.is_set():
            try:
                self.beat()
                self._outage.worked()
            except StoreError as error:
                self._outage.failed(error)
                if not error.retryable:
                    self._error = error
            except Exception:  # a bug of ours must not lose every shard
                _log.exception("%s: could not extend the leases of its shards", self._stream.name)
            self._needed.wait(self._tick)
            self._needed.clear()
