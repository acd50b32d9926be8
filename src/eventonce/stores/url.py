"""Reading the URL of a store, and showing it without secrets."""

import re
from collections.abc import Mapping
from typing import NoReturn

from eventonce.clock import Duration, duration
from eventonce.errors import ConfigError


def redact_url(url: str) -> str:
    """Return a URL without what may be secret in it."""
    scheme, separator, rest = url.partition("://" if "://" in url else ":")
    credentials, at_sign, address = rest.rpartition("@")  # the last one, since a password may contain one too
    if "?" in credentials:  # either the password contains it, or the at sign belongs to an option
        return f"{scheme}{separator}***"
    return f"{scheme}{separator}{'***@' if at_sign else ''}{address.partition('?')[0]}"


def options(url: str, *valid_names: str) -> dict[str, str]:
    """Read the options after the question mark. Raise `ConfigError` if one is unknown."""
    from urllib.parse import parse_qsl, urlsplit

    query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name in query:
        if not name.isidentifier():  # it may be half a password
            reject(url, "its options cannot be read; write special characters in a password %-encoded")
        if name not in valid_names:
            reject(url, f"unknown option {name!r}; use {', '.join(valid_names)}")
    return query


def flag(url: str, query: Mapping[str, str], name: str) -> bool:
    """Return an option that is true or false. The default is false."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        reject(url, f"{name}={text!r} is neither true nor false")
    return text == "true"


def count(url: str, query: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a whole number above 0."""
    text = query.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        reject(url, f"{name}={text!r} is not a whole number above 0")
    return int(text)


def parse_timeout(text: Duration, label: str = "store") -> int:
    """Return how long to wait for an answer, in milliseconds."""
    timeout = duration(text, f"{label}: timeout")
    if not timeout:
        raise ConfigError(f"{label}: timeout=0 would give no server time to answer; write it like 5s")
    return timeout


def is_address(endpoint: str) -> bool:
    """Return whether this is the address of an HTTP server."""
    from urllib.parse import urlsplit

    try:
        port = urlsplit(endpoint).port
    except ValueError:
        return False
    return port != 0 and re.match(r"https?://[^/]", endpoint) is not None


def without(url: str, *names: str) -> str:
    """Return the URL without these options. The others are the driver's."""
    bare, _, query = url.partition("?")
    from urllib.parse import parse_qsl, quote, urlencode

    remaining = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name not in names]
    return f"{bare}?{urlencode(remaining, quote_via=quote)}" if remaining else bare


def reject(url: str, reason: str) -> NoReturn:
    """Raise `ConfigError` for a URL, without its secrets."""
    raise ConfigError(f"store: {redact_url(url)}: {reason}")
