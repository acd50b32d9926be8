"""For tests: the contract every store must keep, and a clock that stands still. Needs pytest."""

from eventonce.testing.clock import ManualClock
from eventonce.testing.contract import Features, StoreContract

__all__ = ["Features", "ManualClock", "StoreContract"]
