"""Metrics, and the dashboard that shows them."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from eventonce import EventRejected, LeaseLost, OutcomeKind
from eventonce.clock import to_datetime
from eventonce.event import Delivery
from eventonce.observe.prometheus import DYNAMODB_WRITE, PrometheusHook
from eventonce.testing import ManualClock
from tests.unit.conftest import Bench, Faulty

DASHBOARD = Path(__file__).parents[3] / "examples" / "grafana-dashboard.json"


class Metrics:
    """A hook with a registry of its own, and what it says."""

    def __init__(self, *, write_price: float = 0.0, clock: ManualClock | None = None) -> None:
        self._registry = CollectorRegistry()
        self.hook = PrometheusHook(registry=self._registry, write_price=write_price, clock=clock)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"eventonce_{name}", labels)

    def names(self) -> set[str]:
        return {f"{each.name}_total" if each.type == "counter" else each.name for each in self._registry.collect()}


def test_outcomes_by_rule(bench: Bench) -> None:
    metrics = Metrics()
    once = bench.once(key="id", hooks=[metrics.hook])

    once.run([{"id": "a"}, {"id": "a"}, {"id": "b"}, b"{"], lambda event: None)

    assert metrics("events_total", rule="r", outcome="processed") == 2
    assert metrics("events_total", rule="r", outcome="duplicate") == 1
    assert metrics("events_total", rule="-", outcome="rejected") == 1
    assert metrics("dead_letters_total", rule="-") == 1
    assert metrics("handler_seconds_count", rule="r") == 2
    assert metrics("claim_seconds_count") == 1
    assert metrics("store_calls_total", verb="claim") == 1
    assert metrics("store_calls_total", verb="commit") == 1
    assert metrics("store_cost_dollars_total") == 0


def test_time_between_copies_and_lag(bench: Bench) -> None:
    clock = ManualClock()
    metrics = Metrics(clock=clock)
    once = bench.once(hooks=[metrics.hook], clock=clock)
    made: datetime = to_datetime(clock.utc()) - timedelta(seconds=30)
    event = {"id": "a", "source": "s", "detail-type": "t", "detail": {}, "time": made.isoformat()}

    once.run([event], lambda event: None)
    clock.sleep(600_000)
    once.run([event], lambda event: None)

    assert (metrics("copy_gap_seconds_count"), metrics("copy_gap_seconds_sum")) == (1, 600)
    assert (metrics("queue_lag_seconds_count"), metrics("queue_lag_seconds_sum")) == (2, 30 + 630)


def test_a_queue_knows_better_than_the_event_how_long_it_waited(bench: Bench) -> None:
    clock = ManualClock()
    metrics = Metrics(clock=clock)
    sent = to_datetime(clock.utc()) - timedelta(seconds=5)
    where = {"source": "sqs://in", "message": "m", "sent": sent.isoformat()}
    old = b'{"id": "a", "source": "s", "detail-type": "t", "detail": {}, "time": "2020-01-01T00:00:00Z"}'

    bench.once(hooks=[metrics.hook], clock=clock).run([Delivery(old, where), Delivery(b"{", where)], lambda event: None)

    assert (metrics("queue_lag_seconds_count"), metrics("queue_lag_seconds_sum")) == (2, 10)


def test_a_clock_that_runs_ahead_causes_no_negative_lag(bench: Bench) -> None:
    clock = ManualClock()
    metrics = Metrics(clock=clock)
    event = {"id": "a", "time": "2999-01-01T00:00:00Z"}

    bench.once(hooks=[metrics.hook], clock=clock).run([event], lambda event: None)

    assert (metrics("queue_lag_seconds_count"), metrics("queue_lag_seconds_sum")) == (1, 0)


def test_store_errors(bench: Bench) -> None:
    metrics = Metrics()

    bench.once(Faulty("claim"), hooks=[metrics.hook]).run([{"id": "a"}], lambda event: None)

    assert metrics("store_errors_total", verb="claim") == 1
    assert metrics("store_errors_total", verb="release") is None
    assert metrics("events_total", rule="id", outcome="unknown") == 1


def test_leases_lost_are_those_that_others_took(bench: Bench) -> None:
    class NotBegun(LeaseLost):
        """Nothing was lost."""

    def lose(event: object) -> None:
        raise LeaseLost

    def stop(event: object) -> None:
        raise NotBegun

    metrics = Metrics()
    once = bench.once(hooks=[metrics.hook])

    once.run([{"id": "a"}], lose)
    once.run([{"id": "b"}], stop)

    assert metrics("lease_lost_total") == 1


def test_dead_letters_are_counted_when_no_attempt_is_left(bench: Bench) -> None:
    def fail(event: object) -> None:
        raise ValueError

    metrics = Metrics()
    once = bench.once(max_attempts=2, hooks=[metrics.hook])

    once.run([{"id": "a"}], fail)
    assert metrics("dead_letters_total", rule="id") is None
    once.run([{"id": "a"}], fail)
    assert metrics("dead_letters_total", rule="id") == 1


def test_the_cost_is_writes_times_their_price(bench: Bench) -> None:
    metrics = Metrics(write_price=DYNAMODB_WRITE)

    bench.once(hooks=[metrics.hook]).run([{"id": str(n)} for n in range(10)], lambda event: None)

    assert metrics("store_cost_dollars_total") == pytest.approx(20 * 0.625e-6)  # a claim and a commit each


def test_it_is_rendered_as_prometheus_reads_it(bench: Bench) -> None:
    metrics = Metrics()

    bench.once(hooks=[metrics.hook]).run([{"id": "a"}], lambda event: None)

    assert b'eventonce_events_total{outcome="processed",rule="id"} 1.0' in metrics.hook.render()


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    plotted = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"eventonce_\w+", expressions)}

    assert plotted == Metrics().names()


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["description"] for panel in panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${source}"}
    assert [each["name"] for each in dashboard["templating"]["list"]] == ["source"]


def test_the_dashboard_queries_existing_outcomes() -> None:
    named = set(re.findall(r'outcome=\\"(\w+)\\"', DASHBOARD.read_text()))

    assert named
    assert named <= set(OutcomeKind)


def test_a_rejection_by_a_handler_is_a_dead_letter(bench: Bench) -> None:
    def refuse(event: object) -> None:
        raise EventRejected("no")

    metrics = Metrics()
    bench.once(hooks=[metrics.hook]).run([{"id": "a"}], refuse)

    assert metrics("dead_letters_total", rule="id") == 1
