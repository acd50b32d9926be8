"""The state of a running worker in numbers, for `eventonce top` and the health page."""

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
from eventonce.ports import AttemptDetails, Hook, OutcomeDetails, StoreCallDetails
from eventonce.text import one_line

NO_RULE = "-"  # of an event that could not be read


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers at one time, all counted since the start."""

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
    """A hook that counts since the start. Threads may share it."""

    def __init__(self, consumer: str = "default", clock: Clock | None = None) -> None:
        self._consumer = consumer
        self._clock = clock or SystemClock()
        self._started_at = self._clock.steady()
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
    def around_run(self, attempts: Sequence[AttemptDetails]) -> Iterator[None]:
        started_at = time.perf_counter()
        with self._lock:
            self._in_flight += len(attempts)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= len(attempts)
                self._runs += 1
                self._handler_seconds += time.perf_counter() - started_at

    def after_store_call(self, call: StoreCallDetails) -> None:
        with self._lock:
            self._calls[call.verb] += 1
            if call.error is None:
                self._answered_at, self._error = self._clock.steady(), None
            else:
                self._errors[call.verb] += 1
                self._error = one_line(describe(call.error))

    def after_settle(self, seen: Sequence[OutcomeDetails]) -> None:
        now = self._clock.utc()
        lags = [seconds for details in seen if (seconds := lag(details, now)) is not None]
        with self._lock:
            self._lag = max(lags, default=self._lag)
            for _, outcome, _ in seen:
                self._outcomes.setdefault(outcome.rule or NO_RULE, Counter())[outcome.kind.value] += 1
                self._dead_letters += outcome.action is Action.DEAD_LETTER
                self._lease_lost += lost(outcome)

    def answered_within(self, duration: int) -> bool:
        """Return whether the store answered its last call, within this time (milliseconds)."""
        with self._lock:
            answered_at = self._answered_at
            if answered_at is None or self._error is not None:
                return False
            return self._clock.steady() - answered_at <= duration

    def snapshot(self) -> Snapshot:
        """Return the present numbers."""
        with self._lock:
            return Snapshot(
                consumer=self._consumer,
                uptime_seconds=(self._clock.steady() - self._started_at) / 1000,
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
    """Return whether a run lost its claim to another worker. The subclasses of LeaseLost mean other things."""
    return type(outcome.error) is LeaseLost
