"""The state of a running worker in numbers: what `eventonce top` shows and what its health is judged by."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from eventonce.claims.outcome import Action, Outcome
from eventonce.clock import Clock, SystemClock
from eventonce.errors import LeaseLost, describe
from eventonce.observe.lag import lag
from eventonce.observe.text import one_line
from eventonce.ports import Attempt, Called, Hook, Seen

NO_RULE = "-"  # of an event that could not be read


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one moment, all counted since the start."""

    consumer: str
    uptime_seconds: float
    in_flight: int
    runs: int
    handler_seconds: float
    lag_seconds: float | None  # of the oldest event in the last batch
    dead_letters: int
    lease_lost: int
    outcomes: dict[str, dict[str, int]]  # by rule
    store_calls: dict[str, int]
    store_errors: dict[str, int]
    last_store_error: str | None  # None when the last call was answered


class Status(Hook):
    """Counts since the start. Threads may share it."""

    def __init__(self, consumer: str = "default", clock: Clock | None = None) -> None:
        self._consumer = consumer
        self._clock = clock or SystemClock()
        self._began = self._clock.steady()
        self._lock = threading.Lock()
        self._outcomes: dict[str, Counter[str]] = {}
        self._in_flight = self._runs = self._lease_lost = self._dead_letters = 0
        self._handler_seconds = 0.0
        self._lag: float | None = None
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._answered_at: int | None = None
        self._error: str | None = None

    @contextmanager
    def running(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        began = time.perf_counter()
        with self._lock:
            self._in_flight += len(attempts)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= len(attempts)
                self._runs += 1
                self._handler_seconds += time.perf_counter() - began

    def called(self, call: Called) -> None:
        with self._lock:
            self._calls[call.verb] += 1
            if call.error is None:
                self._answered_at, self._error = self._clock.steady(), None
            else:
                self._errors[call.verb] += 1
                self._error = one_line(describe(call.error))

    def settled(self, seen: Sequence[Seen]) -> None:
        now = self._clock.utc()
        lags = [found for each in seen if (found := lag(each, now)) is not None]
        with self._lock:
            self._lag = max(lags, default=self._lag)
            for _, outcome, _ in seen:
                self._outcomes.setdefault(outcome.rule or NO_RULE, Counter())[outcome.kind.value] += 1
                self._dead_letters += outcome.action is Action.DEAD_LETTER
                self._lease_lost += lost(outcome)

    def answered_within(self, duration: int) -> bool:
        """Whether the store answered to its last call, and not longer ago than that."""
        with self._lock:
            at = self._answered_at
            return at is not None and self._error is None and self._clock.steady() - at <= duration

    def snapshot(self) -> Snapshot:
        """The numbers of now."""
        with self._lock:
            return Snapshot(
                consumer=self._consumer,
                uptime_seconds=(self._clock.steady() - self._began) / 1000,
                in_flight=self._in_flight,
                runs=self._runs,
                handler_seconds=self._handler_seconds,
                lag_seconds=self._lag,
                dead_letters=self._dead_letters,
                lease_lost=self._lease_lost,
                outcomes={rule: dict(counts) for rule, counts in self._outcomes.items()},
                store_calls=dict(self._calls),
                store_errors=dict(self._errors),
                last_store_error=self._error,
            )


def lost(outcome: Outcome) -> bool:
    """Whether a run ended because others had taken its claim over. A subclass says that nothing was lost."""
    return type(outcome.error) is LeaseLost
