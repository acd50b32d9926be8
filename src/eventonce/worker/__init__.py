"""The worker: takes deliveries from a source, runs them once, and settles them."""

from eventonce.worker.counts import OutcomeCounts
from eventonce.worker.open import open_worker
from eventonce.worker.pool import WorkerPool
from eventonce.worker.worker import Worker

__all__ = ["OutcomeCounts", "Worker", "WorkerPool", "open_worker"]
