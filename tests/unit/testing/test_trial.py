"""Trials of handlers: a naive handler fails, and good ones pass, on any store."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce import Event, Once, Rule
from eventonce.testing import try_handler
from eventonce.testing.trial import SCENARIOS

ORDER = {"id": "1", "source": "shop", "detail-type": "Order", "detail": {"orderId": "o-1"}}
WHERE_TWICE = ["a crash between effect and commit", "a lost lease"]  # for effects outside the store

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/claims.db"])
def test_a_plain_effect_happens_twice_only_if_a_worker_dies_or_is_cut_off(store: str, tmp_path: Path) -> None:
    charges: list[str] = []

    def charge(event: Event) -> None:
        charges.append(event.data["orderId"])

    report = try_handler(charge, ORDER, effects=lambda: charges, reset=charges.clear, store=store.format(tmp_path))

    assert [each.scenario for each in report.differences] == WHERE_TWICE
    assert [each.twice for each in report.differences] == [{"o-1": 1}] * 2
    assert "a crash between effect and commit: 'o-1' happened twice" in str(report)
    assert "ctx.tx" in str(report)


def test_an_effect_that_overwrites_itself_passes() -> None:
    state: dict[str, str] = {}

    async def update(event: Event) -> None:
        state[event.data["orderId"]] = event.id

    report = try_handler(update, ORDER, effects=lambda: list(state.items()), reset=state.clear)

    assert report.good, report
    assert list(report.scenarios) == list(SCENARIOS)
    assert "the same effects in all of" in str(report)


def test_an_async_handler_with_a_plain_effect_fails() -> None:
    charges: list[str] = []

    async def charge(event: Event, ctx: Any) -> None:
        charges.append(event.data["orderId"])

    report = try_handler(charge, ORDER, effects=lambda: charges, reset=charges.clear)

    assert [each.scenario for each in report.differences] == WHERE_TWICE


def shop(file: Path) -> tuple[Callable[..., None], Callable[[], list[Any]], Callable[[], object]]:
    """Return a handler with its effect in the store's database, a function for its effects, and one to undo them."""

    def ship(event: Event, ctx: Any) -> None:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS shipments (order_id TEXT)")
        ctx.tx.execute("INSERT INTO shipments VALUES (?)", (event.data["orderId"],))

    def ask(statement: str) -> list[Any]:
        connection = sqlite3.connect(file, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError:  # nothing is shipped yet
            return []
        finally:
            connection.close()

    return ship, lambda: ask("SELECT order_id FROM shipments"), lambda: ask("DELETE FROM shipments")


def test_an_effect_in_the_stores_own_transaction_passes(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    ship, shipments, undo = shop(file)

    report = try_handler(ship, ORDER, effects=shipments, reset=undo, store=f"sqlite:///{file}?shared=true")

    assert report.good, report


def test_a_rule_that_runs_replays_again_is_reported() -> None:
    charges: list[str] = []
    again = Rule(name="again", key="id", replay="reprocess")

    report = try_handler(
        lambda event: charges.append(event.id),
        ORDER,
        effects=lambda: charges,
        reset=charges.clear,
        rules=again,
        scenarios=["a copy after it", "a replay"],
    )

    assert [str(each) for each in report.differences] == ["a replay: '1' happened twice"]


def test_a_missing_effect_is_reported() -> None:
    charges: list[str] = []
    runs: list[str] = []

    def charge(event: Event) -> None:
        runs.append(event.id)
        if len(runs) == 1:
            charges.append(event.id)

    report = try_handler(charge, ORDER, effects=lambda: charges, reset=charges.clear, scenarios=["a copy after it"])

    assert str(report).startswith("a copy after it: '1' did not happen")


class Counting:
    """A handler as a method that gets the context by the name of its parameter."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def handle(self, event: Event, *, ctx: Any) -> None:
        self.keys.append(ctx.idempotency_key)


def test_a_method_is_tried_and_its_idempotency_key_is_the_same_in_every_scenario() -> None:
    counting = Counting()

    report = try_handler(counting.handle, ORDER, effects=lambda: counting.keys, reset=counting.keys.clear)

    assert [each.scenario for each in report.differences] == WHERE_TWICE
    assert not any(each.missing for each in report.differences)


def test_a_decorated_handler_is_tried_without_its_decorator() -> None:
    charges: list[str] = []
    with Once("memory:") as once:

        @once
        def charge(event: Event) -> None:
            charges.append(event.id)

        report = try_handler(charge, ORDER, effects=lambda: charges, reset=charges.clear, scenarios="a lost lease")

    assert str(report).startswith("a lost lease: '1' happened twice")


def test_a_store_can_be_used_for_trial_after_trial_and_keeps_nothing(tmp_path: Path) -> None:
    charges: list[str] = []
    file = tmp_path / "claims.db"
    for _ in range(2):
        report = try_handler(
            lambda event: charges.append(event.id),
            ORDER,
            effects=lambda: charges,
            reset=charges.clear,
            store=f"sqlite:///{file}",
            scenarios=["a copy after it", "a replay"],
        )
        assert report.good, report

    connection = sqlite3.connect(file)
    for table in ("eventonce_open", "eventonce_done"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()


def test_effects_that_one_run_does_not_have_are_reported() -> None:
    done: list[str] = []

    def handle(event: Event, ctx: Any) -> None:
        done.extend(["line", "line"] if ctx.attempt == 1 else ["line", "retried"])

    report = try_handler(handle, ORDER, effects=lambda: done, reset=done.clear, scenarios="a redrive")

    assert str(report).startswith(
        "a redrive: 'retried' happened once and should not, 'line' happened once instead of twice"
    )


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scenario 'a storm'; use a copy after it"):
        try_handler(lambda event: None, ORDER, effects=lambda: ["x"], reset=lambda: None, scenarios=["a storm"])


def test_unhashable_effects_are_refused() -> None:
    effects: Any = lambda: [{"a": 1}]  # noqa: E731
    with pytest.raises(TypeError, match="such as strings or tuples"):
        try_handler(lambda event: None, ORDER, effects=effects, reset=lambda: None)


def test_a_run_without_effects_is_refused() -> None:
    with pytest.raises(ValueError, match="has no effects"):
        try_handler(lambda event: None, ORDER, effects=list, reset=lambda: None)


def test_a_handler_that_raises_raises() -> None:
    def broken(event: Event) -> None:
        raise KeyError("orderId")

    with pytest.raises(KeyError):
        try_handler(broken, ORDER, effects=lambda: ["x"], reset=lambda: None)


def test_the_plugin_makes_a_test_of_each_scenario(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["eventonce.testing.plugin"]')
    pytester.makepyfile(
        """
        charges = []
        order = {"id": "1", "source": "shop", "detail-type": "Order", "detail": {"orderId": "o-1"}}

        def charge(event):
            charges.append(event.data["orderId"])

        def test_charge(once_trial):
            once_trial(charge, order, effects=lambda: charges, reset=charges.clear)
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(["*a lost lease: 'o-1' happened twice*"])
