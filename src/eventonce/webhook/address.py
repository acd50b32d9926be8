"""`http://HOST:PORT/path?auth=...`: where to listen and who may send. It names secrets and never holds them."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

from eventonce.auth import Auth, Bearer, Hmac, Sns, Stripe, github, shopify
from eventonce.auth.signers import TOLERANCE
from eventonce.auth.sns import SNS_TOLERANCE
from eventonce.clock import duration
from eventonce.errors import ConfigError
from eventonce.urls import read_options

_COUNTS = ("max_body", "max_waiting")
_TIMES = ("deadline", "patience")


class ListenAddress(NamedTuple):
    """The host, port and path to listen on, who may send, and the other settings in the URL."""

    host: str
    port: int
    path: str
    auth: Auth | None
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{self.path}"


def read_url(url: str) -> ListenAddress:
    """Read the URL of a webhook. The secrets come from the environment variables that it names."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        _wrong(f"is not a URL: {error}")
    if parts.scheme != "http" or not parts.hostname or port is None:
        _wrong("write http://HOST:PORT/path (a proxy in front does TLS)")
    if parts.username is not None or parts.fragment:
        _wrong("a user or a # has no meaning here; name the variable of the secret with secret_env=NAME")
    options = read_options(parts.query, "source: http")
    scheme = options.pop("auth", "none")
    if scheme not in _SCHEMES:
        _wrong(f"unknown auth={scheme}; use {', '.join(_SCHEMES)}")
    names, make = _SCHEMES[scheme]
    valid_names = (*names, *_COUNTS, *_TIMES)
    for name in options:
        if name not in valid_names:
            _wrong(f"unknown option {name!r} with auth={scheme}; use {', '.join(valid_names)}")
    auth = make(options)
    settings = {name: _setting(name, options[name]) for name in (*_COUNTS, *_TIMES) if name in options}
    return ListenAddress(parts.hostname, port, unquote(parts.path) or "/", auth, settings)


def _setting(name: str, text: str) -> str | int:
    if name in _TIMES:
        if not duration(text, f"source: http: {name}"):
            _wrong(f"{name}={text} leaves no time")
        return text
    if not text.isdecimal() or not int(text):
        _wrong(f"{name}={text} is not a whole number above 0")
    return int(text)


def _secrets(options: Mapping[str, str]) -> list[str]:
    names = [name for name in options.get("secret_env", "").split(",") if name]
    if not names:
        _wrong("secret_env= names no environment variable; write secret_env=NAME, or NEW,OLD for two secrets")
    for name in names:
        if not os.environ.get(name, "").strip():
            _wrong(f"the environment variable {name} is not set or blank; set it to the secret and run again")
    return [os.environ[name].strip() for name in names]


def _hmac(options: Mapping[str, str]) -> Auth:
    if not options.get("header"):
        _wrong("auth=hmac needs header=; name the header that holds the signature")
    fields: Any = {name: options[name] for name in ("header", "encoding", "prefix", "timestamp") if name in options}
    tolerance = options.get("tolerance", TOLERANCE)
    return Hmac(*_secrets(options), tolerance=tolerance, trust_headers=_trusted_headers(options), **fields)


def _trusted_headers(options: Mapping[str, str]) -> list[str]:
    return [name for name in options.get("trust_headers", "").split(",") if name]


def _stripe(options: Mapping[str, str]) -> Auth:
    return Stripe(*_secrets(options), tolerance=options.get("tolerance", TOLERANCE))


def _sns(options: Mapping[str, str]) -> Auth:
    topics = [name for name in options.get("topic", "").split(",") if name]
    return Sns(*topics, tolerance=options.get("tolerance", SNS_TOLERANCE))


# The options of each scheme, and the function that makes it from them.
_SCHEMES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, str]], Auth | None]]] = {
    "none": ((), lambda options: None),
    "bearer": (("secret_env",), lambda options: Bearer(*_secrets(options))),
    "github": (
        ("secret_env", "trust_headers"),
        lambda options: github(*_secrets(options), trust_headers=_trusted_headers(options)),
    ),
    "shopify": (
        ("secret_env", "trust_headers"),
        lambda options: shopify(*_secrets(options), trust_headers=_trusted_headers(options)),
    ),
    "stripe": (("secret_env", "tolerance"), _stripe),
    "hmac": (("secret_env", "header", "encoding", "prefix", "timestamp", "tolerance", "trust_headers"), _hmac),
    "sns": (("topic", "tolerance"), _sns),
}


def _wrong(problem: str) -> NoReturn:
    raise ConfigError(f"source: http: {problem}")
