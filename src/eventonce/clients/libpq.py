"""Reading PostgreSQL URLs with libpq, and showing their address without secrets."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from eventonce.clients.passwords import refuse_blank_password
from eventonce.errors import ConfigError
from eventonce.urls import read_options

TIMEOUT = 5000  # milliseconds to wait for an answer


def read(url: str, label: str, *ours: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a URL into libpq's parameters and our own options with these names.

    Raise `ConfigError` without libpq's own message, which may contain the password.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    bare, _, query = url.partition("?")
    pairs = [(pair.partition("=")[0], pair) for pair in query.split("&") if pair]
    read_options("&".join(pair for name, pair in pairs if name in ours), label)
    # Not decoded and encoded again, because libpq does not read a plus as a space.
    remaining = "&".join(pair for name, pair in pairs if name not in ours)
    try:
        settings: dict[str, Any] = conninfo_to_dict(f"{bare}?{remaining}" if remaining else bare)
    except psycopg.Error:
        settings = {"port": "unread"}
    if _is_misread(settings):
        raise ConfigError(
            f"{label}: the URL cannot be parsed; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE, "
            f"each part %-encoded if it has special characters; the options are {', '.join([*ours, 'libpq'])}'s"
        )
    refuse_blank_password(url, f"{label}: {address(settings)}")
    return settings, {name: unquote(pair.partition("=")[2]) for name, pair in pairs if name in ours}


def _is_misread(settings: Mapping[str, Any]) -> bool:
    # A password with a bare slash in it is read as a port and a database, one with a bare at sign as a host.
    hosts = str(settings.get("host", "")).split(",")  # an abstract socket begins with an at sign
    if "@" in str(settings.get("dbname", "")) or any("@" in host[1:] for host in hosts):
        return True
    return not str(settings.get("port", "0")).replace(",", "0").isdecimal()


def address(settings: Mapping[str, Any]) -> str:
    """Return the address in libpq's parameters, without secrets."""
    port = f":{settings['port']}" if "port" in settings else ""
    return f"postgresql://{settings.get('host', '')}{port}/{settings.get('dbname', '')}"
