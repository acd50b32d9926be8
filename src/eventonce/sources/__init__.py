"""Ways in, by URL."""

from eventonce.clock import Clock
from eventonce.errors import ConfigError
from eventonce.sources.file import FileSource

__all__ = ["FileSource", "check_source", "open_source"]


def open_source(url: str, clock: Clock | None = None) -> FileSource:
    """Open a way in: a file of JSON lines, or `-` for standard input."""
    check_source(url)
    return FileSource(url, clock)


def check_source(url: str) -> None:
    """Raise if this is no way in, without opening it."""
    if "://" in url:
        raise ConfigError(f"source: {url.partition('://')[0]}:// is not a known way in; use a file, or - for stdin")
