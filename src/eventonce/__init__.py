"""eventonce: every event takes effect once, whichever way it arrives and however often."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventonce.claims.outcome import Action, Outcome, OutcomeKind
    from eventonce.engine import Once
    from eventonce.engine.context import Context, current
    from eventonce.errors import (
        ConfigError,
        EventBusy,
        EventExpired,
        EventOnceError,
        EventRejected,
        EventStale,
        LeaseLost,
        ResultUnavailable,
        StoreError,
        TooManyAttempts,
    )
    from eventonce.event import Event
    from eventonce.rules.rule import Rule
    from eventonce.stores import open_store

__version__ = "0.1.0"

__all__ = [
    # run events once
    "Once",
    "Rule",
    "open_store",
    # what a handler gets
    "Context",
    "Event",
    "current",
    # what became of an event
    "Action",
    "OutcomeKind",
    "Outcome",
    # what can go wrong
    "ConfigError",
    "EventBusy",
    "EventExpired",
    "EventOnceError",
    "EventRejected",
    "EventStale",
    "LeaseLost",
    "ResultUnavailable",
    "StoreError",
    "TooManyAttempts",
]

# The module of each name. The others are errors.
_MODULES = {
    "Once": "engine",
    "Rule": "rules.rule",
    "open_store": "stores",
    "Context": "engine.context",
    "current": "engine.context",
    "Event": "event",
    "Action": "claims.outcome",
    "OutcomeKind": "claims.outcome",
    "Outcome": "claims.outcome",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used. `eventonce --help` uses none, and so starts in half the time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"eventonce.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
