"""Stores by URL; a driver is imported only when its store is opened."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from eventonce.clock import Clock
from eventonce.errors import ConfigError, StoreUnusable
from eventonce.ports import Store

__all__ = ["check_url", "open_store", "store_file"]


def open_store(url: str, clock: Clock | None = None, *, create: bool = True) -> Store:
    """Open a store: `memory:` or `sqlite:///file.db`. Without `create`, only one that is there already."""
    check_url(url)
    return _OPENERS[url.partition(":")[0]](url, clock, create)


def check_url(url: str) -> None:
    """Raise if this is no URL of a store, without opening anything."""
    scheme, found, _ = url.partition(":")
    if not found or scheme not in _OPENERS:
        raise ConfigError(f"store: {_shown(url)!r} is not a store URL{_hint(scheme)}; use one of {_FORMS}")
    store_file(url)


def _memory(url: str, clock: Clock | None, create: bool) -> Store:
    from eventonce.stores.memory import MAX_KEYS, MemoryStore

    parts = urlsplit(url)
    if parts.netloc or parts.path:
        raise ConfigError(f"store: {url!r} names a place, but a memory store has none; use memory: or sqlite:///FILE")
    options = _options(url, parts.query, "max_keys")
    return MemoryStore(_count(url, options.get("max_keys", str(MAX_KEYS))), clock)


def _sqlite(url: str, clock: Clock | None, create: bool) -> Store:
    from eventonce.stores.sqlite import SQLiteStore

    file = str(store_file(url))
    options = _options(url, urlsplit(url).query, "shared")
    if not create and Path(file).parent.is_dir() and not Path(file).exists():
        raise StoreUnusable(f"store: {file}: there is no such file; check its name")
    return SQLiteStore(file, shared=_flag(url, options.get("shared", "false")), clock=clock)


_OPENERS: dict[str, Callable[[str, Clock | None, bool], Store]] = {"memory": _memory, "sqlite": _sqlite}
_FORMS = "memory:, sqlite:///FILE"


def store_file(url: str) -> str | None:
    """The file of a store that has one."""
    if not url.startswith("sqlite:"):
        return None
    parts = urlsplit(url)
    file = unquote(parts.path[1:])
    if parts.netloc or not file or file == ":memory:":
        raise ConfigError(f"store: {url!r} names no file; use sqlite:///FILE, sqlite:////ABSOLUTE/FILE or memory:")
    return file


def _hint(scheme: str) -> str:
    near = get_close_matches(scheme, _OPENERS, n=1)
    return f" (did you mean {near[0]}:?)" if near and near[0] != scheme else ""


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
    bare = url.partition("?")[0]
    scheme, _, rest = bare.partition("://")
    return f"{scheme}://***@{rest.rpartition('@')[2]}" if "@" in rest else bare


def _options(url: str, query: str, *known: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise ConfigError(f"store: {_shown(url)}: option {name!r} is not known; it takes {', '.join(known)}")
    return options


def _count(url: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"store: {_shown(url)}: max_keys={text!r} is not a whole number above 0")
    return int(text)


def _flag(url: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"store: {_shown(url)}: shared={text!r} is neither true nor false")
    return text == "true"
