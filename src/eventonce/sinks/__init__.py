"""Ways out, by URL; a driver is imported only when its sink is opened."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from eventonce.errors import ConfigError, MissingDriver
from eventonce.ports import Carrier, DeadLetters, Sink
from eventonce.sinks.dead_file import DeadFile
from eventonce.sinks.dead_letter import keep
from eventonce.sinks.file import FileSink
from eventonce.sinks.function import load_function

__all__ = ["DeadLetters", "keep", "open_carrier", "open_dead_letters", "open_sink"]

# The module of each scheme, whose `open_url(url)` opens the sink; and the extra that brings its driver.
_MODULES = {
    "http": ("http", "http"),
    "https": ("http", "http"),
    "sqs": ("sqs", "aws"),
    "sns": ("sns", "aws"),
    "events": ("events", "aws"),
    "kinesis": ("kinesis", "aws"),
}
_FORMS = (
    "a file, - for stdout, python:package.module:function, https://HOST, sqs://QUEUE, sns://TOPIC, events://BUS "
    "or kinesis://STREAM"
)
_CARRIERS = ("events", "sns", "sqs", "kinesis")
_CARRIER_FORMS = "events://BUS, sns://TOPIC, sqs://QUEUE or kinesis://STREAM"
# The same for dead letters.
_DEAD = {
    "sqs": ("dead_queue", "aws"),
    "sqlite": ("dead_table", ""),
    "postgresql": ("dead_table", "postgres"),
}
_DEAD_FORMS = (
    "a file, - for stdout, sqs://QUEUE, sqlite:///FILE, postgresql://HOST/DATABASE, or store for a table of it"
)


def open_sink(url: str) -> Sink | Callable[..., Any]:
    """Open a way out: `-` for standard output, a file, `python:package.module:function`, or a URL.

    Nothing is connected to before the first event is sent.
    """
    if url.startswith("python:"):
        return load_function(url)
    scheme, found, _ = url.partition("://")
    if found and scheme in _MODULES:
        return cast(Sink, _open_url(url, "sink", *_MODULES[scheme]))
    return FileSink(_file(url, "sink", f"use {_FORMS}"))


def open_carrier(url: str) -> Carrier:
    """Open a service that takes several events in a call. It makes each call once, as a carrier does."""
    scheme, found, _ = url.partition("://")
    if not found or scheme not in _CARRIERS:
        raise ConfigError(f"publisher: {url!r:.60} is no place to publish to; use {_CARRIER_FORMS}")
    sink = cast(Any, _open_url(url, "publisher", *_MODULES[scheme]))
    sink.tries = 1
    carrier: Carrier = sink
    return carrier


def open_dead_letters(url: str) -> DeadLetters:
    """Open a place for dead letters: a file, `-` for standard output, a queue or a table of a database."""
    scheme, found, _ = url.partition("://")
    if found and scheme in _DEAD:
        return cast(DeadLetters, _open_url(url, "dead_letter", *_DEAD[scheme]))
    return DeadFile(_file(url, "dead_letter", f"use {_DEAD_FORMS}"))


def _open_url(url: str, what: str, module: str, extra: str) -> object:
    try:
        opener: Callable[[str], object] = import_module(f"eventonce.sinks.{module}").open_url
        return opener(url)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("eventonce"):
            raise
        raise MissingDriver(
            f"{what}: {url.partition(':')[0]}: needs the Python package {error.name}; "
            f"install it with pip install 'eventonce[{extra}]'"
        ) from error


def _file(url: str, what: str, remedy: str) -> str:
    if "://" in url:
        raise ConfigError(f"{what}: {url.partition('://')[0]}:// is not a known way out; {remedy}")
    return url
