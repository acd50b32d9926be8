"""eventonce: every event takes effect once, whichever way it arrives and however often."""

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.engine import Once
from eventonce.engine.context import Context
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
