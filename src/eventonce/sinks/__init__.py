"""Ways out, by URL; a driver is imported only when its sink is opened."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from eventonce.errors import ConfigError, MissingDriver
from eventonce.ports import Sink
from eventonce.sinks.dead_letter import DeadLetters
from eventonce.sinks.file import FileSink
from eventonce.sinks.function import load_function

__all__ = ["DeadLetters", "open_dead_letters", "open_sink"]

# The module of each scheme, whose `open_url(url)` opens the sink; and the extra that brings its driver.
_MODULES = {
    "http": ("http", "http"),
    "https": ("http", "http"),
    "sqs": ("sqs", "aws"),
    "sns": ("sns", "aws"),
    "events": ("events", "aws"),
}
_FORMS = "a file, - for stdout, python:package.module:function, https://HOST, sqs://QUEUE, sns://TOPIC or events://BUS"


def open_sink(url: str) -> Sink | Callable[..., Any]:
    """Open a way out: `-` for standard output, a file, `python:package.module:function`, or a URL.

    Nothing is connected to before the first event is sent.
    """
    if url.startswith("python:"):
        return load_function(url)
    scheme, found, _ = url.partition("://")
    return _open_url(url, scheme) if found and scheme in _MODULES else FileSink(_file(url, "sink", f"use {_FORMS}"))


def open_dead_letters(url: str) -> DeadLetters:
    """Open a place for dead letters: a file, or `-` for standard output."""
    return DeadLetters(_file(url, "dead_letter", "use a file, or - for stdout"))


def _open_url(url: str, scheme: str) -> Sink:
    module, extra = _MODULES[scheme]
    try:
        opener: Callable[[str], Sink] = import_module(f"eventonce.sinks.{module}").open_url
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("eventonce"):
            raise
        raise MissingDriver(
            f"sink: {scheme}: needs the Python package {error.name}; install it with pip install 'eventonce[{extra}]'"
        ) from error
    return opener(url)


def _file(url: str, what: str, remedy: str) -> str:
    if "://" in url:
        raise ConfigError(f"{what}: {url.partition('://')[0]}:// is not a known way out; {remedy}")
    return url
