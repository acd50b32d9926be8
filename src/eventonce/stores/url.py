"""What a store's URL says, and how it may be shown."""

from collections.abc import Mapping
from typing import NoReturn

from eventonce.clock import duration
from eventonce.errors import ConfigError


def redact_url(url: str) -> str:
    """A URL without what may be secret in it."""
    scheme, between, rest = url.partition("://" if "://" in url else ":")
    before, at, place = rest.rpartition("@")  # the last one, since a password may hold one too
    if "?" in before:  # in a password, or the other one in an option: which, nobody can tell
        return f"{scheme}{between}***"
    return f"{scheme}{between}{'***@' if at else ''}{place.partition('?')[0]}"


def options(url: str, *known: str) -> dict[str, str]:
    """The options behind the question mark, all of them known."""
    from urllib.parse import parse_qsl, urlsplit

    found = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name in found:
        if not name.isidentifier():  # it may be half a password
            wrong(url, "its options cannot be read; write special characters in a password %-encoded")
        if name not in known:
            wrong(url, f"option {name!r} is not known; it takes {', '.join(known)}")
    return found


def flag(url: str, found: Mapping[str, str], name: str) -> bool:
    """An option that is true or false, and false where it is not given."""
    text = found.get(name, "false")
    if text not in ("true", "false"):
        wrong(url, f"{name}={text!r} is neither true nor false")
    return text == "true"


def count(url: str, found: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number above 0."""
    text = found.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        wrong(url, f"{name}={text!r} is not a whole number above 0")
    return int(text)


def parse_timeout(text: str | float, what: str = "store") -> int:
    """How long an answer is awaited, in milliseconds."""
    found = duration(text, f"{what}: timeout")
    if not found:
        raise ConfigError(f"{what}: timeout=0 would give no server time to answer; write it like 5s")
    return found


def without(url: str, *names: str) -> str:
    """The URL without these options: what is left is the driver's own."""
    bare, _, query = url.partition("?")
    from urllib.parse import parse_qsl, quote, urlencode

    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name not in names]
    return f"{bare}?{urlencode(kept, quote_via=quote)}" if kept else bare


def wrong(url: str, why: str) -> NoReturn:
    """Say what is wrong with a URL."""
    raise ConfigError(f"store: {redact_url(url)}: {why}")
