"""Sinks and carriers, opened by URL. A driver is imported only when its sink is opened."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from eventonce.clients.drivers import from_extra
from eventonce.ports import Carrier, Sink
from eventonce.sinks.file import FileSink
from eventonce.sinks.function import load_function
from eventonce.urls import file_name, read_scheme

__all__ = ["check_sink", "driver_extra", "open_carrier", "open_sink"]

# By scheme: the module with its `open_url(url)`, and the extra that installs its driver.
_MODULES = {
    "http": ("http", "http"),
    "https": ("http", "http"),
    "sqs": ("sqs", "aws"),
    "sns": ("sns", "aws"),
    "events": ("events", "aws"),
    "kinesis": ("kinesis", "aws"),
}
_CARRIERS = {"events": "events://BUS", "sns": "sns://TOPIC", "sqs": "sqs://QUEUE", "kinesis": "kinesis://STREAM"}
_FORMS = {
    "python": "python:package.module:function",
    "https": "https://HOST",
    "http": "http://HOST",
    **_CARRIERS,
}


def open_sink(url: str) -> Sink | Callable[..., Any]:
    """Open a sink: `-` for standard output, a file, `python:package.module:function`, or a URL.

    No connection is made before the first event is sent.
    """
    scheme = check_sink(url)
    if scheme == "python":
        return load_function(url)
    if not scheme:
        return FileSink(file_name(url) or url)
    return cast(Sink, _open_url(url, "sink", *_MODULES[scheme]))


def check_sink(url: str) -> str:
    """Return the scheme of a sink, or an empty string for a file. Raise `ConfigError` if it is neither."""
    return read_scheme(url, _FORMS, "sink")


def driver_extra(url: str) -> str:
    """Return the extra that installs the driver of a sink, or an empty string."""
    return _MODULES.get(check_sink(url), ("", ""))[1]


def open_carrier(url: str) -> Carrier:
    """Open a carrier: a service that takes several events in a call, and makes each call once."""
    scheme = read_scheme(url, _CARRIERS, "publisher", files=False)
    sink = cast(Any, _open_url(url, "publisher", *_MODULES[scheme]))
    sink.tries = 1
    carrier: Carrier = sink
    return carrier


def _open_url(url: str, setting: str, module: str, extra: str) -> object:
    with from_extra(extra, f"{setting}: {url.partition(':')[0]}"):
        opener: Callable[[str], object] = import_module(f"eventonce.sinks.{module}").open_url
        return opener(url)
