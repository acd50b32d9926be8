"""Ways out, by URL."""

from collections.abc import Callable
from typing import Any

from eventonce.errors import ConfigError
from eventonce.ports import Sink
from eventonce.sinks.dead_letter import DeadLetters
from eventonce.sinks.file import FileSink
from eventonce.sinks.function import load_function

__all__ = ["DeadLetters", "open_dead_letters", "open_sink"]


def open_sink(url: str) -> Sink | Callable[..., Any]:
    """Open a way out: `-` for standard output, a file, or `python:package.module:function`."""
    if url.startswith("python:"):
        return load_function(url)
    return FileSink(_file(url, "sink", "use a file, - for stdout, or python:package.module:function"))


def open_dead_letters(url: str) -> DeadLetters:
    """Open a place for dead letters: a file, or `-` for standard output."""
    return DeadLetters(_file(url, "dead_letter", "use a file, or - for stdout"))


def _file(url: str, what: str, remedy: str) -> str:
    if "://" in url:
        raise ConfigError(f"{what}: {url.partition('://')[0]}:// is not a known way out; {remedy}")
    return url
