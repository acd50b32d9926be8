"""Commands that run in the process of the tests leave its logging and its hooks as they were."""

import logging
import sys
import threading
from collections.abc import Iterator

import pytest

LOGGERS = ["", "eventonce", "eventonce.cli", "eventonce.outage", "eventonce.patience", "py.warnings"]


@pytest.fixture(autouse=True)
def logging_and_hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    states = [(each.level, each.propagate, [*each.handlers], [*each.filters]) for each in loggers]
    yield
    logging.captureWarnings(capture=False)
    for logger, (level, propagate, handlers, filters) in zip(loggers, states, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers
        logger.filters[:] = filters
