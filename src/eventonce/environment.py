"""Settings from environment variables, and a password that stands apart from its URL."""

import os
from collections.abc import Iterable

from eventonce.errors import ConfigError

PREFIX = "EVENTONCE_"
_WITH_PASSWORD = ("redis", "rediss", "unix", "postgresql", "postgres")


def variable(name: str) -> str | None:
    """Return a setting from the environment, such as `store` from `EVENTONCE_STORE`. An empty one counts as absent."""
    return os.environ.get(PREFIX + name.upper(), "").strip() or None


def variables(names: Iterable[str]) -> dict[str, str]:
    """Return those of these settings that the environment has."""
    return {name: text for name in names if (text := variable(name)) is not None}


def is_disabled() -> bool:
    """Return whether `EVENTONCE_DISABLED` is set."""
    text = (variable("disabled") or "0").lower()
    if text not in ("0", "1", "false", "true"):
        raise ConfigError(f"EVENTONCE_DISABLED: {text!r} is neither 1 nor 0")
    return text in ("1", "true")


def with_password(url: str, password: str | None) -> str:
    """Return the URL of a store with a password that stands apart from it."""
    if password is None:
        return url
    if not isinstance(password, str):
        raise ConfigError(f"store_password: is of type {type(password).__name__}; pass a string")
    if not password.strip():
        raise ConfigError("store_password: is empty; set it to the password, or leave it out")
    scheme, _, rest = url.partition("://")
    if scheme not in _WITH_PASSWORD:
        raise ConfigError(f"store_password: {scheme.partition(':')[0]}: takes no password; leave store_password out")
    from urllib.parse import parse_qs, quote

    end = next((index for index, character in enumerate(rest) if character in "/?#"), len(rest))
    user, _, hosts = rest[:end].rpartition("@")
    if ":" in user or "password" in parse_qs(rest.partition("?")[2], keep_blank_values=True):
        raise ConfigError("store_password: the URL of the store has a password already; leave one of the two out")
    return f"{scheme}://{user}:{quote(password, safe='')}@{hosts}{rest[end:]}"
