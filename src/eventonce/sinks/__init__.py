"""Sinks and carriers, opened by URL. A driver is imported only when its sink is opened."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from eventonce.clients.drivers import from_extra
from eventonce.errors import ConfigError
from eventonce.ports import Carrier, Sink
from eventonce.sinks.file import FileSink
from eventonce.sinks.function import load_function

__all__ = ["open_carrier", "open_sink"]

# By scheme: the module with its `open_url(url)`, and the extra that installs its driver.
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


def open_sink(url: str) -> Sink | Callable[..., Any]:
    """Open a sink: `-` for standard output, a file, `python:package.module:function`, or a URL.

    No connection is made before the first event is sent.
    """
    if url.startswith("python:"):
        return load_function(url)
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FileSink(url)
    if scheme not in _MODULES:
        raise ConfigError(f"sink: {scheme}:// is not supported; use {_FORMS}")
    return cast(Sink, _open_url(url, "sink", *_MODULES[scheme]))


def open_carrier(url: str) -> Carrier:
    """Open a carrier: a service that takes several events in a call, and makes each call once."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _CARRIERS:
        raise ConfigError(f"publisher: unsupported URL {url!r:.60}; use {_CARRIER_FORMS}")
    sink = cast(Any, _open_url(url, "publisher", *_MODULES[scheme]))
    sink.tries = 1
    carrier: Carrier = sink
    return carrier


def _open_url(url: str, setting: str, module: str, extra: str) -> object:
    with from_extra(extra, f"{setting}: {url.partition(':')[0]}"):
        opener: Callable[[str], object] = import_module(f"eventonce.sinks.{module}").open_url
        return opener(url)
