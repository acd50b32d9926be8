"""For tests: the contract every store must keep, faults it must survive, real servers, and a clock that stands still.

Needs pytest.
"""

from eventonce.testing.clock import ManualClock
from eventonce.testing.contract import Features, StoreContract
from eventonce.testing.faults import StoreFaults
from eventonce.testing.proxy import FaultProxy

__all__ = ["FaultProxy", "Features", "ManualClock", "StoreContract", "StoreFaults"]
