"""Open claims: one thread per `Once` that keeps their leases alive and commits effects that wait too long."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

import msgspec

from eventonce.claims.protocol import Claim, Finish, Token
from eventonce.clock import Clock
from eventonce.errors import ConfigError, LeaseLost, StoreError, StorePartly
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Store

GROUP_FOR = 700  # commits wait this long for company; with the tick below, never longer than a second
_TICK = 200
_SWEEP_EVERY = 1000
_SWEEP_LEAST = 1000  # keys to look at
_SWEEP_MOST = 10_000
_log = logging.getLogger("eventonce")


class Hold(msgspec.Struct, eq=False):
    """One open claim: whether we still hold it, as far as we know."""

    key: Key
    token: Token
    until: int  # on our own steady clock, counted from before the claim was sent
    _clock: Clock
    lost: bool = False

    @property
    def claim(self) -> Claim:
        return Claim(self.key, self.token)

    def check(self) -> None:
        """Raise `LeaseLost` unless the claim is still held."""
        if self.lost or self._clock.steady() >= self.until:
            raise LeaseLost


class Batch:
    """The open claims of one batch and the effects whose commits wait to go out together."""

    def __init__(self, store: Store, clock: Clock, *, renewed: bool = True) -> None:
        self._store = store
        self._clock = clock
        self._renewed = renewed  # or the claims end with their first lease
        self._lock = threading.RLock()  # held while commits are under way, so that none goes out twice
        self._holds: dict[Key, Hold] = {}
        self._ready: dict[Key, Finish] = {}
        self._oldest = 0
        self.committed: dict[Key, bool] = {}  # what the store said to each commit; False is fenced

    def hold(self, keys: Iterable[Key], token: Token, until: int) -> dict[Key, Hold]:
        """The claims on these keys are ours now."""
        holds = {key: Hold(key, token, until, self._clock) for key in keys}
        with self._lock:
            self._holds |= holds
        return holds

    def drop(self, keys: Iterable[Key]) -> None:
        """These claims have been given back."""
        with self._lock:
            for key in keys:
                self._holds.pop(key, None)

    def finish(self, finish: Finish) -> None:
        """This effect has happened; its commit may wait a little for others."""
        with self._lock:
            if not self._ready:
                self._oldest = self._clock.steady()
            self._ready[finish.key] = finish

    def flush(self) -> None:
        """Commit what waits. After a `StoreError` it waits still, and may be committed again."""
        with self._lock:
            if self._ready:
                try:
                    self._flushed(self._store.commit(list(self._ready.values())))
                except StorePartly as error:
                    self._flushed(error.answers)
                    raise

    def _flushed(self, answers: Sequence[bool | None]) -> None:
        known = {key: answer for key, answer in zip(self._ready, answers, strict=True) if answer is not None}
        self.committed |= known
        self.drop(known)
        self._ready = {key: finish for key, finish in self._ready.items() if key not in known}

    def waits(self) -> bool:
        """Whether effects wait for their commit whose claims we still hold."""
        with self._lock:
            now = self._clock.steady()
            return any(key in self._holds and now < self._holds[key].until for key in self._ready)

    def flush_if_due(self) -> None:
        with self._lock:
            if self._ready and self._clock.steady() - self._oldest >= GROUP_FOR:
                self.flush()

    def due(self, by: int) -> list[Hold]:
        """The claims whose lease we know to last no longer than this."""
        with self._lock:
            held = self._holds.values() if self._renewed else ()
            return [hold for hold in held if hold.until <= by and not hold.lost]

    def owns(self, hold: Hold) -> bool:
        return self._holds.get(hold.key) is hold


class Keeper:
    """Looks after all open batches of a process: one store call extends every lease that needs it."""

    def __init__(self, store: Store, lease: int, clock: Clock) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._batches: set[Batch] = set()
        self._lock = threading.Lock()
        self._needed = threading.Event()
        self._thread: threading.Thread | None = None
        self._cursor: bytes | None = b""
        self._swept_at = clock.steady()
        self._claimed = 0  # since the last sweep
        self._stopped = threading.Event()
        register_for_forks(self)

    def watch(self, batch: Batch, claims: int) -> None:
        """Look after this batch, which is about to make so many claims."""
        if self._stopped.is_set():
            raise ConfigError("this Once has been closed; make a new one")
        with self._lock:
            self._batches.add(batch)
            self._claimed += claims
            if not self._needed.is_set():  # which is cleared under the same lock
                self._needed.set()
        if self._thread is None or not self._thread.is_alive():  # not yet begun, or left behind by a fork
            self._begin()

    def leave(self, batch: Batch) -> None:
        with self._lock:
            self._batches.discard(batch)

    def beat(self) -> None:
        """Do what is due now: commit effects that wait, extend leases, sweep a little."""
        with self._lock:
            batches = list(self._batches)
        for batch in batches:
            self._try("commit", batch.flush_if_due)
        self._try("extend", lambda: self._extend(batches))
        if self._clock.steady() - self._swept_at >= _SWEEP_EVERY:
            self._try("sweep", self._sweep)

    def _extend(self, batches: list[Batch]) -> None:
        now = self._clock.steady()
        due = [(batch, hold) for batch in batches for hold in batch.due(now + self._lease * 2 // 3)]
        if not due:
            return
        try:
            self._extended(due, self._store.extend([hold.claim for _, hold in due], self._lease), now)
        except StorePartly as error:
            self._extended(due, error.answers, now)
            raise

    def _extended(self, due: list[tuple[Batch, Hold]], answers: Sequence[bool | None], now: int) -> None:
        for (batch, hold), still_ours in zip(due, answers, strict=True):
            if still_ours:
                hold.until = now + self._lease
            elif still_ours is not None and batch.owns(hold):
                hold.lost = True
                _log.warning("lost the claim on key %s while it was running", hold.key.hex())

    def _sweep(self) -> None:
        # Twice as many keys as were claimed meanwhile, so that the sweep gains on them; bounded, so it is short.
        limit = min(max(_SWEEP_LEAST, 2 * self._claimed), _SWEEP_MOST)
        self._swept_at, self._claimed = self._clock.steady(), 0
        self._cursor = self._store.sweep(limit, self._cursor or b"").cursor

    @staticmethod
    def _try(what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except StoreError as error:  # the next beat tries again; a lease that runs out meanwhile says so itself
            _log.warning("could not %s in the background: %s", what, error)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            args = (weakref.ref(self), self._needed, self._stopped, max(1, min(_TICK, self._lease // 6)) / 1000)
            self._thread = threading.Thread(target=_keep, args=args, name="eventonce-keeper", daemon=True)
            self._thread.start()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # the claims are the parent's, and so is the thread
            self._batches = set()
            self._needed = threading.Event()
            self._thread = None
        self._lock.release()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._needed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __del__(self) -> None:
        self._needed.set()  # so that the thread sees that its keeper is gone

    def turn(self) -> None:
        """One turn of the thread: do what is due, and rest if there is nothing to look after."""
        self.beat()
        with self._lock:
            if not self._batches and not self._stopped.is_set():
                self._needed.clear()


def _keep(keeper: "weakref.ref[Keeper]", needed: threading.Event, stopped: threading.Event, tick: float) -> None:
    # Holds the keeper only while it works, so that an `Once` that nobody uses any more can be collected.
    while True:
        needed.wait()
        if stopped.wait(tick):
            return
        alive = keeper()
        if alive is None:
            return
        alive.turn()
        del alive
