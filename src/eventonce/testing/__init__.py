"""For tests: trials of your own handlers, the contract of every store, and faults that a store must survive.

Needs pytest.
"""

from eventonce.testing.clock import ManualClock
from eventonce.testing.contract import Features, StoreContract
from eventonce.testing.faults import StoreFaults
from eventonce.testing.proxy import FaultProxy
from eventonce.testing.trial import TrialReport, try_handler

__all__ = ["FaultProxy", "Features", "ManualClock", "TrialReport", "StoreContract", "StoreFaults", "try_handler"]
