"""Stores by URL; a driver is imported only when its store is opened."""

from collections.abc import Callable
from importlib import import_module

from eventonce.clients.drivers import from_extra
from eventonce.clock import Clock
from eventonce.errors import ConfigError
from eventonce.ports import Store
from eventonce.stores.url import redact_url

__all__ = ["check_url", "has_server", "open_store", "store_file"]

# The module of each scheme, whose `open_url(url, clock, create)` opens the store; and the extra that brings its driver.
_MODULES = {
    "memory": ("memory", ""),
    "sqlite": ("sqlite", ""),
    "journal": ("journal", ""),
    "redis": ("redis.store", "redis"),
    "rediss": ("redis.store", "redis"),
    "unix": ("redis.store", "redis"),
    "dynamodb": ("dynamodb.store", "dynamodb"),
    "postgresql": ("postgres.store", "postgres"),
}
_FORMS = "memory:, sqlite:///FILE, journal:///FILE, redis://HOST, dynamodb://TABLE, postgresql://HOST/DATABASE"


def open_store(url: str, clock: Clock | None = None, *, create: bool = True) -> Store:
    """Open the store of a URL. Without `create`, only one that is there already."""
    check_url(url)
    scheme = url.partition(":")[0]
    module, extra = _MODULES[scheme]
    with from_extra(extra, f"store: {scheme}"):
        opener: Callable[[str, Clock | None, bool], Store] = import_module(f"eventonce.stores.{module}").open_url
    return opener(url, clock, create)


def check_url(url: str) -> None:
    """Raise if this is no URL of a store, without opening anything."""
    scheme, found, _ = url.partition(":")
    if not found or scheme not in _MODULES:
        raise ConfigError(f"store: {redact_url(url)!r} is not a store URL{_hint(scheme)}; use one of {_FORMS}")
    from urllib.parse import urlsplit

    try:
        urlsplit(url)
    except ValueError:  # whose words may hold a password
        raise ConfigError(f"store: {redact_url(url)!r} cannot be read; is its address written right?") from None
    store_file(url)


def has_server(url: str) -> bool:
    """Whether the store of a URL lives in a server."""
    return bool(_MODULES.get(url.partition(":")[0], ("", ""))[1])


def store_file(url: str) -> str | None:
    """The file of a store that has one."""
    if not url.startswith(("sqlite:", "journal:")):
        return None
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    file = unquote(parts.path[1:])
    if parts.netloc or not file or file == ":memory:" or "\0" in file:
        it = parts.scheme
        raise ConfigError(f"store: {url!r} names no file; use {it}:///FILE, {it}:////ABSOLUTE/FILE or memory:")
    return file


def _hint(scheme: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(scheme, _MODULES, n=1)
    return f" (did you mean {near[0]}:?)" if near and near[0] != scheme else ""
