"""Open claims, and their keeper: a thread that extends leases and commits effects that have waited long enough."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from eventonce.claims.protocol import Claim, Commit, Token
from eventonce.clock import Clock
from eventonce.errors import ConfigError, LeaseLost, StoreError, StorePartly, describe
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Store
from eventonce.text import one_line

GROUP_FOR = 700  # how long commits wait for others; with the tick below, never longer than a second
_TICK = 200
_SWEEP_EVERY = 1000
_SWEEP_MIN, _SWEEP_MAX = 1000, 10_000  # keys to look at
_log = logging.getLogger("eventonce")


class OpenClaim(msgspec.Struct, eq=False):
    """One claim of ours, and until when it is certainly ours."""

    key: Key
    token: Token
    until: int  # on our own steady clock, counted from before the call was sent
    _clock: Clock
    lost: bool = False

    @property
    def claim(self) -> Claim:
        return Claim(self.key, self.token)

    def check(self) -> None:
        """Raise `LeaseLost` unless the claim is still ours."""
        if self.lost or self._clock.steady() >= self.until:
            raise LeaseLost


class OpenClaims:
    """The open claims of one batch, and the effects whose commits wait to go out together.

    A commit may be sent twice, by the keeper and by the steps, since stores accept a repeated one. So no lock is held
    during a store call, and a handler that returns meanwhile does not wait for the network.
    """

    def __init__(self, clock: Clock, lease: int, *, renewed: bool = True) -> None:
        self.lease = lease
        self._clock = clock
        self._renewed = renewed  # otherwise the claims end with their first lease
        self._lock = threading.RLock()  # an interrupt can leave it locked by the thread that releases the claims
        self._open: dict[Key, OpenClaim] = {}
        self._ready: dict[Key, Commit] = {}
        self._oldest = 0
        self.committed: dict[Key, bool] = {}  # the store's answer to each commit; False means fenced

    def __len__(self) -> int:
        return len(self._open)

    def is_open(self, key: Key, token: Token) -> bool:
        """Return whether the claim on a key is the one with this token."""
        claim = self._open.get(key)
        return claim is not None and claim.token == token

    def add(self, keys: Iterable[Key], token: Token, until: int) -> dict[Key, OpenClaim]:
        """Enter claims that have been won."""
        claims = {key: OpenClaim(key, token, until, self._clock) for key in keys}
        with self._lock:
            for key in claims if self._open else ():  # a claim that is played back ends when it did
                if (before := self._open.get(key)) is not None and before.token == token:
                    claims[key] = before
            self._open |= claims
            if self.committed or self._ready:  # what remains of earlier claims does not concern these
                for key in claims:
                    self.committed.pop(key, None)
                    self._ready.pop(key, None)
        return claims

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget claims that have been released."""
        with self._lock:
            for key in keys:
                self._open.pop(key, None)

    def enter_commit(self, finish: Commit) -> None:
        """Enter the commit of an effect that has happened. It may wait a little for others."""
        with self._lock:
            if not self._ready:
                self._oldest = self._clock.steady()
            self._ready[finish.key] = finish

    def ready(self) -> list[Commit]:
        """Return the commits that wait."""
        with self._lock:
            return list(self._ready.values())

    def overdue(self) -> list[Commit]:
        """Return the commits that wait, if one of them has waited long enough."""
        with self._lock:
            due = self._ready and self._clock.steady() - self._oldest >= GROUP_FOR
            return list(self._ready.values()) if due else []

    def note_commits(self, finishes: Iterable[Commit], answers: Iterable[bool | None]) -> None:
        """Note the store's answers to commits. A commit without an answer waits on."""
        with self._lock:
            for finish, committed in zip(finishes, answers, strict=True):
                # An answer counts only for the commit that was sent. The keeper's may arrive during a later claim.
                if committed is not None and self._ready.get(finish.key) is finish:
                    del self._ready[finish.key]
                    self._open.pop(finish.key, None)
                    self.committed[finish.key] = committed

    def may_still_commit(self) -> bool:
        """Return whether effects whose claims are still ours wait for their commit."""
        with self._lock:
            now = self._clock.steady()
            return any(key in self._open and now < self._open[key].until for key in self._ready)

    def due(self, now: int) -> list[OpenClaim]:
        """Return the claims of whose lease a third or more has passed."""
        by = now + self.lease * 2 // 3
        with self._lock:
            claims = self._open.values() if self._renewed else ()
            return [claim for claim in claims if claim.until <= by and not claim.lost]

    def owns(self, claim: OpenClaim) -> bool:
        """Return whether a claim is still one of these."""
        return self._open.get(claim.key) is claim


