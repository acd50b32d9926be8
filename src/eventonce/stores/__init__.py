"""Stores by URL. A driver is imported only if its store is opened."""

from collections.abc import Callable
from importlib import import_module

from eventonce.clock import Clock
from eventonce.errors import ConfigError
from eventonce.ports import Store
from eventonce.stores.url import redact_url
from eventonce.urls import read_scheme

__all__ = ["check_url", "driver_extra", "has_server", "open_store", "store_file"]

# The module of each scheme, whose `open_url(url, clock, create)` opens the store, and the extra with its driver.
_MODULES = {
    "memory": ("memory", ""),
    "sqlite": ("sqlite", ""),
    "journal": ("journal", ""),
    "redis": ("redis.store", "redis"),
    "rediss": ("redis.store", "redis"),
    "unix": ("redis.store", "redis"),
    "dynamodb": ("dynamodb.store", "dynamodb"),
    "s3": ("s3.store", "aws"),
    "postgresql": ("postgres.store", "postgres"),
    "postgres": ("postgres.store", "postgres"),
}
_FORMS = {
    "memory": "memory:",
    "sqlite": "sqlite:///FILE",
    "journal": "journal:///FILE",
    "redis": "redis://HOST",
    "rediss": "rediss://HOST",
    "unix": "unix:///SOCKET",
    "dynamodb": "dynamodb://TABLE",
    "s3": "s3://BUCKET/PREFIX",
    "postgresql": "postgresql://HOST/DATABASE",
    "postgres": "postgresql://HOST/DATABASE",
}


def open_store(url: str, clock: Clock | None = None, *, create: bool = True) -> Store:
    """Open the store of a URL. Without `create`, raise if it does not exist."""
    check_url(url)
    scheme = url.partition(":")[0]
    module, extra = _MODULES[scheme]
    from eventonce.clients.drivers import from_extra

    with from_extra(extra, f"store: {scheme}"):
        opener: Callable[[str, Clock | None, bool], Store] = import_module(f"eventonce.stores.{module}").open_url
    return opener(url, clock, create)


def check_url(url: str) -> None:
    """Raise `ConfigError` if this is not the URL of a store. Open nothing."""
    read_scheme(url, _FORMS, "store", files=False)
    from urllib.parse import urlsplit

    try:
        urlsplit(url)
    except ValueError:  # whose message may contain a password
        raise ConfigError(f"store: {redact_url(url)!r} cannot be parsed; check its address") from None
    store_file(url)


def has_server(url: str) -> bool:
    """Return whether the store of a URL needs a server."""
    return bool(driver_extra(url))


def driver_extra(url: str) -> str:
    """Return the extra that installs the driver of a store, or an empty string."""
    return _MODULES.get(url.partition(":")[0], ("", ""))[1]


def store_file(url: str) -> str | None:
    """Return the file in the URL of a store, or None if its kind has none."""
    if not url.startswith(("sqlite:", "journal:")):
        return None
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    file = unquote(parts.path[1:])
    if parts.netloc or not file or file == ":memory:" or "\0" in file:
        scheme = parts.scheme
        raise ConfigError(f"store: {url!r} names no file; use {scheme}:///FILE, {scheme}:////ABSOLUTE/FILE or memory:")
    return file
