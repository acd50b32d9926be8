"""Ways in, by URL."""

from eventonce.clock import Clock
from eventonce.errors import ConfigError
from eventonce.sources.file import FileSource

__all__ = ["FileSource", "open_source"]


def open_source(url: str, clock: Clock | None = None) -> FileSource:
    """Open a way in: a file of JSON lines, or `-` for standard input."""
    if "://" in url:
        raise ConfigError(f"source: {url.partition('://')[0]}:// is not a known way in; use a file, or - for stdin")
    return FileSource(url, clock)
