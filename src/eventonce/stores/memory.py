"""The memory store: real, public, and gone with the process."""

import heapq
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from urllib.parse import urlsplit

from eventonce.claims.protocol import Answer, Record, Token, Want
from eventonce.clock import Clock, SystemClock
from eventonce.errors import StoreError
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Swept
from eventonce.stores.embedded import EmbeddedStore, Records, Result
from eventonce.stores.url import count, options, reject

MAX_KEYS = 10_000_000
_WINDOW = attrgetter("window")
_SLOT = 1000  # milliseconds: keys that expire within the same second share a slot
_SWEEP_MORE = 32  # keys beyond two for each claimed one, so that the sweep is always faster than the claims


def open_url(url: str, clock: Clock | None, create: bool) -> "MemoryStore":
    """Open `memory:` or `memory:?max_keys=N`."""
    parts = urlsplit(url)
    if parts.netloc or parts.path:
        reject(url, "has an address, but a memory store has none; use memory: or sqlite:///FILE")
    return MemoryStore(count(url, options(url, "max_keys"), "max_keys", MAX_KEYS), clock)


class MemoryStore(EmbeddedStore):
    """Records in a dict, dropped when they expire.

    Each key waits in the slot of the second in which its record may be dropped. Claims drop a few keys of the slots
    that are due, so a key costs constant time in the long run and nothing ever scans all keys.
    """

    def __init__(self, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._max_keys = max_keys
        self._records: dict[Key, Record] = {}
        self._slots: dict[int, list[Key]] = {}
        self._order: list[int] = []  # a heap of the slots
        self._lock = threading.RLock()
        register_for_forks(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()

    def _change(self, keys: Sequence[Key], operation: Callable[[Records], Result]) -> Result:
        with self._lock:
            return operation(self._records)

    def _read(self, keys: Sequence[Key]) -> Records:
        return self._records

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        with self._lock:
            self._drop_expired(2 * len(wants) + _SWEEP_MORE)
            new = [want for want in wants if want.key not in self._records]
            if len(self._records) + len(new) > self._max_keys:
                raise StoreError(
                    f"the store is full with {self._max_keys:,} keys in memory; "
                    "shorten the window, raise max_keys or use sqlite:///FILE"
                )
            answers = super().claim(wants, token, lease)
            lease_end = self.clock.utc() + lease
            for window, group in groupby(new, _WINDOW):  # at the earliest: see _drop
                self._wait([want.key for want in group], lease_end + window)
            return answers

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        with self._lock:
            removed, more = self._drop_expired(limit)
            return Swept(removed, b"more" if more else None)

    def close(self) -> None:
        """Do nothing."""

    def _wait(self, keys: Iterable[Key], expires: int) -> None:
        slot = expires // _SLOT + 1
        if slot not in self._slots:
            self._slots[slot] = []
            heapq.heappush(self._order, slot)
        self._slots[slot].extend(keys)

    def _drop_expired(self, limit: int) -> tuple[int, bool]:
        now, removed = self.clock.utc(), 0
        while self._order and self._order[0] * _SLOT <= now:
            keys = self._slots[self._order[0]]
            while keys and limit > 0:
                removed += self._drop(keys.pop(), now)
                limit -= 1
            if keys:
                return removed, True
            del self._slots[heapq.heappop(self._order)]
        return removed, False

    def _drop(self, key: Key, now: int) -> int:
        record = self._records.get(key)
        if record is None:
            return 0
        if record.expires > now:  # it was refreshed or claimed again since it was put into its slot
            self._wait([key], record.expires)
            return 0
        del self._records[key]
        return 1
