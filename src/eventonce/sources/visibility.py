"""Visibility: received messages stay hidden from other workers until they are settled."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from eventonce.clock import Clock
from eventonce.errors import SourceError

BATCH = 10  # messages in one call
_IN_FLIGHT = 8  # calls
MAX_VISIBILITY = 12 * 3_600_000  # milliseconds from the receive
_MIN_TICK, _MAX_TICK = 50, 1000
_STOP_TIMEOUT = 10.0  # seconds for a call that is running at the stop
_log = logging.getLogger("eventonce")


class VisibilityChange(NamedTuple):
    """A request to hide a message for some seconds from now. With 0 it can be received at once."""

    handle: str
    seconds: int


class _HiddenMessage:
    __slots__ = ("end", "retry_at", "until")

    def __init__(self, now: int, timeout: int) -> None:
        self.until = now + timeout  # when it shows up, unless that is changed
        self.end = now + MAX_VISIBILITY
        self.retry_at: int | None = None  # once that is decided


class Visibility:
    """The messages that are not settled. One thread keeps them hidden, and returns those to retry to the queue.

    `change` makes up to ten changes and returns the handles that are no longer valid. It raises `SourceError` if the
    queue does not answer. A message to retry stays hidden until its time. If the queue does not answer by then, it
    shows up by itself.
    """

    def __init__(self, change: Callable[[Sequence[VisibilityChange]], set[str]], timeout: int, clock: Clock) -> None:
        self._change = change
        self._timeout = timeout
        self._clock = clock
        self._hidden: dict[str, _HiddenMessage] = {}  # by handle
        self._lock = threading.Lock()
        self._needed = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, handles: Iterable[str]) -> None:
        """Keep messages hidden that were received just now."""
        now = self._clock.steady()
        with self._lock:
            self._hidden.update((handle, _HiddenMessage(now, self._timeout)) for handle in handles)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._beat_until_stopped, name="eventonce-visibility", daemon=True
                )
                self._thread.start()

    def drop(self, handles: Iterable[str]) -> None:
        """Forget messages that are settled."""
        with self._lock:
            for handle in handles:
                self._hidden.pop(handle, None)

    def retry(self, handle: str, delay: int) -> None:
        """Let a message be received again after the delay, in milliseconds."""
        with self._lock:
            if handle in self._hidden:
                self._hidden[handle].retry_at = self._clock.steady() + delay
        self._needed.set()

    def stop(self) -> None:
        """Return the messages to retry. All others show up when their visibility timeout expires."""
        self._stopped.set()
        self._needed.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT)
            self._send(self._retries(), self._clock.steady(), final=True)

    def beat(self) -> None:
        """Make the changes that are due now."""
        now = self._clock.steady()
        self._send(self._retries(), now, final=True)
        self._send(self._extensions(now), now, final=False)

    def _retries(self) -> list[VisibilityChange]:
        with self._lock:
            now = self._clock.steady()  # not earlier: a message retried meanwhile would be hidden for a second more
            expired = [
                handle
                for handle, message in self._hidden.items()
                if message.retry_at is not None and message.until < now
            ]
            for handle in expired:
                del self._hidden[handle]
            return [
                VisibilityChange(handle, -(-max(0, message.retry_at - now) // 1000))
                for handle, message in self._hidden.items()
                if message.retry_at is not None
            ]

    def _extensions(self, now: int) -> list[VisibilityChange]:
        soon = now + self._timeout * 2 // 3
        with self._lock:
            for handle in [handle for handle, message in self._hidden.items() if message.end - now < 1000]:
                del self._hidden[handle]  # the queue hides no message for longer
            return [
                VisibilityChange(handle, min(self._timeout, message.end - now) // 1000)
                for handle, message in self._hidden.items()
                if message.retry_at is None and message.until <= soon
            ]

    def _send(self, changes: Sequence[VisibilityChange], now: int, *, final: bool) -> None:
        """Make changes, ten in a call, and several calls at a time. After a `final` one its message is forgotten.

        A thread beside handlers that compute waits at every step of a call. With one call at a time, the last of a
        thousand messages would be late.
        """
        calls = deque(changes[start : start + BATCH] for start in range(0, len(changes), BATCH))
        helpers = [
            threading.Thread(target=self._help, args=(calls, now, final), name="eventonce-visibility", daemon=True)
            for _ in range(min(len(calls), _IN_FLIGHT) - 1)
        ]
        for helper in helpers:
            helper.start()
        self._make_calls(calls, now, final)
        for helper in helpers:
            helper.join()

    def _help(self, calls: deque[Sequence[VisibilityChange]], now: int, final: bool) -> None:
        try:
            self._make_calls(calls, now, final)
        except Exception:  # a bug of ours
            _log.exception("messages could not be kept hidden")

    def _make_calls(self, calls: deque[Sequence[VisibilityChange]], now: int, final: bool) -> None:
        while changes := _next(calls):
            try:
                invalid = self._change(changes)
            except SourceError:  # the source has logged it, and the next beat tries again
                calls.clear()
                return
            self.drop(handle for handle, _ in changes if final or handle in invalid)
            self._note(changes, now)

    def _note(self, changes: Sequence[VisibilityChange], now: int) -> None:
        with self._lock:
            for handle, seconds in changes:
                if handle in self._hidden:
                    self._hidden[handle].until = now + seconds * 1000

    def _beat_until_stopped(self) -> None:
        tick = min(max(self._timeout // 6, _MIN_TICK), _MAX_TICK) / 1000
        while not self._stopped.is_set():
            try:
                self.beat()
            except Exception:  # a bug of ours must not show every message
                _log.exception("messages could not be kept hidden")
            self._needed.wait(tick)
            self._needed.clear()


def _next(calls: deque[Sequence[VisibilityChange]]) -> Sequence[VisibilityChange]:
    try:
        return calls.popleft()
    except IndexError:  # another thread took the last one
        return ()
