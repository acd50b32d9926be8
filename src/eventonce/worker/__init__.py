"""The worker: takes deliveries from a source, runs them once, and settles them."""

from eventonce.worker.crew import Crew
from eventonce.worker.tally import Tally
from eventonce.worker.worker import Worker

__all__ = ["Crew", "Tally", "Worker"]
