"""Metrics for Prometheus. Every name below is on the Grafana dashboard in examples/, and a test compares them."""

import time
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eventonce.claims.outcome import Action
from eventonce.clock import Clock, SystemClock
from eventonce.errors import MissingDriver
from eventonce.observe.lag import lag
from eventonce.observe.status import NO_RULE, lost
from eventonce.ports import Attempt, Called, Hook, Relayed, Seen

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ModuleNotFoundError as error:
    raise MissingDriver('metrics need prometheus-client; pip install "eventonce[prometheus]"') from error

# Dollars for one write of up to 1 KiB to DynamoDB on demand in us-east-1. A claim, an extension, a commit and a release
# are one write for each key, also if a condition refuses it. The reads of a refused claim are left out.
DYNAMODB_WRITE = 0.625 / 1_000_000
_WRITES = ("claim", "extend", "commit", "release", "forget")
_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_HANDLING = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
_DELAY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3600, 21_600, 86_400)
_LONG = (0.1, 1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800, 1_209_600)  # to the window of two weeks


class PrometheusHook(Hook):
    """Counts and times into a registry. One hook serves every `Once` of a process.

    `write_price` is what one write to the store costs in dollars, for an estimate.
    """

    def __init__(
        self, *, registry: CollectorRegistry = REGISTRY, write_price: float = 0.0, clock: Clock | None = None
    ) -> None:
        self._registry = registry
        self._write_price = write_price
        self._clock = clock or SystemClock()
        self._events = Counter(
            "eventonce_events", "Events by what became of them", ["rule", "outcome"], registry=registry
        )
        self._claim = Histogram(
            "eventonce_claim_seconds", "How long a batch of claims took", buckets=_QUICK, registry=registry
        )
        self._handler = Histogram(
            "eventonce_handler_seconds", "How long a run took", ["rule"], buckets=_HANDLING, registry=registry
        )
        self._gap = Histogram(
            "eventonce_copy_gap_seconds", "Time from a first copy to its copy", buckets=_LONG, registry=registry
        )
        self._lag = Histogram(
            "eventonce_queue_lag_seconds", "Time that an event was on its way here", buckets=_LONG, registry=registry
        )
        self._lost = Counter("eventonce_lease_lost", "Runs that others had taken over", registry=registry)
        self._dead = Counter("eventonce_dead_letters", "Events that can never succeed", ["rule"], registry=registry)
        self._calls = Counter("eventonce_store_calls", "Calls of the store", ["verb"], registry=registry)
        self._errors = Counter(
            "eventonce_store_errors", "Calls that the store did not answer", ["verb"], registry=registry
        )
        self._cost = Counter(
            "eventonce_store_cost_dollars", "What the store's writes cost, estimated", registry=registry
        )

        self._relayed = Counter(
            "eventonce_outbox_events", "Events of an outbox by what became of them", ["outcome"], registry=registry
        )
        self._delay = Histogram(
            "eventonce_outbox_delay_seconds",
            "Time from the adding of an event to its end in the outbox",
            buckets=_DELAY,
            registry=registry,
        )
        self._outbox_lag = Gauge(
            "eventonce_outbox_lag_seconds", "How long the first event in the outbox has waited", registry=registry
        )
        self._pending = Gauge("eventonce_outbox_pending", "Events in the outbox, up to 100,000", registry=registry)

    def render(self) -> bytes:
        """Return all metrics of the registry in the Prometheus text format."""
        return generate_latest(self._registry)

    @contextmanager
    def running(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        started_at = time.perf_counter()
        try:
            yield
        finally:
            for rule in {attempt.rule for attempt in attempts}:
                self._handler.labels(rule).observe(time.perf_counter() - started_at)

    def called(self, call: Called) -> None:
        self._calls.labels(call.verb).inc()
        if call.error is not None:
            self._errors.labels(call.verb).inc()
        if call.verb == "claim":
            self._claim.observe(call.seconds)
        if call.verb in _WRITES:
            self._cost.inc(call.keys * self._write_price)

    def settled(self, seen: Sequence[Seen]) -> None:
        now = self._clock.utc()
        kinds = Counts((details.outcome.rule or NO_RULE, details.outcome.kind.value) for details in seen)
        for labels, count in kinds.items():
            self._events.labels(*labels).inc(count)
        for details in seen:
            self._observe(details, now)

    def relayed(self, relayed: Relayed) -> None:
        for outcome, count in relayed.counts.items():
            self._relayed.labels(outcome).inc(count)
        for seconds in relayed.waited:
            self._delay.observe(seconds)
        if relayed.pending is not None:
            self._pending.set(relayed.pending)
        if relayed.lag is not None:
            self._outbox_lag.set(relayed.lag)

    def _observe(self, details: Seen, now: int) -> None:
        outcome, seconds = details.outcome, lag(details, now)
        if seconds is not None:
            self._lag.observe(seconds)
        if outcome.first is not None:
            self._gap.observe(max(0.0, now / 1000 - outcome.first.at.timestamp()))
        if outcome.action is Action.DEAD_LETTER:
            self._dead.labels(outcome.rule or NO_RULE).inc()
        if lost(outcome):
            self._lost.inc()
