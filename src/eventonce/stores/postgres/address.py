"""What the URL of a PostgreSQL server says: what libpq is told of it, and what may be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from eventonce.clock import duration
from eventonce.errors import ConfigError

TIMEOUT = 5000  # an answer is awaited so long


class Address(NamedTuple):
    """A server and its database."""

    url: str  # without our own options
    ours: Mapping[str, str]  # these
    timeout: int


def read(url: str, *known: str, what: str = "store") -> Address:
    """Take our own options off a URL: `timeout=5s` and those named here. Every other parameter is libpq's."""
    bare, _, query = url.partition("?")
    parts = [(each.partition("=")[0], each) for each in query.split("&") if each]
    ours = {name: unquote(each.partition("=")[2]) for name, each in parts if name in ("timeout", *known)}
    # Not decoded and encoded again: libpq does not take a plus for a space.
    rest = "&".join(each for name, each in parts if name not in ours)
    timeout = duration(ours.get("timeout", TIMEOUT / 1000), f"{what}: timeout")
    if not timeout:
        raise ConfigError(f"{what}: timeout=0 would give no server time to answer")
    for name in known:
        if ours.get(name, "true") not in ("true", "false"):
            raise ConfigError(f"{what}: {name}={ours[name]!r} is neither true nor false")
    return Address(f"{bare}?{rest}" if rest else bare, ours, timeout)


def settings(url: str, timeout: int, *known: str, what: str = "store") -> dict[str, Any]:
    """What libpq is told. Its own words on a wrong URL may hold the password, so they are not repeated."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        found = {"port": "unread"}
    # A password with a bare slash in it ends up as a port and a database, one with a bare at sign as a host.
    hosts = str(found.get("host", "")).split(",")  # of which a socket without a file begins with one
    misread = "@" in str(found.get("dbname", "")) or any("@" in host[1:] for host in hosts)
    if misread or not str(found.get("port", "0")).replace(",", "0").isdecimal():
        raise ConfigError(
            f"{what}: the URL cannot be read; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE, "
            f"each part %-encoded where it holds special characters; the options are {', '.join(known)} and libpq's"
        )
    return {"connect_timeout": -(-timeout // 1000), "application_name": "eventonce", **found}


def place(settings: Mapping[str, Any]) -> str:
    """What may be shown of them."""
    port = f":{settings['port']}" if "port" in settings else ""
    return f"postgresql://{settings.get('host', '')}{port}/{settings.get('dbname', '')}"
