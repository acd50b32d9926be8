"""Visibility: messages that were received stay hidden from other workers until they are settled."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from eventonce.clock import Clock
from eventonce.errors import SourceError

BATCH = 10  # messages in one call
_AT_ONCE = 8  # calls under way
LONGEST = 12 * 3_600_000  # that a message can be hidden, counted from when it was received
_SHORTEST_TICK, _LONGEST_TICK = 50, 1000
_PATIENCE = 10.0  # seconds for a call that is under way when we stop
_log = logging.getLogger("eventonce")


class VisibilityChange(NamedTuple):
    """Hide a message for so many seconds from now; with 0 it can be received at once."""

    handle: str
    seconds: int


class _Held:
    __slots__ = ("again", "end", "until")

    def __init__(self, now: int, timeout: int) -> None:
        self.until = now + timeout  # hidden for so long, as far as we know
        self.end = now + LONGEST
        self.again: int | None = None  # when it is to be offered again, once that is decided


class Visibility:
    """The messages in hand: one thread keeps them hidden, and lets those go that are to be offered again.

    `change` carries out up to ten changes and names the messages that are no longer ours; it raises `SourceError`
    where the queue does not answer. A message that is let go is hidden until its time; should the queue not answer
    until then, it shows up by itself.
    """

    def __init__(self, change: Callable[[Sequence[VisibilityChange]], set[str]], timeout: int, clock: Clock) -> None:
        self._change = change
        self._timeout = timeout
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._needed = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, handles: Iterable[str]) -> None:
        """These were received just now."""
        now = self._clock.steady()
        with self._lock:
            self._held.update((handle, _Held(now, self._timeout)) for handle in handles)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="eventonce-visibility", daemon=True)
                self._thread.start()

    def drop(self, handles: Iterable[str]) -> None:
        """These are settled."""
        with self._lock:
            for handle in handles:
                self._held.pop(handle, None)

    def let_go(self, handle: str, delay: int) -> None:
        """Offer this one again after the delay (milliseconds)."""
        with self._lock:
            if handle in self._held:
                self._held[handle].again = self._clock.steady() + delay
        self._needed.set()

    def stop(self) -> None:
        """Let go what is to be let go; what is still held shows up by itself when its time is over."""
        self._stopped.set()
        self._needed.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            self._send(self._leaving(), self._clock.steady(), leave=True)

    def beat(self) -> None:
        """Do what is due now."""
        now = self._clock.steady()
        self._send(self._leaving(), now, leave=True)
        self._send(self._fading(now), now, leave=False)

    def _leaving(self) -> list[VisibilityChange]:
        with self._lock:
            now = self._clock.steady()  # not before: what was let go meanwhile would be hidden for a second more
            for handle in [each for each, held in self._held.items() if held.again is not None and held.until < now]:
                del self._held[handle]
            return [
                VisibilityChange(handle, -(-max(0, held.again - now) // 1000))
                for handle, held in self._held.items()
                if held.again is not None
            ]

    def _fading(self, now: int) -> list[VisibilityChange]:
        soon = now + self._timeout * 2 // 3
        with self._lock:
            for handle in [each for each, held in self._held.items() if held.end - now < 1000]:
                del self._held[handle]  # the queue hides nothing for longer
            return [
                VisibilityChange(handle, min(self._timeout, held.end - now) // 1000)
                for handle, held in self._held.items()
                if held.again is None and held.until <= soon
            ]

    def _send(self, changes: Sequence[VisibilityChange], now: int, *, leave: bool) -> None:
        """Ten in a call, and several calls at a time.

        Handlers that compute leave a thread to wait at every step of a call. One call after the other would then be
        late for the last of a thousand messages.
        """
        calls = deque(changes[start : start + BATCH] for start in range(0, len(changes), BATCH))
        helpers = [
            threading.Thread(target=self._help, args=(calls, now, leave), name="eventonce-visibility", daemon=True)
            for _ in range(min(len(calls), _AT_ONCE) - 1)
        ]
        for each in helpers:
            each.start()
        self._carry_out(calls, now, leave)
        for each in helpers:
            each.join()

    def _help(self, calls: deque[Sequence[VisibilityChange]], now: int, leave: bool) -> None:
        try:
            self._carry_out(calls, now, leave)
        except Exception:  # a mistake of ours
            _log.exception("messages could not be kept hidden")

    def _carry_out(self, calls: deque[Sequence[VisibilityChange]], now: int, leave: bool) -> None:
        while some := _next(calls):
            try:
                gone = self._change(some)
            except SourceError:  # it has been told, and the next beat tries again
                calls.clear()
                return
            self.drop(handle for handle, _ in some if leave or handle in gone)
            self._extended(some, now)

    def _extended(self, changes: Sequence[VisibilityChange], now: int) -> None:
        with self._lock:
            for handle, seconds in changes:
                if handle in self._held:
                    self._held[handle].until = now + seconds * 1000

    def _keep(self) -> None:
        tick = min(max(self._timeout // 6, _SHORTEST_TICK), _LONGEST_TICK) / 1000
        while not self._stopped.is_set():
            try:
                self.beat()
            except Exception:  # a mistake of ours must not let go of every message
                _log.exception("messages could not be kept hidden")
            self._needed.wait(tick)
            self._needed.clear()


def _next(calls: deque[Sequence[VisibilityChange]]) -> Sequence[VisibilityChange]:
    try:
        return calls.popleft()
    except IndexError:  # others were quicker
        return ()
