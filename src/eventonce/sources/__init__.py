"""Ways in, by URL."""

from typing import TYPE_CHECKING

from eventonce.clock import Clock
from eventonce.errors import ConfigError
from eventonce.sources.file import FileSource

if TYPE_CHECKING:
    from eventonce.sources.sqs import SqsSource

__all__ = ["FileSource", "check_source", "open_source"]


def open_source(url: str, clock: Clock | None = None) -> "FileSource | SqsSource":
    """Open a way in: a file of JSON lines, `-` for standard input, or a queue as `sqs://NAME`."""
    check_source(url)
    if url.startswith("sqs://"):
        from eventonce.sources.sqs import SqsSource

        return SqsSource(url, clock)
    return FileSource(url, clock)


def check_source(url: str) -> None:
    """Raise if this is no way in, without opening it."""
    if url.startswith("sqs://"):
        from eventonce.sources.sqs import read_url

        read_url(url)
    elif "://" in url:
        raise ConfigError(
            f"source: {url.partition('://')[0]}:// is not a known way in; use a file, - for stdin, or sqs://QUEUE"
        )
