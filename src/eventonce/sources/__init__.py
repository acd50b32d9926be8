"""Sources, opened by URL."""

from collections.abc import Callable

from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError
from eventonce.ports import Source, Store
from eventonce.sources.file import FileSource
from eventonce.sources.requests import Requests
from eventonce.urls import file_name, read_scheme

__all__ = ["FileSource", "Requests", "check_source", "open_source"]

_FORMS = {
    "sqs": "sqs://QUEUE",
    "kinesis": "kinesis://STREAM",
    "dynamodbstreams": "dynamodbstreams://TABLE",
    "http": "http://HOST:PORT/PATH",
}
_STREAMS = ("kinesis://", "dynamodbstreams://")


def open_source(
    url: str, clock: Clock | None = None, *, store: Callable[[], Store] | None = None, consumer: str = "default"
) -> Source:
    """Open a source: a file of JSON lines, `-` for standard input, a queue, a stream, or an address for requests.

    The workers of a consumer share a stream through the store. The stream opens its own connection to it.
    """
    check_source(url)
    if url.startswith("http://"):
        return Requests(url)
    if url.startswith(_STREAMS):
        return _open_stream(url, clock or SystemClock(), store, consumer)
    if url.startswith("sqs://"):
        from eventonce.sources.sqs import SqsSource

        return SqsSource(url, clock)
    return FileSource(file_name(url) or url, clock)


def check_source(url: str) -> None:
    """Raise `ConfigError` if a URL names no source. Nothing is opened."""
    read_scheme(url, _FORMS, "source")
    if url.startswith("sqs://"):
        from eventonce.sources.sqs import read_url

        read_url(url)
    elif url.startswith(_STREAMS):
        from eventonce.sources.aws_stream import read_url as read_stream_url

        read_stream_url(url)


def _open_stream(url: str, clock: Clock, store: Callable[[], Store] | None, consumer: str) -> Source:
    from eventonce.sources.aws_stream import read_url
    from eventonce.sources.dynamodb_streams import DynamoDBStream
    from eventonce.sources.kinesis import KinesisStream
    from eventonce.sources.shard_source import ShardSource

    if store is None:
        raise ConfigError(f"source: {url.partition('?')[0]} is shared through a store; read it with eventonce run")
    options = read_url(url)
    stream = KinesisStream(options, clock) if url.startswith("kinesis:") else DynamoDBStream(options, clock)
    return ShardSource(stream, store(), consumer, wait=options.wait, lease=options.lease, clock=clock)
