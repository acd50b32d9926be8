"""The worker that suits a source."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventonce.engine import Once
from eventonce.ports import DeadLetterSink, Sink, Source
from eventonce.sources import FileSource, Requests
from eventonce.worker.pool import THREADS, WorkerPool
from eventonce.worker.worker import Watcher, Worker

if TYPE_CHECKING:
    from eventonce.worker.request_server import RequestServer
else:
    RequestServer = Any  # so that type hints can be read without uvicorn

_FILE_BATCH = 100  # also of requests
_QUEUE_BATCH = 10  # one poll: a handler that hangs holds up as many


def open_worker(
    once: Once,
    source: Source,
    handler: Sink | Callable[..., Any],
    dead_letters: DeadLetterSink,
    *,
    batch: int | None = None,
    threads: int | None = None,
    watch: Watcher = lambda delivery, outcome: None,
) -> "Worker | WorkerPool | RequestServer":
    """Return the worker for a source.

    A `Worker` reads a file to its end. A `WorkerPool` works on a queue or a stream, and a `RequestServer` on requests,
    until they are stopped.
    """
    parts = (once, source, handler, dead_letters)
    if isinstance(source, FileSource):
        return Worker(*parts, batch=batch or _FILE_BATCH, watch=watch)
    threads = threads or THREADS
    if not isinstance(source, Requests):
        return WorkerPool(*parts, batch=batch or _QUEUE_BATCH, threads=threads, watch=watch)
    from eventonce.worker.request_server import RequestServer  # uvicorn and asyncio, which no other worker needs

    return RequestServer(once, source, handler, dead_letters, batch=batch or _FILE_BATCH, threads=threads, watch=watch)
