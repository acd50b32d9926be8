"""The pytest plugin: each scenario of a trial as a test of its own.

# conftest.py
pytest_plugins = ["eventonce.testing.plugin"]

def test_charge(once_trial):
    once_trial(charge, order, effects=lambda: charges, reset=charges.clear)
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.engine.context import HandlerFunction
from eventonce.testing.trial import SCENARIOS, Effects, Rules, try_handler


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--once-store",
        default=None,
        help="The store to try handlers on.  [default: a SQLite file for each test]",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "once_trial" in metafunc.fixturenames:
        metafunc.parametrize("once_trial", SCENARIOS, indirect=True)


@pytest.fixture
def once_trial(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Tries a handler in one scenario, and fails where an effect happened twice or not at all."""
    url: str = request.config.getoption("--once-store") or f"sqlite:///{tmp_path / 'trial.db'}?shared=true"

    def try_once(
        handler: HandlerFunction,
        event: object,
        *,
        effects: Effects,
        reset: Callable[[], object],
        store: str = url,
        rules: Rules = (),
    ) -> None:
        __tracebackhide__ = True
        report = try_handler(
            handler, event, effects=effects, reset=reset, store=store, rules=rules, scenarios=[request.param]
        )
        if not report.good:
            pytest.fail(str(report), pytrace=False)

    return try_once
