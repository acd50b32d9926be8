"""The worker: takes deliveries from a source, runs them once, and settles them."""

from eventonce.worker.counts import Tally
from eventonce.worker.pool import Crew
from eventonce.worker.worker import Worker

__all__ = ["Crew", "Tally", "Worker"]
