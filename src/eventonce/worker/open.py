"""The worker that suits a pipeline's source."""

from typing import TYPE_CHECKING

from eventonce.sources import FileSource, Requests
from eventonce.wire import Pipeline, Settings
from eventonce.worker.pool import THREADS, WorkerPool
from eventonce.worker.worker import Watcher, Worker

if TYPE_CHECKING:
    from eventonce.worker.request_server import RequestServer

_FILE_BATCH = 100  # also of requests
_QUEUE_BATCH = 10  # one poll: a handler that hangs holds up as many


def open_worker(
    pipeline: Pipeline, settings: Settings, watch: Watcher = lambda delivery, outcome: None
) -> "Worker | WorkerPool | RequestServer":
    """Return the worker for a pipeline that `settings` wired.

    A `Worker` reads a file to its end. A `WorkerPool` works on a queue or a stream, and a `RequestServer` on requests,
    until they are stopped.
    """
    threads = settings.threads or THREADS
    if isinstance(pipeline.source, Requests):
        from eventonce.worker.request_server import RequestServer  # uvicorn and asyncio, which no other worker needs

        batch = settings.batch or _FILE_BATCH
        return RequestServer(pipeline, pipeline.source, batch=batch, threads=threads, watch=watch)
    wired = (pipeline.once, pipeline.source, pipeline.handler, pipeline.dead_letters)
    if isinstance(pipeline.source, FileSource):
        return Worker(*wired, batch=settings.batch or _FILE_BATCH, watch=watch)
    return WorkerPool(*wired, batch=settings.batch or _QUEUE_BATCH, threads=threads, watch=watch)