class Keeper:
    """Looks after all open batches of a process: one store call extends every lease of a length that needs it."""

    def __init__(self, store: Store, lease: int, clock: Clock) -> None:
        self._store = store
        self._shortest_lease = lease
        self._clock = clock
        self._batches: set[OpenClaims] = set()
        self._lock = threading.Lock()
        self._needed = threading.Event()
        self._thread: threading.Thread | None = None
        self._cursor: bytes | None = b""
        self._swept_at = clock.steady()
        self._claimed = 0  # since the last sweep
        self._stopped = threading.Event()
        register_for_forks(self)

    def expect(self, lease: int) -> None:
        """Look at open claims often enough for leases of this length too."""
        self._shortest_lease = min(self._shortest_lease, lease)

    def watch(self, claims: OpenClaims, count: int) -> None:
        """Look after the claims of a batch, which is about to claim `count` jobs."""
        if not count:
            return
        if self._stopped.is_set():
            raise ConfigError("this Once has been closed; create a new one")
        with self._lock:
            self._batches.add(claims)
            self._claimed += count
            if not self._needed.is_set():  # which is cleared under the same lock
                self._needed.set()
        if self._thread is None or not self._thread.is_alive():  # not started yet, or not carried over by a fork
            self._start()

    def leave(self, claims: OpenClaims) -> None:
        """Stop looking after the claims of a batch."""
        with self._lock:
            self._batches.discard(claims)

    def _run_due(self) -> None:
        """Commit effects that have waited long enough, extend leases, and sweep a little, if that is due."""
        with self._lock:
            batches = list(self._batches)
        for claims in batches:
            self._try("commit", partial(self._commit, claims))
        self._extend(batches)
        if self._clock.steady() - self._swept_at >= _SWEEP_EVERY:
            self._try("sweep", self._sweep)

    def _commit(self, claims: OpenClaims) -> None:
        overdue = claims.overdue()
        if not overdue:
            return
        try:
            claims.note_commits(overdue, self._store.commit(overdue))
        except StorePartly as error:
            claims.note_commits(overdue, error.answers)
            raise

    def _extend(self, batches: list[OpenClaims]) -> None:
        now = self._clock.steady()
        by_lease: dict[int, list[tuple[OpenClaims, OpenClaim]]] = {}
        for claims in batches:
            if due := claims.due(now):
                by_lease.setdefault(claims.lease, []).extend((claims, claim) for claim in due)
        for lease, owned in by_lease.items():
            self._try("extend", partial(self._extend_by, lease, owned, now))

    def _extend_by(self, lease: int, due: list[tuple[OpenClaims, OpenClaim]], now: int) -> None:
        try:
            answers: Sequence[bool | None] = self._store.extend([claim.claim for _, claim in due], lease)
        except StorePartly as error:
            self._note_extends(due, error.answers, now)
            raise
        self._note_extends(due, answers, now)

    def _note_extends(self, due: list[tuple[OpenClaims, OpenClaim]], answers: Sequence[bool | None], now: int) -> None:
        for (claims, claim), still_ours in zip(due, answers, strict=True):
            if still_ours:
                claim.until = now + claims.lease
            elif still_ours is not None and claims.owns(claim):
                claim.lost = True
                _log.warning("lost the claim on key %s while it was running", claim.key.hex())

    def _sweep(self) -> None:
        # Twice as many keys as were claimed meanwhile, so that the sweep gains on them; bounded, so it is short.
        limit = min(max(_SWEEP_MIN, 2 * self._claimed), _SWEEP_MAX)
        self._swept_at, self._claimed = self._clock.steady(), 0
        self._cursor = self._store.sweep(limit, self._cursor or b"").cursor

    @staticmethod
    def _try(action: str, step: Callable[[], object]) -> None:
        try:
            step()
        except StoreError as error:  # the next heartbeat tries again; a lease that expires meanwhile is noticed
            _log.warning("could not %s in the background: %s", action, one_line(describe(error)))

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            args = (weakref.ref(self), self._needed, self._stopped)
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

    def pause(self) -> float:
        """Return how many seconds to rest between two looks."""
        return max(1, min(_TICK, self._shortest_lease // 6)) / 1000

    def tick(self) -> None:
        """Do what is due now. The thread then rests until there are claims."""
        self._run_due()
        with self._lock:
            if not self._batches and not self._stopped.is_set():
                self._needed.clear()


def _keep(keeper: "weakref.ref[Keeper]", needed: threading.Event, stopped: threading.Event) -> None:
    # This holds the keeper only while it works, so that a `Once` that is no longer used can be collected.
    while True:
        needed.wait()
        if (alive := keeper()) is None:
            return
        pause = alive.pause()
        del alive
        if stopped.wait(pause) or (alive := keeper()) is None:
            return
        alive.tick()
        del alive
